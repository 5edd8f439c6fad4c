//! Which application a program belongs to: its name from the environment, and the id of a name.

/// Id of an application by its name: the same 64-bit hash that the scheduler uses
/// (`AppId::from_name`): FNV-1a over the bytes, then the finaliser of MurmurHash3.
pub const fn app_id(name: &str) -> u64 {
    let bytes = name.as_bytes();
    let mut hash = 0xcbf2_9ce4_8422_2325u64;
    let mut i = 0;
    while i < bytes.len() {
        hash = (hash ^ bytes[i] as u64).wrapping_mul(0x0000_0100_0000_01b3);
        i += 1;
    }
    hash = (hash ^ (hash >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    hash = (hash ^ (hash >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    hash ^ (hash >> 33)
}

/// `apart`: each step of a Slurm job is an application of its own, and not the job.
const STEPS: &str = "TIDEGATE_STEPS";

/// Name of the application to which an environment belongs: `TIDEGATE_APP`, else the batch system's
/// job, else the MPI launcher's name space. None if the environment has none of them. With
/// `TIDEGATE_STEPS=apart` a step of a Slurm job has a name of its own, such as `slurm-17.0`.
///
/// `lookup` returns the value of a variable, so that callers can ask about another process's
/// environment.
///
/// ```
/// use tidegate_client::application_name_from_env;
///
/// let job = |name: &str| match name {
///     "SLURM_JOB_ID" => Some("17".to_string()),
///     "SLURM_STEP_ID" => Some("0".to_string()),
///     _ => None,
/// };
/// assert_eq!(application_name_from_env(job).as_deref(), Some("slurm-17"));
/// ```
pub fn application_name_from_env(lookup: impl Fn(&str) -> Option<String>) -> Option<String> {
    let set = |name: &str| lookup(name).filter(|value| !value.is_empty());
    if let Some(name) = set("TIDEGATE_APP") {
        return Some(name);
    }
    if let Some(job) = set("SLURM_JOB_ID") {
        let is_apart = set(STEPS).as_deref() == Some("apart");
        return Some(match set("SLURM_STEP_ID").filter(|_| is_apart) {
            Some(step) => format!("slurm-{job}.{step}"),
            None => format!("slurm-{job}"),
        });
    }
    let others = JOBS.iter().chain(&[("PMIX_NAMESPACE", "pmix")]);
    others
        .into_iter()
        .find_map(|(name, system)| Some(format!("{system}-{}", set(name)?)))
}

/// The variables by which batch systems tell a process its job, and a word for each system.
const JOBS: [(&str, &str); 4] = [
    ("SLURM_JOB_ID", "slurm"),
    ("PBS_JOBID", "pbs"),
    ("LSB_JOBID", "lsf"),
    ("FLUX_JOB_ID", "flux"),
];

/// A name for the batch system's job to which an environment belongs, which no other job of the
/// batch system has, such as `slurm-17`. None outside of jobs.
pub fn job_name_from_env(lookup: impl Fn(&str) -> Option<String>) -> Option<String> {
    let set = |name: &str| lookup(name).filter(|value| !value.is_empty());
    let (name, system) = JOBS.into_iter().find(|(name, _)| set(name).is_some())?;
    let job = format!("{system}-{}", set(name)?);
    // LSF gives all jobs of an array one number, and a job outside of arrays the index 0.
    let index = set("LSB_JOBINDEX").filter(|index| system == "lsf" && index != "0");
    Some(index.map_or(job.clone(), |index| format!("{job}.{index}")))
}

/// The batch system's job to which an environment belongs, as the batch system numbers it.
pub fn job_from_env(lookup: impl Fn(&str) -> Option<String>) -> Option<String> {
    first(&JOBS.map(|(name, _)| name), lookup)
}

/// The project for which an environment's job counts: `TIDEGATE_PROJECT`, else the batch system's
/// account.
pub fn project_from_env(lookup: impl Fn(&str) -> Option<String>) -> Option<String> {
    let names = [
        "TIDEGATE_PROJECT",
        "SLURM_JOB_ACCOUNT",
        "PBS_ACCOUNT",
        "LSB_PROJECT_NAME",
        "FLUX_JOB_BANK",
    ];
    first(&names, lookup)
}

fn first(names: &[&str], lookup: impl Fn(&str) -> Option<String>) -> Option<String> {
    let set = |name: &&str| lookup(name).filter(|value| !value.is_empty());
    names.iter().find_map(set)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_the_scheduler_s() {
        // The same vectors are in the scheduler's tests.
        assert_eq!(app_id(""), mix(0xcbf2_9ce4_8422_2325));
        assert_eq!(app_id("a"), mix(0xaf63_dc4c_8601_ec8c));
        assert_ne!(app_id("job.1"), app_id("job.2"));
    }

    fn mix(mut x: u64) -> u64 {
        x = (x ^ (x >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
        x = (x ^ (x >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
        x ^ (x >> 33)
    }

    #[test]
    fn the_more_deliberate_name_wins() {
        let all = [
            ("TIDEGATE_APP", "mine", "mine"),
            ("SLURM_JOB_ID", "12", "slurm-12"),
            ("PBS_JOBID", "4.head", "pbs-4.head"),
            ("LSB_JOBID", "5", "lsf-5"),
            ("FLUX_JOB_ID", "f6", "flux-f6"),
            ("PMIX_NAMESPACE", "prterun-7", "pmix-prterun-7"),
        ];
        for first in 0..all.len() {
            let lookup = |name: &str| {
                if name == "SLURM_STEP_ID" {
                    return Some("3".to_string());
                }
                all[first..]
                    .iter()
                    .find(|(n, ..)| *n == name)
                    .map(|(_, v, _)| v.to_string())
            };
            assert_eq!(
                application_name_from_env(lookup).as_deref(),
                Some(all[first].2)
            );
        }
    }

    #[test]
    fn jobs_and_projects_are_the_batch_system_s() {
        let lookup = |name: &str| match name {
            "PBS_JOBID" => Some("7.head".to_string()),
            "SLURM_JOB_ID" => Some(String::new()),
            "SLURM_JOB_ACCOUNT" => Some("climate".to_string()),
            _ => None,
        };
        assert_eq!(job_from_env(lookup).as_deref(), Some("7.head"));
        assert_eq!(project_from_env(lookup).as_deref(), Some("climate"));
        assert_eq!(job_from_env(|_| None), None);
    }

    #[test]
    fn empty_values_and_lone_steps_say_nothing() {
        let lookup = |name: &str| match name {
            "TIDEGATE_APP" => Some(String::new()),
            "SLURM_STEP_ID" => Some("1".to_string()),
            _ => None,
        };
        assert_eq!(application_name_from_env(lookup), None);
        let job_only = |name: &str| (name == "SLURM_JOB_ID").then(|| "9".to_string());
        assert_eq!(
            application_name_from_env(job_only).as_deref(),
            Some("slurm-9")
        );
    }

    #[test]
    fn steps_are_applications_of_their_own_when_asked() {
        let name = |apart: &'static str, step: bool| {
            application_name_from_env(|name| match name {
                "SLURM_JOB_ID" => Some("9".to_string()),
                "SLURM_STEP_ID" => step.then(|| "2".to_string()),
                STEPS => Some(apart.to_string()),
                _ => None,
            })
        };
        assert_eq!(name("apart", true).as_deref(), Some("slurm-9.2"));
        assert_eq!(name("apart", false).as_deref(), Some("slurm-9"));
        assert_eq!(name("", true).as_deref(), Some("slurm-9"));
    }

    #[test]
    fn jobs_of_one_node_have_different_names() {
        let name = |set: &[(&str, &str)]| {
            let value = |name: &str| set.iter().find(|(known, _)| *known == name);
            job_name_from_env(|name| value(name).map(|(_, value)| value.to_string()))
        };
        assert_eq!(
            name(&[("TIDEGATE_APP", "a"), ("PMIX_NAMESPACE", "b")]),
            None
        );
        let step = [("SLURM_JOB_ID", "5"), ("SLURM_STEP_ID", "1")];
        assert_eq!(name(&step).as_deref(), Some("slurm-5"));
        let array = [("LSB_JOBID", "5"), ("LSB_JOBINDEX", "2")];
        assert_eq!(name(&array).as_deref(), Some("lsf-5.2"));
        let alone = [("LSB_JOBID", "5"), ("LSB_JOBINDEX", "0")];
        assert_eq!(name(&alone).as_deref(), Some("lsf-5"));
    }
}

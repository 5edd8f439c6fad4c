//! Finds out to which application a process belongs, once for each program that it runs.
//!
//! The first of these that exists names the application: TIDEGATE_APP in the environment with which
//! the program started, the batch system's job there, the MPI launcher's name space there, and the
//! job's control group, for a program that cleared its environment. Otherwise the user and the
//! session name it, so that all programs of one terminal are one application.

use super::process::{self, Life};
use crate::fuse::{Caller, Errno};
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use tidegate_client::{
    Application, app_id, application_name_from_env, job_from_env, project_from_env,
};

/// Number of programs that are remembered. Beyond it the mount forgets all and examines each anew,
/// which takes some ten microseconds.
const KNOWN_MAX: usize = 4096;

/// The applications of the programs that have opened files lately.
#[derive(Default)]
pub(super) struct Applications {
    /// The one application, if the mount is for one.
    all: Option<String>,
    known: Mutex<HashMap<Life, u64>>,
    claims: Mutex<Claims>,
}

/// The applications that processes have named by a device control call, as ranks of MPI jobs do.
#[derive(Default)]
struct Claims {
    by_process: HashMap<Life, u64>,
    names: HashMap<u64, String>,
}

impl Applications {
    /// `all`: the application of all programs; None: each program has its own.
    pub(super) fn new(all: Option<String>) -> Applications {
        Applications {
            all,
            ..Applications::default()
        }
    }

    /// The id of the caller's application. Calls `tell` with the application's name when a program
    /// is seen for the first time.
    pub(super) fn id(&self, caller: Caller, tell: impl FnOnce(Application)) -> u64 {
        let Some(life) = Life::of(caller.tid) else {
            let name = self.all.clone();
            let name = name.unwrap_or_else(|| format!("uid-{}", caller.uid));
            let id = app_id(&name);
            tell(Application {
                name,
                ..Application::default()
            });
            return id;
        };
        if let Some(id) = self.known().get(&life) {
            return *id;
        }
        if let Some(id) = self.claim_of(&life) {
            self.remember(life, id);
            return id;
        }
        let application = application(&life, caller.uid, self.all.as_deref());
        let id = app_id(&application.name);
        tell(application);
        self.remember(life, id);
        id
    }

    /// Records that the caller's process belongs to the application of that name, for the files
    /// that it opens from now on. EACCES where the mount is for one application.
    pub(super) fn claim(
        &self,
        caller: Caller,
        name: &str,
        tell: impl FnOnce(Application),
    ) -> Result<u64, Errno> {
        if self.all.is_some() {
            return Err(Errno::ACCESS);
        }
        let life = Life::of(caller.tid).and_then(|life| life.of_process());
        let life = life.ok_or(Errno::SRCH)?;
        let environment = life.environment();
        let variable = |name: &str| process::variable(&environment, name);
        tell(Application {
            name: name.to_string(),
            job: job_from_env(variable).unwrap_or_default(),
            project: project_from_env(variable).unwrap_or_default(),
            caller: None,
        });
        let id = app_id(name);
        let mut claims = self.claims.lock().unwrap_or_else(PoisonError::into_inner);
        if claims.by_process.len().max(claims.names.len()) >= KNOWN_MAX {
            *claims = Claims::default();
        }
        claims.by_process.insert(life, id);
        claims.names.insert(id, name.to_string());
        drop(claims);
        // Its threads may be known as what they were before.
        self.known().clear();
        Ok(id)
    }

    /// The name of an application that a process has given.
    pub(super) fn claimed(&self, app: u64) -> Option<String> {
        let claims = self.claims.lock().unwrap_or_else(PoisonError::into_inner);
        claims.names.get(&app).cloned()
    }

    fn claim_of(&self, life: &Life) -> Option<u64> {
        let claims = self.claims.lock().unwrap_or_else(PoisonError::into_inner);
        if claims.by_process.is_empty() {
            return None;
        }
        claims.by_process.get(&life.of_process()?).copied()
    }

    fn remember(&self, life: Life, id: u64) {
        let mut known = self.known();
        if known.len() >= KNOWN_MAX {
            known.clear();
        }
        known.insert(life, id);
    }

    fn known(&self) -> std::sync::MutexGuard<'_, HashMap<Life, u64>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn application(life: &Life, uid: u32, name: Option<&str>) -> Application {
    let environment = life.environment();
    let session = format!("uid-{uid}.sid-{}", life.session());
    let groups = || life.control_groups();
    application_of(&environment, groups, session, name)
}

/// The application that this environment and control groups name; `session` is the name where they
/// do not, and `name` the name in any case.
pub(super) fn application_of(
    environment: &[u8],
    control_groups: impl FnOnce() -> String,
    session: String,
    name: Option<&str>,
) -> Application {
    let variable = |name: &str| process::variable(environment, name);
    let own = || {
        application_name_from_env(variable)
            .or_else(|| name_from_control_groups(&control_groups()))
            .unwrap_or(session)
    };
    Application {
        name: name.map_or_else(own, str::to_string),
        job: job_from_env(variable).unwrap_or_default(),
        project: project_from_env(variable).unwrap_or_default(),
        caller: None,
    }
}

/// The name of the job whose control group this is, as its environment would give it: Slurm's
/// `.../job_ID/...` and PBS's `.../pbs_jobs.service/jobid/ID`.
fn name_from_control_groups(text: &str) -> Option<String> {
    text.lines().find_map(|line| {
        let path = line.splitn(3, ':').nth(2)?;
        let mut parts = path.split('/');
        while let Some(part) = parts.next() {
            if let Some(job) = part.strip_prefix("job_").filter(|job| is_number(job)) {
                return Some(format!("slurm-{job}"));
            }
            if part == "pbs_jobs.service" && parts.next() == Some("jobid") {
                return parts.next().map(|job| format!("pbs-{job}"));
            }
        }
        None
    })
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::process::{Child, Command, Stdio};

    /// A program with this environment, that waits for more input. It has answered once: a process
    /// that is still being made a program has no environment yet.
    fn running(variables: &[(&str, &str)]) -> Child {
        let mut cat = Command::new("cat");
        cat.env_clear().envs(variables.iter().copied());
        cat.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = cat.spawn().expect("cat");
        let input = child.stdin.as_mut().expect("a pipe");
        input.write_all(b"x").expect("cat reads");
        let output = child.stdout.as_mut().expect("a pipe");
        output.read_exact(&mut [0]).expect("cat answers");
        child
    }

    fn id_of(applications: &Applications, child: &mut Child) -> u64 {
        let caller = Caller {
            uid: 12,
            gid: 0,
            tid: child.id(),
        };
        let mut told = None;
        let id = applications.id(caller, |application| told = Some(application));
        let told = told.expect("it was seen first");
        assert_eq!(app_id(&told.name), id);
        let again = |_| panic!("it was told before");
        assert_eq!(applications.id(caller, again), id);
        child.kill().expect("our child");
        child.wait().expect("our child");
        id
    }

    #[test]
    fn the_environment_names_the_application() {
        let applications = Applications::default();
        let mut named = running(&[("TIDEGATE_APP", "climate"), ("SLURM_JOB_ID", "5")]);
        assert_eq!(id_of(&applications, &mut named), app_id("climate"));
        let mut job = running(&[("SLURM_JOB_ID", "5"), ("SLURM_STEP_ID", "1")]);
        assert_eq!(id_of(&applications, &mut job), app_id("slurm-5"));
        let apart = ("TIDEGATE_STEPS", "apart");
        let mut step = running(&[("SLURM_JOB_ID", "5"), ("SLURM_STEP_ID", "1"), apart]);
        assert_eq!(id_of(&applications, &mut step), app_id("slurm-5.1"));
    }

    #[test]
    fn a_process_may_say_itself_which_it_is() {
        let applications = Applications::default();
        let named = running(&[("TIDEGATE_APP", "script"), ("SLURM_JOB_ID", "5")]);
        let caller = Caller {
            uid: 12,
            gid: 0,
            tid: named.id(),
        };
        assert_eq!(applications.id(caller, |_| {}), app_id("script"));
        let mut told = None;
        let claimed = applications.claim(caller, "script.1", |application| {
            told = Some((application.name, application.job));
        });
        assert_eq!(claimed, Ok(app_id("script.1")));
        assert_eq!(told, Some(("script.1".to_string(), "5".to_string())));
        let again = |_| panic!("it was told before");
        assert_eq!(applications.id(caller, again), app_id("script.1"));
        assert_eq!(
            applications.claimed(app_id("script.1")).as_deref(),
            Some("script.1")
        );
        // Others are what their environment says.
        let other = running(&[("TIDEGATE_APP", "script")]);
        let others = Caller {
            tid: other.id(),
            ..caller
        };
        assert_eq!(applications.id(others, |_| {}), app_id("script"));
        let one = Applications::new(Some("view".to_string()));
        assert_eq!(one.claim(caller, "mine", |_| {}), Err(Errno::ACCESS));
        for mut child in [named, other] {
            child.kill().expect("our child");
            child.wait().expect("our child");
        }
    }

    #[test]
    fn without_it_the_control_group_does() {
        let slurm = "1:memory:/slurm/uid_7/job_33/step_2/task_0\n";
        assert_eq!(name_from_control_groups(slurm).as_deref(), Some("slurm-33"));
        let slurm = "0::/system.slice/slurmstepd.scope/job_33/step_batch/user/task_0\n";
        assert_eq!(name_from_control_groups(slurm).as_deref(), Some("slurm-33"));
        let pbs = "4:cpuset:/pbs_jobs.service/jobid/77.head\n";
        assert_eq!(
            name_from_control_groups(pbs).as_deref(),
            Some("pbs-77.head")
        );
        let desktop = "0::/user.slice/user-1000.slice/session-4.scope/job_control\n";
        assert_eq!(name_from_control_groups(desktop), None);
    }

    #[test]
    fn else_user_and_session_do() {
        let mut plain = running(&[]);
        let life = Life::of(plain.id()).expect("alive");
        let session = format!("uid-12.sid-{}", life.session());
        // Run inside a job, this test is told apart by it.
        let job = name_from_control_groups(&life.control_groups());
        let expected = app_id(&job.unwrap_or(session));
        assert_eq!(id_of(&Applications::default(), &mut plain), expected);
        let hidden = Caller {
            uid: 12,
            gid: 0,
            tid: 0,
        };
        assert_eq!(Applications::default().id(hidden, |_| {}), app_id("uid-12"));
        let one = Applications::new(Some("view".to_string()));
        assert_eq!(one.id(hidden, |_| {}), app_id("view"));
    }
}

//! MPI programs: which launcher starts them, and what it has to pass on to the ranks.
//!
//! Hydra (MPICH and its kin) and srun pass the whole environment on. Open MPI's does so on the node
//! where it is started; to others it passes what its parameter `mca_base_env_list` names.

use std::path::{Path, PathBuf};
use std::process::Command;

/// File name of the library that `mpi/` makes, and that loads the shim of the right family.
pub const SHIM: &str = "libtidegate_mpi.so";

/// Variables that ranks need wherever they run.
const PASSED: [&str; 23] = [
    "LD_PRELOAD",
    "TIDEGATE_ABOVE",
    "TIDEGATE_AGAIN",
    "TIDEGATE_APP",
    "TIDEGATE_APP_MADE",
    "TIDEGATE_EXPORT",
    "TIDEGATE_MOUNT",
    "TIDEGATE_MPI_ALIGN",
    EVERYWHERE,
    "TIDEGATE_MPI_GAMMA_US",
    "TIDEGATE_MPI_INTER_MBPS",
    "TIDEGATE_MPI_INTRA_MBPS",
    "TIDEGATE_MPI_IO",
    "TIDEGATE_MPI_NODES",
    "TIDEGATE_MPI_NONBLOCKING",
    "TIDEGATE_MPI_SHUFFLE",
    "TIDEGATE_MPI_VERBOSE",
    "TIDEGATE_PROJECT",
    "TIDEGATE_REDIRECT",
    "TIDEGATE_SHORTCUT",
    "TIDEGATE_STEPS",
    "OMPI_MCA_io",
    "ROMIO_HINTS",
];

/// Tells ranks of Open MPI that they all have the shim, on whatever node.
const EVERYWHERE: &str = "TIDEGATE_MPI_EVERYWHERE";

/// Open MPI's parameter, as a variable.
const ENV_LIST: &str = "OMPI_MCA_mca_base_env_list";

/// What starts the ranks of an MPI program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Launcher {
    /// Of MPICH and its kin.
    Hydra,
    /// Open MPI's `mpirun`.
    OpenMpi,
    /// Slurm's `srun`, for either.
    Slurm,
    /// Called as launchers are, of a family that is not known.
    Other,
}

impl Launcher {
    /// The launcher that a program is; None if it is none.
    pub fn of(program: &str) -> Option<Launcher> {
        let name = Path::new(program).file_name()?.to_str()?;
        if is_slurms(name, "srun") {
            return Some(Launcher::Slurm);
        }
        let names = ["mpirun", "mpiexec", "orterun", "prterun"];
        if !names.iter().any(|known| begins(name, known)) {
            return None;
        }
        Some(found(program).map_or(Launcher::Other, |path| family(&path)))
    }

    /// In words.
    pub fn text(self) -> &'static str {
        match self {
            Launcher::Hydra => "MPICH's launcher, which passes the environment on",
            Launcher::OpenMpi => "Open MPI's launcher, which is told what ranks need",
            Launcher::Slurm => "srun, which passes the environment on",
            Launcher::Other => "a launcher of an MPI that is not known",
        }
    }

    /// Makes the launcher pass on the variables that ranks need and that are set; the command's
    /// variables must be set before. Returns the arguments that belong before the launcher's own.
    pub fn prepare(self, command: &mut Command, arguments: &[String]) -> Vec<String> {
        if self != Launcher::OpenMpi {
            return Vec::new();
        }
        let has = |flag: &str| arguments.iter().any(|it| it == flag);
        if has("mca_base_env_list") || std::env::var_os(ENV_LIST).is_some() {
            // The user's list stays, and the shim stays out on several nodes if it lacks that.
            return Vec::new();
        }
        command.env(EVERYWHERE, "1");
        // One that is not there earns a warning.
        let is_set = |name: &&str| {
            let own = command.get_envs().find(|(known, _)| known == name);
            match own {
                Some((_, value)) => value.is_some(),
                None => std::env::var_os(name).is_some(),
            }
        };
        let passed: Vec<&str> = PASSED.into_iter().filter(is_set).collect();
        // Open MPI refuses both ways at once. The program's own `-x` is taken for the launcher's,
        // which is as good.
        if has("-x") {
            let flags = passed.iter().flat_map(|name| ["-x", name]);
            return flags.map(str::to_string).collect();
        }
        command.env(ENV_LIST, passed.join(";"));
        Vec::new()
    }
}

/// Whether it is that name, perhaps followed by the family's.
fn begins(name: &str, known: &str) -> bool {
    let rest = name.strip_prefix(known);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '-', '_']))
}

/// What distributions that have several programs of a name put behind that of Slurm's command.
const OF_SLURM: [&str; 4] = ["", "-wlm", "-slurm", ".slurm"];

/// Whether it is the name of that command of Slurm's.
pub fn is_slurms(name: &str, command: &str) -> bool {
    let rest = name.strip_prefix(command);
    rest.is_some_and(|rest| OF_SLURM.contains(&rest))
}

/// The path of the program, with all links followed.
pub fn found(program: &str) -> Option<PathBuf> {
    if program.contains('/') {
        return std::fs::canonicalize(program).ok();
    }
    let path = std::env::var_os("PATH")?;
    let mut places = std::env::split_paths(&path).map(|folder| folder.join(program));
    places.find_map(|place| std::fs::canonicalize(place).ok().filter(|it| it.is_file()))
}

fn family(path: &Path) -> Launcher {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let says = |words: &[&str]| words.iter().any(|word| name.contains(word));
    let beside = |other: &str| path.with_file_name(other).exists();
    if says(&["openmpi", "orterun", "prterun"]) {
        Launcher::OpenMpi
    } else if says(&["hydra", "mpich"]) {
        Launcher::Hydra
    } else if beside("ompi_info") {
        Launcher::OpenMpi
    } else if beside("hydra_pmi_proxy") || beside("mpichversion") {
        Launcher::Hydra
    } else {
        Launcher::Other
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn launchers_are_known_by_their_names_and_where_they_lie() {
        assert_eq!(Launcher::of("sh"), None);
        assert_eq!(Launcher::of("/usr/bin/mpirunner"), None);
        assert_eq!(Launcher::of("srun"), Some(Launcher::Slurm));
        assert_eq!(Launcher::of("./srun_case.sh"), None);
        assert_eq!(Launcher::of("/nowhere/mpirun"), Some(Launcher::Other));
        let known = [
            ("/usr/bin/orterun", Launcher::OpenMpi),
            ("/usr/bin/mpirun.openmpi", Launcher::OpenMpi),
            ("/opt/x/bin/mpiexec.hydra", Launcher::Hydra),
            ("/nowhere/mpiexec", Launcher::Other),
        ];
        for (path, launcher) in known {
            assert_eq!(family(Path::new(path)), launcher, "{path}");
        }
    }

    #[test]
    fn open_mpi_is_told_what_to_pass_on_unless_the_user_says_it() {
        let told = |launcher: Launcher, arguments: &[&str]| {
            let mut command = Command::new("mpirun");
            command
                .env("TIDEGATE_APP", "a")
                .env_remove("TIDEGATE_APP_MADE");
            let arguments: Vec<String> = arguments.iter().map(|it| it.to_string()).collect();
            let more = launcher.prepare(&mut command, &arguments);
            let list = command.get_envs().find(|(name, _)| *name == ENV_LIST);
            let list = list.and_then(|(_, list)| Some(list?.to_string_lossy().into_owned()));
            (list, more)
        };
        let (list, more) = told(Launcher::OpenMpi, &["-n", "2", "./a"]);
        let list = list.expect("it is told");
        assert!(more.is_empty() && list.contains(EVERYWHERE));
        assert!(list.split(';').any(|name| name == "TIDEGATE_APP"));
        assert!(!list.contains("TIDEGATE_APP_MADE"), "it is not set");
        let (list, more) = told(Launcher::OpenMpi, &["-x", "A", "./a"]);
        assert_eq!(list, None, "it would refuse both");
        assert!(more.windows(2).any(|two| two == ["-x", "TIDEGATE_APP"]));
        let chosen = ["--mca", "mca_base_env_list", "A", "./a"];
        assert_eq!(told(Launcher::OpenMpi, &chosen), (None, Vec::new()));
        assert_eq!(
            told(Launcher::Hydra, &["-n", "2", "./a"]),
            (None, Vec::new())
        );
    }
}

//! The libraries that `tidegate run` loads into programs, and the MPIs of this node.

use super::finding::Finding;
use crate::installed::{self, SHORTCUT};
use crate::run::{Launcher, SHIM, found};
use std::path::PathBuf;

/// Programs that start MPI jobs, and those that compile them.
const LAUNCHERS: [&str; 6] = [
    "mpirun",
    "mpiexec",
    "mpirun.mpich",
    "mpirun.openmpi",
    "orterun",
    "srun",
];
const COMPILER: &str = "mpicc";

const WHERE: &str = "copy it beside the program `tidegate` or into ../lib, as `make build` and \
                     `make install` do; a path with a space or colon cannot be loaded";

/// A family of MPI, and the library that knows its types.
struct Family {
    launcher: Launcher,
    name: &'static str,
    shim: &'static str,
}

const FAMILIES: [Family; 2] = [
    Family {
        launcher: Launcher::Hydra,
        name: "MPICH",
        shim: "libtidegate_mpich.so",
    },
    Family {
        launcher: Launcher::OpenMpi,
        name: "Open MPI",
        shim: "libtidegate_ompi.so",
    },
];

/// What is there.
pub struct Libraries {
    shortcut: Option<PathBuf>,
    /// The library that finds out a program's family of MPI.
    chooser: Option<PathBuf>,
    /// Those of `FAMILIES`.
    shims: [bool; 2],
    /// Launchers on PATH, each once, by the path that its name leads to.
    launchers: Vec<(PathBuf, Launcher)>,
    compiler: Option<PathBuf>,
}

impl Libraries {
    /// Looks. Starts nothing.
    pub fn look() -> Libraries {
        let mut launchers: Vec<(PathBuf, Launcher)> = Vec::new();
        for name in LAUNCHERS {
            if let (Some(path), Some(launcher)) = (found(name), Launcher::of(name))
                && launchers.iter().all(|(known, _)| *known != path)
            {
                launchers.push((path, launcher));
            }
        }
        Libraries {
            shortcut: installed::shortcut(),
            chooser: installed::library(SHIM),
            shims: FAMILIES.map(|family| installed::library(family.shim).is_some()),
            launchers,
            compiler: found(COMPILER),
        }
    }

    /// What is to be said of it.
    pub fn findings(&self) -> Vec<Finding> {
        let mut all = vec![match &self.shortcut {
            Some(path) => Finding::ok("short-cut", path.display()),
            None => Finding::warning(
                "short-cut",
                format!(
                    "{SHORTCUT} is neither beside this program nor in ../lib: data of programs \
                     under `tidegate run` takes the way through the mount"
                ),
                WHERE,
            ),
        }];
        all.extend(self.mpi());
        all
    }

    fn mpi(&self) -> Vec<Finding> {
        let mut all = Vec::new();
        for (family, is_there) in FAMILIES.iter().zip(self.shims) {
            let is_its = |one: &&(PathBuf, Launcher)| one.1 == family.launcher;
            let Some((path, _)) = self.launchers.iter().find(is_its) else {
                continue;
            };
            let name = family.name;
            let text = format!("{name} by {}", path.display());
            let lacks = match (&self.chooser, is_there) {
                (None, _) => SHIM,
                (_, false) => family.shim,
                (Some(_), true) => {
                    all.push(Finding::ok("MPI", format!("{text}, {}", family.shim)));
                    continue;
                }
            };
            all.push(Finding::warning(
                "MPI",
                format!("{text}, and {lacks} is not there: collective calls carry no hints"),
                format!(
                    "`make build` where {name}'s compiler is; {WHERE}. `tidegate run --no-mpi` \
                     does without"
                ),
            ));
        }
        let others = self.launchers.iter();
        let mut others = others.filter(|(_, launcher)| *launcher == Launcher::Other);
        if let Some((path, _)) = others.next() {
            all.push(Finding::warning(
                "MPI",
                format!("{} is of no family that is known here", path.display()),
                "MPICH, what is derived from it, and Open MPI are; docs/mpi.md says what works \
                 with others",
            ));
        }
        if all.is_empty() {
            let text = match (&self.compiler, self.launchers.is_empty()) {
                (Some(path), _) => format!("no launcher on PATH, only {}", path.display()),
                (None, false) => "srun alone, which starts any".to_string(),
                (None, true) => "none on PATH".to_string(),
            };
            all.push(Finding::ok("MPI", text));
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::finding::Verdict;

    fn whole() -> Libraries {
        Libraries {
            shortcut: Some("/usr/lib/libtidegate_preload.so".into()),
            chooser: Some("/usr/lib/libtidegate_mpi.so".into()),
            shims: [true, true],
            launchers: vec![
                ("/usr/bin/mpiexec.hydra".into(), Launcher::Hydra),
                ("/usr/bin/orterun".into(), Launcher::OpenMpi),
            ],
            compiler: None,
        }
    }

    fn told(libraries: &Libraries) -> Vec<(Verdict, String)> {
        let found = libraries.findings().into_iter();
        found.map(|one| (one.verdict, one.text)).collect()
    }

    #[test]
    fn each_mpi_of_the_node_has_its_shim_or_is_named() {
        let all = told(&whole());
        assert!(all.iter().all(|(it, _)| *it == Verdict::Ok), "{all:?}");
        assert_eq!(all.len(), 3, "{all:?}");
        let one = told(&Libraries {
            shims: [true, false],
            ..whole()
        });
        let lacks = |all: &[(Verdict, String)], name: &str| {
            let mut all = all.iter().filter(|(it, _)| *it == Verdict::Warning);
            all.any(|(_, text)| text.contains(name))
        };
        assert!(
            lacks(&one, "libtidegate_ompi.so") && !lacks(&one, "mpich"),
            "{one:?}"
        );
        let none = told(&Libraries {
            chooser: None,
            shortcut: None,
            ..whole()
        });
        assert!(lacks(&none, "Open MPI by /usr/bin/orterun"), "{none:?}");
        assert!(lacks(&none, SHORTCUT), "{none:?}");
    }

    #[test]
    fn a_node_without_mpi_lacks_nothing() {
        let bare = Libraries {
            launchers: Vec::new(),
            chooser: None,
            shims: [false, false],
            ..whole()
        };
        assert_eq!(told(&bare)[1], (Verdict::Ok, "none on PATH".to_string()));
        let strange = Libraries {
            launchers: vec![("/opt/x/mpirun".into(), Launcher::Other)],
            ..whole()
        };
        assert_eq!(told(&strange)[1].0, Verdict::Warning);
    }
}

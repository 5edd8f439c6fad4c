//! The MPI of this machine, and the programs that are compiled with it.

use crate::bench::cluster::at;
use crate::bench::workplace::Workplace;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use tidegate_cli::fail::Fail;

/// Name for `--mpi`, compiler, launcher; the last is whatever the system calls so.
const FAMILIES: [(&str, &str, &str); 3] = [
    ("mpich", "mpicc.mpich", "mpiexec.mpich"),
    ("openmpi", "mpicc.openmpi", "mpirun.openmpi"),
    ("mpi", "mpicc", "mpiexec"),
];

/// The sources come with this program: it needs an MPI to measure, and no source code beside it.
const SOURCES: [(&str, &str); 4] = [
    ("load.h", include_str!("../../../../../examples/mpi/load.h")),
    ("load.c", include_str!("../../../../../examples/mpi/load.c")),
    (
        "planes.c",
        include_str!("../../../../../examples/mpi/planes.c"),
    ),
    (
        "interconnect.c",
        include_str!("../../../../../examples/mpi/interconnect.c"),
    ),
];

/// An MPI.
pub struct Mpi {
    name: &'static str,
    compiler: PathBuf,
    launcher: PathBuf,
}

/// The programs that were compiled.
pub struct Programs {
    /// The jobs' program.
    pub planes: PathBuf,
    /// The emulated interconnect.
    pub interconnect: PathBuf,
}

impl Mpi {
    /// Finds the MPI that is asked for, else the first that is installed.
    pub fn find(wanted: Option<&str>) -> Result<Mpi, Fail> {
        let families = FAMILIES
            .into_iter()
            .filter(|(name, ..)| wanted.is_none_or(|wanted| *name == wanted));
        let mut tried = Vec::new();
        for (name, compiler, launcher) in families {
            if let (Some(compiler), Some(launcher)) = (in_path(compiler), in_path(launcher)) {
                return Ok(Mpi {
                    name,
                    compiler,
                    launcher,
                });
            }
            tried.push(format!("{compiler} with {launcher}"));
        }
        Err(Fail::runtime(format!(
            "no MPI to compile and run with (looked for {}): install the packages mpich and \
             libmpich-dev, or openmpi-bin and libopenmpi-dev",
            tried.join(", ")
        )))
    }

    /// Its name, as `--mpi` takes it.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Compiles the programs.
    pub fn build(&self, place: &Workplace) -> Result<Programs, Fail> {
        let dir = place.dir().join("programs");
        std::fs::create_dir(&dir).map_err(at(&dir))?;
        for (name, text) in SOURCES {
            let path = dir.join(name);
            std::fs::write(&path, text).map_err(at(&path))?;
        }
        self.compile(&dir, "planes", &["planes.c", "load.c"])?;
        let library = ["-shared", "-fPIC", "interconnect.c", "-ldl"];
        self.compile(&dir, "interconnect.so", &library)?;
        Ok(Programs {
            planes: dir.join("planes"),
            interconnect: dir.join("interconnect.so"),
        })
    }

    fn compile(&self, dir: &Path, output: &str, words: &[&str]) -> Result<(), Fail> {
        let mut command = Command::new(&self.compiler);
        command.args(["-std=c11", "-D_GNU_SOURCE", "-O2", "-o", output]);
        let ran = command.args(words).current_dir(dir).output();
        let shown = self.compiler.display();
        let ran = ran.map_err(|error| Fail::runtime(format!("{shown}: {error}")))?;
        if !ran.status.success() {
            let said = String::from_utf8_lossy(&ran.stderr);
            let said = said.trim();
            return Err(Fail::runtime(format!(
                "{shown} did not compile {output}: {said}"
            )));
        }
        Ok(())
    }

    /// A command that starts ranks, to be completed with a program.
    pub fn launch(&self, ranks: u64) -> Vec<String> {
        let launcher = self.launcher.display().to_string();
        vec![launcher, "-n".to_string(), ranks.to_string()]
    }

    /// Variables for Open MPI's processes: they may run as root and with more ranks than
    /// processors, and use ROMIO. Other MPIs ignore them.
    pub fn environment(&self) -> [(&'static str, &'static str); 5] {
        [
            ("OMPI_ALLOW_RUN_AS_ROOT", "1"),
            ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"),
            ("OMPI_MCA_rmaps_base_oversubscribe", "1"),
            ("OMPI_MCA_mpi_yield_when_idle", "1"),
            ("OMPI_MCA_io", "romio321"),
        ]
    }

    /// Runs a program of one rank to its end.
    pub fn run_alone(&self, program: &Path, words: &[String], dir: &Path) -> Result<(), Fail> {
        let mut command = Command::new(&self.launcher);
        command.args(["-n", "1"]).arg(program).args(words);
        command.envs(self.environment()).current_dir(dir);
        let ran = command.stdin(Stdio::null()).output();
        let shown = self.launcher.display();
        let ran = ran.map_err(|error| Fail::runtime(format!("{shown}: {error}")))?;
        if !ran.status.success() {
            let said = String::from_utf8_lossy(&ran.stderr);
            return Err(Fail::runtime(format!("{shown}: {}", said.trim())));
        }
        Ok(())
    }
}

fn in_path(name: &str) -> Option<PathBuf> {
    let paths = std::env::var_os("PATH")?;
    std::env::split_paths(&paths)
        .map(|dir| dir.join(name))
        .find(|path| path.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_mpi_is_told_with_what_to_install() {
        let fail = Mpi::find(Some("none")).err().expect("there is none");
        assert!(fail.message.contains("libmpich-dev"), "{}", fail.message);
    }
}

//! Commands of the laboratory, which the program `tidegate-lab` performs. A node that only runs
//! forwarders or applications does not need that program.

use crate::fail::Fail;
use crate::installed;
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

/// The program of the laboratory.
const PROGRAM: &str = "tidegate-lab";

/// What `tidegate-lab` is given; it has the help, too.
#[derive(clap::Args)]
#[command(disable_help_flag = true)]
pub struct Lab {
    #[arg(
        value_name = "ARGUMENT",
        trailing_var_arg = true,
        allow_hyphen_values = true
    )]
    arguments: Vec<OsString>,
}

impl Lab {
    /// Replaces this process with `tidegate-lab COMMAND`; returns only if that fails.
    pub fn perform(self, command: &str) -> Result<ExitCode, Fail> {
        let program = installed::program(PROGRAM, &format!("`tidegate {command}`"))?;
        let mut lab = Command::new(&program);
        lab.arg(command).args(self.arguments);
        let error = lab.exec();
        Err(Fail::usage(format!("{}: {error}", program.display())))
    }
}

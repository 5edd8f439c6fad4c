//! `tidegate down`: stops what `tidegate up` started.

use crate::fail::Fail;
use crate::processes;
use crate::state::StateDir;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// Longer than the forwarders' own bound of a drain.
const PATIENCE: Duration = Duration::from_secs(60);

/// Unmount and stop the forwarders that `tidegate up` started.
#[derive(clap::Args)]
pub struct Down {
    /// The state directory of that `tidegate up`
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,
}

impl Down {
    /// Stops them, also when the `tidegate up` that started them is gone.
    pub fn perform(self) -> Result<ExitCode, Fail> {
        let state = StateDir::choose(self.state_dir.as_deref());
        let up = processes::find(&state.file("up.pid"), "up");
        if up.is_none() && !state.client_file().exists() {
            let path = state.path().display();
            return Err(Fail::usage(format!(
                "nothing is up in {path}; see --state-dir"
            )));
        }
        let mut gently = true;
        if let Some(pid) = up {
            gently &= processes::end(pid, "up", PATIENCE);
        }
        gently &= crate::up::stop(&state);
        if !gently {
            return Err(Fail::runtime(
                "something had to be killed; its requests were cut off",
            ));
        }
        Ok(ExitCode::SUCCESS)
    }
}

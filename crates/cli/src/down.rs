//! `tidegate down`: stops what `tidegate up` started.

use crate::fail::Fail;
use crate::processes::Process;
use crate::state::StateDir;
use crate::up;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// Longer than the forwarders' own bound of a drain.
const PATIENCE: Duration = Duration::from_secs(60);

/// Unmount and stop the forwarders that `tidegate up` started.
///
/// Programs that use the mount are named and waited for, up to 15 s; then they are cut off.
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
        state.enter()?;
        let process = Process::find(&state.inside(&state.file("up.pid")));
        if process.is_none() && !state.inside(&state.client_file()).exists() {
            let path = state.path().display();
            return Err(Fail::usage(format!(
                "nothing is up in {path}; see --state-dir"
            )));
        }
        // What an earlier one left.
        up::take_killed(&state);
        // Down in the mount, we would keep it busy ourselves. There always is a root.
        let _ = std::env::set_current_dir("/");
        let mut killed = Vec::new();
        if let Some(process) = process {
            // That process says the same, but mostly into its log.
            let busy = up::Busy::look(&state);
            if !process.end(PATIENCE) {
                let seconds = PATIENCE.as_secs();
                killed.push(format!("`tidegate up`, after {seconds} s"));
            }
            killed.extend(up::take_killed(&state));
            if let (Some(busy), true) = (&busy, killed.is_empty()) {
                busy.say_free();
            }
        }
        killed.extend(up::stop(&state));
        up::take_killed(&state);
        match killed.is_empty() {
            true => Ok(ExitCode::SUCCESS),
            false => Err(Fail::runtime(up::cut_off(&killed))),
        }
    }
}

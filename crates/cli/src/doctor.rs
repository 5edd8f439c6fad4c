//! `tidegate doctor`: says what is missing on this node for Tidegate to work, and what to do.

mod bounded;
mod bundle;
mod configuration;
mod finding;
mod folder;
mod forwarders;
mod fuse;
mod kernel;
mod libraries;
mod mounts;
mod node;
mod state;

use crate::fail::Fail;
use crate::out;
use crate::target::Target;
use bounded::within;
use bundle::Bundle;
use configuration::Configurations;
use finding::{Finding, Report};
use forwarders::Seen;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

const EXAMPLES: &str = "\
Examples:
  tidegate doctor                            # this node, and the forwarders of `tidegate up`
  tidegate doctor /scratch --forwarders tcp:io1:4600 --secret-file secret
  tidegate doctor --bundle doctor.json       # all that whoever helps wants to see
Exit code: 0 if all is ok, 1 if something is a warning, 2 if something fails, or for wrong use.
docs/doctor.md says what each line means.";

/// How long looks may take that ask nobody.
const LOOK_MAX: Duration = Duration::from_secs(10);

/// How long forwarders may take, with DNS, which has bounds of its own.
const FORWARDERS_MAX: Duration = Duration::from_secs(30);

/// Say what is missing on this node for Tidegate to work, and what to do about it.
///
/// Each line has a verdict: ok, warning (it works, and could be better) or fails. Any user can ask;
/// what is told holds for him. Changes nothing, and ends in time whatever does not answer.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Doctor {
    /// A directory that forwarders export or shall export: its file system, rights, room and locks
    #[arg(value_name = "DIR")]
    dir: Option<PathBuf>,
    #[command(flatten)]
    target: Target,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Also write the report, versions, settings without secrets, states of forwarders and ends of
    /// logs into this new file, as JSON, for this user only
    #[arg(long, value_name = "FILE")]
    bundle: Option<PathBuf>,
    /// What a process of its own looks at for this command
    #[arg(long, hide = true, requires = "dir", value_parser = [mounts::PROBE, folder::PROBE])]
    probe: Option<String>,
}

impl Doctor {
    /// Looks, prints, writes.
    pub fn perform(self) -> Result<ExitCode, Fail> {
        if let (Some(probe), Some(dir)) = (&self.probe, &self.dir) {
            let found = match probe.as_str() {
                mounts::PROBE => mounts::probe(dir),
                _ => folder::probe(dir),
            };
            let text = serde_json::to_string(&found).map_err(Fail::runtime)?;
            out!("{text}\n");
            return Ok(ExitCode::SUCCESS);
        }
        if let Some(file) = &self.bundle {
            bundle::is_new(file)?;
        }
        let node = node::Node::look();
        let target = self.target.clone();
        let looked = within(LOOK_MAX, move || {
            // Also where its client.toml is named.
            let set = target.set();
            let others = target.names_forwarders() && set.is_none();
            state::look(set.unwrap_or_else(|| target.state_dir()), others)
        });
        let (of_state, configurations, state) = looked.unwrap_or_else(|| {
            let late = bounded::late("state directory", LOOK_MAX);
            (vec![late], Configurations::default(), None)
        });
        let mut all = node.findings();
        all.extend(self.of_node(&configurations));
        all.extend(of_state);
        let seen = self.of_forwarders();
        all.extend(seen.findings);
        all.extend(bounded::findings("mounts", LOOK_MAX, mounts::look));
        all.extend(self.dir.iter().flat_map(|dir| folder::look(dir)));
        let report = Report(all);
        let (mut json, mut page) = (report.json(), report.page());
        json["versions"] = node.json();
        let mut failed = None;
        if let Some(file) = &self.bundle {
            let bundle = Bundle {
                report: json.clone(),
                versions: node.json(),
                state: state.as_ref(),
                configurations: &configurations,
                found: seen.found.as_ref(),
                states: seen.states,
            };
            match bundle.write(file) {
                Ok(holds) => {
                    page += &format!("{} holds:\n", file.display());
                    page.extend(holds.iter().map(|line| format!("  {line}\n")));
                    json["bundle"] = serde_json::json!({ "file": file, "holds": holds });
                }
                Err(fail) => failed = Some(fail),
            }
        }
        match self.json {
            true => out!("{json}\n"),
            false => out!("{page}"),
        }
        match failed {
            Some(fail) => Err(fail),
            None => Ok(ExitCode::from(report.code())),
        }
    }

    /// What programs of this node find.
    fn of_node(&self, configurations: &Configurations) -> Vec<Finding> {
        let rings = configurations.rings();
        let limits = move || node::Limits::look().findings(rings.wished);
        let mut all = bounded::findings("FUSE", LOOK_MAX, || fuse::Fuse::look().findings());
        all.extend(bounded::findings("limits", LOOK_MAX, limits));
        let kernel = move || kernel::Kernel::look().findings(rings);
        all.extend(bounded::findings("kernel", LOOK_MAX, kernel));
        let libraries = || libraries::Libraries::look().findings();
        all.extend(bounded::findings("libraries", LOOK_MAX, libraries));
        all
    }

    fn of_forwarders(&self) -> Seen {
        let target = self.target.clone();
        let seen = within(FORWARDERS_MAX, move || forwarders::look(&target));
        seen.unwrap_or_else(|| Seen {
            findings: vec![bounded::late("forwarders", FORWARDERS_MAX)],
            ..Seen::default()
        })
    }
}

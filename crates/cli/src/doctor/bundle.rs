//! What whoever is asked for help wants to see, in one file: the report, versions, settings, states
//! and the ends of logs. No secret and no ticket goes into it, and no absolute
//! path of users' files.

mod mask;

use super::configuration::Configurations;
use crate::fail::Fail;
use crate::state::{self, ClientFile, StateDir};
use crate::target::{FORWARDERS, MUNGE};
use mask::Mask;
use serde_json::{Value, json};
use std::fs::File;
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Bytes and lines of each log's end.
const LOG_BYTES_MAX: u64 = 128 << 10;
const LOG_LINES_MAX: usize = 200;

/// Logs that are taken.
const LOGS_MAX: usize = 128;

/// Variables that are settings.
const VARIABLES: [&str; 8] = [
    FORWARDERS,
    MUNGE,
    state::STATE_DIR,
    "TIDEGATE_MOUNT",
    "TIDEGATE_EXPORT",
    "TIDEGATE_REDIRECT",
    "TIDEGATE_SHORTCUT",
    "XDG_RUNTIME_DIR",
];

/// Fails if something has that name already.
pub fn is_new(file: &Path) -> Result<(), Fail> {
    match std::fs::symlink_metadata(file) {
        Ok(_) => Err(is_there(file)),
        Err(_) => Ok(()),
    }
}

fn is_there(file: &Path) -> Fail {
    let shown = file.display();
    Fail::usage(format!(
        "--bundle {shown}: is there already; name a new file"
    ))
}

/// What goes into it.
pub struct Bundle<'a> {
    /// What was found.
    pub report: Value,
    /// Of program and node.
    pub versions: Value,
    /// The state directory, if it is one.
    pub state: Option<&'a StateDir>,
    /// What its configurations say.
    pub configurations: &'a Configurations,
    /// By which settings forwarders were found.
    pub found: Option<&'a ClientFile>,
    /// The states of those that answered.
    pub states: Vec<Value>,
}

impl Bundle<'_> {
    /// Writes it into a new file, for this user only. Returns what it holds, a line each.
    pub fn write(mut self, file: &Path) -> Result<Vec<String>, Fail> {
        let mask = Mask::new(self.kept());
        let logs = self.state.map(logs).unwrap_or_default();
        let told = self.told(&logs);
        let logs = logs.into_iter().map(|(name, lines)| {
            let lines = lines.iter().map(|line| mask.text(line)).collect();
            (name, lines)
        });
        for state in &mut self.states {
            mask.value(state);
        }
        mask.value(&mut self.report);
        let settings = VARIABLES.iter().filter_map(|name| {
            let value = std::env::var(name).ok()?;
            Some(((*name).to_string(), Value::from(mask.text(&value))))
        });
        let bundle = json!({
            "report": self.report,
            "versions": self.versions,
            "configuration": self.configurations.shown(),
            "forwarders": self.found.map(|found| &found.forwarders),
            "environment": Value::Object(settings.collect()),
            "stat": self.states,
            "logs": Value::Object(logs.collect()),
        });
        let wrong = |error: std::io::Error| match error.kind() {
            ErrorKind::AlreadyExists => is_there(file),
            _ => Fail::usage(format!("--bundle {}: {error}", file.display())),
        };
        let text = serde_json::to_string_pretty(&bundle).map_err(Fail::runtime)?;
        let made = File::options()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(file);
        let mut made = made.map_err(wrong)?;
        let written = made.write_all(text.as_bytes());
        written
            .and_then(|()| made.write_all(b"\n"))
            .map_err(wrong)?;
        Ok(told)
    }

    /// Paths that are no names of users' data.
    fn kept(&self) -> Vec<PathBuf> {
        let mut kept = self.configurations.paths();
        kept.extend(self.state.map(|state| state.path().to_path_buf()));
        if let Some(found) = self.found {
            let named = [
                &found.export,
                &found.mount,
                &found.secret_file,
                &found.tickets,
            ];
            kept.extend(named.into_iter().flatten().cloned());
            let sockets = found.forwarders.iter();
            let sockets = sockets.filter_map(|it| it.strip_prefix("unix:"));
            kept.extend(sockets.map(PathBuf::from));
        }
        let mounts = tidegate_client::fuse_mounts().into_iter();
        let mounts = mounts.filter(|mount| mount.is_tidegates());
        kept.extend(mounts.map(|mount| mount.point));
        kept
    }

    fn told(&self, logs: &[(String, Vec<String>)]) -> Vec<String> {
        let names = self.configurations.0.iter();
        let names: Vec<&str> = names.map(|(name, _)| name.as_str()).collect();
        let log_names: Vec<&str> = logs.iter().map(|(name, _)| name.as_str()).collect();
        let or_none = |names: Vec<&str>| match names.is_empty() {
            true => "none".to_string(),
            false => names.join(", "),
        };
        vec![
            "this report, and versions of program, protocol, kernel and C library".to_string(),
            format!("configuration without secrets: {}", or_none(names)),
            format!("`stat --json` of {} forwarders", self.states.len()),
            format!(
                "the last {LOG_LINES_MAX} lines of logs: {}",
                or_none(log_names)
            ),
            "left out: secrets, tickets, and paths that no configuration names".to_string(),
        ]
    }
}

/// The last lines of each log of a state directory.
fn logs(state: &StateDir) -> Vec<(String, Vec<String>)> {
    let mut names = state.names();
    names.retain(|name| name.ends_with(".log") && state::is_own(name));
    names.sort();
    names.truncate(LOGS_MAX);
    let read = |name: String| {
        let lines = last_lines(&state.inside(&state.file(&name)))?;
        Some((name, lines))
    };
    names.into_iter().filter_map(read).collect()
}

fn last_lines(log: &Path) -> Option<Vec<String>> {
    // Something else of this name must not keep it waiting.
    let flags = rustix::fs::OFlags::NONBLOCK.bits() as i32;
    let opened = File::options().read(true).custom_flags(flags).open(log);
    let mut file = opened.ok()?;
    let len = file.metadata().ok().filter(|found| found.is_file())?.len();
    let from = len.saturating_sub(LOG_BYTES_MAX);
    file.seek(SeekFrom::Start(from)).ok()?;
    let mut bytes = Vec::new();
    file.take(LOG_BYTES_MAX).read_to_end(&mut bytes).ok()?;
    let text = String::from_utf8_lossy(&bytes);
    let mut lines: Vec<&str> = text.lines().collect();
    if from > 0 && !lines.is_empty() {
        // It begins amid a line.
        lines.remove(0);
    }
    let last = lines.len().saturating_sub(LOG_LINES_MAX);
    Some(lines[last..].iter().map(|line| line.to_string()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bundle_is_new_and_its_owners() {
        use std::os::unix::fs::MetadataExt;
        let place = std::env::temp_dir().join(format!("tidegate-bundle-{}", std::process::id()));
        let none = Configurations::default();
        let bundle = || Bundle {
            report: json!({"findings": [{"text": "cannot open /home/me/hush: EIO"}]}),
            versions: json!({"tidegate": "1"}),
            state: None,
            configurations: &none,
            found: None,
            states: vec![json!({"trouble": "/home/me/hush"})],
        };
        bundle().write(&place).expect("there is room");
        assert_eq!(
            std::fs::metadata(&place).expect("made").mode() & 0o777,
            0o600
        );
        let text = std::fs::read_to_string(&place).expect("made");
        let read: Value = serde_json::from_str(&text).expect("it is JSON");
        assert_eq!(read["versions"]["tidegate"], "1");
        assert!(!text.contains("hush"), "{text}");
        let again = bundle().write(&place).expect_err("it is there");
        assert!(
            again.message.contains("is there already"),
            "{}",
            again.message
        );
        std::fs::remove_file(&place).expect("ours");
    }

    #[test]
    fn the_end_of_a_log_is_taken() {
        let place = std::env::temp_dir().join(format!("tidegate-log-{}", std::process::id()));
        let lines: Vec<String> = (0..9999)
            .map(|it| format!("line {it} of the log"))
            .collect();
        std::fs::write(&place, lines.join("\n")).expect("room");
        let last = last_lines(&place).expect("it is there");
        assert_eq!(last, lines[9999 - LOG_LINES_MAX..]);
        std::fs::write(&place, "one\ntwo\n").expect("room");
        assert_eq!(last_lines(&place).expect("it is there"), ["one", "two"]);
        std::fs::remove_file(&place).expect("ours");
        assert_eq!(last_lines(&place), None);
    }
}

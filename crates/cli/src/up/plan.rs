//! The plan of `tidegate up`: what it is going to start, checked before it starts anything.

use super::Up;
use super::layout::{self, Layout};
use crate::fail::Fail;
use crate::holders;
use crate::keys::Setting;
use crate::members;
use crate::restarts::Restarts;
use crate::state::{ClientFile, FORWARDERS_MAX, MOUNT, StateDir};
use rustix::process::Pid;
use std::fmt::Write;
use std::io::Write as _;
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use tidegate_server::PidFile;
use tidegate_server::config::rule::Rules;
use tidegate_server::config::{Config, Source, Value, rules_file};
use tidegate_trace::Reader;

/// For how many clients each reply table has room from the start: a local set has few, and may
/// count against its user's quota.
const ROOM: i64 = 16;

/// Bytes that logs and the like may take before anybody looks at them.
const LOGS_BYTES: usize = 64 << 10;

/// A checked `tidegate up`.
pub struct Plan {
    /// Where everything goes.
    pub state: StateDir,
    /// How many.
    pub forwarders: usize,
    /// Where to mount, if at all.
    pub mount: Option<PathBuf>,
    /// The directory that they serve.
    pub export: PathBuf,
    /// Sections, keys and values of each forwarder's file, beside its own index.
    settings: Vec<Setting>,
    /// Whether forwarders that die are started again.
    pub restarts: bool,
    /// Who is promised what.
    shares: Rules,
    /// Where the forwarders record, if they do.
    trace: Option<PathBuf>,
    /// What an address begins with.
    transport: String,
    /// Of the forwarders, by TCP; else none.
    ports: Vec<u16>,
    kill_at_request: Vec<(usize, String)>,
    kill_after_effect: Vec<(usize, String)>,
    fail_call: Vec<(usize, String)>,
}

impl Plan {
    /// Checks the arguments.
    pub fn make(up: &Up) -> Result<Plan, Fail> {
        let export = up.dir.canonicalize().map_err(|error| {
            Fail::usage(format!(
                "directory {}: {error}; name one that exists",
                up.dir.display()
            ))
        })?;
        if !export.is_dir() {
            return Err(Fail::usage(format!("{} is no directory", export.display())));
        }
        let state = StateDir::choose(up.state_dir.as_deref());
        state.enter()?;
        let mount = up.mount.clone().unwrap_or_else(|| state.file(MOUNT));
        let mount = std::path::absolute(&mount).unwrap_or(mount);
        let paths = [export.as_path(), state.path(), &mount].into_iter();
        paths.chain(up.trace.as_deref()).try_for_each(is_text)?;
        if !up.no_mount {
            check_outside(&export, state.path(), &mount)?;
        }
        let before = layout::recorded(&export);
        let forwarders = up.forwarders.or_else(|| Some(before?.forwarders));
        let forwarders = forwarders.unwrap_or(layout::FORWARDERS);
        let plan = Plan {
            shares: shares(up)?,
            state,
            forwarders: forwarders.into(),
            mount: (!up.no_mount).then_some(mount),
            restarts: !up.no_restart,
            settings: common_settings(up, &export, forwarders, before),
            export,
            trace: up.trace.as_deref().map(plain_path),
            ports: match up.transport.ends_with("tcp") {
                true => free_ports(forwarders.into())?,
                false => Vec::new(),
            },
            transport: up.transport.clone(),
            kill_at_request: up.kill_at_request.clone(),
            kill_after_effect: up.kill_after_effect.clone(),
            fail_call: up.fail_call.clone(),
        };
        Config::from_source(plan.source(0))?;
        let faults = plan.kill_at_request.iter().chain(&plan.kill_after_effect);
        let faults = faults.chain(&plan.fail_call);
        if let Some((index, _)) = faults
            .into_iter()
            .find(|(index, _)| *index >= plan.forwarders)
        {
            return Err(Fail::usage(format!(
                "there is no forwarder {index} to kill or to fail"
            )));
        }
        Ok(plan)
    }

    /// Checks that the set is to be as the one before.
    pub fn check_layout(&self) -> Result<(), Fail> {
        let wanted = Config::from_source(self.source(0))?.layout();
        let wanted = Layout {
            forwarders: wanted.seats,
            stripe: wanted.stripe,
        };
        layout::check(&self.export, self.state.path(), wanted)
    }

    /// Checks that no trace is where this set would record: the forwarders of an earlier `up` wrote
    /// it, of another directory perhaps, and both would become one.
    pub fn check_traces(&self) -> Result<(), Fail> {
        let Some(dir) = &self.trace else {
            return Ok(());
        };
        let files = (0..FORWARDERS_MAX).map(|index| trace_file(dir, index));
        let mut there = files.filter(|file| tells_something(file));
        match there.next() {
            None => Ok(()),
            Some(file) => Err(Fail::usage(format!(
                "--trace {}: {} is the trace of an earlier set, to which this one would be added; \
                 name another folder, or remove that one",
                dir.display(),
                file.display()
            ))),
        }
    }

    /// Checks that the state directory has room for logs and pid files: a set that cannot write
    /// there cannot say that it is ready. Nothing is left of the check.
    pub fn check_room(&self) -> Result<(), Fail> {
        let place = self.state.inside(&self.state.file("up.room"));
        let written = std::fs::write(&place, [0; LOGS_BYTES]);
        // Not there where it could not be made.
        let _ = std::fs::remove_file(place);
        written.map_err(|error| {
            let dir = self.state.path().display();
            Fail::runtime(format!(
                "state directory {dir}: no room: {error}; make some, or choose another with \
                 --state-dir"
            ))
        })
    }

    /// Says in the state directory that this process has it. Before anything else is written there:
    /// where that has no room, or refuses it for another reason, what is there stays as it is.
    pub fn take(&self) -> Result<PidFile, Fail> {
        self.state.create()?;
        let path = self.state.file("up.pid");
        PidFile::write(&self.state.inside(&path))
            .map_err(|error| Fail::usage(format!("{}: {error}", path.display())))
    }

    /// Writes the configurations and `client.toml`, and makes the mount point.
    pub fn write(&self) -> Result<(), Fail> {
        Restarts::remove(&self.state);
        if let Some(path) = self.secret_file() {
            write_secret(&self.state.inside(&path))
                .map_err(|error| Fail::usage(format!("{}: {error}", path.display())))?;
        }
        if let Some(dir) = &self.trace {
            std::fs::create_dir_all(dir)
                .map_err(|error| Fail::usage(format!("--trace {}: {error}", dir.display())))?;
        }
        let put = |path: PathBuf, text: String| {
            let failed = |error| Fail::usage(format!("{}: {error}", path.display()));
            std::fs::write(self.state.inside(&path), text).map_err(failed)
        };
        for index in 0..self.forwarders {
            put(
                self.state.forwarder(index, "toml"),
                self.forwarder_file(index),
            )?;
        }
        let text = toml::to_string(&self.client_file()).map_err(Fail::runtime)?;
        put(self.state.client_file(), text)?;
        if let Some(point) = &self.mount {
            std::fs::create_dir_all(point).map_err(|error| {
                Fail::usage(format!("mount point {}: {error}", point.display()))
            })?;
        }
        Ok(())
    }

    /// What other commands need to know.
    pub fn client_file(&self) -> ClientFile {
        ClientFile {
            forwarders: (0..self.forwarders)
                .map(|index| self.address(index))
                .collect(),
            export: Some(self.export.clone()),
            mount: self.mount.clone(),
            secret_file: self.secret_file(),
            ..ClientFile::default()
        }
    }

    /// Arguments of the process of one forwarder.
    pub fn serve_arguments(&self, index: usize) -> Vec<String> {
        let mut arguments = self.serve_again_arguments(index);
        let faults = [
            ("--kill-at-request", &self.kill_at_request),
            ("--kill-after-effect", &self.kill_after_effect),
            ("--fail-call", &self.fail_call),
        ];
        for (flag, list) in faults {
            for (_, value) in list.iter().filter(|(of, _)| *of == index) {
                arguments.extend([flag.to_string(), value.clone()]);
            }
        }
        arguments
    }

    /// The same without faults.
    pub fn serve_again_arguments(&self, index: usize) -> Vec<String> {
        let config = self.state.forwarder(index, "toml");
        vec!["serve".to_string(), "--config".to_string(), shown(&config)]
    }

    /// Arguments of the process of the mount.
    pub fn mount_arguments(&self, point: &Path) -> Vec<String> {
        let client = shown(&self.state.client_file());
        let words = ["mount", &shown(point), "--client", &client, "--foreground"];
        let pid_file = shown(&self.state.file("mount.pid"));
        let words = words.iter().map(|word| word.to_string());
        words.chain(["--pid-file".to_string(), pid_file]).collect()
    }

    /// A process of an earlier `up` in this state directory that still runs.
    pub fn running(&self) -> Option<Pid> {
        let up = PidFile::holder(&self.state.inside(&self.state.file("up.pid")));
        up.or_else(|| {
            let (mounts, forwarders) = members::running(&self.state);
            let mount = mounts.first().map(|(_, process)| process.pid());
            mount.or(forwarders.first().map(|(_, process)| process.pid()))
        })
    }

    /// How to use what runs now, in words.
    pub fn usage(&self) -> String {
        let state = self.state.path().display();
        let mut text = String::new();
        let count = self.forwarders;
        let serve = match count {
            1 => "forwarder serves",
            _ => "forwarders serve",
        };
        let _ = writeln!(text, "{count} {serve} {}", self.export.display());
        if let Some(point) = &self.mount {
            let _ = writeln!(text, "Files:     {}", point.display());
        }
        // Without a mount, it makes one of its own, where there is FUSE.
        if self.mount.is_some() || Path::new("/dev/fuse").exists() {
            let _ = writeln!(
                text,
                "Run:       tidegate run --state-dir {state} -- PROGRAM"
            );
        }
        let _ = writeln!(text, "Look:      tidegate stat --state-dir {state}");
        if let Some(dir) = &self.trace {
            let dir = dir.display();
            let _ = writeln!(text, "Recorded:  tidegate trace summarise {dir}");
        }
        text
    }

    fn address(&self, index: usize) -> String {
        let transport = &self.transport;
        match self.ports.get(index) {
            Some(port) => format!("{transport}:127.0.0.1:{port}"),
            None => {
                let socket = shown(&self.state.forwarder(index, "sock"));
                format!("{transport}:{socket}")
            }
        }
    }

    fn secret_file(&self) -> Option<PathBuf> {
        (!self.ports.is_empty()).then(|| self.state.file("secret"))
    }

    fn own_settings(&self, index: usize) -> Vec<Setting> {
        let pid_file = shown(&self.state.forwarder(index, "pid"));
        let listen = Value::Array(vec![Value::String(self.address(index))]);
        let mut settings: Vec<Setting> = vec![
            ("", "forwarder", "--forwarders", (index as i64).into()),
            ("", "listen", "--state-dir", listen),
            ("", "pid_file", "--state-dir", pid_file.into()),
        ];
        if let Some(path) = self.secret_file() {
            settings.push(("", "secret_file", "--state-dir", shown(&path).into()));
        }
        if let Some(dir) = &self.trace {
            let file = shown(&trace_file(dir, index));
            settings.push(("[trace]", "file", "--trace", file.into()));
        }
        settings
    }

    fn source(&self, index: usize) -> Source {
        let mut source = Source::empty("up");
        for (section, key, flag, value) in self.settings.iter().chain(&self.own_settings(index)) {
            source.set(section, key, value.clone(), flag);
        }
        source
    }

    fn forwarder_file(&self, index: usize) -> String {
        // Tables of which there are many come after all others.
        format!("{}\n{}", self.source(index), self.shares)
    }
}

/// Fails if a mount of the export, or the state directory, is to be where programs on that mount
/// would find it.
fn check_outside(export: &Path, state: &Path, mount: &Path) -> Result<(), Fail> {
    // As the kernel would find them, as far as they are there.
    let (state, mount) = (holders::spelled(state), holders::spelled(mount));
    let (shown, folder) = (export.display(), state.display());
    Err(Fail::usage(if export == Path::new("/") {
        "/ holds every place where it could be mounted; name a directory, or start it with \
         --no-mount"
            .to_string()
    } else if state.starts_with(export) {
        format!(
            "state directory {folder} lies in the exported directory {shown}, whose programs could \
             change it; choose another with --state-dir"
        )
    } else if mount.starts_with(export) {
        let point = mount.display();
        format!(
            "mount point {point} lies in the exported directory {shown}; choose another with \
             --mount"
        )
    } else {
        return Ok(());
    }))
}

/// Fails for a path that no configuration can hold.
fn is_text(path: &Path) -> Result<(), Fail> {
    match path.to_str() {
        Some(_) => Ok(()),
        None => Err(Fail::usage(format!(
            "{}: configurations hold text, and this name is none (UTF-8); choose another",
            path.display()
        ))),
    }
}

/// Where a forwarder records.
fn trace_file(dir: &Path, index: usize) -> PathBuf {
    dir.join(format!("forwarder.{index}.trace"))
}

/// The rules of the file that --shares names.
fn shares(up: &Up) -> Result<Rules, Fail> {
    let Some(path) = &up.shares else {
        return Ok(Rules::default());
    };
    let missing = || Fail::usage(format!("--shares {}: no such file", path.display()));
    rules_file(path)?.ok_or_else(missing)
}

/// The absolute path, without superfluous slashes.
fn plain_path(path: &Path) -> PathBuf {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf());
    path.components().collect()
}

/// `I:REST`.
pub fn indexed(text: &str) -> Result<(usize, String), String> {
    match text
        .split_once(':')
        .and_then(|(index, rest)| Some((index.parse().ok()?, rest)))
    {
        Some((index, rest)) if !rest.is_empty() => Ok((index, rest.to_string())),
        _ => Err("must begin with the index of a forwarder, such as 0:12".to_string()),
    }
}

fn shown(path: &Path) -> String {
    path.display().to_string()
}

/// The settings of every forwarder: those of flags, over those of all local sets.
fn common_settings(
    up: &Up,
    export: &Path,
    forwarders: u16,
    before: Option<Layout>,
) -> Vec<Setting> {
    let mut settings: Vec<Setting> = vec![
        ("", "export", "DIR", shown(export).into()),
        ("", "seats", "--forwarders", i64::from(forwarders).into()),
        ("[ownership]", "one_node", "DIR", true.into()),
        ("[ownership]", "room_for_clients", "DIR", ROOM.into()),
    ];
    settings.extend(up.keys.0.iter().cloned());
    let is_stripe = |setting: &Setting| (setting.0, setting.1) == ("", "stripe");
    if let Some(stripe) = before.and_then(|before| i64::try_from(before.stripe).ok())
        && !settings.iter().any(is_stripe)
    {
        settings.push(("", "stripe", ".tidegate/layout", stripe.into()));
    }
    settings
}

/// Different ports of this machine on which no process listens now.
fn free_ports(count: usize) -> Result<Vec<u16>, Fail> {
    let listener = |_| TcpListener::bind((Ipv4Addr::LOCALHOST, 0));
    let listeners: std::io::Result<Vec<_>> = (0..count).map(listener).collect();
    let ports = listeners.and_then(|listeners| {
        let ports = listeners.iter().map(TcpListener::local_addr);
        ports.map(|address| Ok(address?.port())).collect()
    });
    ports.map_err(|error| Fail::runtime(format!("--transport tcp: no free port: {error}")))
}

/// A new secret that only this user can read.
fn write_secret(path: &Path) -> std::io::Result<()> {
    let text = tidegate_server::secret::random_text()?;
    let _ = std::fs::remove_file(path);
    let mut options = std::fs::OpenOptions::new();
    let mut file = options
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)?;
    file.write_all(text.as_bytes())
}

/// Whether a file that is there is more than the trace of a forwarder that was asked nothing, as
/// an `up` that failed leaves them: recording goes on in such a one.
fn tells_something(file: &Path) -> bool {
    let len = file.metadata().map_or(0, |found| found.len());
    let mut trace = match Reader::open(file) {
        Ok(trace) if len > 0 => trace,
        _ => return len > 0,
    };
    trace.next().is_some() || trace.dropped() > 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_trace::{Header, Origin, Recorder};

    #[test]
    fn a_trace_of_no_request_is_no_trace_of_an_earlier_set() {
        let name = format!("tidegate-plan-{}", std::process::id());
        let file = std::env::temp_dir().join(name);
        assert!(!tells_something(&file), "it is not there");
        let header = Header {
            zero_wall_ns: 1,
            forwarders: 1,
            stripe: 1 << 20,
            origin: Origin::Forwarder,
        };
        drop(Recorder::create(&file, &header, 16, |_| ()).expect("room"));
        assert!(file.metadata().expect("it is there").len() > 0);
        assert!(!tells_something(&file));
        std::fs::write(&file, "something else").expect("room");
        assert!(tells_something(&file));
        std::fs::remove_file(&file).expect("ours");
    }
}

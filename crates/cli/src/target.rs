//! Which forwarders a command talks to.

mod here;

use crate::errln;
use crate::fail::Fail;
use crate::members;
use crate::processes::Process;
use crate::state::{ClientFile, StateDir};
use here::OfMount;
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tidegate_client::wire::{CHUNK_MIN, PAYLOAD_LIMIT, Pipelining};
use tidegate_client::{Client, Encryption, Munge, Options};

/// Beside `client.toml`.
const NAMES: &str = "applications";

/// The variables that stand for flags.
pub(crate) const FORWARDERS: &str = "TIDEGATE_FORWARDERS";
pub(crate) const MUNGE: &str = "TIDEGATE_MUNGE";

/// Which forwarders to use: those named, else those of a file, else those of `tidegate up`, else
/// those of a mount of root on this node.
#[derive(clap::Args, Clone, Debug)]
pub struct Target {
    /// Addresses, such as tcp:io1:4600; one forwarder that is alive tells of the others. @FILE: a
    /// file with one address a line. @_tidegate._tcp.example.org alone: the SRV records of DNS
    #[arg(
        long,
        value_name = "ADDRESS,...",
        value_delimiter = ',',
        global = true,
        env = FORWARDERS
    )]
    forwarders: Vec<String>,
    /// File that names the forwarders, as `tidegate up` writes it
    #[arg(long, value_name = "FILE", global = true)]
    client: Option<PathBuf>,
    /// State directory of the `tidegate up` whose forwarders to use
    #[arg(long, value_name = "DIR", global = true)]
    state_dir: Option<PathBuf>,
    /// File with a secret, for TCP
    #[arg(long, value_name = "FILE", global = true)]
    secret_file: Option<PathBuf>,
    /// Without a secret, have munge vouch for this user, for TCP: on, off, or the socket of this
    /// node's munged
    #[arg(long, value_name = "HOW", global = true, env = MUNGE)]
    munge: Option<String>,
    /// With --munge, the user as whom the forwarders run; by default root, 0
    #[arg(long, value_name = "UID", global = true)]
    munge_uid: Option<u32>,
    /// The least protection of what is sent over TCP: on, integrity or off
    #[arg(long, value_name = "HOW", global = true, value_parser = ["on", "integrity", "off"])]
    encryption: Option<String>,
    /// What may be under way at once of a long read or write: none, serial or parallel
    #[arg(long, value_name = "HOW", global = true, value_parser = ["none", "serial", "parallel"])]
    pipelining: Option<String>,
}

/// What there is of forwarders to talk to.
pub enum Search {
    /// These.
    Found(Box<ClientFile>),
    /// None.
    Nothing {
        /// That there are none, where, and what to do.
        fail: Fail,
        /// Whether the user has named a place where some should be, or several are there of which
        /// none is meant.
        is_amiss: bool,
    },
}

impl Target {
    /// Finds the forwarders, and what is known of them.
    pub fn find(&self) -> Result<ClientFile, Fail> {
        match self.search()? {
            Search::Found(found) => Ok(*found),
            Search::Nothing { fail, .. } => Err(fail),
        }
    }

    /// Finds the forwarders, and what is known of them, if there are some.
    pub fn search(&self) -> Result<Search, Fail> {
        let state_dir = self.state_dir();
        let state = state_dir.client_file();
        let nothing = |mounts: &[PathBuf]| {
            Ok(Search::Nothing {
                fail: nothing_there(&state_dir, mounts),
                is_amiss: state_dir.is_named() || !mounts.is_empty(),
            })
        };
        let mut found = if !self.addresses().is_empty() {
            let forwarders = self.addresses().to_vec();
            ClientFile {
                forwarders,
                ..ClientFile::default()
            }
        } else if let Some(path) = &self.client {
            ClientFile::read(path)?
        } else if state_dir.enter()? && state_dir.inside(&state).exists() {
            state_dir.read_client_file()?
        } else if state_dir.is_named() {
            return nothing(&[]);
        } else {
            match here::of_mount()? {
                OfMount::Found(found) => *found,
                OfMount::Several(points) => return nothing(&points),
                OfMount::None => return nothing(&[]),
            }
        };
        if self.secret_file.is_some() {
            found.secret_file.clone_from(&self.secret_file);
            found.tickets = None;
        }
        if let Some(how) = self.munge() {
            found.munge = Some(how.clone());
        }
        found.munge_uid = self.munge_uid.or(found.munge_uid);
        if self.encryption.is_some() {
            found.encryption.clone_from(&self.encryption);
        }
        if self.pipelining.is_some() {
            found.pipelining.clone_from(&self.pipelining);
        }
        Ok(Search::Found(Box::new(found)))
    }

    /// The state directory that is named, else the usual one.
    pub fn state_dir(&self) -> StateDir {
        StateDir::choose(self.state_dir.as_deref())
    }

    /// Whether forwarders are named, by addresses or a file, and not by a state directory.
    pub fn names_forwarders(&self) -> bool {
        !self.addresses().is_empty() || self.client.is_some()
    }

    /// The addresses that are named. An empty variable names none.
    fn addresses(&self) -> &[String] {
        match self.forwarders.as_slice() {
            [only] if only.is_empty() && is_set_to(FORWARDERS, "") => &[],
            named => named,
        }
    }

    /// How munge is to vouch, if that is said. An empty variable says nothing.
    fn munge(&self) -> Option<&String> {
        let said = self.munge.as_ref();
        said.filter(|how| !(how.is_empty() && is_set_to(MUNGE, "")))
    }

    /// The same failure, with the variables that have led to it: they may be of long ago.
    fn or_by_variables(&self, mut fail: Fail) -> Fail {
        let addresses = self.addresses().join(",");
        let is_by_addresses = !addresses.is_empty() && is_set_to(FORWARDERS, &addresses);
        let is_by_munge = self.munge().is_some_and(|how| is_set_to(MUNGE, how));
        let about_munge = fail.message.contains("munge");
        for (name, is_by_it) in [
            (FORWARDERS, is_by_addresses && !(is_by_munge && about_munge)),
            (MUNGE, is_by_munge && about_munge),
        ] {
            if is_by_it {
                fail.message += &format!(" (as the variable {name} says)");
            }
        }
        fail
    }

    /// The file with the names of applications on these forwarders; None where the command line
    /// only gives addresses.
    pub fn names_file(&self) -> Option<PathBuf> {
        match &self.client {
            _ if !self.addresses().is_empty() => None,
            Some(client) => Some(client.with_file_name(NAMES)),
            None => {
                let state = StateDir::choose(self.state_dir.as_deref());
                matches!(state.enter(), Ok(true)).then(|| state.file(NAMES))
            }
        }
    }

    /// The flags that name the same forwarders to a command that starts in another directory and in
    /// another environment.
    pub fn words(&self) -> Vec<OsString> {
        let mut words: Vec<OsString> = Vec::new();
        let mut add = |flag: &str, value: Option<OsString>| {
            words.extend(value.into_iter().flat_map(|value| [flag.into(), value]));
        };
        let path = |path: &PathBuf| std::path::absolute(path).map_or(path.into(), OsString::from);
        let text = |text: &String| OsString::from(text);
        // A directory that is named keeps a command from root's mount: so only one that is there.
        add("--state-dir", self.state().map(|it| it.path().into()));
        let forwarders: Vec<String> = self.addresses().iter().map(|it| elsewhere(it)).collect();
        let forwarders = forwarders.join(",");
        add(
            "--forwarders",
            (!forwarders.is_empty()).then(|| forwarders.into()),
        );
        add("--client", self.client.as_ref().map(path));
        add("--secret-file", self.secret_file.as_ref().map(path));
        add("--munge", self.munge().map(text));
        add(
            "--munge-uid",
            self.munge_uid.map(|uid| uid.to_string().into()),
        );
        add("--encryption", self.encryption.as_ref().map(text));
        add("--pipelining", self.pipelining.as_ref().map(text));
        words
    }

    /// The state directory whose forwarders are meant, if it is one.
    pub fn state(&self) -> Option<StateDir> {
        let state = StateDir::choose(self.state_dir.as_deref());
        let is_meant = self.addresses().is_empty() && self.client.is_none();
        let is_there = is_meant && matches!(state.enter(), Ok(true));
        (is_there && state.inside(&state.client_file()).exists()).then_some(state)
    }

    /// The state directory of the local set that is meant, also where its `client.toml` is named.
    pub fn set(&self) -> Option<StateDir> {
        let Some(file) = self.client.as_ref().filter(|_| self.addresses().is_empty()) else {
            return self.state();
        };
        let file = std::path::absolute(file).ok()?;
        let state = StateDir::choose(file.parent());
        let is_its = file == state.client_file() && matches!(state.enter(), Ok(true));
        let made_by_up = || state.inside(&state.forwarder(0, "toml")).exists();
        (is_its && made_by_up()).then_some(state)
    }

    /// The same failure, or that the set of a state directory has no process any more.
    fn or_dead_set(&self, fail: Fail) -> Fail {
        let has_ended = |state: &StateDir| {
            let is_supervised = Process::find(&state.inside(&state.file("up.pid"))).is_some();
            !is_supervised && members::running(state).1.is_empty()
        };
        let state = self.state().filter(has_ended);
        let Some(state) = state else {
            return fail;
        };
        let dir = state.path().display();
        Fail::usage(format!(
            "the forwarders of {dir} are gone without `tidegate down`; `tidegate down --state-dir \
             {dir}` clears what they left, `tidegate up` does so too and starts others"
        ))
    }

    /// Connects a client, whose calls end after `limit`; None: the client's own timeout.
    pub fn connect(&self, limit: Option<Duration>) -> Result<(ClientFile, Arc<Client>), Fail> {
        let mut found = self.find()?;
        let client = connect(&found, limit)
            .map_err(|fail| self.or_by_variables(fail))
            .map_err(|fail| self.or_dead_set(fail))?;
        found.forwarders = client.addresses().to_vec();
        Ok((found, client))
    }
}

/// That a state directory has no forwarders, where others are, and what to do. `mounts`: those of
/// root, if there are several.
fn nothing_there(state_dir: &StateDir, mounts: &[PathBuf]) -> Fail {
    let mut place = state_dir.told();
    if let Some(other) = state_dir.outside_of_jobs() {
        let other = other.display();
        place = format!("{place}, the directory of this job (that of no job is {other})");
    }
    if let Some(sets) = members::other_sets(state_dir) {
        place = format!("{place}, but in {sets}");
    }
    let mut or = String::new();
    if !mounts.is_empty() {
        let mounts: Vec<_> = mounts.iter().map(|it| it.display().to_string()).collect();
        let mounts = mounts.join(", ");
        place = format!("{place}, and there are several mounts of root's ({mounts})");
        or = format!("name one of these in {}, or work in one, ", here::MOUNT);
    }
    Fail::usage(format!(
        "there are no forwarders in {place}; {or}start some with `tidegate up DIR`, or name them \
         with --state-dir, --forwarders or TIDEGATE_FORWARDERS",
    ))
}

/// Whether a variable is set to this value.
fn is_set_to(name: &str, value: &str) -> bool {
    std::env::var_os(name).is_some_and(|set| set == value)
}

/// A part of a list as it is right in every directory: a file's path is absolute. `@_NAME` without
/// a `/` is no file.
fn elsewhere(part: &str) -> String {
    let file = part.strip_prefix('@');
    let file = file.filter(|it| !it.starts_with('_') || it.contains('/'));
    let path = file.and_then(|file| std::path::absolute(file).ok());
    match path.as_deref().and_then(std::path::Path::to_str) {
        Some(path) => format!("@{path}"),
        None => part.to_string(),
    }
}

/// Sets how the client transfers long reads and writes, if the file says so.
fn pipeline(options: &mut Options, found: &ClientFile) -> Result<(), Fail> {
    if let Some(name) = &found.pipelining {
        options.pipelining = Pipelining::from_name(name).ok_or_else(|| {
            let names = Pipelining::ALL.map(Pipelining::name).join(", ");
            Fail::usage(format!("pipelining = \"{name}\" must be one of {names}"))
        })?;
    }
    if let Some(bytes) = found.pipeline_bytes {
        if !(CHUNK_MIN..=PAYLOAD_LIMIT).contains(&bytes) {
            return Err(Fail::usage(format!(
                "pipeline_bytes = {bytes} must be a number from {CHUNK_MIN} to {PAYLOAD_LIMIT}"
            )));
        }
        options.pipeline_bytes = bytes;
    }
    Ok(())
}

/// How munge vouches for this user, if the file wants that.
fn munge(found: &ClientFile) -> Result<Option<Munge>, Fail> {
    let socket = match found.munge.as_deref() {
        None | Some("off") => return Ok(None),
        Some("on") => None,
        Some(socket) if socket.starts_with('/') => Some(PathBuf::from(socket)),
        Some(other) => {
            return Err(Fail::usage(format!(
                "munge = \"{other}\" must be on, off, or the path of munged's socket"
            )));
        }
    };
    Ok(Some(Munge::new(found.munge_uid.unwrap_or(0), socket)))
}

/// Connects a client to these forwarders, whose calls end after `limit`; None: the client's own
/// timeout.
pub fn connect(found: &ClientFile, limit: Option<Duration>) -> Result<Arc<Client>, Fail> {
    let mut options = options(found)?;
    options.timeout = limit.unwrap_or(options.timeout);
    let client = Client::connect(options)?;
    for line in client.left_out() {
        errln!("tidegate: warning: {line}");
    }
    Ok(client)
}

/// What a client of these forwarders is made with.
pub fn options(found: &ClientFile) -> Result<Options, Fail> {
    let mut options = Options::new(&found.forwarders);
    options.secret_file.clone_from(&found.secret_file);
    options.tickets.clone_from(&found.tickets);
    options.munge = munge(found)?;
    if let Some(name) = &found.encryption {
        options.encryption = Encryption::from_name(name).ok_or_else(|| {
            let names = Encryption::ALL.map(Encryption::name).join(", ");
            Fail::usage(format!("encryption = \"{name}\" must be one of {names}"))
        })?;
    }
    pipeline(&mut options, found)?;
    Ok(options)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(target: Target) -> Vec<String> {
        let words = target.words().into_iter();
        words
            .map(|word| word.into_string().expect("text"))
            .collect()
    }

    fn target(forwarders: &[&str], state_dir: Option<&str>) -> Target {
        Target {
            forwarders: forwarders.iter().map(|it| it.to_string()).collect(),
            client: None,
            state_dir: state_dir.map(PathBuf::from),
            secret_file: None,
            munge: None,
            munge_uid: None,
            encryption: None,
            pipelining: None,
        }
    }

    #[test]
    fn the_same_forwarders_are_named_for_another_directory() {
        let here = std::env::current_dir().expect("there is one");
        let given = ["tcp:io1:4600", "@list", "@/etc/list", "@_tidegate._tcp.org"];
        let wanted = format!(
            "tcp:io1:4600,@{}/list,@/etc/list,@_tidegate._tcp.org",
            here.display()
        );
        assert_eq!(words(target(&given, None)), ["--forwarders", &wanted]);
    }

    #[test]
    fn several_mounts_are_named_with_what_else_can_be_done() {
        let state_dir = StateDir::choose(Some(std::path::Path::new("/nowhere/at/all")));
        let mounts = ["/mnt/a", "/mnt/b"].map(PathBuf::from);
        let said = nothing_there(&state_dir, &mounts).message;
        assert!(
            said.starts_with("there are no forwarders in /nowhere/at/all"),
            "{said}"
        );
        let mounts =
            "several mounts of root's (/mnt/a, /mnt/b); name one of these in TIDEGATE_MOUNT";
        assert!(
            said.contains(mounts) && said.contains("`tidegate up DIR`"),
            "{said}"
        );
        let said = nothing_there(&state_dir, &[]).message;
        assert!(!said.contains("mounts of root"), "{said}");
    }

    #[test]
    fn a_state_directory_without_forwarders_is_not_named() {
        let none = target(&[], Some("/nowhere/at/all"));
        assert_eq!(words(none), [""; 0]);
    }
}

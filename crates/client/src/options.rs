//! How to reach the forwarders, and why they cannot be reached.

use crate::application::{application_name_from_env, job_from_env, project_from_env};
use crate::munge::Munge;
use crate::wire::{CHUNK_MIN, ExportId, PAYLOAD_LIMIT, Pipeline, Pipelining};
use rustix::fd::OwnedFd;
use std::fmt::Write;
use std::path::PathBuf;
use std::time::Duration;
use tidegate_net::{Encryption, SecretError};

/// Connections of one session that are of use on any machine, and that a forwarder has threads for.
const CONNECTIONS_MAX: u16 = 64;

/// How to reach the forwarders.
#[derive(Clone, Debug)]
pub struct Options {
    /// Addresses: `unix:/path/to.sock`, `tcp:host:port` or, with the feature `fabric`,
    /// `fabric:provider:host:port` (`fabric:shm:/path/to.sock`); and `@/path`, a file with one
    /// address a line. The list names all forwarders of an export, or some that know where the
    /// others listen. Instead of all of these it may be one `@_tidegate._tcp.example.org`: then the
    /// client asks DNS for the SRV records of that name.
    pub forwarders: Vec<String>,
    /// The export that the forwarders serve. If it is given, the client takes the list for complete
    /// and in the order of the layout, like the one of [`Client::reached`](crate::Client::reached).
    /// Otherwise the client asks all forwarders first.
    pub export: Option<ExportId>,
    /// File that holds the site's secret or a derived one, for TCP. It is read again at each
    /// connection.
    pub secret_file: Option<PathBuf>,
    /// Where a mount of root is, which gives the client tickets of its user, for TCP. A ticket is
    /// short-lived; the client takes the next one in time. If it gets none, all calls end with
    /// `EKEYEXPIRED`, or with EIO where nobody knows whether they took effect.
    pub tickets: Option<PathBuf>,
    /// Has munge vouch for the client's user, for TCP, where there is neither a secret nor a mount:
    /// a forwarder gives the client tickets for that.
    pub munge: Option<Munge>,
    /// The least protection of what the client and forwarders of other nodes send each other, where
    /// there is a secret. A forwarder may want more. Default: encrypted and authenticated.
    pub encryption: Encryption,
    /// How long one operation may take before it ends in ETIMEDOUT; zero: for ever. Default 60 s,
    /// longer than a forwarder's restart.
    pub timeout: Duration,
    /// How long [`Client::connect`](crate::Client::connect) tries before it reports that no
    /// forwarder answers. Forwarders that have no time to read a credential of munge are asked for
    /// 10 s at least. Default 3 s.
    pub connect_timeout: Duration,
    /// Largest payload of one frame, in bytes. Default 1 MiB.
    pub payload_max: u32,
    /// Largest number of connections to each forwarder, from 1 to 64. Default: one for each core
    /// that this process may use. A forwarder grants as many as it has threads for them
    /// (`reactors`). The client makes those after the first when several requests are under way at
    /// once; they carry data only.
    pub connections: u16,
    /// How many pieces of a call that is longer than `pipeline_bytes` may be under way at once at
    /// each forwarder. A forwarder whose configuration allows less has the last word. Default
    /// parallel.
    pub pipelining: Pipelining,
    /// Bytes of a piece of such a call: at least 4 KiB, at most `payload_max`. Default 512 KiB,
    /// which costs the least processor time a byte.
    pub pipeline_bytes: u32,
    /// Largest number of bytes that all calls together may have in flight. Further calls wait.
    /// Default 64 MiB.
    pub in_flight_bytes_max: u64,
    /// Bytes of memory that the client shares with forwarders on this node (Unix sockets) or
    /// through libfabric, for payload. For payload through sockets it has as many bytes again,
    /// which it shares with nobody. The system allots pages when they are first used. 0: the client
    /// shares nothing, and keeps at most 16 MiB of replies' memory for the next ones. Default
    /// 64 MiB.
    pub shared_memory_bytes: u64,
    /// The client holds back small consecutive writes of one open [`File`](crate::fs::File), up to
    /// this number of bytes, at most 16 MiB, and sends them together. It sends them before it does
    /// anything else with the open file, and when the file is closed; others see them then. Default
    /// 0: the client sends each write at once.
    pub coalesce_bytes: u32,
    /// Whether blocks of one operation on the same seat are sent in one request; otherwise each
    /// stripe block is a request of its own. Default true.
    pub merge_blocks: bool,
    /// Whether forwarders may lend the client names and attributes, which it then need not ask for
    /// each time. While a client does not answer, as when its process is stopped, others may have
    /// to wait for what it was lent, `outside_ms` of the forwarders' configuration at most. Default
    /// true.
    pub loans: bool,
    /// Largest number of file names that the client remembers, for forwarders that do not know a
    /// handle. Default 262144.
    pub names_max: usize,
    /// Name of the client in logs and in `tidegate stat`. Default `host:pid`.
    pub name: String,
    /// Name of the application for calls that name none
    /// ([`Context::app`](crate::Context::app) is 0). Default: what
    /// [`application_name_from_env`](crate::application_name_from_env) returns, else `name`.
    pub application: String,
    /// The batch system's job to which the application belongs; empty if there is none. Default:
    /// what [`job_from_env`](crate::job_from_env) returns.
    pub job: String,
    /// The project for which the job counts; empty if there is none. Default: what
    /// [`project_from_env`](crate::project_from_env) returns.
    pub project: String,
    /// For a client inside a program that does not know of it.
    pub embedded: EmbeddedOptions,
}

/// How a client inside a program that does not know of it stays out of the program's way.
#[derive(Clone, Copy, Debug, Default)]
pub struct EmbeddedOptions {
    /// The client's I/O thread calls this first.
    pub thread_begins: Option<fn()>,
    /// Moves a new socket to a number that the program will not use.
    pub place: Option<fn(OwnedFd) -> OwnedFd>,
}

/// Number of cores that this process may use.
fn cores() -> u16 {
    // Unlike std's, one system call: other programs' processes make clients, too.
    let allowed = rustix::thread::sched_getaffinity(None);
    let cores = allowed.map_or(1, |cores| cores.count());
    cores.clamp(1, u32::from(CONNECTIONS_MAX)) as u16
}

impl Default for Options {
    fn default() -> Options {
        let host = rustix::system::uname()
            .nodename()
            .to_string_lossy()
            .into_owned();
        let name = format!("{host}:{}", std::process::id());
        let variable = |name: &str| std::env::var(name).ok();
        let application = application_name_from_env(variable).unwrap_or_else(|| name.clone());
        Options {
            forwarders: Vec::new(),
            export: None,
            secret_file: None,
            tickets: None,
            munge: None,
            encryption: Encryption::default(),
            timeout: Duration::from_secs(60),
            connect_timeout: Duration::from_secs(3),
            payload_max: 1 << 20,
            connections: cores(),
            pipelining: Pipeline::default().mode,
            pipeline_bytes: Pipeline::default().chunk_bytes,
            in_flight_bytes_max: 64 << 20,
            shared_memory_bytes: 64 << 20,
            coalesce_bytes: 0,
            merge_blocks: true,
            loans: true,
            names_max: 1 << 18,
            name,
            application,
            job: job_from_env(variable).unwrap_or_default(),
            project: project_from_env(variable).unwrap_or_default(),
            embedded: EmbeddedOptions::default(),
        }
    }
}

impl Options {
    /// The default options for these forwarders.
    pub fn new(forwarders: impl IntoIterator<Item = impl Into<String>>) -> Options {
        let forwarders = forwarders.into_iter().map(Into::into).collect();
        Options {
            forwarders,
            ..Options::default()
        }
    }

    /// Reads a line of text: addresses separated by commas, then settings separated by semicolons.
    ///
    /// ```
    /// let line = "unix:/run/a.sock,tcp:node7:7000;secret=/etc/tidegate/secret;timeout_s=30";
    /// let options = tidegate_client::Options::from_text(line).unwrap();
    /// assert_eq!(options.forwarders.len(), 2);
    /// assert_eq!(options.timeout.as_secs(), 30);
    /// ```
    ///
    /// The settings are `export` (in hex), `secret` (file), `tickets` (mount point), `timeout_s`,
    /// `connect_timeout_s`, `payload_max`, `connections`,
    /// `pipelining` (`none`, `serial` or `parallel`), `pipeline_bytes`,
    /// `in_flight_bytes_max`, `shared_memory_bytes`, `coalesce_bytes`, `name` and `application`.
    pub fn from_text(text: &str) -> Result<Options, ConnectError> {
        let mut parts = text.split(';');
        let addresses = parts.next().unwrap_or_default().split(',').map(str::trim);
        let mut options = Options::new(addresses.filter(|address| !address.is_empty()));
        for setting in parts.map(str::trim).filter(|setting| !setting.is_empty()) {
            let (key, value) = setting.split_once('=').unwrap_or((setting, ""));
            options.set(key.trim(), value.trim())?;
        }
        if options.forwarders.is_empty() {
            return Err(ConnectError::NoAddress);
        }
        Ok(options)
    }

    /// A line for [`from_text`](Options::from_text) with which another process of this machine
    /// reaches the same forwarders.
    pub(crate) fn to_text(&self) -> String {
        let secret = self.secret_file.as_ref().map(|path| {
            let path = std::path::absolute(path).unwrap_or_else(|_| path.clone());
            format!("secret={}", path.display())
        });
        let tickets = self.tickets.as_ref();
        let tickets = tickets.map(|point| format!("tickets={}", point.display()));
        self.to_text_by(secret.or(tickets).as_deref())
    }

    /// The line for a process that proves itself with what the setting `proof` says.
    pub(crate) fn to_text_by(&self, proof: Option<&str>) -> String {
        let absolute = |address: &String| match address.strip_prefix("unix:") {
            Some(path) => {
                let path = std::path::absolute(path).unwrap_or_else(|_| PathBuf::from(path));
                format!("unix:{}", path.display())
            }
            None => address.clone(),
        };
        let addresses: Vec<String> = self.forwarders.iter().map(absolute).collect();
        let mut text = addresses.join(",");
        if let Some(proof) = proof {
            let _ = write!(text, ";{proof}");
            if self.encryption != Encryption::default() {
                let _ = write!(text, ";encryption={}", self.encryption.name());
            }
        }
        if let Some(export) = self.export {
            let _ = write!(text, ";export={export}");
        }
        let _ = write!(text, ";timeout_s={}", self.timeout.as_secs());
        let Pipeline { mode, chunk_bytes } = self.pipeline();
        if self.pipeline() != Pipeline::default() {
            let mode = mode.name();
            let _ = write!(text, ";pipelining={mode};pipeline_bytes={chunk_bytes}");
        }
        text
    }

    fn set(&mut self, key: &str, value: &str) -> Result<(), ConnectError> {
        let wrong = || ConnectError::Setting(format!("{key}={value}"));
        let number = || value.parse::<u64>().map_err(|_| wrong());
        let short = || value.parse::<u32>().map_err(|_| wrong());
        match key {
            _ if value.is_empty() => return Err(wrong()),
            "export" => {
                let export = u128::from_str_radix(value, 16).map_err(|_| wrong())?;
                self.export = Some(ExportId(export));
            }
            "secret" => self.secret_file = Some(PathBuf::from(value)),
            "tickets" => self.tickets = Some(PathBuf::from(value)),
            "encryption" => self.encryption = Encryption::from_name(value).ok_or_else(wrong)?,
            "timeout_s" => self.timeout = Duration::from_secs(number()?),
            "connect_timeout_s" => self.connect_timeout = Duration::from_secs(number()?),
            "payload_max" => self.payload_max = short()?,
            "connections" => {
                let connections = value.parse().map_err(|_| wrong())?;
                let allowed = (1..=CONNECTIONS_MAX).contains(&connections);
                self.connections = allowed.then_some(connections).ok_or_else(wrong)?;
            }
            "pipelining" => self.pipelining = Pipelining::from_name(value).ok_or_else(wrong)?,
            "pipeline_bytes" => {
                let bytes = short()?;
                let allowed = (CHUNK_MIN..=PAYLOAD_LIMIT).contains(&bytes);
                self.pipeline_bytes = allowed.then_some(bytes).ok_or_else(wrong)?;
            }
            "in_flight_bytes_max" => self.in_flight_bytes_max = number()?,
            "coalesce_bytes" => self.coalesce_bytes = short()?,
            "shared_memory_bytes" => self.shared_memory_bytes = number()?,
            "name" => self.name = value.to_string(),
            "application" => self.application = value.to_string(),
            _ => return Err(wrong()),
        }
        Ok(())
    }

    /// `coalesce_bytes`, cut to what is allowed.
    pub(crate) fn coalesce_bytes_allowed(&self) -> usize {
        self.coalesce_bytes.min(PAYLOAD_LIMIT) as usize
    }

    /// `payload_max`, cut to what the protocol allows.
    pub(crate) fn payload_max_allowed(&self) -> u32 {
        self.payload_max.clamp(4096, PAYLOAD_LIMIT)
    }

    /// `connections`, cut to what is allowed.
    pub(crate) fn connections_allowed(&self) -> u16 {
        self.connections.clamp(1, CONNECTIONS_MAX)
    }

    /// How the client transfers calls that are longer than a chunk, cut to what the protocol
    /// allows.
    pub(crate) fn pipeline(&self) -> Pipeline {
        Pipeline::new(self.pipelining, self.pipeline_bytes)
    }
}

/// Why the client got no session.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// An address makes no sense.
    #[error(
        "forwarder address {0:?} is none of unix:PATH, tcp:HOST:PORT, fabric:PROVIDER:HOST:PORT, \
         @FILE and @_NAME (SRV records of DNS)"
    )]
    Address(String),
    /// The options name no forwarder.
    #[error("no forwarder is named; give at least one address, unix:PATH or tcp:HOST:PORT")]
    NoAddress,
    /// The list does not fit the export.
    #[error("forwarders: {0}")]
    List(String),
    /// The list is in DNS, and DNS gives no answer that the client can read.
    #[error("forwarders: {0}")]
    Lookup(String),
    /// The list is not complete, and the forwarders do not know the rest of it.
    #[error("forwarders: {0}")]
    Unknown(String),
    /// A setting of [`Options::from_text`] is unknown or out of its range.
    #[error(
        "setting {0:?} is not understood; there are export, secret, tickets (a mount point), \
         encryption (on, integrity or off), timeout_s, connect_timeout_s, payload_max, connections \
         (from 1 to 64), pipelining (none, serial or parallel), pipeline_bytes (from 4096), \
         in_flight_bytes_max, shared_memory_bytes, coalesce_bytes, name and application"
    )]
    Setting(String),
    /// The secret cannot be used.
    #[error("secret file {0} {1}")]
    Secret(PathBuf, SecretError),
    /// The mount gives no ticket.
    #[error("no ticket of the mount {0}: {1}")]
    Ticket(PathBuf, std::io::Error),
    /// No forwarder gives a ticket for what munge says.
    #[error("no ticket by munge: {0}")]
    Munge(std::io::Error),
    /// Nobody answers.
    #[error(
        "no forwarder answers ({0}); is it running? \
         start one with `tidegate up DIR` or `tidegate serve`"
    )]
    Unreachable(String),
    /// The forwarders refuse this client.
    #[error("forwarder {0} refused the session: {1}")]
    Refused(String, String),
    /// The system gave no socket, thread or random numbers.
    #[error("the client's thread could not be started: {0}")]
    Resources(#[from] std::io::Error),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_told_to_others_reaches_the_same_forwarders() {
        let line = "unix:/run/a.sock,tcp:node7:7000;secret=/etc/tidegate/secret;timeout_s=30";
        let options = Options::from_text(line).expect("a good line");
        assert_eq!(options.to_text(), line);
        // Whoever cannot read the secret takes tickets.
        let by_tickets = options.to_text_by(Some("tickets=/mnt/a b"));
        let options = Options::from_text(&by_tickets).expect("a good line");
        assert_eq!(options.tickets.as_deref(), Some("/mnt/a b".as_ref()));
        assert_eq!(
            (&options.secret_file, options.to_text()),
            (&None, by_tickets)
        );
        let more = format!("{line};pipelining=serial;pipeline_bytes=262144");
        let options = Options::from_text(&more).expect("a good line");
        assert_eq!(options.pipelining, Pipelining::Serial);
        assert_eq!(options.to_text(), more);
        let near = Options::new(["unix:a.sock"]).to_text();
        assert!(near.starts_with("unix:/"), "{near}");
    }

    #[test]
    fn wrong_settings_are_named() {
        for (line, said) in [
            ("unix:/a;colour=red", "colour=red"),
            ("unix:/a;timeout_s=soon", "timeout_s=soon"),
            ("unix:/a;payload_max=5000000000", "payload_max=5000000000"),
            ("unix:/a;connections=0", "connections=0"),
            ("unix:/a;pipelining=both", "pipelining=both"),
            ("unix:/a;pipeline_bytes=100", "pipeline_bytes=100"),
            ("unix:/a;secret=", "secret="),
            ("", "no forwarder is named"),
        ] {
            let error = Options::from_text(line).expect_err(line).to_string();
            assert!(error.contains(said), "{error}");
        }
    }
}

//! The forwarders of a benchmark: one process each, over one directory, on Unix sockets.

use super::workplace::Workplace;
use super::{Access, processor};
use rustix::process::Pid;
use serde_json::Value;
use std::fs::File;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tidegate_cli::fail::Fail;
use tidegate_cli::processes;
use tidegate_cli::state::ClientFile;
use tidegate_client::fs::{File as RemoteFile, OpenHow};
use tidegate_client::wire::Keep;
use tidegate_client::{Client, Context, Options};

/// For forwarders and mounts to come up, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// What forwarders to start.
pub struct Shape<'a> {
    /// Names the files of this set in the workplace.
    pub name: &'a str,
    pub forwarders: usize,
    /// Bytes of a stripe.
    pub stripe: u64,
    /// Nice value of the forwarders' processes; 0 is that of other processes.
    pub nice: i32,
    /// Whether they listen on TCP too, on this machine and with a secret.
    pub tcp: bool,
    /// The `tidegate` to start; None: the one of this release.
    pub program: Option<&'a Path>,
    /// Further lines and sections of forwarder `i`'s configuration.
    pub sections: &'a dyn Fn(usize) -> String,
}

impl<'a> Shape<'a> {
    /// Forwarders on Unix sockets alone, at the priority of other processes.
    pub fn new(
        name: &'a str,
        forwarders: usize,
        stripe: u64,
        sections: &'a dyn Fn(usize) -> String,
    ) -> Shape<'a> {
        Shape {
            name,
            forwarders,
            stripe,
            nice: 0,
            tcp: false,
            program: None,
            sections,
        }
    }

    /// One forwarder, with stripes of 1 MiB.
    pub fn one(name: &'a str, sections: &'a dyn Fn(usize) -> String) -> Shape<'a> {
        Shape::new(name, 1, 1 << 20, sections)
    }
}

/// Running forwarders. They end with the workplace.
pub struct Cluster<'a> {
    place: &'a Workplace,
    program: PathBuf,
    name: String,
    addresses: Vec<String>,
    /// On TCP, if they listen there.
    ports: Vec<u16>,
    pids: Vec<Pid>,
    mount: Option<Pid>,
    export: PathBuf,
}

impl<'a> Cluster<'a> {
    /// Starts forwarders and waits until they answer.
    pub fn start(place: &'a Workplace, shape: &Shape<'_>) -> Result<Cluster<'a>, Fail> {
        let export = place.dir().join(format!("{}.data", shape.name));
        std::fs::create_dir(&export).map_err(at(&export))?;
        let mut cluster = Cluster {
            place,
            program: shape
                .program
                .map_or_else(super::tidegate, |it| Ok(it.to_path_buf()))?,
            name: shape.name.to_string(),
            addresses: Vec::new(),
            ports: Vec::new(),
            pids: Vec::new(),
            mount: None,
            export,
        };
        if shape.tcp {
            cluster.ports = free_ports(shape.forwarders)?;
            write_secret(&cluster.secret())?;
        }
        for index in 0..shape.forwarders {
            let address = format!("unix:{}", cluster.file(index, "sock").display());
            cluster.addresses.push(address);
            let config = cluster.file(index, "toml");
            std::fs::write(&config, cluster.config(shape, index)).map_err(at(&config))?;
            let words = ["serve", "--config", &config.display().to_string()].map(String::from);
            let log = cluster.file(index, "log");
            let pid = place.start(&cluster.program, &words, &log, shape.nice)?;
            cluster.pids.push(pid);
        }
        for index in 0..shape.forwarders {
            cluster.wait_for(index)?;
        }
        Ok(cluster)
    }

    pub fn len(&self) -> usize {
        self.addresses.len()
    }

    /// The directory that they serve.
    pub fn export(&self) -> &Path {
        &self.export
    }

    /// A client of them.
    pub fn client(
        &self,
        application: &str,
        change: impl FnOnce(&mut Options),
    ) -> Result<Arc<Client>, Fail> {
        let mut options = Options::new(&self.addresses);
        options.application = application.to_string();
        options.connect_timeout = PATIENCE;
        change(&mut options);
        Ok(Client::connect(options)?)
    }

    /// Changes the policy of all of them: text of a `[scheduler]` table.
    pub fn set_policy(&self, client: &Client, text: &str) -> Result<(), Fail> {
        for index in 0..self.addresses.len() {
            client.set_policy(index, text, Keep::Run).map_err(|errno| {
                Fail::runtime(format!("forwarder {index} refused policy {text}: {errno}"))
            })?;
        }
        Ok(())
    }

    /// Replaces the shares at all of them: `text` has all rules.
    pub fn set_shares(&self, client: &Client, text: &str) -> Result<(), Fail> {
        for index in 0..self.addresses.len() {
            let set = client.set_shares(index, text, Keep::Run, (u64::MAX, 1));
            set.map_err(|errno| {
                Fail::runtime(format!("forwarder {index} refused shares {text}: {errno}"))
            })?;
        }
        Ok(())
    }

    /// Calls to the back end that all of them have made so far.
    pub fn back_end_calls(&self, client: &Client, access: Access) -> Result<u64, Fail> {
        let calls = |index| {
            let calls = self.status(client, index)?["calls"][access.name()].as_u64();
            calls.ok_or_else(|| Fail::runtime("a forwarder does not say how many calls it made"))
        };
        (0..self.len()).map(calls).sum()
    }

    /// The state of one of them.
    pub fn status(&self, client: &Client, index: usize) -> Result<Value, Fail> {
        let text = client
            .status(index)
            .map_err(|errno| Fail::runtime(format!("forwarder {index}: {errno}")))?;
        serde_json::from_str(&text).map_err(Fail::runtime)
    }

    /// Mounts their files, in a process of its own.
    pub fn mount(&mut self) -> Result<PathBuf, Fail> {
        let point = self.place.dir().join(format!("{}.mnt", self.name));
        std::fs::create_dir(&point).map_err(at(&point))?;
        let file = self.client_file();
        let client = ClientFile {
            forwarders: self.addresses.clone(),
            export: Some(self.export.clone()),
            mount: Some(point.clone()),
            ..ClientFile::default()
        };
        let text = toml::to_string(&client).map_err(Fail::runtime)?;
        std::fs::write(&file, text).map_err(at(&file))?;
        let (shown, file) = (point.display().to_string(), file.display().to_string());
        let words = ["mount", &shown, "--client", &file, "--foreground"].map(String::from);
        let log = self.place.dir().join(format!("{}.mount.log", self.name));
        // Noted first: taking away what is not mounted does nothing.
        self.place.mounted(&point);
        let pid = self.place.start(&self.program, &words, &log, 0)?;
        self.mount = Some(pid);
        let up = || processes::is_mounted(&point) || !self.place.runs(pid);
        if !processes::wait_until(PATIENCE, up) || !processes::is_mounted(&point) {
            let line = processes::last_line(&log);
            return Err(Fail::runtime(format!("mounting {shown}: {line}")));
        }
        Ok(point)
    }

    /// The file that names them and their mount, once they are mounted.
    pub fn client_file(&self) -> PathBuf {
        self.place.dir().join(format!("{}.client.toml", self.name))
    }

    /// Options for a client in another process, as text, with which it reaches them on Unix
    /// sockets.
    pub fn text(&self) -> String {
        self.addresses.join(",")
    }

    /// Like [`Cluster::text`], on TCP.
    pub fn tcp_text(&self) -> String {
        let addresses: Vec<String> = self.ports.iter().map(|port| tcp_address(*port)).collect();
        format!("{};secret={}", addresses.join(","), self.secret().display())
    }

    /// Processor time of the forwarders, and of the mount, so far.
    pub fn processor_ns(&self) -> u64 {
        self.forwarders_ns() + self.mount.map_or(0, processor::of_process_ns)
    }

    /// Processor time of the forwarders so far.
    pub fn forwarders_ns(&self) -> u64 {
        let each = self.pids.iter().map(|pid| processor::of_process_ns(*pid));
        each.sum()
    }

    /// Memory of one of them, in bytes, as a line of `/proc/PID/status` says it.
    pub fn memory(&self, index: usize, line: &str) -> Result<u64, Fail> {
        let path = format!("/proc/{}/status", self.pids[index].as_raw_nonzero());
        let path = Path::new(&path);
        let text = std::fs::read_to_string(path).map_err(at(path))?;
        let mut values = text.lines().filter_map(|found| {
            let value = found.strip_prefix(line)?.strip_prefix(':')?;
            value.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()
        });
        let kib = values.next();
        kib.map(|kib| kib << 10)
            .ok_or_else(|| Fail::runtime(format!("{}: no line {line}", path.display())))
    }

    fn file(&self, index: usize, what: &str) -> PathBuf {
        self.place
            .dir()
            .join(format!("{}.{index}.{what}", self.name))
    }

    fn secret(&self) -> PathBuf {
        self.place.dir().join(format!("{}.secret", self.name))
    }

    fn config(&self, shape: &Shape<'_>, index: usize) -> String {
        let text = |text: String| toml::Value::String(text).to_string();
        let export = text(self.export.display().to_string());
        let mut listen = text(self.addresses[index].clone());
        let mut secret = String::new();
        if let Some(port) = self.ports.get(index) {
            listen += &format!(", \"{}\"", tcp_address(*port));
            let file = text(self.secret().display().to_string());
            secret = format!("secret_file = {file}\n");
        }
        format!(
            "export = {export}\nlisten = [{listen}]\n{secret}forwarder = {index}\nseats = {}\n\
             stripe = {}\nfail_over = false\n{}[log]\nlevel = \"warn\"\n",
            shape.forwarders,
            shape.stripe,
            (shape.sections)(index)
        )
    }

    fn wait_for(&self, index: usize) -> Result<(), Fail> {
        let socket = self.file(index, "sock");
        let pid = self.pids[index];
        let mut answers = false;
        processes::wait_until(PATIENCE, || {
            answers = UnixStream::connect(&socket).is_ok();
            answers || !self.place.runs(pid)
        });
        if !answers {
            let line = processes::last_line(&self.file(index, "log"));
            return Err(Fail::runtime(format!(
                "forwarder {index} did not start: {line}"
            )));
        }
        Ok(())
    }
}

fn tcp_address(port: u16) -> String {
    format!("tcp:127.0.0.1:{port}")
}

/// Ports of this machine on which no process listens. Another process may take one before the
/// forwarder does; then the forwarder reports that and does not start.
fn free_ports(count: usize) -> Result<Vec<u16>, Fail> {
    let listen = |_| TcpListener::bind(("127.0.0.1", 0));
    let held: Result<Vec<TcpListener>, _> = (0..count).map(listen).collect();
    let held = held.map_err(Fail::runtime)?;
    let port = |held: &TcpListener| held.local_addr().map(|address| address.port());
    held.iter()
        .map(port)
        .collect::<Result<_, _>>()
        .map_err(Fail::runtime)
}

/// Makes a secret that nobody else knows.
fn write_secret(path: &Path) -> Result<(), Fail> {
    let mut bytes = [0u8; 32];
    let random = Path::new("/dev/urandom");
    let mut source = File::open(random).map_err(at(random))?;
    source.read_exact(&mut bytes).map_err(at(random))?;
    let text: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let mut options = File::options();
    let file = options.write(true).create_new(true).mode(0o600).open(path);
    file.and_then(|mut file| file.write_all(text.as_bytes()))
        .map_err(at(path))
}

/// Opens a file of the export.
pub fn open(client: &Arc<Client>, name: &str, how: &OpenHow) -> Result<RemoteFile, Fail> {
    let opened = client.open_path(&Context::default(), name.as_bytes(), how);
    opened.map_err(|errno| Fail::runtime(format!("{name}: {errno}")))
}

/// An error with the file it is about.
pub fn at(path: &Path) -> impl Fn(std::io::Error) -> Fail {
    move |error| Fail::runtime(format!("{}: {error}", path.display()))
}

/// Why this machine cannot mount, and what to do about it; None if it can.
pub fn no_fuse() -> Option<String> {
    if let Err(error) = File::options().read(true).write(true).open("/dev/fuse") {
        return Some(format!(
            "/dev/fuse cannot be opened ({error}): load the fuse module, or run in a container \
             with --device /dev/fuse"
        ));
    }
    let paths = std::env::var_os("PATH").unwrap_or_default();
    let there = std::env::split_paths(&paths).any(|dir| dir.join("fusermount3").is_file());
    let missing = "fusermount3 is missing: install the package fuse3".to_string();
    (!there && !rustix::process::geteuid().is_root()).then_some(missing)
}

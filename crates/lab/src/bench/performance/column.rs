//! One way to the files: a process that makes the accesses, and the forwarders behind it.

use super::load::{Done, Task};
use super::workload::{CLIENTS_MAX, LARGE, Measured, Workload};
use crate::bench::cluster::{Cluster, at};
use crate::bench::workplace::{Partner, Workplace};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::sync::Mutex;
use std::time::Duration;
use tidegate_cli::fail::Fail;
use tidegate_cli::installed;

/// See the module.
pub struct Column<'a> {
    name: &'static str,
    cluster: Option<&'a Cluster<'a>>,
    load: Mutex<Partner>,
}

/// How the accesses reach the files.
pub enum Way<'p> {
    /// System calls on files in a directory, be it a mount.
    Directory(&'p Path),
    /// Like `Directory`, with this library preloaded.
    ShortCut(&'p Path, &'p Path),
    /// The client library, with its addresses and settings.
    Client(String),
    /// Like `Client`, by a program that leaves its bytes in the library's memory.
    InPlace(String),
}

impl<'a> Column<'a> {
    /// Starts the process.
    pub fn start(
        place: &Workplace,
        name: &'static str,
        way: &Way<'_>,
        cluster: Option<&'a Cluster<'a>>,
    ) -> Result<Column<'a>, Fail> {
        let program = installed::own()?;
        let mut command = Command::new(program);
        command.args(["bench", "load"]);
        // Each way is an application of its own, and no other library is in the way.
        command.env("TIDEGATE_APP", format!("bench {name}"));
        command.env_remove("LD_PRELOAD");
        match way {
            Way::Directory(dir) => command.arg("--dir").arg(dir),
            Way::ShortCut(dir, library) => {
                command
                    .env("LD_PRELOAD", library)
                    .env_remove("TIDEGATE_SHORTCUT");
                command.arg("--dir").arg(dir)
            }
            Way::Client(text) => command.arg("--client").arg(text),
            Way::InPlace(text) => command.args(["--in-place", "--client", text]),
        };
        command.args((0..CLIENTS_MAX).map(file_name));
        let load = Mutex::new(place.start_partner(&mut command)?);
        Ok(Column {
            name,
            cluster,
            load,
        })
    }

    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Lets the clients work for about `time`, on files of `bytes`.
    pub fn measure(
        &self,
        workload: &Workload,
        time: Duration,
        bytes: u64,
    ) -> Result<Measured, Fail> {
        self.perform(&Task {
            workload: *workload,
            time_ms: time.as_millis() as u64,
            accesses_max: None,
            file_bytes: bytes,
            truncate: false,
        })
    }

    /// Does one task.
    pub fn perform(&self, task: &Task) -> Result<Measured, Fail> {
        let all_ns = || self.cluster.map_or(0, Cluster::processor_ns);
        let forwarders_ns = || self.cluster.map_or(0, Cluster::forwarders_ns);
        let (all_before, forwarders_before) = (all_ns(), forwarders_ns());
        let line = serde_json::to_string(task).map_err(Fail::runtime)?;
        let mut load = self.load.lock().expect("nobody panics with it");
        let answer = load.ask(&line);
        let answer = answer.map_err(|fail| Fail::runtime(format!("{}: {fail}", self.name)))?;
        let done: Done = serde_json::from_str(&answer).map_err(Fail::runtime)?;
        // The time of threads that have ended meanwhile is not seen.
        let forwarders = forwarders_ns().saturating_sub(forwarders_before);
        let processor = done.processor_ns + all_ns().saturating_sub(all_before);
        Ok(Measured {
            per_second: done.per_second,
            processor_us: processor as f64 / 1000.0 / done.count as f64,
            forwarder_cores: forwarders as f64 / done.wall_ns as f64,
            p50_us: done.p50_ns as f64 / 1000.0,
            p99_us: done.p99_ns as f64 / 1000.0,
        })
    }
}

/// The name of a client's file.
pub fn file_name(client: usize) -> String {
    format!("file.{client}")
}

/// Makes every client's file, so that the measured accesses do not extend it.
pub fn fill(dir: &Path, bytes: u64) -> Result<(), Fail> {
    (0..CLIENTS_MAX).try_for_each(|client| fill_one(dir, client, bytes, LARGE))
}

/// Makes the files for loads whose clients share `bytes` evenly: file `n` is as long as the share
/// of each of `n` + 1 clients.
pub fn fill_together(dir: &Path, bytes: u64) -> Result<(), Fail> {
    let share = |client| bytes / (client as u64 + 1);
    (0..CLIENTS_MAX).try_for_each(|client| fill_one(dir, client, share(client), LARGE))
}

/// Makes one client's file in writes of `piece` bytes, which determine the size of the page cache's
/// pages. The files of the others exist and are empty.
pub fn fill_alone(dir: &Path, bytes: u64, piece: usize) -> Result<(), Fail> {
    let share = |client| if client == 0 { bytes } else { 0 };
    (0..CLIENTS_MAX).try_for_each(|client| fill_one(dir, client, share(client), piece))
}

fn fill_one(dir: &Path, client: usize, bytes: u64, piece: usize) -> Result<(), Fail> {
    let data = vec![7; piece];
    let len = piece as u64;
    let path = dir.join(file_name(client));
    let file = File::create(&path).map_err(at(&path))?;
    let mut pieces = 0..bytes / len;
    pieces
        .try_for_each(|piece| file.write_all_at(&data, piece * len))
        // The device must not be busy with it while something is measured.
        .and_then(|()| file.sync_all())
        .map_err(at(&path))
}

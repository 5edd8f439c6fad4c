//! One turn: all processes run a load once through the forwarders, with their present policy.

use super::load::{Content, Load};
use crate::bench::cluster::{Cluster, at, open};
use crate::bench::{Access, processor};
use std::io::Read;
use std::path::Path;
use std::sync::{Arc, Barrier};
use std::time::Instant;
use tidegate_cli::fail::Fail;
use tidegate_client::fs::{File, OpenHow};
use tidegate_client::{Client, Context, Data};

/// The result of a turn.
#[derive(Clone, Copy, Debug)]
pub struct Turn {
    /// From the start of all processes to the end of the last.
    pub seconds: f64,
    /// Processor time of clients and forwarders.
    pub processor_ns: u64,
    /// Calls to the back end.
    pub calls: u64,
    /// Whether every byte is as written.
    pub identical: bool,
}

/// The sessions of the processes, and the file that they share.
pub struct Processes<'a> {
    cluster: &'a Cluster<'a>,
    clients: Vec<Arc<Client>>,
    name: String,
}

impl<'a> Processes<'a> {
    /// `count` sessions of one application.
    pub fn new(cluster: &'a Cluster<'a>, count: usize) -> Result<Processes<'a>, Fail> {
        let clients = (0..count)
            .map(|_| cluster.client("ior", |_| {}))
            .collect::<Result<Vec<_>, Fail>>()?;
        Ok(Processes {
            cluster,
            clients,
            name: String::new(),
        })
    }

    /// Makes the processes use another file, named after a load.
    pub fn share(&mut self, title: &str) {
        self.name = title.replace([' ', ','], "-");
    }

    /// Removes the file.
    pub fn remove(&self) -> Result<(), Fail> {
        let path = self.cluster.export().join(&self.name);
        std::fs::remove_file(&path).map_err(at(&path))
    }

    /// Sets the `[scheduler]` of all forwarders.
    pub fn set_policy(&self, table: &str) -> Result<(), Fail> {
        self.cluster.set_policy(&self.clients[0], table)
    }

    /// Runs all processes' calls once.
    pub fn turn(
        &self,
        load: &Load,
        access: Access,
        content: &Content,
        version: u64,
    ) -> Result<Turn, Fail> {
        let open = |client| open(client, &self.name, &OpenHow::create());
        let clients = self.clients.iter().take(load.calls.len());
        let files = clients.map(open).collect::<Result<Vec<File>, Fail>>()?;
        let calls = || self.cluster.back_end_calls(&self.clients[0], access);
        let calls_before = calls()?;
        let processor = self.cluster.processor_ns() + processor::own_ns();
        let barrier = Barrier::new(files.len());
        let begun = Barrier::new(files.len() + 1);
        let (started, done) = std::thread::scope(|scope| {
            let work = |(file, calls)| {
                let process = Process {
                    file,
                    calls,
                    access,
                    content,
                    version,
                    barrier: load.together.then_some(&barrier),
                };
                let begun = &begun;
                scope.spawn(move || {
                    begun.wait();
                    process.run()
                })
            };
            let of_process = load.calls.iter().map(Vec::as_slice);
            let threads: Vec<_> = files.iter().zip(of_process).map(work).collect();
            begun.wait();
            let started = Instant::now();
            let join = |thread: std::thread::ScopedJoinHandle<'_, _>| thread.join();
            let done: Vec<_> = threads.into_iter().map(join).collect();
            (started, done)
        });
        let seconds = started.elapsed().as_secs_f64();
        let processor_ns = (self.cluster.processor_ns() + processor::own_ns()) - processor;
        let calls = calls()? - calls_before;
        let mut identical = true;
        for process in done {
            identical &= process.expect("a process panicked")?;
        }
        if access == Access::Write {
            let path = self.cluster.export().join(&self.name);
            identical &= is_as_written(&path, content, version, load.bytes())?;
        }
        Ok(Turn {
            seconds,
            processor_ns,
            calls,
            identical,
        })
    }
}

/// What one process does in a turn.
struct Process<'a> {
    file: &'a File,
    calls: &'a [(u64, u64)],
    access: Access,
    content: &'a Content,
    version: u64,
    barrier: Option<&'a Barrier>,
}

impl Process<'_> {
    /// Runs the calls; false if it read something else than was written.
    fn run(&self) -> Result<bool, Fail> {
        let context = Context::default();
        let (mut failed, mut identical) = (None, true);
        for &(offset, len) in self.calls {
            if let Some(barrier) = self.barrier {
                barrier.wait();
            }
            let wanted = self.content.at(self.version, offset, len);
            let done = match self.access {
                Access::Write => self.file.pwrite(&context, offset, wanted).map(|_| ()),
                Access::Read => self
                    .file
                    .pread(&context, offset, len as usize)
                    .map(|data| identical &= is_same(&data, &wanted)),
            };
            // Going on keeps the others from waiting for this one for ever.
            failed = failed.or(done.err().map(|errno| (offset, errno)));
        }
        match failed {
            None => Ok(identical),
            Some((offset, errno)) => {
                let what = self.access.name();
                Err(Fail::runtime(format!("{what} at byte {offset}: {errno}")))
            }
        }
    }
}

fn is_same(data: &Data, wanted: &[u8]) -> bool {
    data.to_vec() == wanted
}

/// Compares the file on the back end with what should be in it.
fn is_as_written(path: &Path, content: &Content, version: u64, bytes: u64) -> Result<bool, Fail> {
    const PIECE: u64 = 32 << 10;
    let mut file = std::fs::File::open(path).map_err(at(path))?;
    if file.metadata().map_err(at(path))?.len() < bytes {
        return Ok(false);
    }
    let mut found = vec![0; PIECE as usize];
    let mut offset = 0;
    while offset < bytes {
        let len = PIECE.min(bytes - offset);
        let found = &mut found[..len as usize];
        file.read_exact(found).map_err(at(path))?;
        if found != &content.at(version, offset, len)[..] {
            return Ok(false);
        }
        offset += len;
    }
    Ok(true)
}

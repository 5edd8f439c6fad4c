//! One measurement: clients that read or write their own files for a short while, on one path.

use crate::bench::cluster::{Cluster, at};
use crate::bench::processor;
use crate::fail::Fail;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Barrier;
use std::time::{Duration, Instant};
use tidegate_client::fs::{File as RemoteFile, OpenHow};
use tidegate_client::{Bytes, Context};

const CLIENTS_MAX: usize = 8;

/// Read or write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Read.
    Read,
    /// Write.
    Write,
}

/// What the clients do.
#[derive(Clone, Copy, Debug)]
pub struct Workload {
    /// Read or write.
    pub access: Access,
    /// Bytes of one access; small ones at random places, large ones one after another.
    pub len: usize,
    /// How many at once, each on its own file.
    pub clients: usize,
}

/// What came of it.
#[derive(Clone, Copy, Debug)]
pub struct Measured {
    /// Accesses per second, of all clients together.
    pub per_second: f64,
    /// Processor time of one access: client, mount and forwarders.
    pub processor_us: f64,
}

impl Workload {
    /// All that are measured.
    pub fn all() -> Vec<Workload> {
        let mut all = Vec::new();
        for len in [4 << 10, 1 << 20] {
            for access in [Access::Read, Access::Write] {
                for clients in [1, CLIENTS_MAX] {
                    all.push(Workload {
                        access,
                        len,
                        clients,
                    });
                }
            }
        }
        all
    }

    /// In words.
    pub fn words(&self) -> String {
        let size = match self.len >> 20 {
            0 => format!("{} KiB", self.len >> 10),
            mib => format!("{mib} MiB"),
        };
        let access = if self.access == Access::Read {
            "read"
        } else {
            "write"
        };
        let clients = if self.clients == 1 {
            "client"
        } else {
            "clients"
        };
        format!("{size} {access}, {} {clients}", self.clients)
    }
}

/// A way to the files.
pub struct Path<'a> {
    cluster: Option<&'a Cluster<'a>>,
    files: Vec<Opened>,
}

enum Opened {
    Local(File),
    Remote(RemoteFile),
}

impl<'a> Path<'a> {
    /// Files in a directory: a plain one, or the mount of some forwarders.
    pub fn local(
        dir: &std::path::Path,
        cluster: Option<&'a Cluster<'a>>,
        bytes: u64,
    ) -> Result<Path<'a>, Fail> {
        let open = |number| {
            let path = dir.join(format!("local.{number}"));
            let mut options = File::options();
            let file = options.read(true).write(true).create_new(true).open(&path);
            let file = file.map_err(at(&path))?;
            fill(bytes, |offset, data| {
                file.write_all_at(data, offset).map_err(at(&path))
            })?;
            Ok(Opened::Local(file))
        };
        let files = (0..CLIENTS_MAX).map(open).collect::<Result<_, Fail>>()?;
        Ok(Path { cluster, files })
    }

    /// Files through the client library, each with a session of its own.
    pub fn library(cluster: &'a Cluster<'a>, bytes: u64) -> Result<Path<'a>, Fail> {
        let open = |number| {
            let name = format!("library.{number}");
            let client = cluster.client(&name, |_| {})?;
            let wrong = |errno| Fail::runtime(format!("{name}: {errno}"));
            let context = Context::default();
            let file = client.open_path(&context, name.as_bytes(), &OpenHow::create());
            let file = file.map_err(wrong)?;
            fill(bytes, |offset, data| {
                let written = file.pwrite(&context, offset, Bytes::copy_from_slice(data));
                written.map(|_| ()).map_err(wrong)
            })?;
            Ok(Opened::Remote(file))
        };
        let files = (0..CLIENTS_MAX).map(open).collect::<Result<_, Fail>>()?;
        Ok(Path {
            cluster: Some(cluster),
            files,
        })
    }

    /// Lets the clients work for about `time`, on files of `bytes`.
    pub fn measure(
        &self,
        workload: &Workload,
        time: Duration,
        bytes: u64,
    ) -> Result<Measured, Fail> {
        let others_ns = || self.cluster.map_or(0, Cluster::processor_ns);
        let (own_before, others_before) = (processor::own_ns(), others_ns());
        let barrier = Barrier::new(workload.clients);
        let results: Vec<_> = std::thread::scope(|scope| {
            let work = |(number, file)| {
                let barrier = &barrier;
                scope.spawn(move || {
                    barrier.wait();
                    accesses(file, workload, time, bytes, number as u64)
                })
            };
            let files = self.files.iter().take(workload.clients).enumerate();
            let threads: Vec<_> = files.map(work).collect();
            threads
                .into_iter()
                .map(|thread| thread.join().expect("a client panicked"))
                .collect()
        });
        let processor_ns = processor::own_ns() - own_before + others_ns() - others_before;
        let (mut count, mut per_second) = (0, 0.0);
        for result in results {
            let (done, took) = result?;
            count += done;
            per_second += done as f64 / took.as_secs_f64();
        }
        Ok(Measured {
            per_second,
            processor_us: processor_ns as f64 / 1000.0 / count as f64,
        })
    }
}

/// Works on one file until the time is over; how much, and how long it took.
fn accesses(
    file: &Opened,
    workload: &Workload,
    time: Duration,
    bytes: u64,
    seed: u64,
) -> Result<(u64, Duration), Fail> {
    let places = bytes / workload.len as u64;
    let mut buffer = vec![7; workload.len];
    let shared = Bytes::from(buffer.clone());
    let context = Context::default();
    let (mut count, started) = (0u64, Instant::now());
    loop {
        let place = match workload.len {
            4096 => tidegate_sched::mix64(seed << 32 | count) % places,
            _ => count % places,
        };
        let offset = place * workload.len as u64;
        match (file, workload.access) {
            (Opened::Local(file), Access::Read) => file.read_exact_at(&mut buffer, offset),
            (Opened::Local(file), Access::Write) => file.write_all_at(&buffer, offset),
            (Opened::Remote(file), Access::Read) => file
                .pread(&context, offset, workload.len)
                // Programs want their bytes in their own buffer.
                .map(|data| assert_eq!(data.copy_to(&mut buffer), workload.len, "it was filled"))
                .map_err(|errno| std::io::Error::from_raw_os_error(errno.0)),
            (Opened::Remote(file), Access::Write) => file
                .pwrite(&context, offset, shared.clone())
                .map(|_| ())
                .map_err(|errno| std::io::Error::from_raw_os_error(errno.0)),
        }
        .map_err(|error| Fail::runtime(format!("{}: {error}", workload.words())))?;
        count += 1;
        let took = started.elapsed();
        if took >= time {
            return Ok((count, took));
        }
    }
}

/// Writes a file's bytes once, so that what is measured does not extend it.
fn fill(bytes: u64, write: impl Fn(u64, &[u8]) -> Result<(), Fail>) -> Result<(), Fail> {
    const PIECE: u64 = 1 << 20;
    let data = vec![7; PIECE as usize];
    (0..bytes / PIECE).try_for_each(|piece| write(piece * PIECE, &data))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workloads_are_named_apart() {
        let names: Vec<_> = Workload::all().iter().map(Workload::words).collect();
        assert_eq!(names.len(), 8);
        assert_eq!(names[0], "4 KiB read, 1 client");
        assert_eq!(names[7], "1 MiB write, 8 clients");
    }

    #[test]
    fn a_plain_directory_can_be_measured() {
        let dir = std::env::temp_dir().join(format!("tidegate-measure-{}", std::process::id()));
        std::fs::create_dir(&dir).unwrap();
        let path = Path::local(&dir, None, 1 << 20).unwrap();
        for workload in Workload::all() {
            let found = path
                .measure(&workload, Duration::from_millis(2), 1 << 20)
                .unwrap();
            assert!(found.per_second > 0.0 && found.processor_us > 0.0);
        }
        std::fs::remove_dir_all(&dir).unwrap();
    }
}

//! Measures what forwarding costs without caches: O_DIRECT in a plain directory and through one
//! forwarder.

use super::cluster::{Cluster, Shape, at, open};
use super::performance::machine;
use super::workplace::Workplace;
use super::{Claim, Common, processor, statistics};
use serde_json::{Value, json};
use std::fs::File;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tidegate_cli::fail::Fail;
use tidegate_cli::table;
use tidegate_client::fs::{File as RemoteFile, OpenHow};
use tidegate_client::{Bytes, Context};
use tidegate_server::storage::SlotBytes;

/// Direct I/O through one forwarder against the same program in a plain directory.
///
/// One program reads and writes one file, 1 MiB one after another and 4 KiB at random places, with
/// one access in flight and with several: in a plain directory with O_DIRECT, and through the
/// client library and one forwarder with `io = "direct"`, by io_uring (where it can be had) and by
/// threads. All in one run, in turns; medians, with the processor time of program and forwarder.
/// Claimed is that 1 MiB through the forwarder reaches 90 % of the plain directory with eight in
/// flight, and 60 % with one.
#[derive(clap::Args, Clone, Debug)]
pub struct Direct {
    #[command(flatten)]
    common: Common,
}

/// The columns.
const COLUMNS: [&str; 3] = ["plain", "io_uring", "threads"];

/// What the program does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Load {
    write: bool,
    len: usize,
    in_flight: usize,
}

/// Accesses per second, and processor time of each.
#[derive(Clone, Copy, Debug)]
struct Measured {
    per_second: f64,
    processor_us: f64,
}

/// A file, and how it is reached.
enum Target<'a> {
    Plain(File),
    Forwarder(&'a Cluster<'a>, Box<RemoteFile>),
}

/// How thorough a run is.
struct Effort {
    turns: usize,
    time: Duration,
    file_bytes: u64,
}

const FULL: Effort = Effort {
    turns: 5,
    time: Duration::from_millis(500),
    file_bytes: 128 << 20,
};
const QUICK: Effort = Effort {
    turns: 1,
    time: Duration::from_millis(20),
    file_bytes: 4 << 20,
};

impl Load {
    fn all() -> Vec<Load> {
        let mut all = Vec::new();
        for (len, many) in [(1 << 20, 8), (4 << 10, 32)] {
            for write in [false, true] {
                for in_flight in [1, many] {
                    all.push(Load {
                        write,
                        len,
                        in_flight,
                    });
                }
            }
        }
        all
    }

    fn words(&self) -> String {
        let size = match self.len >> 20 {
            0 => format!("{} KiB", self.len >> 10),
            mib => format!("{mib} MiB"),
        };
        let what = if self.write { "write" } else { "read" };
        format!("{size} {what}, {} in flight", self.in_flight)
    }
}

impl Direct {
    /// Measures and prints.
    pub fn perform(self) -> Result<ExitCode, Fail> {
        let effort = self.common.choose(FULL, QUICK);
        let place = Workplace::make(&self.common.dir, "direct")?;
        let start = |name, engine: &'static str| {
            let sections = move |_| format!("[storage]\nio = \"direct\"\nengine = \"{engine}\"\n");
            Cluster::start(&place, &Shape::one(name, &sections))
        };
        let (uring, threads) = (start("uring", "auto")?, start("threads", "threads")?);
        let targets = [
            Target::plain(place.dir(), &effort)?,
            Target::forwarder(&uring, &effort)?,
            Target::forwarder(&threads, &effort)?,
        ];
        let engine = engine(&uring)?;
        let loads = Load::all();
        let mut samples = vec![vec![Vec::new(); targets.len()]; loads.len()];
        for _ in 0..effort.turns {
            for (load, samples) in loads.iter().zip(&mut samples) {
                for (target, into) in targets.iter().zip(samples) {
                    into.push(target.measure(load, &effort)?);
                }
            }
        }
        let rows: Vec<(Load, Vec<Measured>)> = loads
            .into_iter()
            .zip(samples)
            .map(|(load, samples)| (load, samples.iter().map(|of| middle(of)).collect()))
            .collect();
        let claims = claims(&rows);
        let machine = machine::words(place.dir());
        Ok(self.common.conclude(
            &claims,
            || as_json(&machine, &engine, &rows),
            || as_text(&machine, &engine, &rows),
        ))
    }
}

impl<'a> Target<'a> {
    fn plain(dir: &Path, effort: &Effort) -> Result<Target<'a>, Fail> {
        let path = dir.join("plain");
        let mut options = File::options();
        let options = options.read(true).write(true).create_new(true);
        let file = options
            .custom_flags(libc_o_direct())
            .open(&path)
            .map_err(|error| Fail::runtime(format!("{} with O_DIRECT: {error}", path.display())))?;
        let mut piece = SlotBytes::zeroed(1 << 20);
        piece.fill(7);
        for offset in (0..effort.file_bytes).step_by(1 << 20) {
            file.write_all_at(&piece, offset).map_err(at(&path))?;
        }
        file.sync_all().map_err(at(&path))?;
        Ok(Target::Plain(file))
    }

    fn forwarder(cluster: &'a Cluster<'a>, effort: &Effort) -> Result<Target<'a>, Fail> {
        let client = cluster.client("direct", |_| {})?;
        let wrong = |errno| Fail::runtime(format!("the file of the forwarder: {errno}"));
        let context = Context::default();
        let file = open(&client, "file", &OpenHow::create())?;
        let piece = Bytes::from(vec![7; 1 << 20]);
        for offset in (0..effort.file_bytes).step_by(1 << 20) {
            let written = file.pwrite(&context, offset, piece.clone());
            written.map_err(wrong)?;
        }
        file.fsync(&context, false).map_err(wrong)?;
        Ok(Target::Forwarder(cluster, Box::new(file)))
    }

    /// Keeps the load's number of accesses in flight for a while, and measures them.
    fn measure(&self, load: &Load, effort: &Effort) -> Result<Measured, Fail> {
        let others_ns = || match self {
            Target::Plain(_) => 0,
            Target::Forwarder(cluster, _) => cluster.processor_ns(),
        };
        let places = effort.file_bytes / load.len as u64;
        let next = AtomicU64::new(0);
        let (own, others, began) = (processor::own_ns(), others_ns(), Instant::now());
        std::thread::scope(|scope| {
            let work = |_| {
                let next = &next;
                scope.spawn(move || {
                    let mut memory = SlotBytes::zeroed(load.len);
                    memory.fill(7);
                    let shared = Bytes::from(memory.to_vec());
                    while began.elapsed() < effort.time {
                        let number = next.fetch_add(1, Ordering::Relaxed);
                        let place = match load.len {
                            4096 => tidegate_sched::mix64(number) % places,
                            _ => number % places,
                        };
                        self.access(load, place * load.len as u64, &mut memory, &shared)?;
                    }
                    Ok::<(), std::io::Error>(())
                })
            };
            let threads: Vec<_> = (0..load.in_flight).map(work).collect();
            let joined: Vec<_> = threads.into_iter().map(|thread| thread.join()).collect();
            let mut joined = joined.into_iter();
            joined.try_for_each(|done| done.expect("an access does not panic"))
        })
        .map_err(|error| Fail::runtime(format!("{}: {error}", load.words())))?;
        let count = next.into_inner() as f64;
        let spent = processor::own_ns() - own + others_ns() - others;
        Ok(Measured {
            per_second: count / began.elapsed().as_secs_f64(),
            processor_us: spent as f64 / 1000.0 / count,
        })
    }

    fn access(
        &self,
        load: &Load,
        offset: u64,
        memory: &mut SlotBytes,
        shared: &Bytes,
    ) -> std::io::Result<()> {
        let context = Context::default();
        let as_error = |errno: tidegate_client::Errno| std::io::Error::from_raw_os_error(errno.0);
        match (self, load.write) {
            (Target::Plain(file), false) => file.read_exact_at(memory, offset),
            (Target::Plain(file), true) => file.write_all_at(memory, offset),
            (Target::Forwarder(_, file), false) => {
                let data = file.pread(&context, offset, load.len).map_err(as_error)?;
                // Programs want their bytes in their own buffer.
                assert_eq!(data.copy_to(memory), load.len, "it was filled");
                Ok(())
            }
            (Target::Forwarder(_, file), true) => {
                let written = file.pwrite(&context, offset, shared.clone());
                written.map(|_| ()).map_err(as_error)
            }
        }
    }
}

/// The flag of open(2), as this machine has it.
fn libc_o_direct() -> i32 {
    rustix::fs::OFlags::DIRECT.bits() as i32
}

/// The I/O engine that a forwarder has chosen, and why.
fn engine(cluster: &Cluster<'_>) -> Result<String, Fail> {
    let client = cluster.client("direct", |_| {})?;
    let state = cluster.status(&client, 0)?;
    let word = |key: &str| state["storage"][key].as_str().unwrap_or("?").to_string();
    Ok(format!(
        "{} I/O by {}: {}",
        word("io"),
        word("engine"),
        word("why")
    ))
}

fn middle(samples: &[Measured]) -> Measured {
    let value = |value: fn(&Measured) -> f64| statistics::median(samples.iter().map(value));
    Measured {
        per_second: value(|sample| sample.per_second),
        processor_us: value(|sample| sample.processor_us),
    }
}

/// What must hold of 1 MiB through the forwarder.
fn claims(rows: &[(Load, Vec<Measured>)]) -> Vec<Claim> {
    let large = rows.iter().filter(|(load, _)| load.len == 1 << 20);
    let claim = |(load, columns): &(Load, Vec<Measured>)| {
        let least = if load.in_flight == 1 { 60.0 } else { 90.0 };
        let percent = 100.0 * columns[1].per_second / columns[0].per_second;
        let words = load.words();
        let text = format!("{words}: {percent:.0} % of the plain directory, at least {least} %");
        Claim::new(text, percent >= least)
    };
    large.map(claim).collect()
}

fn as_text(machine: &str, engine: &str, rows: &[(Load, Vec<Measured>)]) -> String {
    let cell = |load: &Load, measured: &Measured| {
        let rate = match load.len {
            4096 => format!("{:.1} k/s", measured.per_second / 1000.0),
            len => format!("{:.0} MB/s", measured.per_second * len as f64 / 1e6),
        };
        format!("{rate}, {:.1} us", measured.processor_us)
    };
    let line = |(load, columns): &(Load, Vec<Measured>)| {
        let cells = columns.iter().map(|measured| cell(load, measured));
        std::iter::once(load.words()).chain(cells).collect()
    };
    let heading = [&["rate, processor time of each"], &COLUMNS[..]].concat();
    let lines: Vec<Vec<String>> = rows.iter().map(line).collect();
    let lines = table::lay_out(&heading, &lines);
    format!("{machine}\nio_uring: {engine}\n\n{lines}\n")
}

fn as_json(machine: &str, engine: &str, rows: &[(Load, Vec<Measured>)]) -> Value {
    let row = |(load, columns): &(Load, Vec<Measured>)| {
        let values = COLUMNS.iter().zip(columns).map(|(column, measured)| {
            let value = json!({
                "operations_per_second": measured.per_second,
                "processor_us_per_operation": measured.processor_us,
            });
            (column.to_string(), value)
        });
        json!({
            "write": load.write,
            "bytes": load.len,
            "in_flight": load.in_flight,
            "measured": values.collect::<serde_json::Map<String, Value>>(),
        })
    };
    json!({
        "bench": "direct",
        "machine": machine,
        "engine": engine,
        "rows": rows.iter().map(row).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_accesses_are_judged_and_small_ones_are_not() {
        let measured = |per_second| Measured {
            per_second,
            processor_us: 1.0,
        };
        let row = |load| (load, vec![measured(100.0), measured(80.0), measured(1.0)]);
        let rows: Vec<_> = Load::all().into_iter().map(row).collect();
        let holds: Vec<bool> = claims(&rows).iter().map(|claim| claim.holds).collect();
        assert_eq!(holds, [true, false, true, false]);
        assert_eq!(rows[1].0.words(), "1 MiB read, 8 in flight");
    }
}

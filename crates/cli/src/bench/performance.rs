//! What forwarding costs: small and large accesses, directly and through forwarders, in one run.

pub mod machine;
pub mod measure;
mod page;

use super::cluster::{Cluster, Shape, at};
use super::workplace::Workplace;
use super::{Common, statistics};
use crate::fail::Fail;
pub use machine::Machine;
use measure::{Access, Measured, Path, Workload};
use rustix::stdio::stderr;
use serde_json::{Value, json};
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// 4 KiB and 1 MiB reads and writes, directly and through one and four forwarders.
///
/// 1 and 8 clients read and write their own files: in a plain directory, through the client
/// library, and through a mount, with one forwarder and with four. All of it is measured in one
/// run, in turns; the medians of the turns are reported, with the processor time of all processes
/// that took part. Data stays in the page cache, so the table shows what forwarding costs, not
/// what a disk does.
#[derive(clap::Args, Clone, Debug)]
pub struct Performance {
    /// Also write a page of documentation
    #[arg(long, value_name = "FILE")]
    write: Option<PathBuf>,
    /// Table of instruction counts, to be put on the page
    #[arg(long, value_name = "FILE", default_value = "docs/instructions.txt")]
    instructions: PathBuf,
    #[command(flatten)]
    common: Common,
}

/// How thorough a run is.
struct Effort {
    turns: usize,
    /// Of one measurement.
    time: Duration,
    file_bytes: u64,
}

const FULL: Effort = Effort {
    turns: 5,
    time: Duration::from_millis(400),
    file_bytes: 16 << 20,
};
const QUICK: Effort = Effort {
    turns: 1,
    time: Duration::from_millis(20),
    file_bytes: 2 << 20,
};

/// Where the accesses go, in the order of the columns.
const COLUMNS: [&str; 5] = ["direct", "library, 1", "mount, 1", "library, 4", "mount, 4"];

/// The medians of one workload, by column; None where there is no mount.
struct Row {
    workload: Workload,
    columns: Vec<Option<Measured>>,
}

impl Performance {
    /// Measures, prints the tables and writes the page.
    pub fn perform(self) -> Result<ExitCode, Fail> {
        let effort = if self.common.quick { QUICK } else { FULL };
        let place = Workplace::make(&self.common.dir, "bench")?;
        let sections = |_| "[log]\nlevel = \"warn\"\n".to_string();
        let shape = |name, forwarders| Shape {
            name,
            forwarders,
            stripe: 1 << 20,
            nice: 0,
            sections: &sections,
        };
        let mut one = Cluster::start(&place, &shape("one", 1))?;
        let mut four = Cluster::start(&place, &shape("four", 4))?;
        let mounts = match crate::bench::cluster::no_fuse() {
            None => Some((one.mount()?, four.mount()?)),
            Some(why) => {
                eprintln!("tidegate: the mount is left out: {why}");
                None
            }
        };
        let direct = place.dir().join("direct");
        std::fs::create_dir(&direct).map_err(at(&direct))?;
        let mount = |pick: fn(&(PathBuf, PathBuf)) -> &PathBuf| mounts.as_ref().map(pick);
        let paths = [
            Some(Path::local(&direct, None, effort.file_bytes)?),
            Some(Path::library(&one, effort.file_bytes)?),
            mount(|both| &both.0)
                .map(|point| Path::local(point, Some(&one), effort.file_bytes))
                .transpose()?,
            Some(Path::library(&four, effort.file_bytes)?),
            mount(|both| &both.1)
                .map(|point| Path::local(point, Some(&four), effort.file_bytes))
                .transpose()?,
        ];
        let rows = self.measure(&paths, &effort)?;
        let machine = Machine::find(place.dir());
        match self.common.json {
            true => println!("{}", json(&machine, &rows)),
            false => print!("{}", page::tables(&machine, &rows)),
        }
        if let Some(file) = &self.write {
            let instructions = std::fs::read_to_string(&self.instructions).unwrap_or_default();
            let text = page::page(&machine, &rows, &instructions, &effort);
            std::fs::write(file, text).map_err(at(file))?;
        }
        Ok(ExitCode::SUCCESS)
    }

    /// Every workload on every path, again and again; the medians.
    fn measure(&self, paths: &[Option<Path<'_>>], effort: &Effort) -> Result<Vec<Row>, Fail> {
        let workloads = Workload::all();
        let mut samples = vec![vec![Vec::new(); paths.len()]; workloads.len()];
        for turn in 0..effort.turns {
            for (workload, samples) in workloads.iter().zip(&mut samples) {
                self.progress(turn, effort.turns, workload);
                for (path, into) in paths.iter().zip(samples) {
                    if let Some(path) = path {
                        into.push(path.measure(workload, effort.time, effort.file_bytes)?);
                    }
                }
            }
        }
        let rows = workloads
            .into_iter()
            .zip(samples)
            .map(|(workload, samples)| {
                let columns = samples.iter().map(|samples| middle(samples)).collect();
                Row { workload, columns }
            });
        Ok(rows.collect())
    }

    fn progress(&self, turn: usize, of: usize, workload: &Workload) {
        if !self.common.json && rustix::termios::isatty(stderr()) {
            eprint!("\rturn {} of {of}: {:<32}\r", turn + 1, workload.words());
            // A terminal that is gone sees no progress.
            let _ = std::io::stderr().flush();
        }
    }
}

/// The medians of several measurements.
fn middle(samples: &[Measured]) -> Option<Measured> {
    let value = |value: fn(&Measured) -> f64| statistics::median(samples.iter().map(value));
    (!samples.is_empty()).then(|| Measured {
        per_second: value(|sample| sample.per_second),
        processor_us: value(|sample| sample.processor_us),
    })
}

fn json(machine: &Machine, rows: &[Row]) -> Value {
    let row = |row: &Row| {
        let columns = COLUMNS
            .iter()
            .zip(&row.columns)
            .filter_map(|(column, measured)| {
                let measured = measured.as_ref()?;
                let value = json!({
                    "operations_per_second": measured.per_second,
                    "processor_us_per_operation": measured.processor_us,
                });
                Some((column.to_string(), value))
            });
        json!({
            "write": row.workload.access == Access::Write,
            "bytes": row.workload.len,
            "clients": row.workload.clients,
            "measured": columns.collect::<serde_json::Map<String, Value>>(),
        })
    };
    json!({
        "bench": "performance",
        "machine": machine.words(),
        "rows": rows.iter().map(row).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_are_taken_of_each_figure() {
        let sample = |per_second, processor_us| Measured {
            per_second,
            processor_us,
        };
        let found = middle(&[sample(1.0, 9.0), sample(3.0, 7.0), sample(2.0, 8.0)]).unwrap();
        assert_eq!((found.per_second, found.processor_us), (2.0, 8.0));
        assert!(middle(&[]).is_none());
    }
}

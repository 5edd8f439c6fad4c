//! Measures what forwarding costs: small and large accesses, directly and on every way through
//! forwarders, in one run.

mod claims;
pub mod column;
mod diod;
pub mod encryption;
pub mod load;
pub mod machine;
mod page;
pub mod sections;
pub mod workload;

use super::cluster::{Cluster, Shape, at};
use super::workplace::Workplace;
use super::{Access, Claim, Common, statistics};
use column::{Column, Way};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;
use tidegate_cli::errln;
use tidegate_cli::fail::Fail;
use tidegate_cli::installed;
use workload::{LARGE, Measured, SMALL, Workload};

/// 4 KiB and 1 MiB reads and writes, directly and on every way through forwarders.
///
/// 1 and 8 clients read and write their own files, waiting for each access, and one client with 32
/// (4 KiB) or 8 (1 MiB) in flight: in a plain directory; through the client library over shared
/// memory, a Unix socket and TCP; and as programs do it, through the short-cut and through a mount.
/// All of it is measured in one run, in turns, each way in a process of its own; the medians of the
/// turns are reported, with the processor time of all processes that took part. Data stays in the
/// page cache, so the table shows what forwarding costs, not what a disk does; a second table is
/// measured on an emulated device of 1 GB/s.
#[derive(clap::Args, Clone, Debug)]
pub struct Performance {
    /// Also write a page of documentation
    #[arg(long, value_name = "FILE")]
    write: Option<PathBuf>,
    /// Table of instruction counts, to be put on the page
    #[arg(long, value_name = "FILE", default_value = "docs/instructions.txt")]
    instructions: PathBuf,
    /// Measure beside diod (Debian's package) instead; PROGRAM makes the load on it, called as
    /// `PROGRAM PORT EXPORT FILE r|w BYTES MIB IN_FLIGHT CONNECTIONS`, and ends with `RATE op/s`;
    /// before that, `p99 US` if it knows
    #[arg(long, value_name = "PROGRAM", conflicts_with = "write")]
    diod: Option<PathBuf>,
    #[command(flatten)]
    common: Common,
}

/// How thorough a run is.
struct Effort {
    turns: usize,
    /// Of one measurement.
    time: Duration,
    /// Of the files of all clients together: more than the caches of processors hold.
    files_bytes: u64,
}

const FULL: Effort = Effort {
    turns: 5,
    time: Duration::from_millis(400),
    files_bytes: 256 << 20,
};
const QUICK: Effort = Effort {
    turns: 1,
    time: Duration::from_millis(20),
    files_bytes: 16 << 20,
};

/// What the emulated device moves at most.
const DEVICE_BYTES_PER_SECOND: f64 = 1e9;
/// It does one thing at a time, and has the next when it is done with one.
const DEVICE: &str = "[device]\nmodel = \"ideal\"\ndepth = 1\nservice_us = 0\nns_per_kib = 1024\n\
                      [scheduler]\ndepth = 2\n";

/// The medians of one workload, by column; None where there is none.
struct Row {
    workload: Workload,
    columns: Vec<Option<Measured>>,
}

/// All that is compared in turns.
struct Table {
    columns: Vec<&'static str>,
    rows: Vec<Row>,
}

/// Everything that was measured.
struct Results {
    machine: String,
    /// All ways to files in the page cache.
    paths: Table,
    /// Large accesses to files in pages of 4 KiB.
    single: Table,
    /// Large accesses on the emulated device.
    device: Table,
}

impl Table {
    /// What was measured, if it was.
    fn at(&self, workload: &Workload, column: &str) -> Option<&Measured> {
        let column = self.columns.iter().position(|name| *name == column)?;
        let row = self.rows.iter().find(|row| row.workload == *workload)?;
        row.columns.get(column)?.as_ref()
    }
}

impl Performance {
    /// Measures, prints the tables and writes the page.
    pub fn perform(self) -> Result<ExitCode, Fail> {
        let effort = self.common.choose(FULL, QUICK);
        if let Some(driver) = &self.diod {
            return self.beside_diod(driver, &effort);
        }
        let place = Workplace::make(&self.common.dir, "bench")?;
        let results = Results {
            machine: machine::words(place.dir()),
            paths: self.paths(&place, &effort)?,
            single: self.single_pages(&place, &effort)?,
            device: self.device(&place, &effort)?,
        };
        let claims: Vec<Claim> = self.common.claims(|| claims::of(&results));
        let (json, text) = (|| json_of(&results), || page::tables(&results));
        let code = self.common.conclude(&claims, json, text);
        if let Some(file) = &self.write {
            let instructions = std::fs::read_to_string(&self.instructions).unwrap_or_default();
            let text = page::page(&results, &claims, &instructions, &effort);
            // Other commands write some of its sections.
            let before = std::fs::read_to_string(file).unwrap_or_default();
            let text = sections::keep(&text, &before);
            std::fs::write(file, text).map_err(at(file))?;
        }
        Ok(code)
    }

    /// All ways to files in the page cache.
    fn paths(&self, place: &Workplace, effort: &Effort) -> Result<Table, Fail> {
        let mut one = one_forwarder(place, "one", "")?;
        let four = Shape::new("four", 4, 1 << 20, &|_| String::new());
        let mut four = Cluster::start(place, &four)?;
        let mounts = match crate::bench::cluster::no_fuse() {
            None => Some((one.mount()?, four.mount()?)),
            Some(why) => {
                errln!("tidegate: mount and short-cut are left out: {why}");
                None
            }
        };
        let library = installed::shortcut();
        if library.is_none() {
            errln!(
                "tidegate: the short-cut is left out: {} is not there; `make build` builds it",
                installed::SHORTCUT
            );
        }
        for cluster in [&one, &four] {
            column::fill_together(cluster.export(), effort.files_bytes)?;
        }
        let by_socket = format!("{};shared_memory_bytes=0", one.text());
        let direct = one.export().to_path_buf();
        let mut ways = vec![
            ("direct", Way::Directory(&direct), None),
            ("client", Way::Client(one.text()), Some(&one)),
            ("in place", Way::InPlace(one.text()), Some(&one)),
            ("socket", Way::Client(by_socket), Some(&one)),
            ("TCP", Way::Client(one.tcp_text()), Some(&one)),
        ];
        if let Some((point, _)) = &mounts {
            if let Some(library) = &library {
                ways.push(("short-cut", Way::ShortCut(point, library), Some(&one)));
            }
            ways.push(("mount", Way::Directory(point), Some(&one)));
        }
        ways.push(("client, 4", Way::Client(four.text()), Some(&four)));
        if let Some((_, point)) = &mounts {
            ways.push(("mount, 4", Way::Directory(point), Some(&four)));
        }
        let column = |(name, way, cluster): &(&'static str, Way<'_>, _)| {
            Column::start(place, name, way, *cluster)
        };
        let columns: Result<Vec<_>, Fail> = ways.iter().map(column).collect();
        let workloads = [SMALL, LARGE].into_iter().flat_map(Workload::of_size);
        measure(&self.common, &columns?, workloads.collect(), effort)
    }

    /// Large accesses of one client to a file whose pages are as small as those of older kernels.
    fn single_pages(&self, place: &Workplace, effort: &Effort) -> Result<Table, Fail> {
        let cluster = one_forwarder(place, "single", "")?;
        column::fill_alone(cluster.export(), effort.files_bytes, SMALL)?;
        let direct = Way::Directory(cluster.export());
        let ways = [
            ("direct", direct, None),
            ("client", Way::Client(cluster.text()), Some(&cluster)),
            ("TCP", Way::Client(cluster.tcp_text()), Some(&cluster)),
        ];
        let start = |(name, way, cluster)| Column::start(place, name, &way, cluster);
        let columns: Result<Vec<_>, Fail> = ways.into_iter().map(start).collect();
        let alone = Workload::waiting(LARGE).into_iter();
        let alone = alone.filter(|workload| workload.clients == 1);
        measure(&self.common, &columns?, alone.collect(), effort)
    }

    /// Large accesses whose rate a device limits.
    fn device(&self, place: &Workplace, effort: &Effort) -> Result<Table, Fail> {
        let cluster = one_forwarder(place, "device", DEVICE)?;
        column::fill_together(cluster.export(), effort.files_bytes)?;
        let start = |(name, text)| Column::start(place, name, &Way::Client(text), Some(&cluster));
        let ways = [("client", cluster.text()), ("TCP", cluster.tcp_text())];
        let columns: Result<Vec<_>, Fail> = ways.into_iter().map(start).collect();
        measure(
            &self.common,
            &columns?,
            Workload::of_size(LARGE).collect(),
            effort,
        )
    }
}

/// Every workload on every column, again and again; the medians.
fn measure(
    common: &Common,
    columns: &[Column<'_>],
    workloads: Vec<Workload>,
    effort: &Effort,
) -> Result<Table, Fail> {
    let mut samples = vec![vec![Vec::new(); columns.len()]; workloads.len()];
    for turn in 0..effort.turns {
        for (workload, samples) in workloads.iter().zip(&mut samples) {
            let (number, of) = (turn + 1, effort.turns);
            let words = workload.words();
            common.progress(&format!("turn {number} of {of}: {words}"));
            let bytes = effort.files_bytes / workload.clients as u64;
            for (column, into) in columns.iter().zip(samples) {
                into.push(column.measure(workload, effort.time, bytes)?);
            }
        }
    }
    common.progress("");
    let rows = workloads.into_iter().zip(samples);
    let rows = rows.map(|(workload, samples)| Row {
        workload,
        columns: samples.iter().map(|samples| middle(samples)).collect(),
    });
    Ok(Table {
        columns: columns.iter().map(Column::name).collect(),
        rows: rows.collect(),
    })
}

/// One forwarder, which is reached by TCP too; `sections` of its configuration.
fn one_forwarder<'a>(
    place: &'a Workplace,
    name: &str,
    sections: &str,
) -> Result<Cluster<'a>, Fail> {
    let sections = |_| sections.to_string();
    let shape = Shape {
        tcp: true,
        ..Shape::one(name, &sections)
    };
    Cluster::start(place, &shape)
}

/// The medians of several measurements.
fn middle(samples: &[Measured]) -> Option<Measured> {
    let value = |value: fn(&Measured) -> f64| statistics::median(samples.iter().map(value));
    (!samples.is_empty()).then(|| Measured {
        per_second: value(|sample| sample.per_second),
        processor_us: value(|sample| sample.processor_us),
        forwarder_cores: value(|sample| sample.forwarder_cores),
        p50_us: value(|sample| sample.p50_us),
        p99_us: value(|sample| sample.p99_us),
    })
}

/// The rows of a table.
fn rows_json(table: &Table) -> Value {
    let cell = |measured: &Measured| {
        json!({
            "operations_per_second": measured.per_second,
            "processor_us_per_operation": measured.processor_us,
            "forwarder_cores": measured.forwarder_cores,
            "p50_us": measured.p50_us,
            "p99_us": measured.p99_us,
        })
    };
    let row = |row: &Row| {
        let columns = table.columns.iter().zip(&row.columns);
        let columns = columns.filter_map(|(column, measured)| {
            let measured = measured.as_ref()?;
            Some((column.to_string(), cell(measured)))
        });
        json!({
            "write": row.workload.access == Access::Write,
            "bytes": row.workload.len,
            "clients": row.workload.clients,
            "in_flight": row.workload.in_flight,
            "measured": columns.collect::<serde_json::Map<String, Value>>(),
        })
    };
    table.rows.iter().map(row).collect()
}

fn json_of(results: &Results) -> Value {
    json!({
        "bench": "performance",
        "machine": results.machine,
        "rows": rows_json(&results.paths),
        "single_page_rows": rows_json(&results.single),
        "device_rows": rows_json(&results.device),
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
            ..Measured::default()
        };
        let found = middle(&[sample(1.0, 9.0), sample(3.0, 7.0), sample(2.0, 8.0)]).unwrap();
        assert_eq!((found.per_second, found.processor_us), (2.0, 8.0));
        assert!(middle(&[]).is_none());
    }
}

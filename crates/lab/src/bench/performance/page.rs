//! The tables as text, and the page of documentation.

use super::claims::percent_of_device;
use super::workload::{Measured, Workload};
use super::{Effort, Machine, Table};
use crate::bench::Claim;
use std::fmt::Write;

/// Everything that the page shows.
pub struct Parts<'a> {
    /// The machine that was measured.
    pub machine: &'a Machine,
    /// The ways to files in the page cache.
    pub paths: &'a Table,
    /// Large accesses to files in pages of 4 KiB.
    pub single: &'a Table,
    /// On the emulated device.
    pub device: &'a Table,
    /// The claims about both.
    pub claims: &'a [Claim],
    /// The table of instruction counts, or nothing.
    pub instructions: &'a str,
    /// How it was measured.
    pub effort: &'a Effort,
}

/// What a table shows of a measurement.
type Show = fn(&Workload, &Measured) -> String;

/// A part of both texts: title, unit, which rows, what of them.
type Section = (&'static str, &'static str, fn(&Workload) -> bool, Show);

const SECTIONS: [Section; 4] = [
    (
        "Throughput",
        "4 KiB: thousand accesses per second; 1 MiB: MB/s.",
        |_| true,
        throughput,
    ),
    (
        "Time of one access",
        "Microseconds, median / 99th percentile, from start to end; with more in flight they wait \
         for each other.",
        Workload::is_small,
        latency,
    ),
    (
        "Processor time of one access",
        "Microseconds, of client, mount and forwarders together, system calls included; for 1 MiB \
         also nanoseconds per byte, in brackets.",
        |_| true,
        processor,
    ),
    (
        "Processor time of the forwarders",
        "Cores in use: of one reactor, and of storage threads where it needs them.",
        |_| true,
        cores,
    ),
];

/// The tables for a terminal.
pub fn tables(machine: &Machine, paths: &Table, single: &Table, device: &Table) -> String {
    let mut text = format!("{}\n\n", machine.words());
    for (title, unit, which, show) in SECTIONS {
        let heading = [&[""], &paths.columns[..]].concat();
        let table = tidegate_cli::table::lay_out(&heading, &cells(paths, which, show));
        let _ = write!(text, "{title}. {unit}\n\n{table}\n");
    }
    let heading = [&[""], &single.columns[..]].concat();
    let table = tidegate_cli::table::lay_out(&heading, &cells(single, |_| true, throughput));
    let _ = write!(text, "Files in pages of 4 KiB. MB/s.\n\n{table}\n");
    let heading = [&[""], &device.columns[..]].concat();
    let table = tidegate_cli::table::lay_out(&heading, &cells(device, |_| true, of_device));
    text + "Percent of an emulated device of 1 GB/s.\n\n" + &table + "\n"
}

/// The page.
pub fn page(parts: &Parts<'_>) -> String {
    let mut text = introduction(parts);
    for (title, unit, which, show) in SECTIONS {
        section(&mut text, title, unit, parts.paths, which, show);
    }
    section(
        &mut text,
        "Files in pages of 4 KiB",
        "MB/s. A file system with large pages in the page cache (XFS; ext4 from Linux 6.16 on)\n\
         reads what was written in large pieces several times as fast as where each page has\n\
         4 KiB, as with older kernels, Lustre, or files that were written in small pieces. Here\n\
         they were: the same accesses, to such files.",
        parts.single,
        |_| true,
        throughput,
    );
    section(
        &mut text,
        "On an emulated device of 1 GB/s",
        "Percent of the bytes that it can move, with a scheduler that hands it one call more than\n\
         it does at once (`depth = 2`). One client alone leaves it idle between accesses.",
        parts.device,
        |_| true,
        of_device,
    );
    // Writing to a string cannot fail.
    if !parts.claims.is_empty() {
        let _ = write!(text, "\n## Claims\n\n| claim | |\n|---|---|\n");
    }
    for claim in parts.claims {
        let holds = if claim.holds {
            "holds"
        } else {
            "does not hold"
        };
        let _ = writeln!(text, "| {} | {holds} |", claim.text);
    }
    if !parts.instructions.is_empty() {
        let _ = write!(
            text,
            "\n## Instructions for one request\n\n\
             Counted, not timed, so the same on every machine; `make test` compares them \
             (`tools/instructions`).\n\n```\n{}\n```\n",
            parts.instructions.trim_end()
        );
    }
    text + "\n## Scheduling\n\n\
            What the policies do for jobs that share forwarders is measured by\n\
            `tidegate bench song-2011-fig5` and `tidegate bench hbrr`, which print their tables\n\
            beside the figures of the papers, and by `tidegate demo`.\n"
}

fn introduction(parts: &Parts<'_>) -> String {
    let Effort {
        turns,
        time,
        files_bytes,
    } = parts.effort;
    format!(
        "# Performance\n\n\
         Written by `make bench`, which is\n\
         `tidegate bench performance --write docs/performance.md`; do not edit it.\n\
         Medians of {turns} turns of {} ms each, all columns in one run, on\n{}.\n\n\
         Each client works on a file of its own, in the page cache; together they have {} MiB,\n\
         which the caches of processors do not hold. It makes accesses of 4 KiB at random places\n\
         and of 1 MiB one after another, and waits for each before the next; or one client has\n\
         several *in flight*. So the tables show what forwarding costs where the back end costs\n\
         nothing; in front of a parallel file system, whose accesses take a millisecond or more,\n\
         the difference is as large and the share of it small.\n\n\
         - *direct*: `pread` and `pwrite` of a program on the same files in their directory;\n\
         - *client*: the Rust client, over memory that it shares with the forwarder; several in\n\
         \x20 flight are started by one thread, where other programs need a thread for each;\n\
         - *in place*: the same by a program that uses the bytes where the client has them, and\n\
         \x20 makes those that it writes there, instead of in a buffer of its own;\n\
         - *socket* and *TCP*: the same without shared memory, over a Unix socket and over TCP of\n\
         \x20 this machine;\n\
         - *short-cut*: the unmodified program, with its data past the kernel (`tidegate run`);\n\
         - *mount*: the unmodified program through FUSE;\n\
         - *4*: with four forwarders instead of one.\n\n\
         Each column has a process of its own. All of them run on this machine and share its\n\
         cores with the forwarders.\n",
        time.as_millis(),
        parts.machine.words(),
        files_bytes >> 20,
    )
}

fn section(
    text: &mut String,
    title: &str,
    unit: &str,
    table: &Table,
    which: fn(&Workload) -> bool,
    show: Show,
) {
    let _ = write!(text, "\n## {title}\n\n{unit}\n\n| |");
    for column in &table.columns {
        let _ = write!(text, " {column} |");
    }
    let _ = write!(text, "\n|---|{}\n", "--:|".repeat(table.columns.len()));
    for row in cells(table, which, show) {
        let _ = writeln!(text, "| {} |", row.join(" | "));
    }
}

fn cells(table: &Table, which: fn(&Workload) -> bool, show: Show) -> Vec<Vec<String>> {
    let line = |row: &super::Row| {
        let value = |measured: &Option<Measured>| {
            measured
                .as_ref()
                .map_or("-".to_string(), |measured| show(&row.workload, measured))
        };
        let values = row.columns.iter().map(value);
        std::iter::once(row.workload.words())
            .chain(values)
            .collect()
    };
    let rows = table.rows.iter().filter(|row| which(&row.workload));
    rows.map(line).collect()
}

fn throughput(workload: &Workload, measured: &Measured) -> String {
    match workload.is_small() {
        true => format!("{:.1}", measured.per_second / 1000.0),
        false => format!("{:.0}", measured.per_second * workload.len as f64 / 1e6),
    }
}

fn latency(_: &Workload, measured: &Measured) -> String {
    format!("{} / {}", short(measured.p50_us), short(measured.p99_us))
}

fn processor(workload: &Workload, measured: &Measured) -> String {
    let us = measured.processor_us;
    match workload.is_small() {
        true => short(us),
        false => format!("{} ({:.2})", short(us), us * 1000.0 / workload.len as f64),
    }
}

fn cores(_: &Workload, measured: &Measured) -> String {
    match measured.forwarder_cores > 0.0 {
        true => format!("{:.2}", measured.forwarder_cores),
        false => "-".to_string(),
    }
}

fn of_device(workload: &Workload, measured: &Measured) -> String {
    format!("{:.1}", percent_of_device(workload, measured))
}

/// A number of about three digits.
fn short(us: f64) -> String {
    match us {
        us if us < 100.0 => format!("{us:.1}"),
        us => format!("{us:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::workload::{LARGE, SMALL};
    use super::super::{FULL, Row};
    use super::*;
    use std::path::Path;

    #[test]
    fn the_page_has_every_workload_in_every_table_that_it_belongs_to() {
        let row = |workload| Row {
            workload,
            columns: vec![
                Some(Measured {
                    per_second: 2000.0,
                    processor_us: 3.25,
                    forwarder_cores: 0.5,
                    p50_us: 2.0,
                    p99_us: 300.0,
                }),
                None,
            ],
        };
        let table = |len| Table {
            columns: vec!["direct", "mount"],
            rows: Workload::of_size(len).map(row).collect(),
        };
        let mut paths = table(SMALL);
        paths.rows.extend(table(LARGE).rows);
        let text = page(&Parts {
            machine: &Machine::find(Path::new("/")),
            paths: &paths,
            single: &table(LARGE),
            device: &table(LARGE),
            claims: &[Claim::new("it is fast".to_string(), false)],
            instructions: "fifo 700\n",
            effort: &FULL,
        });
        for line in [
            "| | direct | mount |",
            "| 4 KiB read, 1 client | 2.0 | - |",
            "| 4 KiB read, 1 client | 2.0 / 300 | - |",
            "| 1 MiB write, 8 clients | 2097 | - |",
            "| 1 MiB write, 8 clients | 3.2 (0.00) | - |",
            "| 1 MiB write, 8 in flight | 0.50 | - |",
            "| 1 MiB write, 8 in flight | 209.7 | - |",
            "| it is fast | does not hold |",
            "```\nfifo 700\n```",
        ] {
            assert!(text.contains(line), "{line} is not in {text}");
        }
        assert!(!text.contains("1 MiB read, 1 client | 2.0 / 300"), "{text}");
    }
}

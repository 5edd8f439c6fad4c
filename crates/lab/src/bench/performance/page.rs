//! The tables as text, and the page of documentation.

use super::claims::percent_of_device;
use super::workload::{Measured, Workload};
use super::{Effort, Results, Table};
use crate::bench::{Claim, markdown};
use std::fmt::Write;
use tidegate_cli::table::lay_out;

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
pub fn tables(results: &Results) -> String {
    let mut text = format!("{}\n\n", results.machine);
    let mut part = |words: &str, table: &Table, which: fn(&Workload) -> bool, show: Show| {
        let laid_out = lay_out(&heading(table), &cells(table, which, show));
        text += &format!("{words}\n\n{laid_out}\n");
    };
    for (title, unit, which, show) in SECTIONS {
        part(&format!("{title}. {unit}"), &results.paths, which, show);
    }
    let small = "Files in pages of 4 KiB. MB/s.";
    part(small, &results.single, |_| true, throughput);
    let device = "Percent of an emulated device of 1 GB/s.";
    part(device, &results.device, |_| true, of_device);
    text
}

fn heading(table: &Table) -> Vec<&str> {
    [&[""], &table.columns[..]].concat()
}

/// The page.
pub fn page(results: &Results, claims: &[Claim], instructions: &str, effort: &Effort) -> String {
    let mut text = introduction(&results.machine, effort);
    for (title, unit, which, show) in SECTIONS {
        section(&mut text, title, unit, &results.paths, which, show);
    }
    section(
        &mut text,
        "Files in pages of 4 KiB",
        "MB/s. A file system with large pages in the page cache (XFS; ext4 from Linux 6.16 on)\n\
         reads what was written in large pieces several times as fast as where each page has\n\
         4 KiB, as with older kernels, Lustre, or files that were written in small pieces. Here\n\
         they were: the same accesses, to such files.",
        &results.single,
        |_| true,
        throughput,
    );
    section(
        &mut text,
        "On an emulated device of 1 GB/s",
        "Percent of the bytes that it can move, with a scheduler that hands it one call more than\n\
         it does at once (`depth = 2`). One client alone leaves it idle between accesses.",
        &results.device,
        |_| true,
        of_device,
    );
    // Writing to a string cannot fail.
    if !claims.is_empty() {
        let _ = write!(text, "\n## Claims\n\n| claim | |\n|---|---|\n");
    }
    for claim in claims {
        let _ = writeln!(text, "| {} | {} |", claim.text, claim.verdict());
    }
    if !instructions.is_empty() {
        let _ = write!(
            text,
            "\n## Instructions for one request\n\n\
             Counted, not timed, so the same on every machine; `make test` compares them \
             (`tools/instructions`).\n\n```\n{}\n```\n",
            instructions.trim_end()
        );
    }
    text + "\n## Scheduling\n\n\
            What the policies do for jobs that share forwarders is measured by\n\
            `tidegate bench song-2011-fig5` and `tidegate bench hbrr`, which print their tables\n\
            beside the figures of the papers, and by `tidegate demo`.\n"
}

/// The tables of `tidegate bench encryption` for a terminal.
pub fn encryption_tables(machine: &str, table: &Table) -> String {
    let mut text = format!("{machine}\n\n");
    for (title, unit, which, show) in [SECTIONS[0], SECTIONS[2]] {
        let laid_out = lay_out(&heading(table), &cells(table, which, show));
        text += &format!("{title}. {unit}\n\n{laid_out}\n");
    }
    let laid_out = lay_out(&heading(table), &shares(table));
    text + &format!("Throughput as a share of the first.\n\n{laid_out}\n")
}

/// The section of the page that `tidegate bench encryption` writes, with this title.
pub fn encryption_section(
    title: &str,
    machine: &str,
    table: &Table,
    claims: &[Claim],
    effort: &Effort,
) -> String {
    let mut text = format!(
        "{title}\n\n\
         Written by `tidegate bench encryption --write docs/performance.md`.\n\
         Medians of {} turns of {} ms each, all columns in one run, on\n{machine}.\n\n\
         The column *TCP* once more, by how frames are protected (`encryption`): not at all,\n\
         but for the proof at the beginning; against changes; against changes and readers.\n\
         Both ends share the processors, so both ends' ciphers count.\n",
        effort.turns,
        effort.time.as_millis()
    );
    let mut part = |unit: &str, rows: &[Vec<String>]| {
        // Writing to a string cannot fail.
        let _ = write!(text, "\n{unit}\n\n{}", markdown(&heading(table), rows));
    };
    for (_, unit, which, show) in [SECTIONS[0], SECTIONS[2]] {
        part(unit, &cells(table, which, show));
    }
    part("Throughput as a share of *off*.", &shares(table));
    if !claims.is_empty() {
        text += "\n| claim | |\n|---|---|\n";
    }
    for claim in claims {
        let _ = writeln!(text, "| {} | {} |", claim.text, claim.verdict());
    }
    text
}

/// What share of the first one's throughput another makes.
pub fn share(first: &Measured, other: &Measured) -> f64 {
    other.per_second / first.per_second
}

/// The throughput of each column as a share of the first one's.
fn shares(table: &Table) -> Vec<Vec<String>> {
    let line = |row: &super::Row| {
        let first = row.columns.first().copied().flatten();
        let share = |it: &Option<Measured>| {
            let share = first.zip(*it).map(|(first, it)| share(&first, &it));
            share.map_or("-".to_string(), |share| format!("{share:.2}"))
        };
        let shares = row.columns.iter().map(share);
        std::iter::once(row.workload.words())
            .chain(shares)
            .collect()
    };
    table.rows.iter().map(line).collect()
}

fn introduction(machine: &str, effort: &Effort) -> String {
    let Effort {
        turns,
        time,
        files_bytes,
    } = effort;
    format!(
        "# Performance\n\n\
         Written by `make bench`, which is\n\
         `tidegate bench performance --write docs/performance.md`; do not edit it.\n\
         Medians of {turns} turns of {} ms each, all columns in one run, on\n{machine}.\n\n\
         Each client works on a file of its own, in the page cache; together they have {} MiB,\n\
         which the caches of processors do not hold. It makes accesses of 4 KiB at random places\n\
         and of 1 MiB one after another, and waits for each before the next; or one client has\n\
         several *in flight*. So the tables show what forwarding costs where the back end costs\n\
         nothing; in front of a parallel file system, whose accesses take a millisecond or more,\n\
         the difference is as large and the share of it small.\n\n\
         - *direct*: `pread` and `pwrite` of a program on the same files in their directory;\n\
         - *client*: the Rust client, over memory that it shares with the forwarder; several in\n\
         \x20 flight are started by one thread, where other programs need a thread for each;\n\
         - *in place*: the same by a program that has no buffer of its own: it makes the bytes\n\
         \x20 that it writes in memory of the client, and leaves there those that it reads;\n\
         - *socket* and *TCP*: the same without shared memory, over a Unix socket and over TCP of\n\
         \x20 this machine;\n\
         - *short-cut*: the unmodified program, with its data past the kernel (`tidegate run`);\n\
         - *mount*: the unmodified program through FUSE;\n\
         - *4*: with four forwarders instead of one.\n\n\
         Each column has a process of its own. All of them run on this machine and share its\n\
         cores with the forwarders.\n",
        time.as_millis(),
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
    let rows = markdown(&heading(table), &cells(table, which, show));
    let _ = write!(text, "\n## {title}\n\n{unit}\n\n{rows}");
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
        let results = Results {
            machine: "a machine".to_string(),
            paths,
            single: table(LARGE),
            device: table(LARGE),
        };
        let claims = [Claim::new("it is fast".to_string(), false)];
        let text = page(&results, &claims, "fifo 700\n", &FULL);
        for line in [
            "|  | direct | mount |",
            "| 4 KiB read, 1 client | 2.0 | - |",
            "| 4 KiB read, 1 client | 2.0 / 300 | - |",
            "| 1 MiB write, 8 clients | 2097 | - |",
            "| 1 MiB write, 8 clients | 3.2 (0.00) | - |",
            "| 1 MiB write, 8 in flight | 0.50 | - |",
            "| 1 MiB write, 8 in flight | 209.7 | - |",
            "| it is fast | DOES NOT HOLD |",
            "```\nfifo 700\n```",
        ] {
            assert!(text.contains(line), "{line} is not in {text}");
        }
        assert!(!text.contains("1 MiB read, 1 client | 2.0 / 300"), "{text}");
    }
}

//! The tables as text, and the page of documentation.

use super::measure::{Measured, Workload};
use super::{COLUMNS, Effort, Machine, Row};
use std::fmt::Write;

/// The tables for a terminal.
pub fn tables(machine: &Machine, rows: &[Row]) -> String {
    let table = |title: &str, show: &dyn Fn(&Workload, &Measured) -> String| {
        let heading = [&[title], &COLUMNS[..]].concat();
        crate::table::lay_out(&heading, &cells(rows, show))
    };
    format!(
        "{}\n\n{}\n{}",
        machine.words(),
        table("throughput", &throughput),
        table("processor us per access", &processor)
    )
}

/// The page.
pub fn page(machine: &Machine, rows: &[Row], instructions: &str, effort: &Effort) -> String {
    let mut text = String::new();
    let turns = effort.turns;
    let ms = effort.time.as_millis();
    // Writing to a string cannot fail.
    let _ = write!(
        text,
        "# Performance\n\n\
         Written by `make bench`, which is\n\
         `tidegate bench performance --write docs/performance.md`; do not edit it.\n\
         Medians of {turns} turns of {ms} ms each, all columns in one run, on\n{}.\n\n\
         Each client works on a file of its own ({} MiB, in the page cache): 4 KiB at random\n\
         places, 1 MiB one after another, waiting for each access before the next. So the tables\n\
         show what forwarding costs where the back end costs nothing; in front of a parallel file\n\
         system, whose accesses take a millisecond or more, the difference is as large and the\n\
         share of it small. *library* is the Rust client, *mount* is `pread` and `pwrite` of an\n\
         unmodified program through FUSE, the number is that of the forwarders. All of them run\n\
         on this machine and share its cores with the clients.\n",
        machine.words(),
        effort.file_bytes >> 20,
    );
    section(
        &mut text,
        "Throughput",
        "4 KiB: thousand accesses per second; 1 MiB: MB/s.",
        rows,
        &throughput,
    );
    section(
        &mut text,
        "Processor time of one access",
        "Microseconds, of client, mount and forwarders together, system calls included.",
        rows,
        &processor,
    );
    if !instructions.is_empty() {
        let _ = write!(
            text,
            "\n## Instructions for one request\n\n\
             Counted, not timed, so the same on every machine; `make test` compares them \
             (`tools/instructions`).\n\n```\n{}\n```\n",
            instructions.trim_end()
        );
    }
    let _ = write!(
        text,
        "\n## Scheduling\n\n\
         What the policies do for jobs that share forwarders is measured by\n\
         `tidegate bench song-2011-fig5` and `tidegate bench hbrr`, which print their tables\n\
         beside the figures of the papers, and by `tidegate demo`. What it costs to know which\n\
         of many pending ranges overlap and touch is in `docs/overlap.md`, which `make bench`\n\
         writes.\n"
    );
    text
}

fn section(
    text: &mut String,
    title: &str,
    unit: &str,
    rows: &[Row],
    show: &dyn Fn(&Workload, &Measured) -> String,
) {
    let _ = write!(text, "\n## {title}\n\n{unit}\n\n| |");
    for column in COLUMNS {
        let _ = write!(text, " {column} |");
    }
    let _ = write!(text, "\n|---|{}\n", "--:|".repeat(COLUMNS.len()));
    for row in cells(rows, show) {
        let _ = writeln!(text, "| {} |", row.join(" | "));
    }
}

fn cells(rows: &[Row], show: &dyn Fn(&Workload, &Measured) -> String) -> Vec<Vec<String>> {
    let line = |row: &Row| {
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
    rows.iter().map(line).collect()
}

fn throughput(workload: &Workload, measured: &Measured) -> String {
    match workload.len {
        4096 => format!("{:.1}", measured.per_second / 1000.0),
        len => format!("{:.0}", measured.per_second * len as f64 / 1e6),
    }
}

fn processor(_: &Workload, measured: &Measured) -> String {
    match measured.processor_us {
        us if us < 100.0 => format!("{us:.1}"),
        us => format!("{us:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn the_page_has_every_workload_in_both_tables() {
        let row = |workload| Row {
            workload,
            columns: vec![
                Some(Measured {
                    per_second: 2000.0,
                    processor_us: 3.25,
                }),
                None,
            ],
        };
        let rows: Vec<Row> = Workload::all().into_iter().map(row).collect();
        let machine = Machine::find(Path::new("/"));
        let text = page(&machine, &rows, "fifo 700\n", &super::super::FULL);
        assert!(
            text.contains("| 4 KiB read, 1 client | 2.0 | - |"),
            "{text}"
        );
        assert!(
            text.contains("| 1 MiB write, 8 clients | 2097 | - |"),
            "{text}"
        );
        assert!(
            text.contains("| 1 MiB write, 8 clients | 3.2 | - |"),
            "{text}"
        );
        assert!(text.contains("```\nfifo 700\n```"), "{text}");
    }
}

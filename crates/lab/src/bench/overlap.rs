//! Measures what it costs to find which pending ranges a new one overlaps and is adjacent to,
//! against a scan of a list (Ohta et al. 2010 have a list and a tree).

mod load;
mod scan;

use super::cluster::at;
use super::performance::machine;
use super::statistics::median;
use super::{Claim, Common, markdown, processor};
use load::{Load, Offsets, Side};
use scan::Scan;
use serde_json::json;
use std::path::PathBuf;
use std::process::ExitCode;
use tidegate_cli::fail::Fail;
use tidegate_cli::table::lay_out;
use tidegate_sched::Ranges;

/// Ranges that are pending.
const PENDING: [u64; 6] = [8, 64, 512, 4096, 32_768, 100_000];
/// Operations after which both sides must have given the same answers.
const COMPARED: u64 = 500;
/// What ours may cost at the most ranges, in units of what the list costs there.
const PART_MAX: f64 = 0.02;

/// What it costs to find the pending ranges that a new range overlaps or is adjacent to, against a
/// scan of a list (Ohta et al. 2010), with 8 to 100,000 ranges pending.
///
/// The pending ranges lie in one file, and half of them are writes. One operation removes a range
/// and adds a range. It removes the range that has been free to run the longest, and names the
/// ranges that waited for that one alone. For the range that it adds, it says whether the range
/// must wait (it has bytes in common with a pending range, and one of the two is a write), and
/// which pending range of the same direction ends where it begins or begins where it ends. "ours"
/// is the scheduler's own code: the order of overlapping requests, and the index of endpoints by
/// which adjacent requests are merged. "list" keeps 32 bytes for each range and scans all of them
/// once for a range that is added and once for a range that is removed. Both sides do the same
/// operations and must give the same answers. The table shows the processor time of one operation:
/// the median of several turns, in which the two sides alternate.
#[derive(clap::Args, Clone, Debug)]
pub struct Overlap {
    /// Turns of each side; medians are reported
    #[arg(long, value_name = "N", default_value_t = 7,
          value_parser = clap::value_parser!(u32).range(1..=1000))]
    repetitions: u32,
    /// Also write a page of documentation
    #[arg(long, value_name = "FILE")]
    write: Option<PathBuf>,
    #[command(flatten)]
    common: Common,
}

const HEADING: [&str; 6] = [
    "offsets",
    "pending",
    "must wait",
    "ours, ns",
    "list, ns",
    "list / ours",
];

/// The time of one operation with this number of ranges.
struct Row {
    offsets: Offsets,
    pending: u64,
    ours_ns: f64,
    scan_ns: f64,
    waited: f64,
    same: bool,
}

impl Overlap {
    /// Measures, and prints the table.
    pub fn perform(mut self) -> Result<ExitCode, Fail> {
        let pending = self.common.choose(&PENDING[..], &PENDING[..3]);
        if self.common.quick {
            self.repetitions = 1;
        }
        let mut rows = Vec::new();
        for offsets in [Offsets::Random, Offsets::Sequential] {
            for pending in pending {
                rows.push(self.row(offsets, *pending));
            }
        }
        let claims = self.claims(&rows);
        let machine = machine::words(&self.common.dir);
        let code = self.common.conclude(
            &claims,
            || self.json(&machine, &rows),
            || format!("{machine}\n\n{}", text(&rows)),
        );
        if let Some(file) = &self.write {
            std::fs::write(file, self.page(&machine, &rows)).map_err(at(file))?;
        }
        Ok(code)
    }

    fn row(&self, offsets: Offsets, pending: u64) -> Row {
        let mut ours = Load::new(Side::Ours(Box::new(Ranges::new())), offsets, pending);
        let mut scan = Load::new(Side::Scan(Scan::default()), offsets, pending);
        for side in [&mut ours, &mut scan] {
            side.work(COMPARED);
        }
        let same = ours.digest() == scan.digest();
        // What ranges leave behind in ours is what it is when it has seen them come and go; the
        // list has nothing of the kind.
        ours.work(2 * pending);
        let full = [40_000, (20_000_000 / pending).clamp(200, 40_000)];
        let operations = self.common.choose(full, [1000, 1000]);
        let mut samples = [Vec::new(), Vec::new()];
        for _ in 0..self.repetitions {
            let sides = [&mut ours, &mut scan].into_iter().zip(operations);
            for ((side, operations), into) in sides.zip(&mut samples) {
                let before = processor::own_ns();
                side.work(operations);
                into.push((processor::own_ns() - before) as f64 / operations as f64);
            }
        }
        let [ours_ns, scan_ns] = samples.map(median);
        Row {
            offsets,
            pending,
            ours_ns,
            scan_ns,
            waited: ours.waited(),
            same,
        }
    }

    fn claims(&self, rows: &[Row]) -> Vec<Claim> {
        let mut claims = vec![Claim::new(
            "both give the same answers".to_string(),
            rows.iter().all(|row| row.same),
        )];
        let last = rows
            .iter()
            .filter(|row| Some(&row.pending) == PENDING.last());
        claims.extend(last.map(|row| {
            let part = row.ours_ns / row.scan_ns;
            let text = format!(
                "{} ranges, {}: {:.2} % of what the list costs, at most {:.0} %",
                row.pending,
                row.offsets.name(),
                part * 100.0,
                PART_MAX * 100.0
            );
            Claim::new(text, part <= PART_MAX)
        }));
        claims
    }

    fn json(&self, machine: &str, rows: &[Row]) -> serde_json::Value {
        let row = |row: &Row| {
            json!({
                "offsets": row.offsets.name(),
                "pending": row.pending,
                "ours_ns": row.ours_ns,
                "list_ns": row.scan_ns,
                "waited": row.waited,
                "same_answers": row.same,
            })
        };
        json!({
            "bench": "overlap",
            "machine": machine,
            "repetitions": self.repetitions,
            "rows": rows.iter().map(row).collect::<Vec<_>>(),
        })
    }

    fn page(&self, machine: &str, rows: &[Row]) -> String {
        let mut text = format!(
            "# Ranges that overlap and are adjacent\n\n\
             Written by `tidegate bench overlap --write docs/overlap.md`, which `make bench` runs \
             too; do not edit it.\n\
             Medians of {} turns, on\n{machine}.\n\n\
             Ohta et al. (2010) have two structures for pending ranges, a list that is scanned and \
             a tree. Tidegate has one,\nwhatever their number: the order of overlapping requests \
             (`crates/sched/src/overlap.rs`) with the index of endpoints\n\
             (`crates/sched/src/endpoint_index.rs`). The pending ranges lie in one file, and half \
             of them are writes. One operation\nremoves the range that has been free to run the \
             longest, and names the ranges that waited for that one alone.\nThen it adds a range, \
             and says whether it must wait and which pending ranges are adjacent to it. The list \
             has\n32 bytes for each range, and is scanned once for a range that is added and once \
             for a range that is removed.\nBoth give the same answers, which the benchmark \
             compares.\n\n\
             Processor time of one operation, in nanoseconds.\n\n",
            self.repetitions,
        );
        text += &markdown(&HEADING, &cells(rows));
        for offsets in [Offsets::Random, Offsets::Sequential] {
            text += &format!("\n{}\n", crossing(rows, offsets));
        }
        text
    }
}

fn cells(rows: &[Row]) -> Vec<Vec<String>> {
    let cells = |row: &Row| {
        vec![
            row.offsets.name().to_string(),
            row.pending.to_string(),
            format!("{:.0} %", row.waited * 100.0),
            format!("{:.0}", row.ours_ns),
            format!("{:.0}", row.scan_ns),
            format!("{:.2}", row.scan_ns / row.ours_ns),
        ]
    };
    rows.iter().map(cells).collect()
}

fn text(rows: &[Row]) -> String {
    format!(
        "{}{}\n{}\n",
        lay_out(&HEADING, &cells(rows)),
        crossing(rows, Offsets::Random),
        crossing(rows, Offsets::Sequential)
    )
}

/// From how many ranges on ours is the cheaper one, in words. Between two rows both costs are taken
/// to be powers of the number of ranges.
fn crossing(rows: &[Row], offsets: Offsets) -> String {
    let rows = rows.iter().filter(|row| row.offsets == offsets);
    let points: Vec<(f64, f64)> = rows
        .map(|row| ((row.pending as f64).ln(), (row.scan_ns / row.ours_ns).ln()))
        .collect();
    let name = offsets.name();
    let pair = points
        .windows(2)
        .find(|pair| pair[0].1 < 0.0 && pair[1].1 >= 0.0);
    match (points.first(), pair) {
        (Some((_, ratio)), None) if *ratio >= 0.0 => {
            format!("Offsets {name}: ours is the cheaper one at every number of ranges.")
        }
        (_, Some(pair)) => {
            let part = -pair[0].1 / (pair[1].1 - pair[0].1);
            let pending = (pair[0].0 + part * (pair[1].0 - pair[0].0)).exp();
            format!(
                "Offsets {name}: the list is cheaper below about {pending:.0} ranges, ours above."
            )
        }
        _ => format!("Offsets {name}: the list is the cheaper one at every number of ranges."),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(pending: u64, ours_ns: f64, scan_ns: f64) -> Row {
        Row {
            offsets: Offsets::Random,
            pending,
            ours_ns,
            scan_ns,
            waited: 0.0,
            same: true,
        }
    }

    #[test]
    fn the_crossing_lies_where_both_cost_the_same() {
        let rows = [row(10, 200.0, 100.0), row(1000, 200.0, 10_000.0)];
        let found = crossing(&rows, Offsets::Random);
        assert!(found.contains("below about 20 ranges"), "{found}");
        let always = [row(10, 50.0, 100.0), row(1000, 50.0, 10_000.0)];
        let found = crossing(&always, Offsets::Random);
        assert!(found.contains("ours is the cheaper"), "{found}");
        let never = [row(10, 500.0, 100.0)];
        let found = crossing(&never, Offsets::Random);
        assert!(found.contains("the list is the cheaper"), "{found}");
    }
}

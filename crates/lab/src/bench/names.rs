//! Measures what names cost: looking at files, opening, listing, making, moving and removing them,
//! on every way to one directory, in one run.

mod work;

use super::cluster::{Cluster, Shape, at, no_fuse};
use super::performance::machine;
use super::performance::sections::{NAMES as TITLE, with_section};
use super::workplace::Workplace;
use super::{Claim, Common, markdown, statistics};
use serde_json::{Map, Value, json};
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;
use tidegate_cli::errln;
use tidegate_cli::fail::Fail;
use tidegate_cli::processes;
use tidegate_cli::table::lay_out;
use work::{KINDS, Kind, Sizes};

/// For a pass-through to be mounted.
const PATIENCE: Duration = Duration::from_secs(20);

/// The columns.
const PLAIN: &str = "plain";
const CACHED: &str = "pass-through";
const BARE: &str = "pass-through, no caches";
const BEFORE: &str = "before";
const MOUNT: &str = "mount";
const FOUR: &str = "mount, 4";

/// What is claimed of a kind on one way: at most so many times what it takes on another.
const CLAIMS: [(&str, &str, f64, &[Kind]); 7] = [
    (MOUNT, CACHED, 1.5, &[Kind::StatAgain, Kind::ReadAgain]),
    (MOUNT, PLAIN, 3.0, &[Kind::StatAgain, Kind::List]),
    (MOUNT, BARE, 2.5, &CHANGES),
    (FOUR, BARE, 4.0, &CHANGES),
    (MOUNT, CACHED, 1.5, &[Kind::GitAgain]),
    (MOUNT, CACHED, 3.0, &[Kind::GitFirst]),
    (MOUNT, CACHED, 3.0, &[Kind::Unpack]),
];
const CHANGES: [Kind; 5] = [
    Kind::StatFirst,
    Kind::Make,
    Kind::Rename,
    Kind::Remove,
    Kind::MakeDirectory,
];

/// What looking at names and changing them costs, beside a plain directory and a pass-through.
///
/// One process, one operation after the other: it looks at files, opens and lists them, both for
/// the first time and again, makes, renames and removes them; then git looks at a tree of files and
/// tar unpacks one. All of it in a plain directory; through bindfs (Debian's package), a FUSE file
/// system that passes everything through, with the kernel's caches and without; and through a mount
/// with one forwarder and with four. Each turn has files of its own, which no way has seen. The
/// ways take turns in one run; the medians of the turns are reported.
#[derive(clap::Args, Clone, Debug)]
pub struct Names {
    /// Also write its section of this page of documentation, in the place of the one that is there
    #[arg(long, value_name = "FILE")]
    write: Option<PathBuf>,
    /// Also measure a mount by the programs of another release: its `tidegate`
    #[arg(long, value_name = "PROGRAM")]
    before: Option<PathBuf>,
    /// Files of the tree that git and tar work on [default: 5000, or 60 with --quick]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    tree: Option<u32>,
    #[command(flatten)]
    common: Common,
}

/// How thorough a run is.
#[derive(Clone, Copy)]
struct Effort {
    turns: usize,
    sizes: Sizes,
}

const FULL: Effort = Effort {
    turns: 5,
    sizes: Sizes {
        files: 500,
        tree: 5000,
    },
};
const QUICK: Effort = Effort {
    turns: 1,
    sizes: Sizes {
        files: 20,
        tree: 60,
    },
};

/// A way to the files of a directory.
struct Column<'a> {
    name: &'static str,
    /// Where programs find them.
    point: PathBuf,
    /// Where they are.
    below: PathBuf,
    /// Serves them meanwhile.
    _cluster: Option<Cluster<'a>>,
}

/// The medians, ns, by kind and column; None where a program is missing.
struct Table {
    columns: Vec<&'static str>,
    rows: Vec<(Kind, Vec<Option<f64>>)>,
}

impl Table {
    fn at(&self, kind: Kind, column: &str) -> Option<f64> {
        let column = self.columns.iter().position(|name| *name == column)?;
        let row = self.rows.iter().find(|row| row.0 == kind)?;
        row.1[column]
    }
}

impl Names {
    /// Measures, prints the table and writes the section.
    pub fn perform(self) -> Result<ExitCode, Fail> {
        let mut effort = self.common.choose(FULL, QUICK);
        if let Some(tree) = self.tree {
            effort.sizes.tree = tree as usize;
        }
        for kind in KINDS {
            if let Some(program) = kind.program().filter(|it| !work::has(it)) {
                errln!(
                    "tidegate: \"{}\" is left out: no {program} here",
                    kind.words()
                );
            }
        }
        let place = Workplace::make(&self.common.dir, "bench")?;
        let table = self.table(&place, effort)?;
        let machine = machine::words(place.dir());
        let claims: Vec<Claim> = self.common.claims(|| claims(&table));
        let json = || json!({ "bench": "names", "machine": machine, "rows": rows_json(&table) });
        let code = self
            .common
            .conclude(&claims, json, || text(&machine, &table));
        if let Some(file) = &self.write {
            let page = std::fs::read_to_string(file).map_err(at(file))?;
            let section = section(&machine, &table, &claims, effort);
            std::fs::write(file, with_section(&page, TITLE, &section)).map_err(at(file))?;
        }
        Ok(code)
    }

    /// All ways that this machine has.
    fn columns<'a>(&self, place: &'a Workplace) -> Result<Vec<Column<'a>>, Fail> {
        let mut columns = vec![directory(place, PLAIN, "plain.data")?];
        if let Some(why) = no_fuse() {
            errln!("tidegate: all but a plain directory is left out: {why}");
            return Ok(columns);
        }
        if work::has("bindfs") {
            columns.push(pass_through(place, CACHED, "cached", "kernel_cache")?);
            let none = "entry_timeout=0,attr_timeout=0,negative_timeout=0";
            columns.push(pass_through(place, BARE, "bare", none)?);
        } else {
            errln!("tidegate: the pass-through is left out: install the package bindfs");
        }
        if let Some(program) = &self.before {
            columns.push(mount(place, BEFORE, 1, Some(program))?);
        }
        columns.push(mount(place, MOUNT, 1, None)?);
        columns.push(mount(place, FOUR, 4, None)?);
        Ok(columns)
    }

    fn table(&self, place: &Workplace, effort: Effort) -> Result<Table, Fail> {
        let columns = self.columns(place)?;
        let mut samples = vec![vec![Vec::new(); columns.len()]; KINDS.len()];
        for turn in 0..effort.turns {
            for (number, column) in columns.iter().enumerate() {
                let (now, of) = (turn + 1, effort.turns);
                self.common
                    .progress(&format!("turn {now} of {of}: {}", column.name));
                for (kind, ns) in column.turn(turn, effort.sizes)? {
                    samples[kind as usize][number].push(ns);
                }
            }
        }
        self.common.progress("");
        let middle = |samples: Vec<f64>| {
            let some = !samples.is_empty();
            some.then(|| statistics::median(samples))
        };
        let rows = KINDS.into_iter().zip(samples);
        let rows = rows.map(|(kind, samples)| (kind, samples.into_iter().map(middle).collect()));
        Ok(Table {
            columns: columns.iter().map(|column| column.name).collect(),
            rows: rows.collect(),
        })
    }
}

impl Column<'_> {
    /// The ns of one operation of each kind, on files that this way has not seen.
    fn turn(&self, turn: usize, sizes: Sizes) -> Result<Vec<(Kind, f64)>, Fail> {
        let name = format!("turn-{turn}");
        let below = self.below.join(&name);
        work::prepare(&below, sizes).map_err(at(&below))?;
        // What was just written must not be written back while something is measured.
        rustix::fs::sync();
        let point = self.point.join(&name);
        let done = work::perform(&point, sizes);
        done.map_err(|error| Fail::runtime(format!("{}: {error}", self.name)))
    }
}

fn directory<'a>(place: &Workplace, name: &'static str, dir: &str) -> Result<Column<'a>, Fail> {
    let dir = place.dir().join(dir);
    std::fs::create_dir(&dir).map_err(at(&dir))?;
    Ok(Column {
        name,
        point: dir.clone(),
        below: dir,
        _cluster: None,
    })
}

/// Mounts bindfs over a directory of its own.
fn pass_through<'a>(
    place: &Workplace,
    name: &'static str,
    word: &str,
    options: &str,
) -> Result<Column<'a>, Fail> {
    let below = directory(place, name, &format!("{word}.data"))?;
    let point = place.dir().join(format!("{word}.mnt"));
    std::fs::create_dir(&point).map_err(at(&point))?;
    place.mounted(&point);
    let mut bindfs = Command::new("bindfs");
    bindfs.args(["-f", "-o", options]);
    let pid = place.start_program(bindfs.arg(&below.below).arg(&point))?;
    let up = || processes::is_mounted(&point) || !place.runs(pid);
    if !processes::wait_until(PATIENCE, up) || !processes::is_mounted(&point) {
        let shown = point.display();
        return Err(Fail::runtime(format!(
            "bindfs did not mount {shown}; run it by hand to see why"
        )));
    }
    Ok(Column { point, ..below })
}

/// A mount with so many forwarders.
fn mount<'a>(
    place: &'a Workplace,
    name: &'static str,
    forwarders: usize,
    program: Option<&Path>,
) -> Result<Column<'a>, Fail> {
    let word = name.replace(", ", "-");
    let shape = Shape {
        program,
        ..Shape::new(&word, forwarders, 1 << 20, &|_| String::new())
    };
    let mut cluster = Cluster::start(place, &shape)?;
    Ok(Column {
        name,
        point: cluster.mount()?,
        below: cluster.export().to_path_buf(),
        _cluster: Some(cluster),
    })
}

fn claims(table: &Table) -> Vec<Claim> {
    let of = |(column, base, most, kinds): (&str, &str, f64, &[Kind])| {
        let claim = |kind: &Kind| {
            let times = table.at(*kind, column)? / table.at(*kind, base)?;
            let words = kind.words();
            let text = format!("{words}: {column} takes {times:.2} of {base}, at most {most}");
            Some(Claim::new(text, times <= most))
        };
        kinds.iter().filter_map(claim).collect::<Vec<_>>()
    };
    CLAIMS.into_iter().flat_map(of).collect()
}

/// Microseconds with three digits, and in brackets how many times those of the first column.
fn cells(table: &Table) -> Vec<Vec<String>> {
    let cell = |ns: Option<f64>, first: Option<f64>| match (ns, first) {
        (Some(ns), Some(first)) => format!("{} ({:.1})", short(ns / 1000.0), ns / first),
        _ => "-".to_string(),
    };
    let row = |(kind, found): &(Kind, Vec<Option<f64>>)| {
        let cells = found.iter().map(|ns| cell(*ns, found[0]));
        std::iter::once(kind.words().to_string())
            .chain(cells)
            .collect()
    };
    table.rows.iter().map(row).collect()
}

fn short(us: f64) -> String {
    match us {
        us if us < 10.0 => format!("{us:.2}"),
        us if us < 100.0 => format!("{us:.1}"),
        us => format!("{us:.0}"),
    }
}

fn heading(table: &Table) -> Vec<&str> {
    [&[""], &table.columns[..]].concat()
}

fn text(machine: &str, table: &Table) -> String {
    let laid_out = lay_out(&heading(table), &cells(table));
    format!(
        "{machine}\n\nMicroseconds; in brackets, how many times those of a plain directory.\n\n\
         {laid_out}\n"
    )
}

/// The section of the page.
fn section(machine: &str, table: &Table, claims: &[Claim], effort: Effort) -> String {
    let mut text = format!(
        "{TITLE}\n\n\
         Written by `tidegate bench names --write docs/performance.md`.\n\
         Medians of {} turns, all columns in one run, on\n{machine}.\n\n\
         Microseconds of one operation, in brackets how many times those of a plain directory.\n\
         One process makes one after the other, with {} files of 100 bytes; git and tar have {}\n\
         files. *Pass-through* is bindfs, a FUSE file system that does nothing but pass calls\n\
         on, with the kernel's caches (1 s) and without. *Mount* has one forwarder, which lends\n\
         names and attributes; *mount, 4* has four, which lend nothing. All of it shares the\n\
         processors.\n\n",
        effort.turns, effort.sizes.files, effort.sizes.tree
    );
    text += &markdown(&heading(table), &cells(table));
    if !claims.is_empty() {
        text += "\n| claim | |\n|---|---|\n";
    }
    for claim in claims {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "| {} | {} |", claim.text, claim.verdict());
    }
    text
}

fn rows_json(table: &Table) -> Value {
    let row = |(kind, found): &(Kind, Vec<Option<f64>>)| {
        let columns = table.columns.iter().zip(found);
        let us = columns.filter_map(|(column, ns)| Some((column.to_string(), json!((*ns)? / 1e3))));
        json!({ "operation": kind.words(), "us": us.collect::<Map<String, Value>>() })
    };
    table.rows.iter().map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        Table {
            columns: vec![PLAIN, CACHED, BARE, MOUNT],
            rows: KINDS
                .into_iter()
                .map(|kind| match kind {
                    Kind::Unpack => (kind, vec![None; 4]),
                    Kind::Rename => (kind, vec![Some(1e3), Some(2e3), Some(20e3), Some(60e3)]),
                    _ => (kind, vec![Some(1e3), Some(2e3), Some(20e3), Some(2.5e3)]),
                })
                .collect(),
        }
    }

    #[test]
    fn only_what_was_measured_is_claimed() {
        let claims = claims(&table());
        let failed: Vec<&str> = claims
            .iter()
            .filter(|claim| !claim.holds)
            .map(|claim| claim.text.as_str())
            .collect();
        assert_eq!(
            failed,
            ["rename: mount takes 3.00 of pass-through, no caches, at most 2.5"]
        );
        // Nothing of four forwarders, and nothing of tar.
        assert_eq!(claims.len(), 2 + 2 + 5 + 1 + 1);
    }

    #[test]
    fn a_section_has_a_row_for_each_kind() {
        let section = section("a machine", &table(), &claims(&table()), FULL);
        assert!(
            section
                .contains("| stat, again | 1.00 (1.0) | 2.00 (2.0) | 20.0 (20.0) | 2.50 (2.5) |")
        );
        assert!(section.contains("| tar x, a file | - | - | - | - |"));
        assert!(section.contains("| DOES NOT HOLD |"));
    }
}

//! `tidegate calibrate`: measures a directory's device, and writes its cost model.

mod device;

use crate::fail::Fail;
use crate::table;
use crate::{err, errln, out};
use serde_json::json;
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;
use tidegate_sched::{CostModel, Direction};
use tidegate_server::calibrate::{
    Access, BYTES_MIN, CalibrateError, Depth, Fitted, Measured, Plan, Route, measure,
};
use tidegate_server::config::parse_bytes;

const EXAMPLES: &str = "\
Examples:
  tidegate calibrate /scratch --output scratch.cost
  tidegate calibrate /scratch --size 4GiB --seconds 120 --output scratch.cost
  tidegate calibrate /scratch --seconds 60 --device
  tidegate calibrate /scratch --size 2GiB --seconds 120 --compare --tolerance 20
Then, in the configuration of the forwarders:
  [scheduler]
  cost_file = \"scratch.cost\"
docs/cost-model.md explains what is measured, and the file.";

/// No cost model is longer.
const COST_BYTES_MAX: u64 = 1 << 16;

/// A median of fewer times is not to be relied on.
const TIMES_MIN: usize = 20;

/// Measure what accesses of a directory's files cost, and write a cost model.
///
/// Reads and writes a file without a name in DIR, which is gone at the end, however that comes.
/// Measure a directory that nobody uses meanwhile.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Calibrate {
    /// The directory
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    /// Where the cost model goes; printed if not given
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Size of the file to measure in, such as 4GiB; more than a storage system's cache is best
    #[arg(long, value_name = "BYTES", default_value = "256MiB", value_parser = size)]
    size: u64,
    /// Seconds that it may take
    #[arg(long, value_name = "N", default_value_t = 20,
          value_parser = clap::value_parser!(u64).range(1..=86_400))]
    seconds: u64,
    /// Fit a model of a device with channels, instead of a cost model, and print it as a [device]
    #[arg(long, conflicts_with = "output")]
    device: bool,
    /// Fit it, and compare it with the device at depths 1 to 32; fails beyond --tolerance
    #[arg(long, conflicts_with = "output")]
    compare: bool,
    /// How far the model's rates may be from the device's, in percent of the device's; 20 if not
    /// given
    #[arg(long, value_name = "PERCENT", requires = "compare", value_parser = percent)]
    tolerance: Option<f64>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// What `--tolerance` is if it is not given.
const TOLERANCE_PERCENT: f64 = 20.0;

fn percent(text: &str) -> Result<f64, String> {
    let percent = text
        .parse()
        .ok()
        .filter(|it: &f64| (0.0..=1e6).contains(it));
    percent.ok_or_else(|| "must be a number of percent, such as 20".to_string())
}

fn size(text: &str) -> Result<u64, String> {
    let bytes = parse_bytes(text).filter(|bytes| (BYTES_MIN..=1 << 50).contains(bytes));
    bytes.ok_or_else(|| "must be a number of bytes from 1MiB on, such as 256MiB".to_string())
}

impl Calibrate {
    /// Measures, fits, prints and writes.
    pub fn perform(self) -> Result<ExitCode, Fail> {
        if let Some(output) = &self.output {
            check_output(output)?;
        }
        if let Err(error) = self.dir.metadata() {
            let dir = self.dir.display();
            return Err(Fail::usage(format!(
                "{dir}: {error}; name a directory that you may write, on the file system to measure"
            )));
        }
        let plan = Plan {
            bytes: self.size,
            time: Duration::from_secs(self.seconds),
        };
        if self.device || self.compare {
            let tolerance = self.tolerance.unwrap_or(TOLERANCE_PERCENT);
            let tolerance = self.compare.then_some(tolerance);
            return device::perform(&self.dir, &plan, tolerance, self.json, &self.progress());
        }
        let measured = measure(&self.dir, &plan, &self.progress()).map_err(failed)?;
        let fitted = measured.fit();
        let text = self.text(&measured, &fitted);
        if let Some(output) = &self.output {
            write(output, &text)?;
        }
        let shown = match (self.json, &self.output) {
            (true, _) => format!("{}\n", self.json(&measured, &fitted)),
            (false, None) => format!("{}\n{text}", page(&measured, &fitted)),
            (false, Some(output)) => {
                format!(
                    "{}\nwritten: {}\n",
                    page(&measured, &fitted),
                    output.display()
                )
            }
        };
        out!("{shown}");
        if let Some(warning) = few(&measured) {
            errln!("tidegate: warning: {warning}");
        }
        Ok(ExitCode::SUCCESS)
    }

    /// Shows a progress bar if standard error is a terminal.
    fn progress(&self) -> impl Fn(f64) {
        let shows = std::io::stderr().is_terminal();
        let name = self.dir.display().to_string();
        move |done: f64| {
            if shows {
                const WIDTH: usize = 30;
                let bar = "#".repeat((done * WIDTH as f64) as usize);
                let end = if done >= 1.0 { "\r\x1b[K" } else { "" };
                let percent = done * 100.0;
                err!("\rmeasuring {name} [{bar:<WIDTH$}] {percent:.0} %{end}");
                // A terminal that is gone sees no progress.
                let _ = std::io::stderr().flush();
            }
        }
    }

    /// The text of the file: the model, and in comments where it comes from.
    fn text(&self, measured: &Measured, fitted: &Fitted) -> String {
        let dir = std::path::absolute(&self.dir).unwrap_or(self.dir.clone());
        // A name with a line break must stay a comment.
        let dir = dir.display().to_string().replace(char::is_control, "?");
        // Who finds the file later has not seen the warning.
        let few = few(measured).map_or(String::new(), |few| format!("# Warning: {few}.\n"));
        let (read, write) = depths(measured);
        format!(
            "# What accesses cost on {dir}, measured by tidegate calibrate\n\
             # in a file of {} bytes, {}, one access at a time.\n\
             # Random 4 KiB accesses gain by up to {read} reads or {write} writes at a time.\n\
             {few}{}",
            measured.bytes,
            match measured.by() {
                Route::Direct => "past the page cache",
                Route::Buffered =>
                    "through the page cache, which was emptied before reads; \
                                    writes include fdatasync",
            },
            fitted.model
        )
    }

    fn json(&self, measured: &Measured, fitted: &Fitted) -> serde_json::Value {
        let (read, write) = depths(measured);
        let points = measured.points.iter().map(|point| {
            let Access {
                direction,
                sequential,
                len,
                by,
            } = point.access;
            json!({
                "access": name(direction, sequential), "bytes": len, "route": route(by),
                "ns": point.ns, "count": point.count,
                "model_ns": fitted.model.access(direction, sequential).ns(len),
            })
        });
        let points: Vec<_> = points.collect();
        let depths = measured.depths.iter().map(|one| {
            json!({
                "direction": word(one.direction), "depth": one.depth,
                "per_second": one.per_second,
            })
        });
        let depths: Vec<_> = depths.collect();
        let text = fitted.model.to_string();
        let model: serde_json::Map<_, _> = text
            .lines()
            .filter_map(|line| line.split_once(" = "))
            .map(|(name, value)| (name.to_string(), json!(value.parse::<u64>().unwrap_or(0))))
            .collect();
        let errors: serde_json::Map<_, _> = fitted
            .fits
            .iter()
            .map(|fit| {
                (
                    name(fit.direction, fit.sequential),
                    json!(fit.error_percent),
                )
            })
            .collect();
        json!({
            "directory": self.dir.display().to_string(), "bytes": measured.bytes,
            "route": route(measured.by()), "no_direct": measured.no_direct,
            "depth": { "read": read, "write": write },
            "warning": few(measured), "model": model, "error_percent": errors,
            "points": points, "depths": depths,
        })
    }
}

/// What a measurement that failed says of its user.
fn failed(error: CalibrateError) -> Fail {
    match error {
        CalibrateError::Directory(_) | CalibrateError::TooSmall(_) => Fail::usage(error),
        error => Fail::runtime(error),
    }
}

/// Refuses to overwrite a file that is no cost model, before it takes any time.
fn check_output(path: &Path) -> Result<(), Fail> {
    let shown = path.display();
    let parent = path
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty());
    if parent.is_some_and(|parent| !parent.is_dir()) {
        return Err(Fail::usage(format!(
            "{shown}: its directory is not there: make it first"
        )));
    }
    let found = match std::fs::metadata(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        found => found,
    };
    // Looked at before it is read: reading a pipe, or all of a large file, would be no answer.
    let short = found.is_ok_and(|found| found.is_file() && found.len() <= COST_BYTES_MAX);
    match short.then(|| std::fs::read_to_string(path)) {
        Some(Ok(text)) if CostModel::parse(&text).is_ok() => Ok(()),
        _ => Err(Fail::usage(format!(
            "{shown} is there and is no cost model: name another file, or remove it"
        ))),
    }
}

/// Writes the file whole or not at all.
fn write(path: &Path, text: &str) -> Result<(), Fail> {
    let mut beside = path.as_os_str().to_owned();
    beside.push(format!(".{}", std::process::id()));
    let written = std::fs::write(&beside, text).and_then(|()| std::fs::rename(&beside, path));
    written.map_err(|error| {
        let _ = std::fs::remove_file(&beside);
        Fail::runtime(format!("{} cannot be written: {error}", path.display()))
    })
}

/// A warning if times were measured so seldom that their median says little.
fn few(measured: &Measured) -> Option<String> {
    let of = measured.points.iter();
    let counts = of.filter(|point| point.access.by == measured.by());
    let counts: Vec<usize> = counts.map(|point| point.count).collect();
    let seldom = counts.iter().filter(|count| **count < TIMES_MIN);
    let (all, seldom, least) = (counts.len(), seldom.count(), counts.iter().min()?);
    (seldom > 0).then(|| {
        format!(
            "{seldom} of {all} kinds of access were measured fewer than {TIMES_MIN} times, one \
             only {least}: the model may be far off; give it more time, with --seconds"
        )
    })
}

fn depths(measured: &Measured) -> (u32, u32) {
    (
        measured.depth(Direction::Read),
        measured.depth(Direction::Write),
    )
}

/// A table of the measured times beside the model's.
fn page(measured: &Measured, fitted: &Fitted) -> String {
    let heading = [
        "access",
        "bytes",
        "times",
        "measured",
        "model",
        "error",
        "through cache",
    ];
    let mut points: Vec<_> = measured.points.iter().collect();
    points.sort_by_key(|point| {
        let access = point.access;
        (
            access.direction == Direction::Write,
            access.sequential,
            access.len,
        )
    });
    let of = points
        .iter()
        .filter(|point| point.access.by == measured.by());
    let rows: Vec<Vec<String>> = of
        .map(|point| {
            let Access {
                direction,
                sequential,
                len,
                ..
            } = point.access;
            let model_ns = fitted.model.access(direction, sequential).ns(len);
            let error = 100.0 * (model_ns as f64 - point.ns as f64) / point.ns.max(1) as f64;
            let other = points.iter().find(|other| {
                let same = Access {
                    by: Route::Buffered,
                    ..point.access
                };
                other.access == same && measured.by() == Route::Direct
            });
            vec![
                name(direction, sequential),
                table::bytes(len),
                point.count.to_string(),
                table::time(point.ns),
                table::time(model_ns),
                format!("{error:+.0} %"),
                other.map_or("-".to_string(), |other| table::time(other.ns)),
            ]
        })
        .collect();
    let mut text = table::lay_out(&heading, &rows);
    if let Some(why) = &measured.no_direct {
        text.push_str(&format!(
            "O_DIRECT does not work here ({why}): times are through the page cache, which was \
             emptied before reads; writes include fdatasync.\n"
        ));
    }
    text.push('\n');
    text.push_str(&page_of_depths(measured));
    text
}

/// A table of how throughput grows with the number of accesses at a time.
fn page_of_depths(measured: &Measured) -> String {
    let row = |one: &Depth| {
        vec![
            format!("{} random, 4 KiB", word(one.direction)),
            one.depth.to_string(),
            format!("{:.0}", one.per_second),
        ]
    };
    let rows: Vec<Vec<String>> = measured.depths.iter().map(row).collect();
    let heading = ["access", "at a time", "each second"];
    let (read, write) = depths(measured);
    format!(
        "{}Throughput stops growing at {read} reads and {write} writes at a time.\n",
        table::lay_out(&heading, &rows)
    )
}

fn name(direction: Direction, sequential: bool) -> String {
    let pattern = if sequential { "sequential" } else { "random" };
    format!("{}_{pattern}", word(direction))
}

fn word(direction: Direction) -> &'static str {
    match direction {
        Direction::Read => "read",
        Direction::Write => "write",
    }
}

fn route(by: Route) -> &'static str {
    match by {
        Route::Direct => "direct",
        Route::Buffered => "buffered",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_server::calibrate::Point;

    /// The file made of two lengths of each kind of access, each measured so often.
    fn text(count: usize) -> String {
        let mut points = Vec::new();
        for direction in [Direction::Read, Direction::Write] {
            for (sequential, len) in [(false, 4096), (false, 65_536), (true, 4096), (true, 65_536)]
            {
                let by = Route::Direct;
                points.push(Point {
                    access: Access {
                        direction,
                        sequential,
                        len,
                        by,
                    },
                    ns: 1000 + len,
                    count,
                });
            }
        }
        let measured = Measured {
            bytes: 1 << 20,
            no_direct: None,
            points,
            depths: Vec::new(),
        };
        let calibrate = Calibrate {
            dir: PathBuf::from("/scratch"),
            output: None,
            size: 1 << 20,
            seconds: 1,
            device: false,
            compare: false,
            tolerance: None,
            json: false,
        };
        calibrate.text(&measured, &measured.fit())
    }

    #[test]
    fn a_model_of_a_handful_of_times_says_so_in_its_file() {
        let seldom = text(TIMES_MIN - 1);
        let line = seldom.lines().find(|line| line.starts_with("# Warning: "));
        let line = line.unwrap_or_else(|| panic!("{seldom}"));
        assert!(line.contains("8 of 8 kinds of access"), "{line}");
        let model = CostModel::parse(&seldom).expect("comments are no part of the model");
        let often = text(TIMES_MIN);
        assert!(!often.contains("Warning"), "{often}");
        assert_eq!(CostModel::parse(&often), Ok(model));
    }
}

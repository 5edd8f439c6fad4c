//! `tidegate calibrate --device` and `--compare`: a model of the device with channels, and how far
//! it is from the device.

use super::{name, route};
use crate::fail::Fail;
use crate::{errln, out, table};
use serde_json::{Value, json};
use std::path::Path;
use std::process::ExitCode;
use tidegate_server::calibrate::{
    Cell, FitError, FittedDevice, Plan, Rounds, Route, SPREAD_PERCENT, Sample, fit_device,
    measure_depths,
};

/// A throughput that grows by a smaller factor counts as not growing.
const GROWTH: f64 = 1.1;

/// A rate of the device beside the model's.
struct Pair {
    sample: Sample,
    model: f64,
}

impl Pair {
    fn ratio(&self) -> f64 {
        self.model / self.sample.per_second
    }

    /// Whether the model is at most so many percent of the measured rate off.
    fn is_within(&self, tolerance: f64) -> bool {
        100.0 * (self.ratio() - 1.0).abs() <= tolerance
    }
}

/// Measures, fits and prints. With a tolerance it also compares, and fails beyond it.
pub(super) fn perform(
    dir: &Path,
    plan: &Plan,
    tolerance: Option<f64>,
    as_json: bool,
    progress: &dyn Fn(f64),
) -> Result<ExitCode, Fail> {
    let rounds = measure_depths(dir, plan, progress).map_err(super::failed)?;
    let to_fit = rounds.to_fit();
    let fitted = fit_device(&to_fit, rounds.bytes).map_err(Fail::runtime)?;
    let pairs = match tolerance {
        None => Vec::new(),
        Some(_) => pairs(&fitted, &rounds.to_compare()).map_err(Fail::runtime)?,
    };
    if as_json {
        let found = found_json(dir, &rounds, &fitted, &pairs, tolerance);
        out!("{found}\n");
    } else {
        out!("{}", section(dir, &rounds, &fitted, &to_fit));
        if let Some(tolerance) = tolerance {
            out!("\n{}", page(&pairs, tolerance));
        }
    }
    if let Some(warning) = unsteady(&to_fit) {
        errln!("tidegate: warning: {warning}");
    }
    let is_within = |pair: &Pair| tolerance.is_none_or(|percent| pair.is_within(percent));
    Ok(match pairs.iter().all(is_within) {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

fn pairs(fitted: &FittedDevice, samples: &[Sample]) -> Result<Vec<Pair>, FitError> {
    let pair = |sample: &Sample| {
        Ok(Pair {
            sample: *sample,
            model: fitted.per_second(&sample.cell)?,
        })
    };
    samples.iter().map(pair).collect()
}

/// A warning if rounds were so far apart that their median says little.
fn unsteady(samples: &[Sample]) -> Option<String> {
    let (all, unsteady) = (samples.len(), samples.iter().filter(|it| !it.is_steady()));
    let unsteady = unsteady.count();
    (unsteady > 0).then(|| {
        format!(
            "{unsteady} of {all} rates are unsteady, with rounds more than {SPREAD_PERCENT} % off \
             their median: the model may be far off; measure while nobody uses the device, and \
             give it more time, with --seconds"
        )
    })
}

/// The model as a section of a configuration or a scenario.
fn section(dir: &Path, rounds: &Rounds, fitted: &FittedDevice, samples: &[Sample]) -> String {
    let dir = dir.display().to_string().replace(char::is_control, "?");
    let accesses: usize = samples.iter().map(|sample| sample.accesses).sum();
    let least = samples.iter().map(|sample| sample.accesses).min();
    let mut text = format!(
        "# {dir} as a device with channels, fitted by tidegate calibrate to {} rates\n\
         # of {accesses} accesses, at least {} of each, in a file of {} bytes.\n\
         # It is {:.0} % off those rates in the mean.\n",
        samples.len(),
        least.unwrap_or(0),
        rounds.bytes,
        fitted.error_percent,
    );
    if let Some(unsteady) = unsteady(samples) {
        // Who finds the section later has not seen the warning.
        text += &format!("# Warning: {unsteady}.\n");
    }
    if let Some(why) = &rounds.no_direct {
        let why = why.replace(char::is_control, "?");
        text += &format!("# O_DIRECT does not work here ({why}): through the page cache.\n");
    }
    text += &format!(
        "[device]\nmodel = \"{}\"\ndepth = {}\n",
        fitted.preset,
        depth(samples)
    );
    for (name, value) in fitted.own() {
        text += &format!("{name} = {value}\n");
    }
    text
}

/// The depth beyond which no kind of access gains.
fn depth(samples: &[Sample]) -> u32 {
    let gains = |one: &Sample| {
        let Cell {
            direction,
            sequential,
            len,
            depth,
        } = one.cell;
        let is_shallower = |other: &&Sample| {
            let cell = other.cell;
            (cell.direction, cell.sequential, cell.len) == (direction, sequential, len)
                && cell.depth < depth
        };
        let others = samples.iter().filter(is_shallower);
        let best = others.map(|other| other.per_second).fold(0.0, f64::max);
        one.per_second > best * GROWTH
    };
    let gaining = samples.iter().filter(|one| gains(one));
    gaining.map(|one| one.cell.depth).max().unwrap_or(1)
}

/// The table, and whether the model is near enough.
fn page(pairs: &[Pair], tolerance: f64) -> String {
    let heading = [
        "access",
        "bytes",
        "at a time",
        "accesses",
        "each second",
        "in rounds",
        "model",
        "ratio",
        "",
    ];
    let row = |pair: &Pair| {
        let Sample {
            cell,
            per_second,
            spread,
            accesses,
        } = pair.sample;
        vec![
            name(cell.direction, cell.sequential),
            table::bytes(cell.len),
            cell.depth.to_string(),
            accesses.to_string(),
            format!("{per_second:.0}"),
            format!("{:.0} to {:.0}", spread.0, spread.1),
            format!("{:.0}", pair.model),
            format!("{:.2}", pair.ratio()),
            match (pair.is_within(tolerance), pair.sample.is_steady()) {
                (true, true) => "",
                (true, false) => "unsteady",
                (false, true) => "beyond",
                (false, false) => "beyond, unsteady",
            }
            .to_string(),
        ]
    };
    let rows: Vec<Vec<String>> = pairs.iter().map(row).collect();
    let within = pairs
        .iter()
        .filter(|pair| pair.is_within(tolerance))
        .count();
    let unsteady = pairs.iter().filter(|pair| !pair.sample.is_steady()).count();
    format!(
        "{}Each is the median of rounds to which the model was not fitted; unsteady where rounds \
         were more than {SPREAD_PERCENT} % off it: {unsteady}.\n\
         Within {tolerance} %: {within} of {}.\n",
        table::lay_out(&heading, &rows),
        pairs.len()
    )
}

fn found_json(
    dir: &Path,
    rounds: &Rounds,
    fitted: &FittedDevice,
    pairs: &[Pair],
    tolerance: Option<f64>,
) -> Value {
    let samples = rounds.to_fit();
    let mut device = json!({ "model": fitted.preset, "depth": depth(&samples) });
    for (name, value) in fitted.own() {
        device[name] = json!(value);
    }
    let cell = |sample: &Sample| {
        let cell = sample.cell;
        json!({
            "access": name(cell.direction, cell.sequential), "bytes": cell.len,
            "depth": cell.depth, "accesses": sample.accesses, "per_second": sample.per_second,
            "per_second_min": sample.spread.0, "per_second_max": sample.spread.1,
            "steady": sample.is_steady(),
        })
    };
    let pair = |pair: &Pair| {
        let mut value = cell(&pair.sample);
        value["model_per_second"] = json!(pair.model);
        value["within"] = json!(tolerance.map(|percent| pair.is_within(percent)));
        value
    };
    let by = match rounds.no_direct {
        None => Route::Direct,
        Some(_) => Route::Buffered,
    };
    json!({
        "directory": dir.display().to_string(), "bytes": rounds.bytes,
        "route": route(by), "no_direct": rounds.no_direct,
        "device": device, "error_percent": fitted.error_percent,
        "warning": unsteady(&samples),
        "fitted_to": samples.iter().map(cell).collect::<Vec<_>>(),
        "compared": pairs.iter().map(pair).collect::<Vec<_>>(),
        "tolerance_percent": tolerance,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_sched::Direction;

    fn sample(depth: u32, per_second: f64) -> Sample {
        Sample {
            cell: Cell {
                direction: Direction::Read,
                sequential: false,
                len: 4096,
                depth,
            },
            per_second,
            spread: (per_second, per_second),
            accesses: 20,
        }
    }

    #[test]
    fn what_is_beyond_the_tolerance_is_marked() {
        let pair = |model| Pair {
            sample: sample(1, 1000.0),
            model,
        };
        let pairs = [801.0, 1199.0, 799.0, 1201.0].map(pair);
        let within = pairs.each_ref().map(|pair| pair.is_within(20.0));
        assert_eq!(within, [true, true, false, false]);
        let page = page(&pairs, 20.0);
        assert_eq!(page.matches("beyond").count(), 2, "{page}");
        assert!(page.ends_with("Within 20 %: 2 of 4.\n"), "{page}");
    }

    #[test]
    fn a_rate_whose_rounds_are_far_apart_is_marked() {
        let mut pairs = [100.0, 100.0].map(|per_second| Pair {
            sample: sample(1, per_second),
            model: per_second,
        });
        let samples = pairs.each_ref().map(|pair| pair.sample);
        assert_eq!(unsteady(&samples), None);
        pairs[1].sample.spread = (100.0, 121.0);
        let samples = pairs.each_ref().map(|pair| pair.sample);
        let warning = unsteady(&samples).expect("one is unsteady");
        assert!(
            warning.starts_with("1 of 2 rates are unsteady"),
            "{warning}"
        );
        let page = page(&pairs, 20.0);
        let rows = page
            .lines()
            .filter(|line| line.trim_end().ends_with("unsteady"));
        assert_eq!(rows.count(), 1, "{page}");
        pairs[0].sample.spread = (79.0, 100.0);
        assert!(!pairs[0].sample.is_steady());
        pairs[0].sample.spread = (81.0, 119.0);
        assert!(pairs[0].sample.is_steady());
    }

    #[test]
    fn the_depth_is_the_last_that_gains() {
        let rates = [(1, 100.0), (2, 190.0), (4, 200.0), (8, 205.0)];
        let samples = rates.map(|(depth, per_second)| sample(depth, per_second));
        assert_eq!(depth(&samples), 2);
        assert_eq!(depth(&[]), 1);
    }
}

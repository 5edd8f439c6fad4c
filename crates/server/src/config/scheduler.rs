//! The section `[scheduler]`: what holds for all policies, and the chosen policy's own options,
//! which only the policy can judge.

use super::key::Keys;
use super::keys::SchedulerKeys;
use super::source::Section;
use super::{ConfigError, Source, Value, foretold, parse_bytes};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;
use tidegate_sched::{
    CostModel, Options, OptionsError, PolicyOptions, PolicySpec, Prediction, Scheduler, policies,
};

/// Bytes of a cost model beyond which it is none.
const COST_BYTES_MAX: u64 = 1 << 16;

/// Reads a `[scheduler]` table that came at run time, as text without the heading, on a device that
/// has this default width of windows ([`Config::window_ms`](super::Config::window_ms)). What the
/// text leaves out gets its default, but for the depth, the cost model and what traces foretell,
/// which stay as they are `now`.
pub fn scheduler_options(
    text: &str,
    now: &Options,
    window_ms: Option<u64>,
) -> Result<Options, ConfigError> {
    let mut source = Source::parse(text, "policy")?;
    source.only(&[])?;
    let defaults = Options {
        depth: now.depth,
        cost: now.cost,
        estimate: now.estimate,
        wall_offset_ns: now.wall_offset_ns,
        prediction: now.prediction.clone(),
        ..Options::default()
    };
    read(
        source.section("").named(SchedulerKeys::SECTION),
        defaults,
        window_ms,
        None,
    )
}

/// Checks the section `scheduler` of settings. Whether forwarders have traces only they know.
pub fn check_scheduler(mut source: Source, depth: u32) -> Result<Options, ConfigError> {
    let defaults = Options {
        depth,
        prediction: Some(Arc::new(Prediction::new(&[], &CostModel::default()))),
        ..Options::default()
    };
    read(source.section(SchedulerKeys::SECTION), defaults, None, None)
}

/// Reads the section. The defaults give what no key does, and depth, costs and whether they are
/// corrected where the keys for them are not written. `window_ms` is the width of windows where
/// a policy that has windows is given none. `forwarder` is the number of the one that starts.
pub(super) fn read(
    mut section: Section,
    defaults: Options,
    window_ms: Option<u64>,
    forwarder: Option<u16>,
) -> Result<Options, ConfigError> {
    let keys = SchedulerKeys::read(&mut section)?;
    let cost = keys.cost_file.as_deref().map(cost_model).transpose();
    let cost = cost.map_err(|what| section.wrong("cost_file", what))?;
    let cost = cost.unwrap_or(defaults.cost);
    let foretold = foretold::of_files(&keys.trace_files, forwarder, &cost);
    let foretold = foretold.map_err(|what| section.wrong("trace_files", what))?;
    let own = section.rest();
    let mut options = Options {
        policy: keys.policy,
        queued_max: keys.queued_max,
        depth: keys.depth.unwrap_or(defaults.depth),
        merge: keys.merge,
        cost,
        prediction: foretold.map(Arc::new).or(defaults.prediction),
        estimate: keys.cost_estimate.unwrap_or(defaults.estimate),
        batch_bytes_max: keys.batch_bytes_max,
        batch_requests_max: keys.batch_requests_max,
        table: policy_options(&own)?,
        ..defaults
    };
    let has_windows =
        |policy: &PolicySpec| policy.options.iter().any(|one| one.name == "window_ms");
    if policies::find(&options.policy).is_some_and(has_windows)
        && !own.contains_key("window_ms")
        && let Some(width) = window_ms
    {
        options.table.set("window_ms", width);
    }
    match Scheduler::new(&options) {
        Ok(_) => Ok(options),
        Err(error) => Err(refused(&error, &own, &section)),
    }
}

/// The cost model of a file.
fn cost_model(path: &Path) -> Result<CostModel, String> {
    let refused = |what: &dyn std::fmt::Display| {
        let path = path.display();
        format!("cost_file {path}: {what}; `tidegate calibrate DIR --output FILE` writes one")
    };
    let mut text = String::new();
    // Looked at before it is opened: a pipe would be waited for.
    let read = std::fs::metadata(path).and_then(|found| match found.is_file() {
        true => File::open(path)?
            .take(COST_BYTES_MAX)
            .read_to_string(&mut text),
        false => Err(io::Error::other("is not a file")),
    });
    read.map_err(|error| refused(&format_args!("cannot be read: {error}")))?;
    CostModel::parse(&text).map_err(|error| refused(&error))
}

/// The policy's own options.
fn policy_options(own: &BTreeMap<String, (Value, String)>) -> Result<PolicyOptions, ConfigError> {
    let mut table = PolicyOptions::default();
    for (key, (value, place)) in own {
        let wrong = |what: String| ConfigError::new(place, what);
        match value {
            Value::Integer(number) => {
                let negative = |_| wrong(format!("{key} = {number} must not be negative"));
                table.set(key, u64::try_from(*number).map_err(negative)?);
            }
            Value::Boolean(value) => table.set(key, *value),
            // A number of bytes may have a unit, as everywhere in the file.
            Value::String(text) if key.ends_with("_bytes") => match parse_bytes(text) {
                Some(bytes) => table.set(key, bytes),
                None => table.set(key, text.as_str()),
            },
            Value::String(text) => table.set(key, text.as_str()),
            _ => {
                let what = format!("{key} must be a whole number, true or false, or text");
                return Err(wrong(what));
            }
        }
    }
    Ok(table)
}

fn refused(
    error: &OptionsError,
    own: &BTreeMap<String, (Value, String)>,
    section: &Section,
) -> ConfigError {
    let at = |option: &str, what: String| match own.get(option) {
        Some((_, place)) => ConfigError::new(place, what),
        None => section.wrong("policy", what),
    };
    match error {
        OptionsError::UnknownOption { option, known, .. } => {
            let all = [SchedulerKeys::NAMES, known.as_slice()].concat();
            let place = own.get(option).map_or("", |(_, place)| place);
            section.unknown(option, place, &all)
        }
        OptionsError::UnknownWord { option, .. }
        | OptionsError::Malformed { option, .. }
        | OptionsError::WrongType { option, .. }
        | OptionsError::OutOfRange { option, .. } => at(option, error.to_string()),
        OptionsError::NoPrediction => {
            let what = "prediction = \"recorded\" needs trace_files = [\"FILE\"] where the \
                        forwarder starts: traces of earlier runs of the program; \"online\" \
                        needs none";
            at("prediction", what.to_string())
        }
        _ => section.wrong("policy", error.to_string()),
    }
}

//! Options objects: what a scheduler shall be, collected as names and values.

use crate::failure::{Failure, fail};
use crate::files;
use crate::history;
use crate::lock::Lock;
use std::collections::BTreeMap;
use std::sync::Arc;
use tidegate_sched::{CostModel, Observed, OptionValue, Options, Prediction, policies};

/// Options under construction.
#[derive(Clone, Debug, Default)]
pub(crate) struct Settings {
    /// The scheduler's own.
    pub(crate) options: Options,
    /// Calls come from one thread at a time.
    pub(crate) single_thread: bool,
    /// Traces of earlier runs.
    traces: Vec<Vec<Observed>>,
}

/// Ids are never used twice. They end unlike pointers and unlike handles of schedulers.
const MARK: usize = 0x7;

struct Live {
    next: usize,
    objects: BTreeMap<usize, Settings>,
}

static LIVE: Lock<Live> = Lock::new(Live {
    next: 1,
    objects: BTreeMap::new(),
});

/// Makes an object.
pub(crate) fn insert(settings: Settings) -> usize {
    let mut live = LIVE.lock();
    let id = live.next << 4 | MARK;
    live.next += 1;
    live.objects.insert(id, settings);
    id
}

/// Ends an object.
pub(crate) fn remove(id: usize) -> Result<(), Box<Failure>> {
    let mut live = LIVE.lock();
    live.objects
        .remove(&id)
        .map_or_else(|| fail(unknown()), |_| Ok(()))
}

/// Changes or reads an object.
pub(crate) fn with<R>(
    id: usize,
    call: impl FnOnce(&mut Settings) -> Result<R, Box<Failure>>,
) -> Result<R, Box<Failure>> {
    let mut live = LIVE.lock();
    live.objects
        .get_mut(&id)
        .map_or_else(|| fail(unknown()), call)
}

/// A copy of an object; 0 stands for the defaults.
pub(crate) fn copy(id: usize) -> Result<Settings, Box<Failure>> {
    if id == 0 {
        return Ok(Settings::default());
    }
    with(id, |settings| Ok(settings.clone()))
}

fn unknown() -> Failure {
    Failure::Handle("options")
}

impl Settings {
    /// The defaults with a policy.
    pub(crate) fn for_policy(name: &str) -> Settings {
        Settings {
            options: Options::for_policy(name),
            ..Settings::default()
        }
    }

    /// The scheduler's options, with what the traces foretell at the costs that were set.
    pub(crate) fn finish(self) -> Options {
        let mut options = self.options;
        if !self.traces.is_empty() {
            let prediction = Prediction::new(&self.traces, &options.cost);
            options.prediction = Some(Arc::new(prediction));
        }
        options
    }

    /// Sets one option. Names that are not general are the policy's own, and are checked when a
    /// scheduler is made.
    pub(crate) fn set(&mut self, name: &str, value: &str) -> Result<(), Box<Failure>> {
        let options = &mut self.options;
        match name {
            "" => return fail(Failure::Options("an option without a name".to_string())),
            "policy" => {
                options.policy = value.to_string();
                // The old policy's own options mean nothing to the new one.
                options.table = tidegate_sched::PolicyOptions::default();
            }
            "queued_max" => options.queued_max = number(name, value)?,
            "depth" => options.depth = number(name, value)?,
            "batch_bytes_max" => options.batch_bytes_max = number(name, value)?,
            "batch_requests_max" => options.batch_requests_max = number(name, value)?,
            "wall_offset_ns" => options.wall_offset_ns = number(name, value)?,
            "merge" if value == "auto" => options.merge = None,
            "merge" => options.merge = Some(flag(name, value, ", or auto")?),
            "trace_file" => {
                let trace = history::read(value, crate::hash::hash);
                let trace = trace.or_else(|text| fail(Failure::Options(text)))?;
                self.traces.push(trace);
            }
            "cost_file" => options.cost = cost_model(value)?,
            "cost_estimate" => options.estimate = flag(name, value, "")?,
            "single_thread" => self.single_thread = flag(name, value, "")?,
            _ => {
                let value = value_of(&options.policy, name, value);
                options.table.set(name, value);
            }
        }
        Ok(())
    }

    /// Sets the options of a line of `name=value` with white space between them.
    pub(crate) fn parse(&mut self, line: &str) -> Result<(), Box<Failure>> {
        // All or none of a line.
        let mut changed = self.clone();
        for pair in line.split_whitespace() {
            let Some((name, value)) = pair.split_once('=') else {
                return fail(Failure::Options(format!(
                    "\"{pair}\" is not of the form name=value"
                )));
            };
            changed.set(name, value)?;
        }
        *self = changed;
        Ok(())
    }
}

/// Bytes of a cost model beyond which it is none.
const COST_BYTES_MAX: u64 = 1 << 16;

/// Reads what `tidegate calibrate` has written.
fn cost_model(path: &str) -> Result<CostModel, Box<Failure>> {
    let text = files::read_text(path, COST_BYTES_MAX)
        .map_err(|error| Failure::Options(format!("cost_file: {path}: {error}")))?;
    CostModel::parse(&text)
        .or_else(|error| fail(Failure::Options(format!("cost_file: {path}: {error}"))))
}

fn number<N: TryFrom<u64>>(name: &str, value: &str) -> Result<N, Box<Failure>> {
    let parsed = value.parse::<u64>().ok();
    parsed
        .and_then(|number| N::try_from(number).ok())
        .map_or_else(
            || {
                let max = if size_of::<N>() == 4 {
                    u64::from(u32::MAX)
                } else {
                    u64::MAX
                };
                fail(Failure::Options(format!(
                    "{name} = \"{value}\" is not a whole number from 0 to {max}"
                )))
            },
            Ok,
        )
}

fn flag(name: &str, value: &str, or: &str) -> Result<bool, Box<Failure>> {
    match value {
        "true" => Ok(true),
        "false" => Ok(false),
        _ => fail(Failure::Options(format!(
            "{name} = \"{value}\" is not true or false{or}"
        ))),
    }
}

/// The value that a text states for an option of a policy, by the option's type; in quotes it is
/// always a word.
fn value_of(policy: &str, option: &str, text: &str) -> OptionValue {
    let inner = text.strip_prefix('"').and_then(|v| v.strip_suffix('"'));
    inner.map_or_else(
        || policies::read_option(policy, option, text),
        OptionValue::from,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_options_is_taken_whole_or_not_at_all() {
        let mut settings = Settings::for_policy("window");
        settings
            .parse("depth=3  merge=true\twindow_ms=250 order=id")
            .unwrap();
        assert_eq!(
            (settings.options.depth, settings.options.merge),
            (3, Some(true))
        );
        assert!(settings.parse("depth=5 depth=no").is_err());
        assert!(settings.parse("depth=5 nothing").is_err());
        assert_eq!(settings.options.depth, 3);
        let table: Vec<_> = settings.options.table.iter().collect();
        assert_eq!(
            table,
            [("order", &"id".into()), ("window_ms", &250u64.into())]
        );
        assert!(settings.set("depth", "4294967296").is_err());
        settings.set("policy", "fifo").unwrap();
        assert_eq!(settings.options.table.iter().count(), 0);
    }

    #[test]
    fn an_option_is_read_by_its_type() {
        assert_eq!(value_of("window", "window_ms", "5"), 5u64.into());
        assert_eq!(value_of("window", "window_ms", "\"5\""), "5".into());
        assert_eq!(value_of("window", "window_ms", "-5"), "-5".into());
        assert_eq!(value_of("window", "order", "true"), "true".into());
        assert_eq!(value_of("wfq", "weights", "5"), "5".into());
        assert_eq!(value_of("no policy", "weights", "5"), "5".into());
    }
}

//! What a scheduler is told at the start or when its policy changes, and why that may be refused.

use crate::cost::CostModel;
use crate::policy;
use crate::prediction::Prediction;
use crate::share::Shares;
use alloc::collections::BTreeMap;
use alloc::string::{String, ToString};
use alloc::sync::Arc;
use core::fmt;

/// The most requests a scheduler can be asked to queue: keeps slot numbers within 32 bits and a
/// mistyped configuration from claiming all memory.
const QUEUED_MAX_LIMIT: u32 = 1 << 26;

/// How a scheduler shall work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// A name of [`policy::NAMES`].
    pub policy: String,
    /// Waiting requests beyond which new ones are rejected.
    pub queued_max: u32,
    /// Batches that may run at once.
    pub depth: u32,
    /// Wall clock (nanoseconds since 1970) minus the host's monotonic clock.
    pub wall_offset_ns: u64,
    /// Whether touching requests join into one batch; `None` leaves it to the policy.
    pub merge: Option<bool>,
    /// Bytes in a batch of several requests; a single larger request still runs.
    pub batch_bytes_max: u64,
    /// Requests in a batch.
    pub batch_requests_max: u32,
    /// Bytes of a file that lie with one forwarder before the next has its turn; 0 if all of them
    /// do. What touches here touches although stripes of other forwarders lie between.
    pub stripe_bytes: u64,
    /// What accesses cost the device.
    pub cost: CostModel,
    /// Whether that is corrected by what batches take, within 1/16 to 16 times of it.
    pub estimate: bool,
    /// What traces of earlier runs foretell, for `prediction = "recorded"`.
    pub prediction: Option<Arc<Prediction>>,
    /// What applications and groups are promised, for the policies that keep it.
    pub shares: Shares,
    /// The chosen policy's own options.
    pub table: PolicyOptions,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            policy: "fifo".to_string(),
            queued_max: 65_536,
            depth: 1,
            wall_offset_ns: 0,
            merge: None,
            batch_bytes_max: 8 << 20,
            batch_requests_max: 256,
            stripe_bytes: 0,
            cost: CostModel::default(),
            estimate: true,
            prediction: None,
            shares: Shares::default(),
            table: PolicyOptions::default(),
        }
    }
}

impl Options {
    /// The defaults with the policy called `name`.
    pub fn for_policy(name: &str) -> Options {
        Options {
            policy: name.to_string(),
            ..Options::default()
        }
    }

    /// Checks what does not depend on the policy.
    pub(crate) fn check(&self) -> Result<(), OptionsError> {
        let range = |name, value: u64, min: u64, max: u64| {
            if (min..=max).contains(&value) {
                return Ok(());
            }
            Err(OptionsError::OutOfRange {
                option: name,
                value,
                min,
                max,
            })
        };
        range(
            "queued_max",
            self.queued_max.into(),
            1,
            QUEUED_MAX_LIMIT.into(),
        )?;
        range("depth", self.depth.into(), 1, 1 << 16)?;
        range("batch_bytes_max", self.batch_bytes_max, 1, u64::MAX)?;
        range(
            "batch_requests_max",
            self.batch_requests_max.into(),
            1,
            1 << 16,
        )?;
        self.shares.check()
    }
}

/// One value of a policy's option table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OptionValue {
    /// A whole number.
    Integer(u64),
    /// True or false.
    Bool(bool),
    /// A word.
    Text(String),
}

impl From<u64> for OptionValue {
    fn from(value: u64) -> OptionValue {
        OptionValue::Integer(value)
    }
}

impl From<bool> for OptionValue {
    fn from(value: bool) -> OptionValue {
        OptionValue::Bool(value)
    }
}

impl From<&str> for OptionValue {
    fn from(value: &str) -> OptionValue {
        OptionValue::Text(value.to_string())
    }
}

/// The options of one policy, by name. Names and types are checked when the policy is made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PolicyOptions {
    values: BTreeMap<String, OptionValue>,
}

impl PolicyOptions {
    /// Sets one option, replacing an earlier value.
    pub fn set(&mut self, name: &str, value: impl Into<OptionValue>) {
        self.values.insert(name.to_string(), value.into());
    }

    /// The same table with one option more.
    pub fn with(mut self, name: &str, value: impl Into<OptionValue>) -> PolicyOptions {
        self.set(name, value);
        self
    }

    /// All options that were set, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &OptionValue)> {
        self.values
            .iter()
            .map(|(name, value)| (name.as_str(), value))
    }

    /// Refuses any option that `known` does not list.
    pub(crate) fn only(
        &self,
        policy: &'static str,
        known: &'static [&'static str],
    ) -> Result<(), OptionsError> {
        match self
            .values
            .keys()
            .find(|name| !known.contains(&name.as_str()))
        {
            None => Ok(()),
            Some(name) => Err(OptionsError::UnknownOption {
                policy,
                option: name.clone(),
                known,
            }),
        }
    }

    /// The integer called `option`, checked against a range, or `default`.
    pub(crate) fn integer(
        &self,
        option: &'static str,
        default: u64,
        min: u64,
        max: u64,
    ) -> Result<u64, OptionsError> {
        match self.values.get(option) {
            None => Ok(default),
            Some(OptionValue::Integer(value)) if (min..=max).contains(value) => Ok(*value),
            Some(OptionValue::Integer(value)) => Err(OptionsError::OutOfRange {
                option,
                value: *value,
                min,
                max,
            }),
            Some(_) => Err(OptionsError::WrongType {
                option,
                expected: "a whole number",
            }),
        }
    }

    /// The truth value called `option`, or `default`.
    pub(crate) fn truth(&self, option: &'static str, default: bool) -> Result<bool, OptionsError> {
        match self.values.get(option) {
            None => Ok(default),
            Some(OptionValue::Bool(value)) => Ok(*value),
            Some(_) => Err(OptionsError::WrongType {
                option,
                expected: "true or false",
            }),
        }
    }

    /// The text called `option`, or nothing.
    pub(crate) fn text(&self, option: &'static str) -> Result<&str, OptionsError> {
        match self.values.get(option) {
            None => Ok(""),
            Some(OptionValue::Text(text)) => Ok(text),
            Some(_) => Err(OptionsError::WrongType {
                option,
                expected: "a text",
            }),
        }
    }

    /// The position in `words` of the word called `option`, or 0.
    pub(crate) fn word(
        &self,
        option: &'static str,
        words: &'static [&'static str],
    ) -> Result<usize, OptionsError> {
        match self.values.get(option) {
            None => Ok(0),
            Some(OptionValue::Text(text)) => {
                let position = words.iter().position(|word| word == text);
                position.ok_or_else(|| OptionsError::UnknownWord {
                    option,
                    word: text.clone(),
                    known: words,
                })
            }
            Some(_) => Err(OptionsError::WrongType {
                option,
                expected: "a word",
            }),
        }
    }
}

impl<N: AsRef<str>, V: Into<OptionValue>> FromIterator<(N, V)> for PolicyOptions {
    fn from_iter<I: IntoIterator<Item = (N, V)>>(pairs: I) -> PolicyOptions {
        let mut options = PolicyOptions::default();
        for (name, value) in pairs {
            options.set(name.as_ref(), value);
        }
        options
    }
}

/// Why options were refused.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum OptionsError {
    /// There is no such policy.
    UnknownPolicy(String),
    /// The policy has no such option.
    UnknownOption {
        /// The chosen policy.
        policy: &'static str,
        /// The name that was set.
        option: String,
        /// The names it knows.
        known: &'static [&'static str],
    },
    /// The option takes one of a few words, and this is none of them.
    UnknownWord {
        /// The option.
        option: &'static str,
        /// What was given.
        word: String,
        /// What it takes.
        known: &'static [&'static str],
    },
    /// `prediction = "recorded"` without a prediction.
    NoPrediction,
    /// The text of the option makes no sense.
    Malformed {
        /// The option.
        option: &'static str,
        /// The part that was not understood.
        part: String,
        /// What it takes.
        expected: &'static str,
    },
    /// The value has another type than the option.
    WrongType {
        /// The option.
        option: &'static str,
        /// What it takes.
        expected: &'static str,
    },
    /// The number is outside of what the option allows.
    OutOfRange {
        /// The option.
        option: &'static str,
        /// What was given.
        value: u64,
        /// The least allowed value.
        min: u64,
        /// The greatest allowed value.
        max: u64,
    },
}

impl fmt::Display for OptionsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OptionsError::UnknownPolicy(name) => {
                write!(
                    f,
                    "there is no policy \"{name}\"; known: {}",
                    policy::NAMES.join(", ")
                )
            }
            OptionsError::UnknownOption {
                policy,
                option,
                known: [],
            } => {
                write!(
                    f,
                    "policy {policy} has no option \"{option}\"; it has none at all"
                )
            }
            OptionsError::UnknownOption {
                policy,
                option,
                known,
            } => {
                write!(
                    f,
                    "policy {policy} has no option \"{option}\"; known: {}",
                    known.join(", ")
                )
            }
            OptionsError::UnknownWord {
                option,
                word,
                known,
            } => {
                write!(
                    f,
                    "{option} cannot be \"{word}\"; known: {}",
                    known.join(", ")
                )
            }
            OptionsError::NoPrediction => {
                write!(f, "prediction = \"recorded\" needs traces of earlier runs")
            }
            OptionsError::Malformed {
                option,
                part,
                expected,
            } => write!(f, "{option}: \"{part}\" is not {expected}"),
            OptionsError::WrongType { option, expected } => {
                write!(f, "{option} must be {expected}")
            }
            OptionsError::OutOfRange {
                option,
                value,
                min,
                max,
            } => {
                write!(f, "{option} = {value} is outside of {min} to {max}")
            }
        }
    }
}

impl core::error::Error for OptionsError {}

//! Why a scheduler's options, or the shares in them, are refused.

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

/// Why options were refused.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum OptionsError {
    /// There is no such policy.
    UnknownPolicy {
        /// The name that was given.
        policy: String,
        /// The names there are.
        known: &'static [&'static str],
    },
    /// The policy has no such option.
    UnknownOption {
        /// The chosen policy.
        policy: &'static str,
        /// The name that was set.
        option: String,
        /// The names it knows.
        known: Vec<&'static str>,
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
        /// What was given, as it is written in a configuration.
        given: String,
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
            OptionsError::UnknownPolicy { policy, known } => {
                let known = known.join(", ");
                write!(f, "there is no policy \"{policy}\"; known: {known}")
            }
            OptionsError::UnknownOption {
                policy,
                option,
                known,
            } => {
                write!(f, "policy {policy} has no option \"{option}\"; ")?;
                match known.is_empty() {
                    true => write!(f, "it has none at all"),
                    false => write!(f, "known: {}", known.join(", ")),
                }
            }
            OptionsError::UnknownWord {
                option,
                word,
                known,
            } => {
                let known = known.join(", ");
                write!(f, "{option} cannot be \"{word}\"; known: {known}")
            }
            OptionsError::NoPrediction => {
                write!(f, "prediction = \"recorded\" needs traces of earlier runs")
            }
            OptionsError::Malformed {
                option,
                part,
                expected,
            } => write!(f, "{option}: \"{part}\" is not {expected}"),
            OptionsError::WrongType {
                option,
                given,
                expected,
            } => write!(f, "{option} must be {expected}, not {given}"),
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

/// Refuses a number outside of `min` to `max`, by the name of its option.
pub(crate) fn check_range(
    option: &'static str,
    value: u64,
    min: u64,
    max: u64,
) -> Result<(), OptionsError> {
    match (min..=max).contains(&value) {
        true => Ok(()),
        false => Err(OptionsError::OutOfRange {
            option,
            value,
            min,
            max,
        }),
    }
}

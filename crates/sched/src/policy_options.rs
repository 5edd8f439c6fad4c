//! The options that a policy has of its own: each one's name, type, default, range and meaning are
//! stated once, as an [`OptionSpec`], and the values that were given lie in [`PolicyOptions`].
//!
//! Reading, the effective options that forwarders print, the tables of docs/policies.md and the
//! random options of the invariants all follow from the specs.

use crate::options_error::{OptionsError, check_range};
use alloc::collections::BTreeMap;
use alloc::string::{String, ToString};
use core::fmt;

/// One value of a policy's option.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OptionValue {
    /// A whole number.
    Integer(u64),
    /// True or false.
    Bool(bool),
    /// A word.
    Text(String),
}

impl fmt::Display for OptionValue {
    /// As it is written in a configuration.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OptionValue::Integer(number) => write!(f, "{number}"),
            OptionValue::Bool(value) => write!(f, "{value}"),
            OptionValue::Text(text) => write!(f, "{text:?}"),
        }
    }
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

/// What an option takes, and its value unless another is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OptionKind {
    /// A whole number.
    Integer {
        /// The value unless another is given.
        default: u64,
        /// The least allowed value.
        min: u64,
        /// The greatest allowed value.
        max: u64,
    },
    /// A whole number below the value of another option of the policy; 0 unless another is given.
    Below(&'static str),
    /// True or false; false unless true is given.
    Bool,
    /// One of these words; the first unless another is given.
    Word(&'static [&'static str]),
    /// Text of a form that the policy checks; empty unless some is given. These are some texts
    /// that the policy takes, for tests.
    Text(&'static [&'static str]),
}

impl OptionKind {
    /// The value unless another is given.
    pub fn default(self) -> OptionValue {
        match self {
            OptionKind::Integer { default, .. } => default.into(),
            OptionKind::Below(_) => 0.into(),
            OptionKind::Bool => false.into(),
            OptionKind::Word(words) => words[0].into(),
            OptionKind::Text(_) => "".into(),
        }
    }

    /// The value that a text states, such as one of a command line. A text that is no value of this
    /// kind stays text, and is refused when the policy is made.
    pub fn read(self, text: &str) -> OptionValue {
        let stated = match self {
            OptionKind::Integer { .. } | OptionKind::Below(_) => {
                text.parse().ok().map(OptionValue::Integer)
            }
            OptionKind::Bool => text.parse().ok().map(OptionValue::Bool),
            OptionKind::Word(_) | OptionKind::Text(_) => None,
        };
        stated.unwrap_or_else(|| text.into())
    }
}

/// An option of a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OptionSpec {
    /// Its name; the unit comes last in it.
    pub name: &'static str,
    /// What it takes.
    pub kind: OptionKind,
    /// What it takes instead while another option of the policy has a certain word: option, word,
    /// kind.
    pub except: Option<(&'static str, &'static str, OptionKind)>,
    /// What it does, as docs/policies.md prints it.
    pub help: &'static str,
}

impl OptionSpec {
    pub(crate) const fn new(
        name: &'static str,
        kind: OptionKind,
        help: &'static str,
    ) -> OptionSpec {
        OptionSpec {
            name,
            kind,
            except: None,
            help,
        }
    }

    pub(crate) const fn integer(
        name: &'static str,
        default: u64,
        [min, max]: [u64; 2],
        help: &'static str,
    ) -> OptionSpec {
        OptionSpec::new(name, OptionKind::Integer { default, min, max }, help)
    }

    /// The same option, of another kind while `option` has the value `word`.
    pub(crate) const fn except(
        self,
        option: &'static str,
        word: &'static str,
        kind: OptionKind,
    ) -> OptionSpec {
        OptionSpec {
            except: Some((option, word, kind)),
            ..self
        }
    }

    /// What the option takes beside these values of the others.
    pub fn kind_beside(&self, others: &PolicyOptions) -> OptionKind {
        match self.except {
            Some((option, word, kind)) if others.get(option) == Some(&word.into()) => kind,
            _ => self.kind,
        }
    }

    /// Refuses a value that the option does not take beside these values of the others.
    fn check(&self, value: &OptionValue, others: &PolicyOptions) -> Result<(), OptionsError> {
        let option = self.name;
        let wrong_type = |expected| {
            Err(OptionsError::WrongType {
                option,
                given: value.to_string(),
                expected,
            })
        };
        match (self.kind_beside(others), value) {
            (OptionKind::Integer { min, max, .. }, OptionValue::Integer(value)) => {
                check_range(option, *value, min, max)
            }
            (OptionKind::Below(bound), OptionValue::Integer(value)) => match others.get(bound) {
                Some(OptionValue::Integer(end @ 1..)) => check_range(option, *value, 0, end - 1),
                // Then the bound itself is refused.
                _ => Ok(()),
            },
            (OptionKind::Integer { .. } | OptionKind::Below(_), _) => wrong_type("a whole number"),
            (OptionKind::Bool, OptionValue::Bool(_)) => Ok(()),
            (OptionKind::Bool, _) => wrong_type("true or false"),
            (OptionKind::Word(words), OptionValue::Text(text)) => {
                match words.contains(&text.as_str()) {
                    true => Ok(()),
                    false => Err(OptionsError::UnknownWord {
                        option,
                        word: text.clone(),
                        known: words,
                    }),
                }
            }
            (OptionKind::Word(_), _) => wrong_type("a word"),
            (OptionKind::Text(_), OptionValue::Text(_)) => Ok(()),
            (OptionKind::Text(_), _) => wrong_type("a text"),
        }
    }
}

/// Values of the options of one policy, by name. Names and types are checked when the policy is
/// made.
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

    /// The value of one option, if it was set.
    pub fn get(&self, name: &str) -> Option<&OptionValue> {
        self.values.get(name)
    }

    /// All options that were set, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &OptionValue)> {
        self.values
            .iter()
            .map(|(name, value)| (name.as_str(), value))
    }

    /// These options of the policy called `policy` with the defaults of those that were not set.
    /// Refuses a name that no spec has, and a value that its option does not take.
    pub(crate) fn complete(
        &self,
        policy: &'static str,
        specs: &'static [OptionSpec],
    ) -> Result<PolicyOptions, OptionsError> {
        let is_known = |name: &&String| specs.iter().any(|spec| spec.name == *name);
        if let Some(option) = self.values.keys().find(|name| !is_known(name)) {
            return Err(OptionsError::UnknownOption {
                policy,
                option: option.clone(),
                known: specs.iter().map(|spec| spec.name).collect(),
            });
        }
        let mut complete = PolicyOptions::default();
        for spec in specs {
            complete.set(spec.name, spec.kind_beside(self).default());
        }
        complete.values.extend(self.values.clone());
        for spec in specs {
            let value = complete.get(spec.name).expect("all have one now");
            spec.check(value, &complete)?;
        }
        Ok(complete)
    }

    /// The number that an option has.
    pub(crate) fn integer(&self, spec: &OptionSpec) -> u64 {
        match self.value(spec) {
            OptionValue::Integer(value) => value,
            _ => unreachable!("{} was checked to be a number", spec.name),
        }
    }

    /// Whether an option is true.
    pub(crate) fn truth(&self, spec: &OptionSpec) -> bool {
        self.value(spec) == OptionValue::Bool(true)
    }

    /// The word or text that an option has.
    pub(crate) fn text(&self, spec: &OptionSpec) -> String {
        match self.value(spec) {
            OptionValue::Text(text) => text,
            _ => unreachable!("{} was checked to be text", spec.name),
        }
    }

    /// Whether an option has this word.
    pub(crate) fn is(&self, spec: &OptionSpec, word: &str) -> bool {
        self.text(spec) == word
    }

    fn value(&self, spec: &OptionSpec) -> OptionValue {
        let given = self.values.get(spec.name).cloned();
        given.unwrap_or_else(|| spec.kind_beside(self).default())
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

//! Reads a workload's keys from a scenario's table, and says in one sentence what is wrong with
//! them.

use serde::de::DeserializeOwned;

/// The keys of one workload. Reading goes on after an error, so that in the end all keys are known
/// that could stand there.
pub(super) struct Keys {
    table: toml::Table,
    known: Vec<&'static str>,
    error: Option<String>,
}

impl Keys {
    pub(super) fn new(table: toml::Table) -> Keys {
        Keys {
            table,
            known: Vec::new(),
            error: None,
        }
    }

    /// A key that may be left out.
    pub(super) fn optional<T: DeserializeOwned>(&mut self, key: &'static str) -> Option<T> {
        self.known.push(key);
        match T::deserialize(self.table.remove(key)?) {
            Ok(value) => Some(value),
            Err(error) => {
                let error: toml::de::Error = error;
                self.fails(format!("{key}: {}", error.message().trim_end()));
                None
            }
        }
    }

    /// A key that stands for `default` if it is left out.
    pub(super) fn or<T: DeserializeOwned>(&mut self, key: &'static str, default: T) -> T {
        self.optional(key).unwrap_or(default)
    }

    /// A key that must be there; without it, some value to go on with.
    pub(super) fn required<T: DeserializeOwned + Default>(&mut self, key: &'static str) -> T {
        let missing = !self.table.contains_key(key);
        let value = self.optional(key).unwrap_or_default();
        if missing {
            self.fails(format!("{key} is missing"));
        }
        value
    }

    /// Records an error; the first of several is reported.
    pub(super) fn fails(&mut self, error: String) {
        self.error.get_or_insert(error);
    }

    /// What was read, if nothing was wrong and nothing is left.
    pub(super) fn finish<T>(mut self, value: T) -> Result<T, String> {
        let left: Vec<&str> = self.table.keys().map(String::as_str).collect();
        if !left.is_empty() {
            self.known.sort_unstable();
            return Err(format!(
                "{} is no key here; possible are {}",
                left.join(", "),
                self.known.join(", ")
            ));
        }
        match self.error {
            Some(error) => Err(error),
            None => Ok(value),
        }
    }
}

/// What is impossible about a workload: the key, and why.
pub(super) type Impossible = (String, String);

/// Says no if `holds` does not.
pub(super) fn require(
    holds: bool,
    key: &str,
    reason: impl FnOnce() -> String,
) -> Result<(), Impossible> {
    match holds {
        true => Ok(()),
        false => Err((key.to_owned(), reason())),
    }
}

/// A count that must be at least 1.
pub(super) fn positive(key: &str, value: u64) -> Result<(), Impossible> {
    require(value > 0, key, || "it must be at least 1".into())
}

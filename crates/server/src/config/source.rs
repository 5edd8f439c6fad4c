//! Settings as they were written, in a file or as flags, each with the place it came from.

use super::ConfigError;
use super::row::Row;
use super::value::{Setting, Value};
use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use toml::de::{DeTable, DeValue};

/// Sections of which there may be many, written `[[NAME]]`.
const LISTS: &[&str] = &["app", "group", "view"];

/// A value and where it was written: `FILE:LINE`, or the flag.
type Entry = (Value, String);

/// Settings that have not been checked: those of a file, and flags over them.
#[derive(Clone, Debug)]
pub struct Source {
    file: String,
    /// By their names as they are written, `[storage]`, `[[app]]`; the first one has none.
    sections: BTreeMap<String, Vec<Section>>,
}

impl Source {
    /// No settings; `name` stands in messages about what is missing.
    pub fn empty(name: &str) -> Source {
        Source {
            file: name.to_string(),
            sections: BTreeMap::new(),
        }
    }

    /// Reads a configuration file.
    pub fn read(path: &Path) -> Result<Source, ConfigError> {
        let file = path.display().to_string();
        match std::fs::read_to_string(path) {
            Ok(text) => Source::parse(&text, &file),
            Err(error) => Err(ConfigError::new(&file, format!("cannot be read: {error}"))),
        }
    }

    /// Parses TOML text; `file` names it in messages.
    pub fn parse(text: &str, file: &str) -> Result<Source, ConfigError> {
        let place = |at: usize| {
            let before = &text.as_bytes()[..at.min(text.len())];
            let lines = before.iter().filter(|byte| **byte == b'\n').count();
            format!("{file}:{}", lines + 1)
        };
        let table = DeTable::parse(text).map_err(|error| {
            let start = error.span().map_or(0, |span| span.start);
            let words: Vec<_> = error.message().split_whitespace().collect();
            ConfigError::new(&place(start), words.join(" "))
        })?;
        let mut source = Source::empty(file);
        source.add("", file.to_string(), table.into_inner(), &place)?;
        Ok(source)
    }

    /// Notes a section; `path` is what stands in its brackets, and names of sections in it follow
    /// after a point.
    fn add(
        &mut self,
        path: &str,
        at: String,
        table: DeTable<'_>,
        place: &dyn Fn(usize) -> String,
    ) -> Result<(), ConfigError> {
        let mut section = Section::new(&written_name(path), at);
        for (key, value) in table {
            let at = place(key.span().start);
            let key = key.into_inner().into_owned();
            let inner = format!("{path}.{key}").trim_start_matches('.').to_string();
            let is_list = LISTS.contains(&inner.as_str());
            match value.into_inner() {
                DeValue::Table(table) if !is_list => self.add(&inner, at, table, place)?,
                DeValue::Array(list)
                    if is_list && list.iter().all(|one| one.as_ref().is_table()) =>
                {
                    for one in list {
                        let at = place(one.span().start);
                        if let DeValue::Table(table) = one.into_inner() {
                            self.add(&inner, at, table, place)?;
                        }
                    }
                }
                _ if is_list => {
                    let what = format!("{inner} must be written as [[{inner}]], once for each");
                    return Err(ConfigError::new(&at, what));
                }
                value => {
                    let value = plain(value).ok_or_else(|| {
                        let what = format!("{key} must be a whole number of at most 64 bits");
                        ConfigError::new(&at, what)
                    })?;
                    section.entries.insert(key, (value, at));
                }
            }
        }
        let list = self.sections.entry(section.name.clone()).or_default();
        list.push(section);
        Ok(())
    }

    /// Sets a value over what is there; `place` names it in messages, such as `--stripe`.
    pub fn set(&mut self, section: &str, key: &str, value: Value, place: &str) {
        let list = self.sections.entry(section.to_string()).or_default();
        if list.is_empty() {
            list.push(Section::new(section, place.to_string()));
        }
        let entry = (value, place.to_string());
        list[0].entries.insert(key.to_string(), entry);
    }

    /// Whether a section has anything in it.
    pub(super) fn is_written(&self, name: &str) -> bool {
        let list = self.sections.get(name);
        list.is_some_and(|list| list.iter().any(|section| !section.entries.is_empty()))
    }

    /// Takes all sections of a name out.
    pub(super) fn sections(&mut self, name: &str) -> Vec<Section> {
        self.sections.remove(name).unwrap_or_default()
    }

    /// Takes the one section of a name out; `""` is the part before all others. One that is not
    /// there is empty.
    pub(super) fn section(&mut self, name: &str) -> Section {
        let found = self.sections(name).into_iter().next();
        found.unwrap_or_else(|| Section::new(name, self.file.clone()))
    }

    /// Refuses sections of other names.
    pub(super) fn only(&self, known: &[&str]) -> Result<(), ConfigError> {
        let unknown =
            |(name, _): &(&String, _)| !name.is_empty() && !known.contains(&name.as_str());
        match self.sections.iter().find(unknown) {
            None => Ok(()),
            Some((name, list)) => {
                let what = with_known(format!("unknown section {name}"), name, known);
                Err(ConfigError::new(&list[0].place, what))
            }
        }
    }
}

impl fmt::Display for Source {
    /// Writes the settings as a file.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for section in self.sections.values().flatten() {
            writeln!(f, "{}", section.name)?;
            for (key, (value, _)) in &section.entries {
                writeln!(f, "{key} = {value}")?;
            }
        }
        Ok(())
    }
}

/// A section's name as it is written.
fn written_name(path: &str) -> String {
    match path {
        "" => String::new(),
        path if LISTS.contains(&path) => format!("[[{path}]]"),
        path => format!("[{path}]"),
    }
}

/// One section while it is read.
#[derive(Clone, Debug)]
pub(super) struct Section {
    name: String,
    /// Where it begins.
    place: String,
    entries: BTreeMap<String, Entry>,
    /// Where the keys were written that have been read.
    read: BTreeMap<&'static str, String>,
}

impl Section {
    fn new(name: &str, place: String) -> Section {
        Section {
            name: name.to_string(),
            place,
            entries: BTreeMap::new(),
            read: BTreeMap::new(),
        }
    }

    /// The same, called otherwise.
    pub fn named(mut self, name: &str) -> Section {
        self.name = name.to_string();
        self
    }

    /// Whether a key is written that has not been read.
    pub fn holds(&self, key: &str) -> bool {
        self.entries.contains_key(key)
    }

    /// Reads a key by its row.
    pub fn read<T: Setting>(&mut self, key: &'static str, row: Row<T>) -> Result<T, ConfigError> {
        let Some((value, place)) = self.entries.remove(key) else {
            return row.default.map_err(|advice| {
                ConfigError::new(&self.place, format!("\"{key}\" is missing: {advice}"))
            });
        };
        let read = T::read(key, &value, &row);
        let read = read.map_err(|what| ConfigError::new(&place, what));
        self.read.insert(key, place);
        read
    }

    /// Whether a key that has been read was written.
    pub fn has(&self, key: &str) -> bool {
        self.read.contains_key(key)
    }

    /// Refuses the value of a key that has been read, or the section if it was not written.
    pub fn wrong(&self, key: &str, what: impl Into<String>) -> ConfigError {
        ConfigError::new(self.read.get(key).unwrap_or(&self.place), what)
    }

    /// Everything that has not been read, for options that only another crate knows.
    pub fn rest(&mut self) -> BTreeMap<String, Entry> {
        std::mem::take(&mut self.entries)
    }

    /// Refuses keys of other names.
    pub fn only(&self, known: &[&str]) -> Result<(), ConfigError> {
        let unknown = |(key, _): &(&String, _)| !known.contains(&key.as_str());
        match self.entries.iter().find(unknown) {
            None => Ok(()),
            Some((key, (_, place))) => Err(self.unknown(key, place, known)),
        }
    }

    /// Says that there is no such key.
    pub fn unknown(&self, key: &str, place: &str, known: &[&str]) -> ConfigError {
        let section = match self.name.as_str() {
            "" => "the first section",
            name => name,
        };
        let what = format!("unknown key \"{key}\" in {section}");
        ConfigError::new(place, with_known(what, key, known))
    }
}

/// Adds what is known, and the name that was perhaps meant.
fn with_known(what: String, wrong: &str, known: &[&str]) -> String {
    const ALIKE: f64 = 0.85;
    let alike = |name: &str| strsim::jaro_winkler(wrong, name);
    let nearest = known.iter().max_by(|a, b| alike(a).total_cmp(&alike(b)));
    let meant = match nearest.filter(|name| alike(name) > ALIKE) {
        Some(name) => format!("did you mean {name}? "),
        None => String::new(),
    };
    match known.is_empty() {
        true => what + "; it has none",
        false => format!("{what}; {meant}known: {}", known.join(", ")),
    }
}

/// The value without its places; None for a number that is too large.
fn plain(value: DeValue<'_>) -> Option<Value> {
    Some(match value {
        DeValue::String(text) => Value::String(text.into_owned()),
        DeValue::Boolean(value) => Value::Boolean(value),
        DeValue::Integer(number) => {
            Value::Integer(i64::from_str_radix(number.as_str(), number.radix()).ok()?)
        }
        DeValue::Float(number) => Value::Float(number.as_str().parse().ok()?),
        DeValue::Datetime(date) => Value::Datetime(date),
        DeValue::Array(list) => {
            let values = list.into_iter().map(|value| plain(value.into_inner()));
            Value::Array(values.collect::<Option<_>>()?)
        }
        DeValue::Table(_) => Value::Table(toml::Table::new()),
    })
}

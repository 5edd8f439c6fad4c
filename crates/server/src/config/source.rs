//! Settings as they were written: by section and key, each with the place it came from.

use super::ConfigError;
use std::collections::BTreeMap;
use std::path::Path;
use toml::de::{DeTable, DeValue};

/// A value as it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// A whole number.
    Integer(i64),
    /// True or false.
    Bool(bool),
    /// Text.
    Text(String),
    /// A list.
    List(Vec<Value>),
    /// Something that no setting takes, named for the message.
    Other(&'static str),
}

impl Value {
    fn kind(&self) -> &'static str {
        match self {
            Value::Integer(_) => "a whole number",
            Value::Bool(_) => "true or false",
            Value::Text(_) => "text",
            Value::List(_) => "a list",
            Value::Other(kind) => kind,
        }
    }
}

/// A value and where it was written.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub value: Value,
    /// `FILE:LINE`, or the flag.
    pub place: String,
}

/// Settings that have not been checked: those of a file, and flags over them.
#[derive(Clone, Debug)]
pub struct Source {
    file: String,
    sections: BTreeMap<String, BTreeMap<String, Entry>>,
    /// Tables of which there may be many, `[[NAME]]`, in order, each with its place.
    tables: BTreeMap<String, Vec<Table>>,
}

/// What a section leaves where its name is a key.
const A_SECTION: &str = "a section";

/// A table and its place.
type Table = (String, BTreeMap<String, Entry>);

/// Names of tables of which there may be many.
const TABLES: &[&str] = &["app", "group", "view"];

impl Source {
    /// No settings; `name` stands in messages about what is missing.
    pub fn empty(name: &str) -> Source {
        Source {
            file: name.to_string(),
            sections: BTreeMap::new(),
            tables: BTreeMap::new(),
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
        let table = DeTable::parse(text).map_err(|error| {
            let start = error.span().map_or(0, |span| span.start);
            ConfigError::new(&place(file, text, start), one_line(error.message()))
        })?;
        let mut source = Source::empty(file);
        for (key, value) in table.into_inner() {
            let at = key.span().start;
            if TABLES.contains(&key.as_ref().as_ref()) {
                source.add_tables(key.as_ref(), value.into_inner(), text, at)?;
                continue;
            }
            match value.into_inner() {
                DeValue::Table(inner) => {
                    source.add_section(key.as_ref(), inner, text);
                    // An empty section leaves a trace, so that a misspelt one is found.
                    let entry = Entry {
                        value: Value::Other(A_SECTION),
                        place: place(file, text, at),
                    };
                    source.top().insert(key.into_inner().into_owned(), entry);
                }
                value => {
                    let entry = Entry {
                        value: plain(value),
                        place: place(file, text, at),
                    };
                    source.top().insert(key.into_inner().into_owned(), entry);
                }
            }
        }
        Ok(source)
    }

    /// Notes a section, and those in it under `SECTION.NAME`.
    fn add_section(&mut self, name: &str, table: DeTable<'_>, text: &str) {
        let mut entries = BTreeMap::new();
        for (key, value) in table {
            let place = place(&self.file, text, key.span().start);
            let key = key.into_inner().into_owned();
            let value = match value.into_inner() {
                DeValue::Table(inner) => {
                    self.add_section(&format!("{name}.{key}"), inner, text);
                    Value::Other(A_SECTION)
                }
                value => plain(value),
            };
            entries.insert(key, Entry { value, place });
        }
        self.sections.insert(name.to_owned(), entries);
    }

    /// Sets a value over what is there; `place` names it in messages, such as `--stripe`.
    pub fn set(&mut self, section: &str, key: &str, value: Value, place: &str) {
        if !section.is_empty() {
            let entry = Entry {
                value: Value::Other(A_SECTION),
                place: place.to_string(),
            };
            self.top().entry(section.to_string()).or_insert(entry);
        }
        let entry = Entry {
            value,
            place: place.to_string(),
        };
        self.sections
            .entry(section.to_string())
            .or_default()
            .insert(key.to_string(), entry);
    }

    /// Notes the tables of one name.
    fn add_tables(
        &mut self,
        name: &str,
        value: DeValue<'_>,
        text: &str,
        at: usize,
    ) -> Result<(), ConfigError> {
        let wrong = |at| {
            let what = format!("{name} must be written as [[{name}]], once for each");
            ConfigError::new(&place(&self.file, text, at), what)
        };
        let DeValue::Array(list) = value else {
            return Err(wrong(at));
        };
        for value in list {
            let at = value.span().start;
            let DeValue::Table(inner) = value.into_inner() else {
                return Err(wrong(at));
            };
            let of = |key: &toml::Spanned<_>| place(&self.file, text, key.span().start);
            let entries = inner.into_iter().map(|(key, value)| {
                let place = of(&key);
                let value = plain(value.into_inner());
                (key.into_inner().into_owned(), Entry { value, place })
            });
            let table = (place(&self.file, text, at), entries.collect());
            self.tables.entry(name.to_string()).or_default().push(table);
        }
        Ok(())
    }

    /// Takes the tables of one name out, to be read key by key.
    pub(super) fn tables(&mut self, name: &str) -> Vec<Section> {
        let shown = match name {
            "app" => "[app]",
            "group" => "[group]",
            _ => "[view]",
        };
        let tables = self.tables.remove(name).unwrap_or_default();
        let section = |(place, entries)| Section {
            name: shown,
            file: place,
            entries,
            known: Vec::new(),
        };
        tables.into_iter().map(section).collect()
    }

    /// Takes a section out, to be read key by key; `""` is the part before all sections. One that
    /// lies in another is taken before that.
    pub(super) fn section(&mut self, name: &'static str) -> Section {
        match name.rsplit_once('.') {
            Some((outer, inner)) => {
                let outer = self.sections.get_mut(outer);
                outer.map(|entries| entries.remove(inner));
            }
            None if !name.is_empty() => drop(self.top().remove(name)),
            None => {}
        }
        let entries = self.sections.remove(name).unwrap_or_default();
        Section {
            name,
            file: self.file.clone(),
            entries,
            known: Vec::new(),
        }
    }

    fn top(&mut self) -> &mut BTreeMap<String, Entry> {
        self.sections.entry(String::new()).or_default()
    }
}

/// One section while it is being read. What has not been read at the end is unknown.
pub(super) struct Section {
    name: &'static str,
    file: String,
    entries: BTreeMap<String, Entry>,
    known: Vec<&'static str>,
}

impl Section {
    /// The entry called `key`, if it was written.
    pub fn take(&mut self, key: &'static str) -> Option<Entry> {
        self.known.push(key);
        self.entries.remove(key)
    }

    /// Where a key is written, if it is and was not read yet.
    pub fn place(&self, key: &str) -> Option<String> {
        self.entries.get(key).map(|entry| entry.place.clone())
    }

    /// Whether nothing is left to read.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Text, or None.
    pub fn text(&mut self, key: &'static str) -> Result<Option<(String, String)>, ConfigError> {
        match self.take(key) {
            None => Ok(None),
            Some(Entry {
                value: Value::Text(text),
                place,
            }) => Ok(Some((text, place))),
            Some(entry) => Err(wrong_kind(key, &entry, "text in quotes")),
        }
    }

    /// True or false, or the default.
    pub fn bool(&mut self, key: &'static str, default: bool) -> Result<bool, ConfigError> {
        match self.take(key) {
            None => Ok(default),
            Some(Entry {
                value: Value::Bool(value),
                ..
            }) => Ok(value),
            Some(entry) => Err(wrong_kind(key, &entry, "true or false")),
        }
    }

    /// A number from `min` to `max`, or the default. Sizes may be text such as `"64 KiB"`.
    pub fn number(
        &mut self,
        key: &'static str,
        default: u64,
        (min, max): (u64, u64),
    ) -> Result<u64, ConfigError> {
        let Some(entry) = self.take(key) else {
            return Ok(default);
        };
        let value = match &entry.value {
            Value::Integer(value) => u64::try_from(*value).ok(),
            Value::Text(text) => super::parse_bytes(text),
            _ => return Err(wrong_kind(key, &entry, "a whole number")),
        };
        match value {
            Some(value) if (min..=max).contains(&value) => Ok(value),
            _ => {
                let written = written(&entry.value);
                let what = format!("{key} = {written} must be a number from {min} to {max}");
                Err(ConfigError::new(&entry.place, what))
            }
        }
    }

    /// A list of texts (one text counts as a list of one), with its place.
    pub fn texts(
        &mut self,
        key: &'static str,
    ) -> Result<Option<(Vec<String>, String)>, ConfigError> {
        let Some(entry) = self.take(key) else {
            return Ok(None);
        };
        let list = match &entry.value {
            Value::List(list) => list.clone(),
            Value::Text(_) => vec![entry.value.clone()],
            _ => return Err(wrong_kind(key, &entry, "a list of texts")),
        };
        let mut texts = Vec::new();
        for value in list {
            let Value::Text(text) = value else {
                return Err(wrong_kind(key, &entry, "a list of texts"));
            };
            texts.push(text);
        }
        Ok(Some((texts, entry.place)))
    }

    /// Everything that has not been read, for options that only another crate knows.
    pub fn rest(&mut self) -> BTreeMap<String, Entry> {
        std::mem::take(&mut self.entries)
    }

    /// Says that a key must be set.
    pub fn missing(&self, key: &str, advice: &str) -> ConfigError {
        ConfigError::new(&self.file, format!("\"{key}\" is missing: {advice}"))
    }

    /// The keys read so far.
    pub fn known(&self) -> &[&'static str] {
        &self.known
    }

    /// Refuses what has not been read.
    pub fn finish(self) -> Result<(), ConfigError> {
        match self.entries.into_iter().next() {
            None => Ok(()),
            Some((key, entry)) => Err(unknown(
                self.name,
                &key,
                &entry.place,
                &self.known.join(", "),
            )),
        }
    }
}

/// Says that there is no such key.
pub(super) fn unknown(section: &str, key: &str, place: &str, known: &str) -> ConfigError {
    let section = match section {
        "" => "the first section".to_string(),
        name => format!("[{name}]"),
    };
    let known = match known {
        "" => "it has none".to_string(),
        known => format!("known: {known}"),
    };
    ConfigError::new(
        place,
        format!("unknown key \"{key}\" in {section}; {known}"),
    )
}

fn wrong_kind(key: &str, entry: &Entry, expected: &str) -> ConfigError {
    let what = format!("{key} must be {expected}, not {}", entry.value.kind());
    ConfigError::new(&entry.place, what)
}

/// A value for messages, as it was written.
pub(super) fn written(value: &Value) -> String {
    match value {
        Value::Integer(number) => number.to_string(),
        Value::Text(text) => format!("{text:?}"),
        other => other.kind().to_string(),
    }
}

fn plain(value: DeValue<'_>) -> Value {
    match value {
        DeValue::String(text) => Value::Text(text.into_owned()),
        DeValue::Boolean(value) => Value::Bool(value),
        DeValue::Integer(number) => i64::from_str_radix(number.as_str(), number.radix())
            .map_or(Value::Other("a number beyond 64 bits"), Value::Integer),
        DeValue::Array(list) => Value::List(
            list.into_iter()
                .map(|value| plain(value.into_inner()))
                .collect(),
        ),
        DeValue::Float(_) => Value::Other("a number with a fraction"),
        DeValue::Datetime(_) => Value::Other("a date"),
        DeValue::Table(_) => Value::Other(A_SECTION),
    }
}

fn place(file: &str, text: &str, at: usize) -> String {
    let before = &text.as_bytes()[..at.min(text.len())];
    format!(
        "{file}:{}",
        before.iter().filter(|byte| **byte == b'\n').count() + 1
    )
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

//! A scenario's text: which key stands on which line, and messages that say so.

use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use toml::de::{DeTable, DeValue};

/// What is wrong with a scenario: `FILE:LINE: reason`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {reason}")]
pub struct ScenarioError {
    /// File and line.
    pub place: String,
    /// What is wrong, and what is possible.
    pub reason: String,
}

/// Text, and the line of each key: `network.latency`, `application[1].request`.
pub(super) struct Source {
    file: String,
    pub(super) table: toml::Table,
    lines: BTreeMap<String, usize>,
}

impl Source {
    pub(super) fn parse(text: &str, file: &str) -> Result<Source, ScenarioError> {
        let line_of = |at: usize| 1 + text[..at.min(text.len())].matches('\n').count();
        let wrong = |at: usize, reason: &str| ScenarioError {
            place: format!("{file}:{}", line_of(at)),
            reason: reason.trim().replace('\n', "; "),
        };
        let parsed = DeTable::parse(text).map_err(|e| {
            let span = e.span().unwrap_or(0..0);
            let key = text
                .get(span.clone())
                .filter(|_| e.message() == "duplicate key");
            let key = key.map_or(String::new(), |key| format!(": {key}"));
            wrong(span.start, &format!("{}{key}", e.message()))
        })?;
        let mut lines = BTreeMap::new();
        note_lines(parsed.get_ref(), "", &line_of, &mut lines);
        let mut source = Source {
            file: file.to_string(),
            table: toml::Table::new(),
            lines,
        };
        if let Some(key) = too_large(parsed.get_ref(), "") {
            return Err(source.wrong(&key, format!("is too large: at most {}", i64::MAX)));
        }
        source.table = toml::from_str(text)
            .map_err(|e| wrong(e.span().map_or(0, |span| span.start), e.message()))?;
        Ok(source)
    }

    /// Whether a key was written.
    pub(super) fn has(&self, key: &str) -> bool {
        self.lines.contains_key(key)
    }

    /// The folder of the file, where names of other files begin.
    pub(super) fn folder(&self) -> PathBuf {
        let parent = Path::new(&self.file).parent();
        parent.map(Path::to_path_buf).unwrap_or_default()
    }

    /// An error at a key, or at the nearest key above it.
    pub(super) fn wrong(&self, key: &str, reason: impl Into<String>) -> ScenarioError {
        let mut known = key;
        let line = loop {
            if let Some(line) = self.lines.get(known) {
                break *line;
            }
            match known.rfind(['.', '[']) {
                Some(end) => known = &known[..end],
                None => break 1,
            }
        };
        let reason = reason.into();
        ScenarioError {
            place: format!("{}:{line}", self.file),
            reason: match key {
                "" => reason,
                _ => format!("{key}: {reason}"),
            },
        }
    }

    /// Reads `T` from a value that stands at a key.
    pub(super) fn shape<T: for<'de> Deserialize<'de>>(
        &self,
        under: &str,
        value: impl Into<toml::Value>,
    ) -> Result<T, ScenarioError> {
        let shape = value.into().try_into();
        shape.map_err(|error: toml::de::Error| self.wrong_shape(under, &error.to_string()))
    }

    /// An error of serde, whose message names the key: at that key below `under`, if it is there.
    pub(super) fn wrong_shape(&self, under: &str, message: &str) -> ScenarioError {
        let message = message.trim();
        let field = message
            .split('`')
            .nth(1)
            .filter(|_| message.starts_with("unknown field"));
        let (first, rest) = message.split_once('\n').unwrap_or((message, ""));
        // toml adds "in `key`" for values of a wrong type.
        let inner = rest
            .trim()
            .strip_prefix("in `")
            .and_then(|key| key.strip_suffix('`'));
        let key = match (under, field.or(inner)) {
            ("", Some(key)) => key.to_string(),
            (under, Some(key)) => format!("{under}.{key}"),
            (under, None) => under.to_string(),
        };
        self.wrong(&key, first)
    }
}

fn note_lines(
    table: &DeTable<'_>,
    under: &str,
    line_of: &dyn Fn(usize) -> usize,
    lines: &mut BTreeMap<String, usize>,
) {
    for (key, value) in table {
        let name = match under {
            "" => key.get_ref().to_string(),
            _ => format!("{under}.{}", key.get_ref()),
        };
        lines.insert(name.clone(), line_of(key.span().start));
        note_value(value.get_ref(), &name, line_of, lines);
    }
}

fn note_value(
    value: &DeValue<'_>,
    name: &str,
    line_of: &dyn Fn(usize) -> usize,
    lines: &mut BTreeMap<String, usize>,
) {
    match value {
        DeValue::Table(inner) => note_lines(inner, name, line_of, lines),
        DeValue::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                let name = format!("{name}[{index}]");
                lines.insert(name.clone(), line_of(item.span().start));
                note_value(item.get_ref(), &name, line_of, lines);
            }
        }
        _ => {}
    }
}

/// The first key with a whole number that has no room in 64 bits.
fn too_large(table: &DeTable<'_>, under: &str) -> Option<String> {
    table.iter().find_map(|(key, value)| match under {
        "" => too_large_value(value.get_ref(), key.get_ref()),
        _ => too_large_value(value.get_ref(), &format!("{under}.{}", key.get_ref())),
    })
}

fn too_large_value(value: &DeValue<'_>, name: &str) -> Option<String> {
    match value {
        DeValue::Integer(number) => {
            let fits = i64::from_str_radix(number.as_str(), number.radix()).is_ok();
            (!fits).then(|| name.to_string())
        }
        DeValue::Table(inner) => too_large(inner, name),
        DeValue::Array(items) => {
            let mut items = items.iter().enumerate();
            items.find_map(|(index, item)| {
                too_large_value(item.get_ref(), &format!("{name}[{index}]"))
            })
        }
        _ => None,
    }
}

/// Sets a value deep in a table: `forwarders.count`, `application.request` (of all applications),
/// `application[1].request`. Tables on the way are made. The message says what is not there.
pub(super) fn set(table: &mut toml::Table, key: &str, value: &toml::Value) -> Result<(), String> {
    let (head, rest) = match key.split_once('.') {
        None => {
            table.insert(key.to_string(), value.clone());
            return Ok(());
        }
        Some(split) => split,
    };
    let (name, index) = match head.strip_suffix(']').and_then(|head| head.split_once('[')) {
        Some((name, index)) => {
            let index: usize = index
                .parse()
                .map_err(|_| format!("{head}: the index is no number"))?;
            (name, Some(index))
        }
        None => (head, None),
    };
    let inner = table
        .entry(name)
        .or_insert_with(|| toml::Value::Table(toml::Table::new()));
    match (inner, index) {
        (toml::Value::Table(inner), None) => set(inner, rest, value),
        (toml::Value::Array(items), index) => {
            let count = items.len();
            if index.is_some_and(|index| index >= count) {
                return Err(format!("{head}: there are only {count}"));
            }
            for (number, item) in items.iter_mut().enumerate() {
                if index.is_some_and(|index| index != number) {
                    continue;
                }
                match item {
                    toml::Value::Table(item) => set(item, rest, value)?,
                    _ => return Err(format!("{head} has no keys")),
                }
            }
            Ok(())
        }
        _ => Err(format!("{head} has no keys")),
    }
}

/// Takes an array of tables out of a table; none if it is not there.
pub(super) fn tables(
    source: &Source,
    table: &mut toml::Table,
    key: &str,
) -> Result<Vec<toml::Table>, ScenarioError> {
    let items = match table.remove(key) {
        None => return Ok(Vec::new()),
        Some(toml::Value::Array(items)) => items,
        Some(_) => return Err(source.wrong(key, format!("write it as [[{key}]]"))),
    };
    let tables = items.into_iter().map(|item| match item {
        toml::Value::Table(table) => Ok(table),
        _ => Err(source.wrong(key, format!("write it as [[{key}]]"))),
    });
    tables.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "a = 1\n[b]\nc = 2\n\n[[d]]\ne = 3\n[[d]]\ne = { f = 4 }\n";

    #[test]
    fn every_key_has_its_line() {
        let source = Source::parse(TEXT, "x.toml").unwrap();
        let place = |key: &str| source.wrong(key, "bad").place;
        assert_eq!(place("a"), "x.toml:1");
        assert_eq!(place("b.c"), "x.toml:3");
        assert_eq!(place("d[1].e.f"), "x.toml:8");
        assert_eq!(place("d[0].missing"), "x.toml:5");
        assert_eq!(place("nothing"), "x.toml:1");
        let error = Source::parse("a = 1\nb = = 2\n", "y.toml").err().unwrap();
        assert_eq!(error.place, "y.toml:2");
        for (text, said) in [
            ("a = 1\n\na = 2\n", "y.toml:3: duplicate key: a"),
            (
                "a = 1\nb = [{ c = 1, c = 2 }]\n",
                "y.toml:2: duplicate key: c",
            ),
            (
                "a = 1\nb = [{ c = 18446744073709551615 }]\n",
                "y.toml:2: b[0].c: is too large: at most 9223372036854775807",
            ),
            (
                "a = 0xffff_ffff_ffff_ffff\n",
                "y.toml:1: a: is too large: at most 9223372036854775807",
            ),
        ] {
            let error = Source::parse(text, "y.toml").err().unwrap();
            assert_eq!(error.to_string(), said);
        }
    }

    #[test]
    fn values_are_set_where_a_dotted_key_says() {
        let mut table = Source::parse(TEXT, "x").unwrap().table;
        let number = |value: i64| toml::Value::Integer(value);
        set(&mut table, "b.c", &number(5)).unwrap();
        set(&mut table, "d.g", &number(6)).unwrap();
        set(&mut table, "d[1].g", &number(7)).unwrap();
        set(&mut table, "new.key", &number(8)).unwrap();
        assert_eq!(table["b"]["c"], number(5));
        assert_eq!(table["d"][0]["g"], number(6));
        assert_eq!(table["d"][1]["g"], number(7));
        assert_eq!(table["new"]["key"], number(8));
        for wrong in ["d[2].e", "a.b", "d[x].e", "d[0].e.f"] {
            assert!(set(&mut table, wrong, &number(1)).is_err(), "{wrong}");
        }
    }
}

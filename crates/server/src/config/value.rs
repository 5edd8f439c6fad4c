//! Types that a key may have: how each is read from a value and shown as a default.

use super::row::{Kind, Row};
use super::{Address, parse_bytes};
use std::path::PathBuf;
use tidegate_forward::share_rules::User;
use tidegate_sched::{Rate, RateError};
use tidegate_wire::NAME_MAX;
pub use toml::Value;

/// The longest latency target: an hour.
const LATENCY_NS_MAX: u128 = 3_600_000_000_000;

/// A type that a key may have.
pub(super) trait Setting: Sized {
    /// What a value is in a file.
    const KIND: Kind = Kind::Text;

    /// Reads a value; the words for the user begin with the key.
    fn read(key: &str, value: &Value, row: &Row<Self>) -> Result<Self, String>;

    /// The type in words, with the row's range.
    fn takes(_: &Row<Self>) -> String {
        "text".to_string()
    }

    /// A default in words, in the row's unit.
    fn shown(&self, _unit: &str) -> String {
        "none".to_string()
    }
}

macro_rules! numbers {
    ($($type:ty)*) => {$(
        impl Setting for $type {
            const KIND: Kind = Kind::Number;

            fn read(key: &str, value: &Value, row: &Row<$type>) -> Result<$type, String> {
                number(key, value, row.range.0, row.range.1.min(<$type>::MAX.into()))
                    .map(|number| <$type>::try_from(number).expect("within the type's range"))
            }

            fn takes(row: &Row<$type>) -> String {
                number_takes(row.range, row.unit)
            }

            fn shown(&self, unit: &str) -> String {
                amount((*self).into(), unit)
            }
        }
    )*};
}
numbers!(u8 u16 u32 u64);

/// A number in a range; text may give it a unit of bytes.
fn number(key: &str, value: &Value, min: u64, max: u64) -> Result<u64, String> {
    let number = match value {
        Value::Integer(number) => u64::try_from(*number).ok(),
        Value::String(text) => parse_bytes(text),
        _ => return Err(not(key, "a whole number", value)),
    };
    let max = max.min(i64::MAX as u64);
    number
        .filter(|number| (min..=max).contains(number))
        .ok_or_else(|| {
            format!(
                "{key} = {} must be a number from {min} to {max}",
                written(value)
            )
        })
}

fn number_takes((min, max): (u64, u64), unit: &str) -> String {
    match max {
        u64::MAX => unit.to_string(),
        max => format!("{unit}, {} to {}", amount(min, unit), amount(max, unit)),
    }
}

/// A number in words: bytes in the largest unit that is exact.
fn amount(number: u64, unit: &str) -> String {
    let units = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
    let exact = |(shift, _): &(u32, _)| number > 0 && number.is_multiple_of(1 << shift);
    match units.into_iter().find(exact) {
        Some((shift, name)) if unit == "bytes" => format!("{} {name}", number >> shift),
        _ => number.to_string(),
    }
}

impl Setting for bool {
    const KIND: Kind = Kind::Bool;

    fn read(key: &str, value: &Value, _: &Row<bool>) -> Result<bool, String> {
        value
            .as_bool()
            .ok_or_else(|| not(key, "true or false", value))
    }

    fn takes(_: &Row<bool>) -> String {
        "true or false".to_string()
    }

    fn shown(&self, _: &str) -> String {
        self.to_string()
    }
}

impl Setting for String {
    fn read(key: &str, value: &Value, row: &Row<String>) -> Result<String, String> {
        text(key, value, row.advice())
    }

    fn shown(&self, _: &str) -> String {
        format!("`\"{self}\"`")
    }
}

impl Setting for PathBuf {
    fn read(key: &str, value: &Value, row: &Row<PathBuf>) -> Result<PathBuf, String> {
        text(key, value, row.advice()).map(PathBuf::from)
    }
}

fn text(key: &str, value: &Value, advice: &str) -> Result<String, String> {
    match value.as_str() {
        Some("") => Err(format!("{key} is empty: {advice}")),
        Some(text) => Ok(text.to_string()),
        None => Err(not(key, "text in quotes", value)),
    }
}

impl<T: Setting> Setting for Option<T> {
    const KIND: Kind = T::KIND;

    fn read(key: &str, value: &Value, row: &Row<Option<T>>) -> Result<Option<T>, String> {
        T::read(key, value, &row.inner()).map(Some)
    }

    fn takes(row: &Row<Option<T>>) -> String {
        T::takes(&row.inner())
    }
}

/// A type that is read from one of the texts of a list.
pub(super) trait Item: Sized {
    /// Reads a text; the words for the user say which it is.
    fn read_item(text: &str) -> Result<Self, String>;
}

impl Item for String {
    fn read_item(text: &str) -> Result<String, String> {
        Ok(text.to_string())
    }
}

impl Item for PathBuf {
    fn read_item(text: &str) -> Result<PathBuf, String> {
        match text {
            "" => Err("\"\" is no file".to_string()),
            _ => Ok(PathBuf::from(text)),
        }
    }
}

impl Item for Address {
    fn read_item(text: &str) -> Result<Address, String> {
        text.parse()
    }
}

impl<T: Item> Setting for Vec<T> {
    const KIND: Kind = Kind::List;

    fn read(key: &str, value: &Value, row: &Row<Vec<T>>) -> Result<Vec<T>, String> {
        let list = match value {
            Value::Array(list) => list.as_slice(),
            value => std::slice::from_ref(value),
        };
        if list.is_empty() {
            return Err(format!("{key} is empty: {}", row.advice()));
        }
        let item = |item: &Value| match item.as_str() {
            Some(text) => T::read_item(text),
            None => Err(not(key, "a list of texts", value)),
        };
        list.iter().map(item).collect()
    }

    fn takes(_: &Row<Vec<T>>) -> String {
        "text or list".to_string()
    }
}

/// A type that is one of several words.
pub(super) trait Word: Copy + PartialEq + 'static {
    /// The words and what they stand for.
    const WORDS: &'static [(&'static str, Self)];
}

impl<T: Word> Setting for T {
    fn read(key: &str, value: &Value, _: &Row<T>) -> Result<T, String> {
        let Some(text) = value.as_str() else {
            return Err(not(key, "text in quotes", value));
        };
        let found = T::WORDS.iter().find(|(word, _)| *word == text);
        found.map(|(_, meant)| *meant).ok_or_else(|| {
            let words: Vec<_> = T::WORDS.iter().map(|(word, _)| *word).collect();
            format!("{key} = \"{text}\" must be one of {}", words.join(", "))
        })
    }

    fn takes(_: &Row<T>) -> String {
        let words = T::WORDS.iter().map(|(word, _)| format!("`{word}`"));
        words.collect::<Vec<_>>().join(", ")
    }

    fn shown(&self, _: &str) -> String {
        let word = T::WORDS.iter().find(|(_, meant)| meant == self);
        word.map_or(String::new(), |(word, _)| format!("`\"{word}\"`"))
    }
}

impl Setting for Rate {
    fn read(key: &str, value: &Value, _: &Row<Rate>) -> Result<Rate, String> {
        let rate = match value {
            Value::String(text) => Rate::parse(text),
            other => Err(RateError::Unknown(written(other))),
        };
        rate.map_err(|error| format!("{key} = {error}"))
    }
}

/// A time of 1 us to 1 h, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Nanoseconds(pub u64);

impl Setting for Nanoseconds {
    fn read(key: &str, value: &Value, _: &Row<Nanoseconds>) -> Result<Nanoseconds, String> {
        let ns = value.as_str().and_then(time_ns);
        let ns = ns.filter(|ns| (1_000..=LATENCY_NS_MAX).contains(ns));
        ns.map(|ns| Nanoseconds(ns as u64)).ok_or_else(|| {
            let shown = written(value);
            format!(
                "{key} = {shown} must be a time from 1 us to 1 h, such as \"100 ms\" or \"2 s\""
            )
        })
    }
}

/// A time as people write it, `1.5 s`; up to three places behind the point.
fn time_ns(text: &str) -> Option<u128> {
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.')?;
    let (number, unit) = (&text[..end], text[end..].trim());
    let (whole, rest) = number.split_once('.').unwrap_or((number, "0"));
    if whole.is_empty() || rest.is_empty() || rest.len() > 3 || whole.len() > 20 {
        return None;
    }
    let unit_ns = match unit {
        "us" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        "min" => 60_000_000_000,
        "h" => 3_600_000_000_000,
        _ => return None,
    };
    let whole: u128 = whole.parse().ok()?;
    let thousandths: u128 = format!("{rest:0<3}").parse().ok()?;
    Some((whole * 1000 + thousandths).saturating_mul(unit_ns) / 1000)
}

/// Text that is neither empty nor longer than a name may be.
pub(super) struct Name(pub String);

impl Setting for Name {
    fn read(key: &str, value: &Value, _: &Row<Name>) -> Result<Name, String> {
        let Some(text) = value.as_str() else {
            return Err(not(key, "text in quotes", value));
        };
        if !(1..=NAME_MAX).contains(&text.len()) {
            return Err(format!(
                "{key} must have 1 to {NAME_MAX} bytes, not {}",
                text.len()
            ));
        }
        // They would break the lines in which rules and applications are shown.
        match text.contains(char::is_control) {
            true => Err(format!(
                "{key} = {text:?} has a control character; write it without"
            )),
            false => Ok(Name(text.to_string())),
        }
    }
}

impl Setting for User {
    fn read(key: &str, value: &Value, _: &Row<User>) -> Result<User, String> {
        let known = |uid, name: &str| User {
            uid,
            name: name.to_string(),
        };
        match value {
            Value::String(name) => {
                let uid = name.parse().ok().or_else(|| crate::identity::uid_of(name));
                uid.map(|uid| known(uid, name)).ok_or_else(|| {
                    format!("there is no user \"{name}\" on this machine; name another, or a uid")
                })
            }
            value => {
                let uid = value
                    .as_integer()
                    .and_then(|number| u32::try_from(number).ok());
                uid.map(|uid| known(uid, &uid.to_string())).ok_or_else(|| {
                    format!("{key} = {} must be a user's name or number", written(value))
                })
            }
        }
    }

    fn takes(_: &Row<User>) -> String {
        "text or number".to_string()
    }
}

/// A job: batch systems have numbers, and names with numbers in them.
pub(super) struct Job(pub String);

impl Setting for Job {
    const KIND: Kind = Kind::Text;

    fn read(key: &str, value: &Value, _: &Row<Job>) -> Result<Job, String> {
        let is_name = |text: &&String| {
            (1..=NAME_MAX).contains(&text.len()) && !text.contains(char::is_control)
        };
        let text = match value {
            Value::Integer(0..) => Some(written(value)),
            Value::String(text) => Some(text).filter(is_name).cloned(),
            _ => None,
        };
        text.map(Job)
            .ok_or_else(|| format!("{key} = {} must be a job's number or name", written(value)))
    }

    fn takes(_: &Row<Job>) -> String {
        "text or number".to_string()
    }
}

/// Says that a value is of the wrong kind.
fn not(key: &str, expected: &str, value: &Value) -> String {
    format!("{key} must be {expected}, not {}", kind(value))
}

/// A value for messages, as it was written.
fn written(value: &Value) -> String {
    match value {
        Value::Integer(number) => number.to_string(),
        Value::String(text) => format!("{text:?}"),
        other => kind(other).to_string(),
    }
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Integer(_) => "a whole number",
        Value::Float(_) => "a number with a fraction",
        Value::Boolean(_) => "true or false",
        Value::String(_) => "text",
        Value::Array(_) => "a list",
        Value::Datetime(_) => "a date",
        Value::Table(_) => "a section",
    }
}

#[cfg(test)]
mod tests {
    use super::super::row::or;
    use super::*;

    #[test]
    fn rates_are_text() {
        let row = or(Rate::Bytes(1));
        let of = |value: Value| Rate::read("min", &value, &row);
        assert_eq!(of("25 MB/s".into()), Ok(Rate::Bytes(25_000_000)));
        assert!(of("25 MB".into()).is_err());
        let number = of(5.into()).expect_err("it has no unit");
        assert!(number.contains("25 MB/s"), "{number}");
    }

    #[test]
    fn latencies_are_read() {
        let row = or(Nanoseconds(0));
        let of = |text: &str| Nanoseconds::read("latency", &text.into(), &row);
        assert_eq!(of("100 ms"), Ok(Nanoseconds(100_000_000)));
        assert_eq!(of("1.5s"), Ok(Nanoseconds(1_500_000_000)));
        assert_eq!(of("1 h"), Ok(Nanoseconds(3_600_000_000_000)));
        for text in ["2 h", "0.5 us", "ms", "5", "-3 ms"] {
            assert!(of(text).is_err(), "{text}");
        }
    }

    #[test]
    fn bytes_are_told_in_the_largest_exact_unit() {
        assert_eq!(amount(1 << 20, "bytes"), "1 MiB");
        assert_eq!(amount(3 << 10, "bytes"), "3 KiB");
        assert_eq!(amount(4097, "bytes"), "4097");
        assert_eq!(amount(1 << 20, "number"), "1048576");
        assert_eq!(amount(0, "bytes"), "0");
    }
}

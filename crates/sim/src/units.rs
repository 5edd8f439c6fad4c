//! Sizes and times as scenarios write them: "128 KiB", "250 ms", "inf".

use serde::de::{Deserialize, Deserializer, Error};
use serde::ser::{Serialize, Serializer};

/// A number of bytes: `"64 KiB"`, `"1 MB"`, or a plain whole number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Bytes(pub u64);

/// A time in ns: `"1 s"`, `"250 ms"`, `"50 us"`, `"20 ns"`, or 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Duration(pub u64);

/// The longest time of a scenario, ns: 365 days. Sums of a few of them are no overflow.
pub const TIME_MAX_NS: u64 = 365 * 24 * 3_600_000_000_000;

const BYTES: &[(&str, u64)] = &[
    ("B", 1),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
    ("KB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("TB", 1_000_000_000_000),
];

const TIMES: &[(&str, u64)] = &[
    ("ns", 1),
    ("us", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("min", 60_000_000_000),
    ("h", 3_600_000_000_000),
];

/// Reads a number with a unit; the message says which units there are. Three digits behind the
/// point at most, so that nothing is rounded.
fn parse(text: &str, units: &[(&str, u64)]) -> Result<u64, String> {
    let names: Vec<&str> = units.iter().map(|(name, _)| *name).collect();
    let wrong = || {
        format!(
            "{text:?} is no number with one of the units {}",
            names.join(", ")
        )
    };
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.');
    let (number, unit) = text.split_at(digits.ok_or_else(wrong)?);
    let (_, scale) = units
        .iter()
        .find(|(name, _)| *name == unit.trim())
        .ok_or_else(wrong)?;
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if fraction.len() > 3 || (whole.is_empty() && fraction.is_empty()) {
        return Err(wrong());
    }
    let whole: u64 = if whole.is_empty() {
        0
    } else {
        whole.parse().map_err(|_| wrong())?
    };
    let thousandths: u64 = format!("{fraction:0<3}").parse().map_err(|_| wrong())?;
    let exact = u128::from(*scale) * (u128::from(whole) * 1000 + u128::from(thousandths));
    if exact % 1000 != 0 {
        return Err(format!("{text:?} is no whole number of {}", names[0]));
    }
    u64::try_from(exact / 1000).map_err(|_| format!("{text:?} is too large"))
}

impl std::str::FromStr for Bytes {
    type Err = String;

    fn from_str(text: &str) -> Result<Bytes, String> {
        parse(text, BYTES).map(Bytes)
    }
}

impl std::str::FromStr for Duration {
    type Err = String;

    fn from_str(text: &str) -> Result<Duration, String> {
        match parse(text, TIMES)? {
            ns if ns > TIME_MAX_NS => Err(format!("{text:?} is too long: at most a year (8760 h)")),
            ns => Ok(Duration(ns)),
        }
    }
}

/// What TOML offers for a quantity.
#[derive(serde::Deserialize)]
#[serde(
    untagged,
    expecting = "a whole number, or text with a number and a unit"
)]
enum Written {
    Number(u64),
    Text(String),
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Bytes, D::Error> {
        match Written::deserialize(from)? {
            Written::Number(bytes) => Ok(Bytes(bytes)),
            Written::Text(text) => text.parse().map_err(D::Error::custom),
        }
    }
}

impl<'de> Deserialize<'de> for Duration {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
        match Written::deserialize(from)? {
            Written::Number(0) => Ok(Duration(0)),
            Written::Number(number) => Err(D::Error::custom(format!(
                "{number} has no unit; write \"{number} ms\", for example"
            ))),
            Written::Text(text) => text.parse().map_err(D::Error::custom),
        }
    }
}

impl Serialize for Duration {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(&format_args!("{} ns", self.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_read_exactly_or_refused() {
        assert_eq!("128 KiB".parse(), Ok(Bytes(131_072)));
        assert_eq!("1.5MB".parse(), Ok(Bytes(1_500_000)));
        assert_eq!("0.25 ms".parse(), Ok(Duration(250_000)));
        assert_eq!(".5 s".parse(), Ok(Duration(500_000_000)));
        for wrong in [
            "",
            "KiB",
            "12",
            "1 XB",
            "1.2345 MB",
            "0.5 B",
            "99999999 TiB",
            "1.1.1 KB",
        ] {
            assert!(wrong.parse::<Bytes>().is_err(), "{wrong}");
        }
        assert_eq!("8760 h".parse(), Ok(Duration(TIME_MAX_NS)));
        for long in ["8760.001 h", "18446744073709551615 ns", "99999999999999 h"] {
            let error = long.parse::<Duration>().unwrap_err();
            assert!(error.contains("is too l"), "{error}");
        }
        let error = "3 parsecs".parse::<Duration>().unwrap_err();
        assert!(error.contains("ns, us, ms, s, min, h"), "{error}");
    }
}

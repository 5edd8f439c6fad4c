//! Rates and times as people write them: `25 MB/s`, `1000 op/s`, `20 %`, `100 ms`.

use super::Value;
use super::source::written;
use tidegate_sched::{Rate, RateError};

/// The longest latency target: an hour.
const LATENCY_NS_MAX: u128 = 3_600_000_000_000;

/// Reads a rate; the words for the user begin with the value.
pub fn rate(value: &Value) -> Result<Rate, String> {
    match value {
        Value::Text(text) => Rate::parse(text).map_err(|error| error.to_string()),
        other => Err(RateError::Unknown(written(other)).to_string()),
    }
}

/// Reads a latency, in nanoseconds; the words for the user begin with the value.
pub fn latency_ns(value: &Value) -> Result<u64, String> {
    let shown = written(value);
    let wrong =
        || format!("{shown} must be a time from 1 us to 1 h, such as \"100 ms\" or \"2 s\"");
    let Value::Text(text) = value else {
        return Err(wrong());
    };
    let (number, unit) = number_and_unit(text).ok_or_else(wrong)?;
    let each = match unit {
        "us" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        "min" => 60_000_000_000,
        "h" => 3_600_000_000_000,
        _ => return Err(wrong()),
    };
    match number.times(each) {
        ns @ 1_000..=LATENCY_NS_MAX => Ok(ns as u64),
        _ => Err(wrong()),
    }
}

/// A number that is not negative, in thousandths.
struct Number(u128);

impl Number {
    fn times(&self, unit: u128) -> u128 {
        self.0.saturating_mul(unit) / 1000
    }
}

/// `25 MB/s` or `25MB/s`; the number may have up to three places behind the point.
fn number_and_unit(text: &str) -> Option<(Number, &str)> {
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.')?;
    let (number, unit) = (&text[..end], text[end..].trim());
    let (whole, rest) = number.split_once('.').unwrap_or((number, "0"));
    if whole.is_empty() || rest.is_empty() || rest.len() > 3 || whole.len() > 20 {
        return None;
    }
    let whole: u128 = whole.parse().ok()?;
    let thousandths: u128 = format!("{rest:0<3}").parse().ok()?;
    Some((Number(whole * 1000 + thousandths), unit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_text() {
        let of = |text: &str| rate(&Value::Text(text.to_string()));
        assert_eq!(of("25 MB/s"), Ok(Rate::Bytes(25_000_000)));
        assert!(of("25 MB").is_err());
        let number = rate(&Value::Integer(5)).expect_err("it has no unit");
        assert!(number.contains("25 MB/s"), "{number}");
    }

    #[test]
    fn latencies_are_read() {
        let of = |text: &str| latency_ns(&Value::Text(text.to_string()));
        assert_eq!(of("100 ms"), Ok(100_000_000));
        assert_eq!(of("1.5s"), Ok(1_500_000_000));
        assert_eq!(of("1 h"), Ok(3_600_000_000_000));
        for text in ["2 h", "0.5 us", "ms", "5", "-3 ms"] {
            assert!(of(text).is_err(), "{text}");
        }
    }
}

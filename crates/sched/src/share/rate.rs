//! Rates: how much of the system an application gets each second, and their text form, such as
//! "25 MB/s", "1000 op/s" or "20 %".

use alloc::string::{String, ToString};
use core::fmt;
use core::str::FromStr;

/// The largest rate, per second: far above any device, and safe to multiply.
pub const RATE_MAX: u64 = 1 << 50;

/// The rate in thousandths that is the device time of all forwarders.
pub(super) const DEVICE_WHOLE: u64 = 1000;

/// A rate, per second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rate {
    /// Bytes.
    Bytes(u64),
    /// Requests.
    Operations(u64),
    /// Device time, in thousandths of that of all forwarders together.
    Device(u64),
}

/// Service, in every unit that a rate has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Service {
    pub(crate) device_ns: u64,
    pub(crate) bytes: u64,
    pub(crate) operations: u64,
}

impl Rate {
    /// How long it takes to get so much service at this rate, in nanoseconds.
    pub(crate) fn ns(self, service: &Service, forwarders: u32) -> u64 {
        let (amount, each_second) = match self {
            Rate::Bytes(rate) => (service.bytes, u128::from(rate)),
            Rate::Operations(rate) => (service.operations, u128::from(rate)),
            Rate::Device(part) => {
                let all = u128::from(part) * u128::from(forwarders) * 1_000_000;
                (service.device_ns, all)
            }
        };
        let ns = u128::from(amount) * 1_000_000_000 / each_second;
        u64::try_from(ns).unwrap_or(u64::MAX)
    }
}

/// Units of bytes per second: decimal, then binary, each in ascending order.
const BYTES: &[(&str, u64)] = &[
    ("B/s", 1),
    ("KB/s", 1_000),
    ("kB/s", 1_000),
    ("MB/s", 1_000_000),
    ("GB/s", 1_000_000_000),
    ("TB/s", 1_000_000_000_000),
    ("KiB/s", 1 << 10),
    ("MiB/s", 1 << 20),
    ("GiB/s", 1 << 30),
    ("TiB/s", 1 << 40),
];

const OPERATIONS: &str = "op/s";
const PERCENT: &str = "%";

/// Why a text is not a rate.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RateError {
    /// The text is not a number with a known unit.
    Unknown(String),
    /// The rate is not a whole number of bytes, requests or tenths of a percent.
    TooFine(String),
    /// The rate is zero, or above the largest: [`RATE_MAX`], or 100 %.
    OutOfRange(String),
}

impl Rate {
    /// Parses a rate: a number with up to three decimals and a unit. The unit is `B/s`, `KB/s`,
    /// `MiB/s` and so on, `op/s`, or `%` for device time of all forwarders together.
    pub fn parse(text: &str) -> Result<Rate, RateError> {
        let unknown = || RateError::Unknown(text.to_string());
        let all = text.trim();
        let digits = all.find(|c: char| !c.is_ascii_digit() && c != '.');
        let (number, unit) = all.split_at(digits.ok_or_else(unknown)?);
        let thousandths = thousandths(number).ok_or_else(unknown)?;
        let bytes = |(name, scale): &(&str, u64)| (*name == unit.trim()).then_some(*scale);
        let (scale, most): (u64, u64) = match (unit.trim(), BYTES.iter().find_map(bytes)) {
            (_, Some(scale)) => (scale, RATE_MAX),
            (OPERATIONS, _) => (1, RATE_MAX),
            (PERCENT, _) => (DEVICE_WHOLE / 100, DEVICE_WHOLE),
            _ => return Err(unknown()),
        };
        let exact = thousandths * u128::from(scale);
        if !exact.is_multiple_of(1000) {
            return Err(RateError::TooFine(text.to_string()));
        }
        let amount = u64::try_from(exact / 1000).unwrap_or(u64::MAX);
        match (unit.trim(), (1..=most).contains(&amount)) {
            (_, false) => Err(RateError::OutOfRange(text.to_string())),
            (OPERATIONS, _) => Ok(Rate::Operations(amount)),
            (PERCENT, _) => Ok(Rate::Device(amount)),
            _ => Ok(Rate::Bytes(amount)),
        }
    }
}

/// A decimal number in thousandths. `None` if it is not one, or has more than three decimals.
fn thousandths(number: &str) -> Option<u128> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if fraction.len() > 3 || whole.len() + fraction.len() == 0 {
        return None;
    }
    // The caller has checked that there are only digits and points.
    let value = |digits: &str| match digits {
        "" => Some(0),
        digits => digits.parse::<u64>().ok().map(u128::from),
    };
    let scale = [1000, 100, 10, 1][fraction.len()];
    Some(value(whole)? * 1000 + value(fraction)? * scale)
}

impl FromStr for Rate {
    type Err = RateError;

    fn from_str(text: &str) -> Result<Rate, RateError> {
        Rate::parse(text)
    }
}

impl fmt::Display for Rate {
    /// The text that [`Rate::parse`] reads, in the largest unit of which the rate is a whole
    /// number.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Rate::Bytes(bytes) => {
                let whole = |(_, scale): &&(&str, u64)| bytes > 0 && bytes.is_multiple_of(*scale);
                let units = BYTES.iter().filter(whole);
                let (name, scale) = units.max_by_key(|(_, scale)| *scale).unwrap_or(&BYTES[0]);
                write!(f, "{} {name}", bytes / scale)
            }
            Rate::Operations(operations) => write!(f, "{operations} {OPERATIONS}"),
            Rate::Device(part) if part % 10 == 0 => write!(f, "{} {PERCENT}", part / 10),
            Rate::Device(part) => write!(f, "{}.{} {PERCENT}", part / 10, part % 10),
        }
    }
}

impl fmt::Display for RateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RateError::Unknown(text) => write!(
                f,
                "{text:?} is no rate; write \"25 MB/s\", \"1000 op/s\" or \"20 %\", for example"
            ),
            RateError::TooFine(text) => write!(
                f,
                "{text:?} is too fine: whole bytes and operations a second and tenths of a percent \
                 are possible"
            ),
            RateError::OutOfRange(text) => write!(
                f,
                "{text:?} is impossible: 1 to {RATE_MAX} bytes or operations a second, 0.1 to 100 %"
            ),
        }
    }
}

impl core::error::Error for RateError {}

#[cfg(test)]
mod tests {
    use super::*;
    use std::format;

    #[test]
    fn rates_are_read_as_they_are_written() {
        for (text, rate) in [
            ("25 MB/s", Rate::Bytes(25_000_000)),
            ("1.5MiB/s", Rate::Bytes(3 << 19)),
            (" 0.064 KB/s ", Rate::Bytes(64)),
            ("1000 op/s", Rate::Operations(1000)),
            ("20 %", Rate::Device(200)),
            ("12.5%", Rate::Device(125)),
            ("100 %", Rate::Device(1000)),
        ] {
            assert_eq!(Rate::parse(text), Ok(rate), "{text}");
            assert_eq!(format!("{rate}").parse(), Ok(rate), "{rate}");
        }
        assert_eq!(format!("{}", Rate::Bytes(25_000_000)), "25 MB/s");
        assert_eq!(format!("{}", Rate::Bytes(64 << 20)), "64 MiB/s");
        assert_eq!(format!("{}", Rate::Bytes(1001)), "1001 B/s");
        assert_eq!(format!("{}", Rate::Device(125)), "12.5 %");
    }

    #[test]
    fn what_is_no_rate_is_refused() {
        for text in [
            "",
            "25",
            "MB/s",
            "25 MB",
            "-1 MB/s",
            "1e3 op/s",
            "1 mb/s",
            "1.2345 MB/s",
            "1..2 op/s",
            "99999999999999999999 B/s",
            "+5 %",
            "5 % of it",
            ". %",
        ] {
            let unknown = RateError::Unknown(text.to_string());
            assert_eq!(Rate::parse(text), Err(unknown), "{text}");
        }
        for text in ["0.5 op/s", "0.5 B/s", "0.05 %", "1.001 KiB/s"] {
            assert_eq!(
                Rate::parse(text),
                Err(RateError::TooFine(text.to_string())),
                "{text}"
            );
        }
        for text in [
            "0 MB/s",
            "0 op/s",
            "0 %",
            "100.1 %",
            "9000 TB/s",
            "18446744073709551615 TiB/s",
        ] {
            assert_eq!(
                Rate::parse(text),
                Err(RateError::OutOfRange(text.to_string())),
                "{text}"
            );
        }
        let said = format!("{}", RateError::Unknown("5 MB".to_string()));
        assert!(
            said.starts_with("\"5 MB\" is no rate; write \"25 MB/s\""),
            "{said}"
        );
    }

    #[test]
    fn rates_are_those_of_all_forwarders() {
        let service = Service {
            device_ns: 1_000_000,
            bytes: 1 << 20,
            operations: 1,
        };
        assert_eq!(Rate::Bytes(1 << 30).ns(&service, 4), 976_562);
        assert_eq!(Rate::Operations(100).ns(&service, 4), 10_000_000);
        // A quarter of four devices is one: a millisecond of it each millisecond.
        assert_eq!(Rate::Device(250).ns(&service, 4), 1_000_000);
        assert_eq!(
            Rate::Bytes(1).ns(
                &Service {
                    bytes: u64::MAX,
                    ..service
                },
                1
            ),
            u64::MAX
        );
    }
}

//! What an access costs the device: a base and a price for each byte, apart for reads and writes,
//! and for those that go on where the last one ended.
//!
//! AGIOS (Boito et al., 2013) calls it the time to process. `tidegate calibrate` measures it and
//! writes it as text; forwarder, library and simulator read the same text.

use crate::types::{Direction, Request};
use alloc::format;
use alloc::string::String;
use core::fmt;

/// The largest base and the largest price of a MiB: an hour, so that sums stay within 64 bits.
pub(crate) const NS_MAX: u64 = 3_600_000_000_000;

/// The cost of one kind of access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AccessCost {
    /// Nanoseconds of device time for each access, whatever its length.
    pub base_ns: u64,
    /// Nanoseconds of device time for each MiB.
    pub ns_per_mib: u64,
}

impl AccessCost {
    /// Device time of an access of `len` bytes, in nanoseconds; at least 1.
    #[inline]
    pub const fn ns(self, len: u64) -> u64 {
        let bytes = (len as u128 * self.ns_per_mib as u128) >> 20;
        let bytes = if bytes > u64::MAX as u128 {
            u64::MAX
        } else {
            bytes as u64
        };
        match bytes.saturating_add(self.base_ns) {
            0 => 1,
            ns => ns,
        }
    }
}

/// The costs of a back end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CostModel {
    /// Reads elsewhere than where the last access ended.
    pub read_random: AccessCost,
    /// Reads that go on where the last access ended.
    pub read_sequential: AccessCost,
    /// Writes elsewhere.
    pub write_random: AccessCost,
    /// Writes that go on.
    pub write_sequential: AccessCost,
}

/// A disk of 7200 revolutions a minute.
impl Default for CostModel {
    fn default() -> CostModel {
        let random = AccessCost {
            base_ns: 8_000_000,
            ns_per_mib: 10_000_000,
        };
        let sequential = AccessCost {
            base_ns: 100_000,
            ..random
        };
        CostModel {
            read_random: random,
            read_sequential: sequential,
            write_random: random,
            write_sequential: sequential,
        }
    }
}

/// A place of the model, and the name of its part in the text.
const PARTS: [&str; 4] = [
    "read_random",
    "read_sequential",
    "write_random",
    "write_sequential",
];

impl CostModel {
    /// The cost of one kind of access.
    #[inline]
    pub const fn access(&self, direction: Direction, sequential: bool) -> AccessCost {
        match (direction, sequential) {
            (Direction::Read, false) => self.read_random,
            (Direction::Read, true) => self.read_sequential,
            (Direction::Write, false) => self.write_random,
            (Direction::Write, true) => self.write_sequential,
        }
    }

    /// Device time of a request as an access elsewhere, in nanoseconds. An operation on the file as
    /// a whole moves no data, whatever its range.
    #[inline]
    pub fn request_ns(&self, request: &Request) -> u64 {
        let len = if request.mergeable { request.len } else { 0 };
        self.access(request.direction, false).ns(len)
    }

    /// The cost of one kind of access, to be changed.
    pub const fn access_mut(&mut self, direction: Direction, sequential: bool) -> &mut AccessCost {
        match (direction, sequential) {
            (Direction::Read, false) => &mut self.read_random,
            (Direction::Read, true) => &mut self.read_sequential,
            (Direction::Write, false) => &mut self.write_random,
            (Direction::Write, true) => &mut self.write_sequential,
        }
    }

    /// Reads a model from its text: lines of `name = number` and comments that begin with `#`.
    ///
    /// All eight numbers must be there: `read_random_base_ns`, `read_random_ns_per_mib` and so on
    /// for `read_sequential`, `write_random` and `write_sequential`.
    pub fn parse(text: &str) -> Result<CostModel, CostModelError> {
        let mut found = [[None; 2]; 4];
        for (number, line) in (1..).zip(text.lines()) {
            let fail = |what: String| CostModelError {
                line: Some(number),
                what,
            };
            let line = line.split('#').next().unwrap_or("").trim();
            if line.is_empty() {
                continue;
            }
            let (name, value) = line
                .split_once('=')
                .map(|(name, value)| (name.trim(), value.trim()))
                .ok_or_else(|| fail(format!("\"{line}\" is not of the form name = number")))?;
            let part = PARTS.iter().position(|part| name.starts_with(part));
            let place = part.and_then(|part| match &name[PARTS[part].len()..] {
                "_base_ns" => Some((part, 0)),
                "_ns_per_mib" => Some((part, 1)),
                _ => None,
            });
            let (part, which) =
                place.ok_or_else(|| fail(format!("a cost model has no \"{name}\"")))?;
            let value = value
                .parse()
                .ok()
                .filter(|&value: &u64| value <= NS_MAX)
                .ok_or_else(|| fail(format!("{name} must be a whole number from 0 to {NS_MAX}")))?;
            if found[part][which].replace(value).is_some() {
                return Err(fail(format!("{name} is there twice")));
            }
        }
        let cost = |part: usize| -> Result<AccessCost, CostModelError> {
            let number = |which: usize, unit: &str| {
                found[part][which].ok_or_else(|| CostModelError {
                    line: None,
                    what: format!("{}_{unit} is missing", PARTS[part]),
                })
            };
            Ok(AccessCost {
                base_ns: number(0, "base_ns")?,
                ns_per_mib: number(1, "ns_per_mib")?,
            })
        };
        Ok(CostModel {
            read_random: cost(0)?,
            read_sequential: cost(1)?,
            write_random: cost(2)?,
            write_sequential: cost(3)?,
        })
    }
}

/// The text that [`CostModel::parse`] reads.
impl fmt::Display for CostModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let costs = [
            self.read_random,
            self.read_sequential,
            self.write_random,
            self.write_sequential,
        ];
        for (part, cost) in PARTS.iter().zip(costs) {
            writeln!(f, "{part}_base_ns = {}", cost.base_ns)?;
            writeln!(f, "{part}_ns_per_mib = {}", cost.ns_per_mib)?;
        }
        Ok(())
    }
}

/// Why a cost model was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CostModelError {
    /// The line, counted from 1; none if something is missing.
    pub line: Option<usize>,
    what: String,
}

impl fmt::Display for CostModelError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            Some(line) => write!(f, "line {line}: {}", self.what),
            None => write!(f, "{}", self.what),
        }
    }
}

impl core::error::Error for CostModelError {}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::ToString;

    #[test]
    fn a_cost_is_a_base_and_a_price() {
        let cost = AccessCost {
            base_ns: 1000,
            ns_per_mib: 1 << 20,
        };
        assert_eq!((cost.ns(0), cost.ns(4096)), (1000, 5096));
        assert_eq!(cost.ns(u64::MAX), u64::MAX);
        let free = AccessCost {
            base_ns: 0,
            ns_per_mib: 0,
        };
        assert_eq!(free.ns(1 << 30), 1);
    }

    #[test]
    fn its_text_is_read_again() {
        let model = CostModel::default();
        let text = format!("# a comment\n\n{model}");
        assert_eq!(CostModel::parse(&text), Ok(model));
    }

    #[test]
    fn broken_text_is_refused_with_its_line() {
        let text = CostModel::default().to_string();
        let error = |text: &str| CostModel::parse(text).unwrap_err().to_string();
        assert_eq!(
            error("read"),
            "line 1: \"read\" is not of the form name = number"
        );
        assert_eq!(
            error("\nspeed = 1"),
            "line 2: a cost model has no \"speed\""
        );
        let number = "read_random_base_ns must be a whole number from 0 to 3600000000000";
        for value in ["-1", "1.5", "3600000000001", "", "x"] {
            let line = format!("read_random_base_ns = {value}");
            assert_eq!(error(&line), format!("line 1: {number}"));
        }
        let twice = format!("{text}read_random_base_ns = 1");
        assert_eq!(error(&twice), "line 9: read_random_base_ns is there twice");
        let short = &text[..text.rfind("write_sequential_ns").unwrap()];
        assert_eq!(error(short), "write_sequential_ns_per_mib is missing");
    }
}

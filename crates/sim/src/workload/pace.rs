//! When a process makes its calls: one after the other, several at once, or at given times.

use super::keys::{Impossible, Keys, positive, require};
use crate::rng::Rng;
use crate::units::{Bytes, Duration};

/// When calls are made. Without any of it, each process makes one call after the other.
#[derive(Clone, Copy, Debug, Default)]
pub struct Pace {
    /// All processes wait for each other after each call.
    pub barrier: bool,
    /// Time between a process's calls.
    pub think: Duration,
    /// If it is given, the time between calls is drawn evenly between `think` and this.
    pub think_max: Option<Duration>,
    /// Calls that a process keeps unanswered; 0 means 1.
    pub in_flight: u32,
    /// A process makes a call each time this interval has passed, whatever the answers do.
    pub interval: Option<Duration>,
    /// All processes together ask for this number of bytes a second, in turn, whatever the answers
    /// do.
    pub rate: Option<Bytes>,
    /// The rate changes steadily to this one until the last call,
    pub rate_end: Option<Bytes>,
    /// or for so long, and stays then.
    pub ramp: Option<Duration>,
    /// Whether a process waits for its answers. It makes a call that is due before only when the
    /// answer has arrived, and skips it once its next call is due.
    pub waits: bool,
    /// Time after the program's start from which on no call is made; calls that are left are left
    /// out.
    pub stonewall: Option<Duration>,
    /// Longest random delay of a call at a given time.
    pub jitter: Duration,
    /// Calls are made for so long,
    pub on: Option<Duration>,
    /// then none for so long, and so on.
    pub off: Option<Duration>,
}

impl Pace {
    pub(super) fn read(keys: &mut Keys) -> Pace {
        Pace {
            barrier: keys.or("barrier", false),
            in_flight: keys.or("in_flight", 1),
            interval: keys.optional("interval"),
            rate: keys.optional("rate"),
            rate_end: keys.optional("rate_end"),
            ramp: keys.optional("ramp"),
            waits: keys.or("waits", false),
            stonewall: keys.optional("stonewall"),
            jitter: keys.or("jitter", Duration(0)),
            on: keys.optional("on"),
            off: keys.optional("off"),
            ..Pace::read_think(keys)
        }
    }

    /// Only the time between calls.
    pub(super) fn read_think(keys: &mut Keys) -> Pace {
        Pace {
            think: keys.or("think", Duration(0)),
            think_max: keys.optional("think_max"),
            in_flight: 1,
            ..Pace::default()
        }
    }

    pub(super) fn check(&self) -> Result<(), Impossible> {
        positive("in_flight", self.in_flight.into())?;
        if let Some(stonewall) = self.stonewall {
            require((1..=LIMIT).contains(&stonewall.0), "stonewall", || {
                format!("1 to {LIMIT} ns are possible")
            })?;
            let alone = !self.barrier && self.in_flight == 1;
            let answered = self.timed_by().is_none() || self.waits;
            require(alone && answered, "stonewall", || {
                "only processes that wait for their answers and for nothing else have it".into()
            })?;
        }
        require(
            self.think_max.is_none_or(|max| max >= self.think),
            "think_max",
            || "it must not be below think".into(),
        )?;
        for (key, time) in [
            ("think", Some(self.think)),
            ("think_max", self.think_max),
            ("jitter", Some(self.jitter)),
            ("off", self.off),
        ] {
            require(time.is_none_or(|time| time.0 <= LIMIT), key, || {
                format!("at most {LIMIT} ns are possible")
            })?;
        }
        let Some(key) = self.timed_by() else {
            for (key, given) in [
                ("jitter", self.jitter.0 > 0),
                ("rate_end", self.rate_end.is_some()),
                ("ramp", self.ramp.is_some()),
                ("waits", self.waits),
                ("on", self.on.is_some()),
                ("off", self.off.is_some()),
            ] {
                require(!given, key, || {
                    "only calls at given times have it; give interval or rate too".into()
                })?;
            }
            return Ok(());
        };
        self.check_timed(key)
    }

    /// Checks calls at given times, which the key says.
    fn check_timed(&self, key: &str) -> Result<(), Impossible> {
        require(
            !(self.interval.is_some() && self.rate.is_some()),
            "rate",
            || "either interval or rate, not both".into(),
        )?;
        require(
            self.rate.is_some() || self.rate_end.is_none(),
            "rate_end",
            || "an interval does not change; give rate instead".into(),
        )?;
        require(
            self.rate_end.is_some() || self.ramp.is_none(),
            "ramp",
            || "the rate does not change; give rate_end too".into(),
        )?;
        for (key, value) in [
            ("interval", self.interval.map(|time| time.0)),
            ("rate", self.rate.map(|bytes| bytes.0)),
            ("rate_end", self.rate_end.map(|bytes| bytes.0)),
            ("ramp", self.ramp.map(|time| time.0)),
            ("on", self.on.map(|time| time.0)),
        ] {
            let limits = 1..=LIMIT;
            require(
                value.is_none_or(|value| limits.contains(&value)),
                key,
                || format!("1 to {LIMIT} are possible, in ns or bytes"),
            )?;
        }
        require(self.on.is_some() == self.off.is_some(), "on", || {
            "on and off belong together".into()
        })?;
        for (name, given) in [
            ("barrier", self.barrier),
            ("think", self.think.0 > 0 || self.think_max.is_some()),
            ("in_flight", self.in_flight > 1),
        ] {
            require(!given, name, || {
                format!("with {key}, calls are made at their times, whatever came before")
            })?;
        }
        Ok(())
    }

    /// The key that gives the times of calls, if they do not depend on answers.
    pub(super) fn timed_by(&self) -> Option<&'static str> {
        match (self.interval, self.rate) {
            (Some(_), _) => Some("interval"),
            (None, Some(_)) => Some("rate"),
            (None, None) => None,
        }
    }

    /// Whether a process may go on before its call is answered.
    pub(super) fn runs_ahead(&self) -> bool {
        self.timed_by().is_some() || self.in_flight > 1
    }

    /// Within which times a call is made that is due then and may wait for so long, ns; None: at
    /// once, whenever that is.
    pub(super) fn between(&self, (due_ns, until_ns): (u64, u64)) -> Option<(u64, u64)> {
        let last_ns = self.stonewall.map_or(u64::MAX, |stonewall| stonewall.0);
        match (self.waits, self.stonewall) {
            (true, _) => Some((due_ns, until_ns.min(last_ns))),
            (false, Some(_)) => Some((0, last_ns)),
            (false, None) => None,
        }
    }

    /// A time between calls, ns.
    pub(super) fn think(&self, rng: &mut Rng) -> u64 {
        match self.think_max {
            Some(max) if max > self.think => rng.between(self.think.0, max.0),
            _ => self.think.0,
        }
    }

    /// When the call of this number, counted over all processes in turn, is due, ns after the
    /// program's start, if `calls` of `request` bytes each are made in all.
    pub(super) fn due_ns(&self, number: u64, processes: u32, calls: u64, request: u64) -> u64 {
        let at = self.due_when_on(number, processes, calls, request);
        // Time off does not count.
        let at = match (self.on, self.off) {
            (Some(on), Some(off)) => {
                let (on, off) = (u128::from(on.0), u128::from(off.0));
                at / on * (on + off) + at % on
            }
            _ => at,
        };
        // Beyond every run's end, and still far from an overflow.
        u64::try_from(at).unwrap_or(u64::MAX).min(1 << 62)
    }

    /// From a call of a process to its next one, ns, without time off; at least 1.
    pub(super) fn gap_ns(&self, number: u64, processes: u32, calls: u64, request: u64) -> u64 {
        let due = |number| self.due_when_on(number, processes, calls, request);
        let gap = due(number + u64::from(processes)).saturating_sub(due(number));
        u64::try_from(gap).unwrap_or(u64::MAX).clamp(1, 1 << 62)
    }

    /// Like [`Pace::due_ns`], without time off.
    fn due_when_on(&self, number: u64, processes: u32, calls: u64, request: u64) -> u128 {
        match (self.interval, self.rate) {
            (Some(interval), _) => {
                u128::from(number / u64::from(processes)) * u128::from(interval.0)
            }
            (None, Some(rate)) => self.due_by_rate(rate.0, number, calls, request),
            (None, None) => 0,
        }
    }

    /// With a steady change from rate `r` to `e` until all `B` bytes are asked for, `b` bytes are
    /// due at `2 b / (r + sqrt(r^2 + (e^2 - r^2) b / B))`. In a ramp of `R`, `B` is
    /// `(r + e) R / 2`.
    fn due_by_rate(&self, rate: u64, number: u64, calls: u64, request: u64) -> u128 {
        let bytes = u128::from(number) * u128::from(request);
        let end = self.rate_end.map_or(rate, |end| end.0);
        // How far the change is, as a fraction.
        let (part, whole) = match self.ramp {
            Some(ramp) => {
                let sum = u128::from(rate) + u128::from(end);
                let all = (sum * u128::from(ramp.0) / (2 * NS_PER_S)).max(1);
                if bytes > all {
                    return u128::from(ramp.0) + (bytes - all) * NS_PER_S / u128::from(end);
                }
                ((bytes << 20) / all, 1 << 20)
            }
            None => (u128::from(number), u128::from(calls.max(1))),
        };
        let (square, end) = (u128::from(rate).pow(2), u128::from(end).pow(2));
        let change =
            |difference: u128| difference / whole * part + difference % whole * part / whole;
        let now = match end >= square {
            true => square + change(end - square),
            false => square - change(square - end),
        };
        // The root in 1/1024 bytes a second.
        let root = (now << 20).isqrt();
        bytes * 2 * 1024 * NS_PER_S / (u128::from(rate) * 1024 + root)
    }
}

const NS_PER_S: u128 = 1_000_000_000;

/// Bounds times in ns and bytes a second, so that nothing overflows: 115 days, 10 PB/s.
const LIMIT: u64 = 10_000_000_000_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_due_by_rate() {
        let mut pace = Pace {
            rate: Some(Bytes(20_000_000)),
            ..Pace::default()
        };
        let due = |pace: &Pace, number| pace.due_ns(number, 4, 700, 100_000);
        assert_eq!(due(&pace, 0), 0);
        assert_eq!(due(&pace, 200), 1_000_000_000);
        // 70 MB at 20 to 50 MB/s take 2 s; after half of the time 27.5 MB are due.
        pace.rate_end = Some(Bytes(50_000_000));
        assert_eq!(due(&pace, 700), 2_000_000_000);
        assert!(due(&pace, 275).abs_diff(1_000_000_000) < 1000);
        // 0.2 s on, 1 s off.
        pace.on = Some(Duration(200_000_000));
        pace.off = Some(Duration(1_000_000_000));
        assert!(due(&pace, 275).abs_diff(6_000_000_000) < 1000);
        // And slower and slower.
        let falls = Pace {
            rate: Some(Bytes(50_000_000)),
            rate_end: Some(Bytes(20_000_000)),
            ..Pace::default()
        };
        assert_eq!(due(&falls, 700), 2_000_000_000);
        // In a ramp of 2 s as many are due, and then 50 MB/s.
        pace = Pace {
            ramp: Some(Duration(2_000_000_000)),
            rate: Some(Bytes(20_000_000)),
            rate_end: Some(Bytes(50_000_000)),
            ..Pace::default()
        };
        for (number, at) in [
            (275, 1_000_000_000),
            (700, 2_000_000_000),
            (1200, 3_000_000_000),
        ] {
            let due = pace.due_ns(number, 4, 5000, 100_000);
            assert!(due.abs_diff(at) < 5000, "{number}: {due}");
        }
        assert_eq!(pace.gap_ns(1000, 4, 5000, 100_000), 8_000_000);
    }
}

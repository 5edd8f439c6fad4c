//! Axes: where a value lies between the ends of an axis, and which round numbers are written
//! beside it.

use super::Scale;

/// An axis with its round numbers.
pub(super) struct Axis {
    scale: Scale,
    /// The ends: values on a linear axis, logarithms on the others.
    low: f64,
    high: f64,
    /// Its numbers, ascending.
    pub ticks: Vec<Tick>,
}

/// A number beside an axis.
pub(super) struct Tick {
    /// Where, as a share of the axis.
    pub share: f64,
    /// The number as text.
    pub label: String,
    /// Whether it is 0.
    pub zero: bool,
}

impl Axis {
    /// An axis that holds all values, which are finite, with about `ticks` numbers beside it. On a
    /// logarithmic axis the values are above 0.
    pub fn new(scale: Scale, values: impl Iterator<Item = f64>, ticks: u32) -> Axis {
        let ends = values.fold(None, |ends: Option<(f64, f64)>, value| {
            let (low, high) = ends.unwrap_or((value, value));
            Some((low.min(value), high.max(value)))
        });
        match scale {
            Scale::Linear => linear(ends.unwrap_or((0.0, 1.0)), ticks),
            Scale::Log2 => log_two(ends.unwrap_or((1.0, 2.0)), ticks),
        }
    }

    /// Where a value lies: 0 at the low end, 1 at the high end.
    pub fn share(&self, value: f64) -> f64 {
        let at = match self.scale {
            Scale::Linear => value,
            Scale::Log2 => log2(value),
        };
        // Halved, because the difference of two finite numbers need not be finite.
        (at / 2.0 - self.low / 2.0) / (self.high / 2.0 - self.low / 2.0)
    }

    fn tick(&mut self, value: f64, label: String) {
        self.ticks.push(Tick {
            share: self.share(value),
            label,
            zero: value == 0.0,
        });
    }
}

/// A step between round numbers: 1, 2 or 5 times a power of ten.
#[derive(Clone, Copy)]
struct Step {
    digit: f64,
    exponent: i32,
}

impl Step {
    /// The smallest one that is not below `least`, which is above 0.
    fn at_least(least: f64) -> Step {
        let exponent = decade(least);
        for digit in [1.0, 2.0, 5.0] {
            let step = Step { digit, exponent };
            if step.times(1.0) >= least {
                return step;
            }
        }
        Step {
            digit: 1.0,
            exponent: exponent + 1,
        }
    }

    /// This number of steps. Exact to the last digit, since it divides for steps below 1.
    fn times(self, count: f64) -> f64 {
        if self.exponent < 0 {
            count * self.digit / power_of_ten(-self.exponent)
        } else {
            count * self.digit * power_of_ten(self.exponent)
        }
    }
}

fn linear((low, high): (f64, f64), ticks: u32) -> Axis {
    // A value alone gets an axis from 0, and 0 alone one to 1.
    let (low, high) = if low < high {
        (low, high)
    } else if low == 0.0 {
        (0.0, 1.0)
    } else {
        (low.min(0.0), low.max(0.0))
    };
    let range = (high / f64::from(ticks)) - (low / f64::from(ticks));
    let step = Step::at_least(range.max(f64::MIN_POSITIVE));
    let (first, last) = (
        (low / step.times(1.0)).floor(),
        (high / step.times(1.0)).ceil(),
    );
    let mut axis = Axis {
        scale: Scale::Linear,
        low: step.times(first).max(f64::MIN),
        high: step.times(last).min(f64::MAX),
        ticks: Vec::new(),
    };
    let largest = low.abs().max(high.abs());
    for count in 0..=2 * ticks {
        let value = step.times(first + f64::from(count));
        if first + f64::from(count) > last || !value.is_finite() {
            break;
        }
        axis.tick(value, label(value, largest, step.exponent));
    }
    axis
}

fn log_two((low, high): (f64, f64), ticks: u32) -> Axis {
    let first = log2(low).floor() as i32;
    let last = (log2(high).ceil() as i32).max(first + 1);
    let mut axis = Axis {
        scale: Scale::Log2,
        low: f64::from(first),
        high: f64::from(last),
        ticks: Vec::new(),
    };
    let stride = (last - first).unsigned_abs().div_ceil(ticks).max(1);
    for exponent in (first..=last).step_by(stride as usize) {
        let value = power_of_two(exponent);
        if value.is_normal() {
            axis.tick(value, binary(value));
        }
    }
    axis
}

/// Prefixes of thousands, and the exponent of ten that each stands for.
const PREFIXES: [(i32, &str); 9] = [
    (15, " P"),
    (12, " T"),
    (9, " G"),
    (6, " M"),
    (3, " k"),
    (0, ""),
    (-3, " m"),
    (-6, " µ"),
    (-9, " n"),
];

/// A round number, a multiple of a power of ten, with the prefix that suits the largest one beside
/// the same axis. Numbers below ten thousand need none.
fn label(value: f64, largest: f64, exponent: i32) -> String {
    if value == 0.0 {
        return "0".to_owned();
    }
    if !(1e-9..1e18).contains(&largest) {
        return format!("{value:e}");
    }
    let (thousands, prefix) = if (1e-3..1e4).contains(&largest) {
        (0, "")
    } else {
        let fits = |(thousands, _): &&(i32, &str)| power_of_ten(*thousands) <= largest;
        let smallest = &PREFIXES[PREFIXES.len() - 1];
        *PREFIXES.iter().find(fits).unwrap_or(smallest)
    };
    let decimals = (thousands - exponent).max(0) as usize;
    let scaled = if thousands < 0 {
        value * power_of_ten(-thousands)
    } else {
        value / power_of_ten(thousands)
    };
    format!("{scaled:.decimals$}{prefix}").replace('-', "\u{2212}")
}

/// A measured value with three significant digits, for a label beside it.
pub(super) fn three_digits(value: f64) -> String {
    let size = value.abs();
    if size == 0.0 || !size.is_finite() {
        return "0".to_owned();
    }
    label(value, size, decade(size) - 2)
}

/// A power of two, with the binary prefix from 1024 on.
fn binary(value: f64) -> String {
    let mut scaled = value;
    for prefix in ["", " Ki", " Mi", " Gi", " Ti", " Pi"] {
        if scaled < 1024.0 {
            return format!("{scaled}{prefix}");
        }
        scaled /= 1024.0;
    }
    format!("{value:e}")
}

/// The exponent of the largest power of ten that is not above a positive value.
fn decade(value: f64) -> i32 {
    let mut exponent = 0;
    while exponent < 308 && power_of_ten(exponent + 1) <= value {
        exponent += 1;
    }
    while exponent > -300 && power_of_ten(exponent) > value {
        exponent -= 1;
    }
    exponent
}

fn power_of_ten(exponent: i32) -> f64 {
    let mut power = 1.0;
    for _ in 0..exponent.unsigned_abs() {
        power *= 10.0;
    }
    if exponent < 0 { 1.0 / power } else { power }
}

fn power_of_two(exponent: i32) -> f64 {
    let mut power = 1.0;
    for _ in 0..exponent.unsigned_abs() {
        power *= 2.0;
    }
    if exponent < 0 { 1.0 / power } else { power }
}

/// The binary logarithm of a positive finite number, bit by bit: squaring the mantissa doubles its
/// logarithm. The standard library's need not be the same on every machine. Powers of two are
/// exact, and others good to 1e-12.
fn log2(value: f64) -> f64 {
    assert!(value > 0.0 && value.is_finite(), "{value} has no logarithm");
    let (mut mantissa, mut whole) = (value, 0.0);
    while mantissa >= 2.0 {
        mantissa /= 2.0;
        whole += 1.0;
    }
    while mantissa < 1.0 {
        mantissa *= 2.0;
        whole -= 1.0;
    }
    let (mut fraction, mut bit) = (0.0, 0.5);
    for _ in 0..44 {
        mantissa *= mantissa;
        if mantissa >= 2.0 {
            mantissa /= 2.0;
            fraction += bit;
        }
        bit /= 2.0;
    }
    whole + fraction
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(scale: Scale, values: &[f64]) -> Vec<String> {
        let axis = Axis::new(scale, values.iter().copied(), 6);
        for tick in &axis.ticks {
            assert!((0.0..=1.0).contains(&tick.share), "{}", tick.label);
        }
        axis.ticks.into_iter().map(|tick| tick.label).collect()
    }

    #[test]
    fn numbers_beside_a_linear_axis_are_round() {
        let linear = |values: &[f64]| labels(Scale::Linear, values).join("|");
        assert_eq!(
            linear(&[0.0, 1.0]),
            "0.0|0.2|0.4|0.6|0.8|1.0".replace("0.0", "0")
        );
        assert_eq!(linear(&[2.0, 16.0]), "0|5|10|15|20");
        assert_eq!(
            linear(&[-42.0, 11.0]),
            "\u{2212}50|\u{2212}40|\u{2212}30|\u{2212}20|\u{2212}10|0|10|20"
        );
        assert_eq!(linear(&[0.0, 48_000_000.0]), "0|10 M|20 M|30 M|40 M|50 M");
        assert_eq!(
            linear(&[0.0, 0.000_3]),
            "0|50 µ|100 µ|150 µ|200 µ|250 µ|300 µ"
        );
        assert_eq!(linear(&[0.0, 9_000.0]), "0|2000|4000|6000|8000|10000");
        assert_eq!(linear(&[5.0]), "0|1|2|3|4|5");
        assert_eq!(linear(&[]), linear(&[0.0, 1.0]));
        assert_eq!(linear(&[0.0]), linear(&[0.0, 1.0]));
    }

    #[test]
    fn numbers_beside_a_logarithmic_axis_are_powers() {
        let two = |values: &[f64]| labels(Scale::Log2, values).join("|");
        assert_eq!(two(&[2.0, 64.0]), "2|4|8|16|32|64");
        assert_eq!(two(&[3.0]), "2|4");
        assert_eq!(two(&[0.25, 1.0]), "0.25|0.5|1");
        assert_eq!(
            two(&[32768.0, 67_108_864.0]),
            "32 Ki|128 Ki|512 Ki|2 Mi|8 Mi|32 Mi"
        );
    }

    #[test]
    fn extreme_values_have_an_axis() {
        for values in [
            [f64::MIN, f64::MAX],
            [f64::MIN_POSITIVE, f64::MAX],
            [1.0, 1.0 + f64::EPSILON],
            [1e-320, 2e-320],
        ] {
            for scale in [Scale::Linear, Scale::Log2] {
                let values: Vec<f64> = match scale {
                    Scale::Linear => values.to_vec(),
                    _ => values.iter().map(|value| value.abs()).collect(),
                };
                let axis = Axis::new(scale, values.iter().copied(), 6);
                assert!(axis.ticks.len() <= 13);
                for value in values {
                    assert!(axis.share(value).is_finite(), "{scale:?} {value:e}");
                }
            }
        }
    }

    #[test]
    fn logarithms_are_right() {
        for exponent in -300..300 {
            assert_eq!(log2(power_of_two(exponent)), f64::from(exponent));
        }
        for value in [0.1, 0.3, 1.5, 3.0, 7.0, 1e10, 123_456.7, 1e-7] {
            assert!((log2(value) - f64::log2(value)).abs() < 1e-11, "{value}");
        }
    }

    #[test]
    fn measured_values_get_three_digits() {
        let labels = [
            (0.0, "0"),
            (1.0, "1.00"),
            (44.62, "44.6"),
            (-29.84, "\u{2212}29.8"),
            (812.4, "812"),
            (99.96, "100.0"),
            (0.012_34, "0.0123"),
            (12_345.0, "12.3 k"),
            (49_500_000.0, "49.5 M"),
        ];
        for (value, label) in labels {
            assert_eq!(three_digits(value), label);
        }
    }
}

//! Fits a cost model to measured times: a base and a price of a MiB for each kind of access.

use super::Measured;
use tidegate_sched::{AccessCost, CostModel, Direction};

/// The kinds of accesses that have costs of their own.
pub(super) const KINDS: [(Direction, bool); 4] = [
    (Direction::Read, false),
    (Direction::Read, true),
    (Direction::Write, false),
    (Direction::Write, true),
];

/// The largest time that a cost model accepts, in ns: an hour.
const NS_MAX: f64 = 3.6e12;

/// A cost model, and how well it fits.
#[derive(Clone, Debug)]
pub struct Fitted {
    /// The cost model.
    pub model: CostModel,
    /// For each kind of access, how far the model is from the measured times.
    pub fits: [Fit; 4],
}

/// How far the costs of one kind of access are from the measured times.
#[derive(Clone, Copy, Debug)]
pub struct Fit {
    /// Whether the accesses read or write.
    pub direction: Direction,
    /// Whether each access begins where the last one ended.
    pub sequential: bool,
    /// The mean deviation over the lengths, in percent of the measured times.
    pub error_percent: f64,
}

impl Measured {
    /// The model that fits best: it has the least sum of squared relative errors.
    pub fn fit(&self) -> Fitted {
        let mut model = CostModel::default();
        let fits = KINDS.map(|(direction, sequential)| {
            let points: Vec<(u64, u64)> = self
                .points
                .iter()
                .filter(|point| point.access.by == self.by())
                .filter(|point| point.access.direction == direction)
                .filter(|point| point.access.sequential == sequential)
                .map(|point| (point.access.len, point.ns.max(1)))
                .collect();
            let cost = line(&points);
            *model.access_mut(direction, sequential) = cost;
            let error = |&(len, ns): &(u64, u64)| cost.ns(len).abs_diff(ns) as f64 / ns as f64;
            let errors: f64 = points.iter().map(error).sum();
            Fit {
                direction,
                sequential,
                error_percent: 100.0 * errors / points.len().max(1) as f64,
            }
        });
        Fitted { model, fits }
    }
}

/// The base and the price, neither negative, that fit best to points of bytes and nanoseconds.
fn line(points: &[(u64, u64)]) -> AccessCost {
    // With u = 1 / ns and v = MiB / ns, the least sum of squares of base u + price v - 1.
    let (mut uu, mut uv, mut vv, mut u1, mut v1) = (0.0, 0.0, 0.0, 0.0, 0.0);
    for &(len, ns) in points {
        let u = 1.0 / ns as f64;
        let v = len as f64 / (1 << 20) as f64 * u;
        (uu, uv, vv) = (uu + u * u, uv + u * v, vv + v * v);
        (u1, v1) = (u1 + u, v1 + v);
    }
    let determinant = uu * vv - uv * uv;
    let (mut base, mut price) = (
        (u1 * vv - v1 * uv) / determinant,
        (uu * v1 - uv * u1) / determinant,
    );
    // One length alone says nothing about the price; it counts as base.
    if points.len() < 2 || !price.is_finite() || price < 0.0 {
        (base, price) = (u1 / uu, 0.0);
    } else if base < 0.0 {
        (base, price) = (0.0, v1 / vv);
    }
    let whole = |ns: f64| ns.clamp(0.0, NS_MAX).round() as u64;
    AccessCost {
        base_ns: whole(base),
        ns_per_mib: whole(price),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LENGTHS: [u64; 4] = [4096, 65_536, 1 << 20, 16 << 20];

    #[test]
    fn points_on_a_line_are_found() {
        let truth = AccessCost {
            base_ns: 80_000,
            ns_per_mib: 400_000,
        };
        let cost = line(&LENGTHS.map(|len| (len, truth.ns(len))));
        assert!(cost.base_ns.abs_diff(truth.base_ns) < 10, "{cost:?}");
        assert!(cost.ns_per_mib.abs_diff(truth.ns_per_mib) < 10, "{cost:?}");
    }

    #[test]
    fn neither_number_is_negative() {
        // Faster for long ones, and more than twice as slow for twice the length.
        let shrinks = line(&[(4096, 9000), (65_536, 5000), (1 << 20, 4000)]);
        assert!(shrinks.ns_per_mib == 0 && (4000..=9000).contains(&shrinks.base_ns));
        let grows = line(&[(1 << 20, 1000), (2 << 20, 4000), (4 << 20, 20_000)]);
        assert!(grows.base_ns == 0 && grows.ns_per_mib > 0, "{grows:?}");
        let one = line(&[(4096, 7000)]);
        assert_eq!((one.base_ns, one.ns_per_mib), (7000, 0));
    }

    #[test]
    fn one_far_off_point_moves_small_ones_little() {
        let truth = AccessCost {
            base_ns: 100_000,
            ns_per_mib: 1_000_000,
        };
        let mut points = LENGTHS.map(|len| (len, truth.ns(len)));
        points[3].1 *= 2;
        let ns = line(&points).ns(4096);
        assert!(ns.abs_diff(truth.ns(4096)) < 20_000, "{ns}");
    }
}

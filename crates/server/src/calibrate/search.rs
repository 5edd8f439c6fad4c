//! Finds numbers at which a cost is small: by steps of one number at a time, and by going on in a
//! direction that helped (Hooke and Jeeves, 1961).

/// Searches from `start`, whose numbers are above 0, and never leaves `ranges`. Steps are factors:
/// in logarithms they begin as large as `steps.0`, and end as small as `steps.1`.
pub(super) fn search<const N: usize>(
    start: [f64; N],
    ranges: [(f64, f64); N],
    steps: (f64, f64),
    cost: &mut dyn FnMut(&[f64; N]) -> f64,
) -> ([f64; N], f64) {
    let within = |mut at: [f64; N]| {
        for (number, (min, max)) in at.iter_mut().zip(ranges) {
            *number = number.clamp(min, max);
        }
        at
    };
    let mut best = within(start);
    let mut least = cost(&best);
    let mut step = steps.0;
    while step >= steps.1 {
        let (mut at, mut here) = explore(best, least, step, &within, cost);
        if here >= least {
            step /= 2.0;
            continue;
        }
        // What helped once may help again.
        while here < least {
            let mut further = at;
            for (number, before) in further.iter_mut().zip(best) {
                *number *= *number / before;
            }
            (best, least) = (at, here);
            let further = within(further);
            let there = cost(&further);
            (at, here) = explore(further, there, step, &within, cost);
        }
    }
    (best, least)
}

/// Tries a step up and a step down of each number, and keeps what helps.
fn explore<const N: usize>(
    mut at: [f64; N],
    mut here: f64,
    step: f64,
    within: &dyn Fn([f64; N]) -> [f64; N],
    cost: &mut dyn FnMut(&[f64; N]) -> f64,
) -> ([f64; N], f64) {
    for number in 0..N {
        for factor in [step.exp(), (-step).exp()] {
            let mut tried = at;
            tried[number] *= factor;
            let tried = within(tried);
            let there = cost(&tried);
            if there < here {
                (at, here) = (tried, there);
                break;
            }
        }
    }
    (at, here)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_narrow_valley_is_followed_to_its_end() {
        let mut cost = |[a, b]: &[f64; 2]| {
            let (product, ratio) = ((a * b / 12.0).ln(), (a / b / 3.0).ln());
            8.0 * product * product + ratio * ratio
        };
        let (at, _) = search([0.1, 50.0], [(0.01, 100.0); 2], (0.7, 0.01), &mut cost);
        assert!((at[0] - 6.0).abs() < 0.2, "{at:?}");
        assert!((at[1] - 2.0).abs() < 0.1, "{at:?}");
    }

    #[test]
    fn ranges_are_kept() {
        let mut cost = |[a]: &[f64; 1]| -a;
        assert_eq!(search([1.0], [(0.5, 7.0)], (0.7, 0.01), &mut cost).0, [7.0]);
    }
}

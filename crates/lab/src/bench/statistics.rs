//! The few statistics that benchmarks report.

/// The median; for an even number of values, the mean of the two middle ones. There must be a
/// value.
pub fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut sorted: Vec<f64> = values.into_iter().collect();
    assert!(!sorted.is_empty(), "nothing was measured");
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() % 2 {
        0 => f64::midpoint(sorted[middle - 1], sorted[middle]),
        _ => sorted[middle],
    }
}

/// The arithmetic mean. There must be a value.
pub fn mean(values: impl IntoIterator<Item = f64>) -> f64 {
    let (mut sum, mut count) = (0.0, 0u32);
    for value in values {
        sum += value;
        count += 1;
    }
    assert!(count > 0, "nothing was measured");
    sum / f64::from(count)
}

/// The largest value over the smallest.
pub fn spread(values: &[f64]) -> f64 {
    largest(values) / smallest(values)
}

/// The largest value. There must be one.
pub fn largest(values: &[f64]) -> f64 {
    values
        .iter()
        .copied()
        .max_by(f64::total_cmp)
        .expect("nothing was measured")
}

/// The smallest value. There must be one.
pub fn smallest(values: &[f64]) -> f64 {
    values
        .iter()
        .copied()
        .min_by(f64::total_cmp)
        .expect("nothing was measured")
}

/// How much `value` is above `base`, in percent.
pub fn change_percent(value: f64, base: f64) -> f64 {
    (value / base - 1.0) * 100.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_does_not_care_about_order_or_outliers() {
        assert_eq!(median([3.0, 1.0, 1000.0]), 3.0);
        assert_eq!(median([4.0, 1.0, 2.0, 3.0]), 2.5);
        assert_eq!(median([7.0]), 7.0);
    }

    #[test]
    fn means_spreads_and_changes() {
        assert_eq!(mean([1.0, 2.0, 6.0]), 3.0);
        assert_eq!(spread(&[4.0, 2.0, 3.0]), 2.0);
        assert_eq!(spread(&[5.0]), 1.0);
        assert!((change_percent(70.0, 100.0) + 30.0).abs() < 1e-9);
        assert!((change_percent(103.0, 100.0) - 3.0).abs() < 1e-9);
    }

    #[test]
    #[should_panic(expected = "nothing was measured")]
    fn nothing_has_no_median() {
        median([]);
    }
}

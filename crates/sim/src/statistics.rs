//! How far a mean over seeds can be trusted.

/// The 97.5 % points of Student's distribution, by degrees of freedom from 1 on.
const STUDENT: [f64; 30] = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160,
    2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056,
    2.052, 2.048, 2.045, 2.042,
];

/// Half of the 95 % interval around the mean of independent values, by Student's distribution;
/// None for fewer than two values, or where one is not a number.
pub(crate) fn interval_95(values: &[f64]) -> Option<f64> {
    let freedom = values.len().checked_sub(1).filter(|freedom| *freedom > 0)?;
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let squares = values.iter().map(|value| (value - mean) * (value - mean));
    let deviation = (squares.sum::<f64>() / freedom as f64).sqrt();
    let point = match STUDENT.get(freedom - 1) {
        Some(point) => *point,
        // Right to a hundredth from here on.
        None => 1.96 + 2.4 / freedom as f64,
    };
    Some(point * deviation / count.sqrt()).filter(|half| half.is_finite())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interval_needs_two_values_and_shrinks_with_more() {
        assert_eq!(interval_95(&[1.0]), None);
        assert_eq!(interval_95(&[1.0, f64::NAN]), None);
        // Mean 2, deviation 1.414: 12.706 * 1.414 / 1.414.
        let two = interval_95(&[1.0, 3.0]).expect("two values");
        assert!((two - 12.706).abs() < 1e-9, "{two}");
        let many: Vec<f64> = (0..101).map(|i| f64::from(i % 2)).collect();
        let half = interval_95(&many).expect("many values");
        assert!((half - 1.984 * 0.5025 / 10.05).abs() < 1e-3, "{half}");
    }
}

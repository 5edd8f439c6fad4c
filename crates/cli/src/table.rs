//! Lays text out in columns, the first aligned to the left and the others to the right.

use crate::plain;

/// A table of text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Table {
    /// The line above the table; may be empty.
    pub caption: String,
    /// The heads of its columns.
    pub columns: Vec<String>,
    /// Its rows. Cells beyond the columns are left out, missing ones are empty.
    pub rows: Vec<Vec<String>>,
}

impl Table {
    /// The table below its caption.
    pub fn text(&self) -> String {
        let heading: Vec<&str> = self.columns.iter().map(String::as_str).collect();
        let rows = lay_out(&heading, &self.rows);
        match self.caption.as_str() {
            "" => rows,
            caption => format!("{caption}\n{rows}"),
        }
    }
}

/// Cells that are wider move the rest of their own line alone: of a name of 255 bytes, all lines
/// would be too long for a terminal.
const WIDTH_MAX: usize = 48;

/// Lays rows out under a heading.
pub fn lay_out(heading: &[&str], rows: &[Vec<String>]) -> String {
    // Others choose names in cells; a cell is no more than a part of its line.
    let plain = |row: &Vec<String>| row.iter().map(|cell| plain::line(cell)).collect();
    let rows: Vec<Vec<String>> = rows.iter().map(plain).collect();
    let mut widths: Vec<usize> = heading.iter().map(|title| title.len()).collect();
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            let needed = cell.chars().count();
            if needed <= WIDTH_MAX {
                *width = (*width).max(needed);
            }
        }
    }
    let heading = heading.iter().map(|title| title.to_string()).collect();
    let mut text = String::new();
    for row in std::iter::once(&heading).chain(&rows) {
        let mut line = String::new();
        for (at, (cell, width)) in row.iter().zip(&widths).enumerate() {
            let cell = match at {
                0 => format!("{cell:<width$}"),
                _ => format!("  {cell:>width$}"),
            };
            line.push_str(&cell);
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// A number of bytes in few characters: `12`, `3.4K`, `120M`.
pub fn bytes(count: u64) -> String {
    let units = ["", "K", "M", "G", "T", "P", "E"];
    let (mut value, mut unit) = (count as f64, 0);
    while value >= 1024.0 {
        value /= 1024.0;
        unit += 1;
    }
    match unit {
        0 => count.to_string(),
        _ if value < 10.0 => format!("{value:.1}{}", units[unit]),
        _ => format!("{value:.0}{}", units[unit]),
    }
}

/// A number of milliseconds in few characters.
pub fn ms(count: u64) -> String {
    time(count.saturating_mul(1_000_000))
}

/// A time in few characters: `0`, `12us`, `3.4ms`, `120s`.
pub fn time(ns: u64) -> String {
    let (value, unit) = match ns {
        0 => return "0".to_string(),
        1..1_000 => return format!("{ns}ns"),
        1_000..1_000_000 => (ns as f64 / 1e3, "us"),
        1_000_000..1_000_000_000 => (ns as f64 / 1e6, "ms"),
        _ => (ns as f64 / 1e9, "s"),
    };
    match value < 10.0 {
        true => format!("{value:.1}{unit}"),
        false => format!("{value:.0}{unit}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let rows = vec![
            vec!["a".to_string(), "1".to_string()],
            vec!["bcd".into(), "234".into()],
        ];
        assert_eq!(
            lay_out(&["who", "n"], &rows),
            "who    n\na      1\nbcd  234\n"
        );
    }

    #[test]
    fn a_long_name_moves_its_own_line_alone() {
        let long = "x".repeat(WIDTH_MAX + 1);
        let row = |name: &str| vec![name.to_string(), "1".to_string()];
        let text = lay_out(&["who", "n"], &[row("ab"), row(&long)]);
        assert_eq!(text, format!("who  n\nab   1\n{long}  1\n"));
    }

    #[test]
    fn times_are_short() {
        let cases = [
            0,
            900,
            1_500,
            34_000,
            9_940_000,
            250_000_000,
            3_600_000_000_000,
        ];
        let short: Vec<_> = cases.into_iter().map(time).collect();
        assert_eq!(
            short,
            ["0", "900ns", "1.5us", "34us", "9.9ms", "250ms", "3600s"]
        );
    }

    #[test]
    fn bytes_are_short() {
        assert_eq!(bytes(0), "0");
        assert_eq!(bytes(1023), "1023");
        assert_eq!(bytes(1536), "1.5K");
        assert_eq!(bytes(200 << 20), "200M");
    }
}

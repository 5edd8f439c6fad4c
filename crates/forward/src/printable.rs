//! Names that peers choose, as log lines show them.

use alloc::string::String;
use core::fmt::{self, Write};
use tidegate_wire::is_plain;

/// Characters that are shown of a name.
const SHOWN_MAX: usize = 128;

/// A name from a peer, shown without control characters and not longer than a line bears. So no
/// peer writes a line of its own.
pub struct Printable<'a>(pub &'a [u8]);

impl fmt::Display for Printable<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = String::from_utf8_lossy(self.0);
        let mut chars = text.chars();
        for c in chars.by_ref().take(SHOWN_MAX) {
            match is_plain(c) {
                true => f.write_char(c)?,
                false => write!(f, "{}", c.escape_unicode())?,
            }
        }
        match chars.next() {
            Some(_) => f.write_str("..."),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::ToString;

    #[test]
    fn a_name_is_one_short_line() {
        let shown = Printable(b"node:1\n2026 WARN forged\r\x1b[2J\xff").to_string();
        assert_eq!(
            shown,
            "node:1\\u{a}2026 WARN forged\\u{d}\\u{1b}[2J\u{fffd}"
        );
        for order in ["61c", "200e", "200f", "2028", "202e", "2066", "2069"] {
            let code = u32::from_str_radix(order, 16).expect("a number");
            let text = std::format!("{}x", char::from_u32(code).expect("a character"));
            let shown = Printable(text.as_bytes()).to_string();
            assert_eq!(shown, std::format!("\\u{{{order}}}x"));
        }
        assert_eq!(Printable(&[b'n'; 1000]).to_string().len(), SHOWN_MAX + 3);
    }
}

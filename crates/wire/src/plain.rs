//! Which characters of names that peers choose a terminal shows.

/// Whether a terminal shows this character, and does not obey it.
pub fn is_plain(c: char) -> bool {
    !c.is_control() && !orders(c)
}

/// Separators of lines, and what changes the direction of the text: no control characters for Rust.
fn orders(c: char) -> bool {
    matches!(
        c,
        '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}'
    ) || matches!(c, '\u{2066}'..='\u{2069}')
}

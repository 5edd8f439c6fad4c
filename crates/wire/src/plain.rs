//! Which characters of names that peers choose a terminal shows.

/// Whether a terminal shows this character, and does not obey it.
pub fn is_plain(c: char) -> bool {
    // Separators of lines and orders of writing are no control characters for Rust.
    !c.is_control() && !matches!(c, '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

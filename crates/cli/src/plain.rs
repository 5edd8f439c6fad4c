//! Text in which others have chosen words, as a terminal shows it: nobody but this program moves
//! the cursor, turns the order of writing, or begins a line.

use tidegate_server::is_plain;

/// The text with its line ends and tabulators. Other characters that a terminal obeys are written
/// as JSON writes them, and TOML in strings between `"`, so that such texts stay what they are. (In
/// a string of TOML between `'`, or in a comment, they become the letters of that spelling.)
pub fn page(text: &str) -> String {
    shown(text, |c| matches!(c, '\n' | '\t'))
}

/// The text as one line, with all these characters written so.
pub fn line(text: &str) -> String {
    shown(text, |_| false)
}

fn shown(text: &str, keep: impl Fn(char) -> bool) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        match is_plain(c) || keep(c) {
            true => shown.push(c),
            false => shown.push_str(&format!("\\u{:04x}", u32::from(c))),
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_obeys_is_spelled() {
        let text = "é\u{1b}[2J\n\u{9b}1A\r\u{202e}x\u{2028}";
        assert_eq!(page(text), "é\\u001b[2J\n\\u009b1A\\u000d\\u202ex\\u2028");
        assert_eq!(line("a\nb\t"), "a\\u000ab\\u0009");
    }

    #[test]
    fn programs_read_what_was_said() {
        let said = serde_json::json!({ "name": "\u{202e}\u{9b}\u{1b}\\\u{2066}\n\"" });
        let shown = page(&said.to_string());
        assert!(shown.chars().all(is_plain), "{shown}");
        let read: serde_json::Value = serde_json::from_str(&shown).expect("it is JSON");
        assert_eq!(read, said);
    }
}

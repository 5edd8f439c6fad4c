//! Pieces of SVG as text: escaped words, numbers of a fixed form, the width of words.

/// How text lies to its place.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Anchor {
    Start,
    Middle,
    End,
}

/// Text as it stands in SVG and HTML. Characters that XML does not know are left out.
pub fn escape(words: &str) -> String {
    let mut out = String::with_capacity(words.len());
    for c in words.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            '\t' | '\n' => out.push(' '),
            '\u{fffe}' | '\u{ffff}' => {}
            c if c.is_control() => {}
            c => out.push(c),
        }
    }
    out
}

/// A coordinate, with at most one decimal.
pub(super) fn number(value: f64) -> String {
    let text = format!("{value:.1}");
    let text = text.strip_suffix(".0").unwrap_or(&text);
    if text == "-0" { "0" } else { text }.to_owned()
}

/// A `text` element.
pub(super) fn text(class: &str, x: f64, y: f64, anchor: Anchor, words: &str) -> String {
    if words.is_empty() {
        return String::new();
    }
    let anchor = match anchor {
        Anchor::Start => "",
        Anchor::Middle => " text-anchor=\"middle\"",
        Anchor::End => " text-anchor=\"end\"",
    };
    format!(
        "<text class=\"{class}\" x=\"{}\" y=\"{}\"{anchor}>{}</text>\n",
        number(x),
        number(y),
        escape(words)
    )
}

/// About how wide text is in a sans-serif font of this size; nothing here knows the reader's font.
pub(super) fn text_width(words: &str, size: f64) -> f64 {
    let width = |c: char| match c {
        'i' | 'j' | 'l' | 't' | 'f' | 'r' | '.' | ',' | ':' | ';' | '|' | '\'' | ' ' | '/'
        | '(' | ')' | '[' | ']' | 'I' => 0.36,
        'm' | 'w' | 'M' | 'W' | '%' | '@' => 0.92,
        c if c.is_ascii_uppercase() => 0.7,
        c if c.is_ascii() => 0.6,
        '\u{2212}' => 0.7,
        // Other scripts can be as wide as high.
        _ => 1.0,
    };
    words.chars().map(width).sum::<f64>() * size
}

/// Lines that are not wider than this, broken between words; a word alone may be.
pub(super) fn wrap(words: &str, size: f64, width: f64) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in words.split_whitespace() {
        match lines.last_mut() {
            Some(line) if text_width(&format!("{line} {word}"), size) <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

/// The words, or as many of their letters as fit with an ellipsis.
pub(super) fn shorten(words: &str, size: f64, width: f64) -> String {
    let mut kept: Vec<char> = words.chars().collect();
    if text_width(words, size) <= width {
        return words.to_owned();
    }
    loop {
        let short: String = kept.iter().chain(&['\u{2026}']).collect();
        if text_width(&short, size) <= width || kept.pop().is_none() {
            return short;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_words_have_one_form() {
        let numbers = [(1.0, "1"), (-0.04, "0"), (0.25, "0.2"), (99.96, "100")];
        for (value, text) in numbers {
            assert_eq!(number(value), text);
        }
        assert_eq!(escape("a<b>&\"'\u{1}\n"), "a&lt;b&gt;&amp;&quot;&#39; ");
        assert_eq!(text("c", 0.0, 0.0, Anchor::Start, ""), "");
    }

    #[test]
    fn lines_break_between_words() {
        assert_eq!(wrap("", 10.0, 100.0), Vec::<String>::new());
        assert_eq!(wrap("aa bb  cc", 10.0, 32.0), ["aa bb", "cc"]);
        assert_eq!(shorten("abc", 10.0, 18.0), "abc");
        assert_eq!(shorten("abcdef", 10.0, 24.0), "ab\u{2026}");
        assert_eq!(shorten("abc", 10.0, 0.0), "\u{2026}");
        assert_eq!(wrap("averylongword b", 10.0, 20.0), ["averylongword", "b"]);
    }
}

//! Reads the syntax of libconfig, as far as configuration files of AGIOS use it: groups, numbers,
//! booleans, strings, comments. Arrays and lists are read over. Every error has file and line.

use std::collections::BTreeMap;
use std::fmt;

/// How deep groups, lists and arrays may lie in each other.
const DEPTH_MAX: u32 = 32;

/// A value, and the line on which it stands.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Setting {
    pub(super) line: u32,
    pub(super) value: Value,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Value {
    Integer(i64),
    Float(f64),
    Bool(bool),
    Text(String),
    /// An array or a list, which AGIOS has none of.
    Other,
}

/// What is wrong, and on which line.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct SyntaxError {
    pub(super) line: u32,
    pub(super) text: String,
}

impl fmt::Display for SyntaxError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.line, self.text)
    }
}

/// All settings of a text by path, such as `library_options.trace`.
pub(super) fn parse(text: &str) -> Result<BTreeMap<String, Setting>, SyntaxError> {
    let mut parser = Parser {
        rest: text,
        line: 1,
        settings: BTreeMap::new(),
    };
    parser.settings("", None, 0)?;
    Ok(parser.settings)
}

struct Parser<'a> {
    rest: &'a str,
    line: u32,
    settings: BTreeMap<String, Setting>,
}

impl<'a> Parser<'a> {
    fn error<T>(&self, text: impl Into<String>) -> Result<T, SyntaxError> {
        Err(SyntaxError {
            line: self.line,
            text: text.into(),
        })
    }

    fn peek(&self) -> Option<char> {
        self.rest.chars().next()
    }

    /// Goes over `count` bytes.
    fn skip(&mut self, count: usize) -> &'a str {
        let (skipped, rest) = self.rest.split_at(count);
        self.line += skipped.matches('\n').count() as u32;
        self.rest = rest;
        skipped
    }

    fn take(&mut self, expected: char) -> bool {
        let found = self.peek() == Some(expected);
        if found {
            self.skip(expected.len_utf8());
        }
        found
    }

    /// Goes over white space and comments.
    fn space(&mut self) -> Result<(), SyntaxError> {
        loop {
            let blank = self.rest.len() - self.rest.trim_start().len();
            self.skip(blank);
            if self.rest.starts_with('#') || self.rest.starts_with("//") {
                self.skip(self.rest.find('\n').unwrap_or(self.rest.len()));
            } else if self.rest.starts_with("/*") {
                let Some(end) = self.rest.find("*/") else {
                    return self.error("a comment that begins with /* does not end");
                };
                self.skip(end + 2);
            } else {
                return Ok(());
            }
        }
    }

    /// The word at this place, which may be empty.
    fn word(&mut self, belongs: impl Fn(char) -> bool) -> &'a str {
        let end = self.rest.find(|c| !belongs(c)).unwrap_or(self.rest.len());
        self.skip(end)
    }

    /// Settings up to `end`, or to the end of the text.
    fn settings(&mut self, path: &str, end: Option<char>, depth: u32) -> Result<(), SyntaxError> {
        let began = self.line;
        loop {
            self.space()?;
            match (self.peek(), end) {
                (None, None) => return Ok(()),
                (None, Some(end)) => {
                    return self.error(format!("the group of line {began} has no \"{end}\""));
                }
                (Some(found), Some(end)) if found == end => {
                    self.skip(1);
                    return Ok(());
                }
                (Some('@'), _) => return self.error("@include is not supported"),
                _ => self.setting(path, depth)?,
            }
        }
    }

    fn setting(&mut self, path: &str, depth: u32) -> Result<(), SyntaxError> {
        let name = self.word(|c| c.is_ascii_alphanumeric() || "-_*".contains(c));
        if !name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '*') {
            let found = self.peek().map_or(String::new(), |c| c.to_string());
            return self.error(format!("expected a name, found \"{name}{found}\""));
        }
        let path = match path {
            "" => name.to_string(),
            path => format!("{path}.{name}"),
        };
        let line = self.line;
        self.space()?;
        if !self.take('=') && !self.take(':') {
            return self.error(format!("\"=\" or \":\" is missing after {name}"));
        }
        self.space()?;
        if self.take('{') {
            self.check_depth(depth)?;
            self.settings(&path, Some('}'), depth + 1)?;
        } else {
            let value = self.value(depth)?;
            let setting = Setting { line, value };
            if let Some(earlier) = self.settings.insert(path.clone(), setting) {
                self.line = line;
                return self.error(format!("{path} is set in line {} already", earlier.line));
            }
        }
        self.space()?;
        // Either ends a setting; so does nothing at all.
        let _ = self.take(';') || self.take(',');
        Ok(())
    }

    fn check_depth(&self, depth: u32) -> Result<(), SyntaxError> {
        if depth < DEPTH_MAX {
            return Ok(());
        }
        self.error(format!("more than {DEPTH_MAX} groups in each other"))
    }

    fn value(&mut self, depth: u32) -> Result<Value, SyntaxError> {
        match self.peek() {
            Some('"') => self.text(),
            Some('[') => self.elements(']', depth),
            Some('(') => self.elements(')', depth),
            Some(c) if c.is_ascii_alphanumeric() || "+-.".contains(c) => self.scalar(),
            Some(c) => self.error(format!("expected a value, found \"{c}\"")),
            None => self.error("expected a value, found the end of the file"),
        }
    }

    /// Reads over an array or a list.
    fn elements(&mut self, end: char, depth: u32) -> Result<Value, SyntaxError> {
        self.check_depth(depth)?;
        let began = self.line;
        self.skip(1);
        loop {
            self.space()?;
            if self.take(end) {
                return Ok(Value::Other);
            }
            if self.take('{') {
                // A group in a list has no name, so its settings cannot be asked for.
                let kept = std::mem::take(&mut self.settings);
                self.settings("", Some('}'), depth + 1)?;
                self.settings = kept;
            } else if self.peek().is_none() {
                return self.error(format!("the list of line {began} has no \"{end}\""));
            } else {
                self.value(depth + 1)?;
            }
            self.space()?;
            if !self.take(',') && self.peek() != Some(end) {
                return self.error(format!("expected \",\" or \"{end}\""));
            }
        }
    }

    fn scalar(&mut self) -> Result<Value, SyntaxError> {
        let word = self.word(|c| c.is_ascii_alphanumeric() || "+-.".contains(c));
        match word.to_ascii_lowercase().as_str() {
            "true" => return Ok(Value::Bool(true)),
            "false" => return Ok(Value::Bool(false)),
            _ => {}
        }
        let digits = word.strip_suffix('L').unwrap_or(word);
        let digits = digits.strip_suffix('L').unwrap_or(digits);
        let prefixed = |marks: [&str; 2], radix| {
            let digits = marks.iter().find_map(|mark| digits.strip_prefix(mark))?;
            u64::from_str_radix(digits, radix)
                .ok()
                .map(|number| number as i64)
        };
        let integer = prefixed(["0x", "0X"], 16)
            .or_else(|| prefixed(["0b", "0B"], 2))
            .or_else(|| digits.parse().ok());
        if let Some(integer) = integer {
            return Ok(Value::Integer(integer));
        }
        let is_float = word.contains(|c: char| ".eE".contains(c))
            && word.starts_with(|c: char| c.is_ascii_digit() || "+-.".contains(c));
        match word.parse() {
            Ok(float) if is_float => Ok(Value::Float(float)),
            _ => self.error(format!(
                "\"{word}\" is not a number, true or false; words stand in double quotes"
            )),
        }
    }

    /// A string; strings beside each other are one.
    fn text(&mut self) -> Result<Value, SyntaxError> {
        let mut text = String::new();
        while self.take('"') {
            let began = self.line;
            loop {
                let Some(c) = self.peek() else {
                    self.line = began;
                    return self.error("a string does not end");
                };
                self.skip(c.len_utf8());
                match c {
                    '"' => break,
                    '\\' => text.push(self.escaped()?),
                    c => text.push(c),
                }
            }
            self.space()?;
        }
        Ok(Value::Text(text))
    }

    fn escaped(&mut self) -> Result<char, SyntaxError> {
        let Some(c) = self.peek() else {
            return self.error("a string does not end");
        };
        self.skip(c.len_utf8());
        Ok(match c {
            'n' => '\n',
            't' => '\t',
            'r' => '\r',
            'f' => '\u{c}',
            '"' | '\\' => c,
            'x' => {
                let digits = self.rest.get(..2).unwrap_or_default();
                let Ok(code) = u8::from_str_radix(digits, 16) else {
                    return self.error("\\x needs two hexadecimal digits");
                };
                self.skip(2);
                char::from(code)
            }
            c => return self.error(format!("\\{c} is not known in a string")),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_files_of_agios_look_like() {
        let text = "# comment\nlibrary_options:\n{\n\ttrace = false ;\n\n  // no semicolon\n\
            prefix = \"/tmp/a \\\"b\\\"\" \"c\"\n quantum = 0x10 rate: 1.5, big = 5000000000L;\n\
            list = ( 1, \"two\", { three = 3; }, [4, 5] ) /* all\n of it */ last = TRUE; };\n";
        let settings = parse(text).unwrap();
        let value = |name: &str| &settings[&format!("library_options.{name}")];
        assert_eq!(value("trace").value, Value::Bool(false));
        assert_eq!(value("prefix").value, Value::Text("/tmp/a \"b\"c".into()));
        assert_eq!(value("quantum").value, Value::Integer(16));
        assert_eq!(value("rate").value, Value::Float(1.5));
        assert_eq!(value("big").value, Value::Integer(5_000_000_000));
        assert_eq!(value("list").value, Value::Other);
        assert_eq!(
            (value("last").value.clone(), value("last").line),
            (Value::Bool(true), 10)
        );
        assert_eq!(settings.len(), 7);
    }

    #[test]
    fn errors_have_a_line() {
        let wrong = [
            ("a = 1;\nb 2;", 2, "missing after b"),
            ("a = {\n b = 1;\n", 3, "group of line 1"),
            ("a = \"x\n", 1, "does not end"),
            ("a = yes;", 1, "double quotes"),
            ("a = 1;\n\na = 2;", 3, "line 1 already"),
            ("/* a", 1, "does not end"),
            ("a = ;", 1, "expected a value"),
            ("a = ( 1 2 );", 1, "expected \",\""),
            ("a = \"\\q\";", 1, "not known"),
            ("@include \"b\"", 1, "not supported"),
            ("= 3", 1, "expected a name"),
            ("a = [", 1, "list of line 1"),
            ("}", 1, "expected a name"),
        ];
        for (text, line, words) in wrong {
            let error = parse(text).unwrap_err();
            assert_eq!(error.line, line, "{text:?}: {error}");
            assert!(error.text.contains(words), "{text:?}: {error}");
        }
        assert!(parse(&"a={".repeat(100_000)).is_err());
        assert!(parse(&format!("a={}", "(".repeat(100_000))).is_err());
    }

    #[test]
    fn no_text_crashes_it() {
        let pieces = [
            "a", "=", "{", "}", "(", ")", "[", "\"", "\\", ";", "\n", "1", "0x", "é", "/*", "@",
        ];
        let mut state = 7u64;
        for _ in 0..20_000 {
            let mut text = String::new();
            for _ in 0..12 {
                state = tidegate_sched::mix64(state.wrapping_add(0x9e37_79b9_7f4a_7c15));
                text.push_str(pieces[(state % pieces.len() as u64) as usize]);
            }
            let _ = parse(&text);
        }
    }
}

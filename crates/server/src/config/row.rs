//! A row of the table of keys before its name and help are known: default, range, unit and flag.

/// What a value is in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A whole number, or text with a unit of bytes.
    Number,
    /// True or false.
    Bool,
    /// Text.
    Text,
    /// A list of texts; one text counts as a list of one.
    List,
}

/// A command that has flags for keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// `tidegate serve`.
    Serve,
    /// `tidegate up`.
    Up,
}

/// A row before its name and help are known.
pub(super) struct Row<T> {
    pub(super) default: Result<T, &'static str>,
    pub(super) default_words: Option<&'static str>,
    pub(super) range: (u64, u64),
    pub(super) unit: &'static str,
    pub(super) flag: &'static str,
    pub(super) commands: &'static [Command],
}

/// A key with a default.
pub(super) fn or<T>(default: T) -> Row<T> {
    row(Ok(default))
}

/// A key that must be set; the advice says to what.
pub(super) fn must<T>(advice: &'static str) -> Row<T> {
    row(Err(advice))
}

fn row<T>(default: Result<T, &'static str>) -> Row<T> {
    Row {
        default,
        default_words: None,
        range: (0, u64::MAX),
        unit: "number",
        flag: "",
        commands: &[],
    }
}

impl<T> Row<T> {
    /// The numbers that are allowed.
    pub(super) fn range(mut self, min: u64, max: u64) -> Row<T> {
        self.range = (min, max);
        self
    }

    /// What a number counts.
    pub(super) fn unit(mut self, unit: &'static str) -> Row<T> {
        self.unit = unit;
        self
    }

    /// The default in words, where it is no fixed value.
    pub(super) fn default_words(mut self, default: &'static str) -> Row<T> {
        self.default_words = Some(default);
        self
    }

    /// A flag of these commands, with what stands for its value.
    pub(super) fn flag(mut self, flag: &'static str, commands: &'static [Command]) -> Row<T> {
        self.flag = flag;
        self.commands = commands;
        self
    }

    /// What to do where the value is empty or missing.
    pub(super) fn advice(&self) -> &'static str {
        match self.default {
            Ok(_) => "set it to something, or leave it out",
            Err(advice) => advice,
        }
    }

    /// The row of a value that may be left out.
    pub(super) fn inner<U>(&self) -> Row<U> {
        row(Err(self.advice()))
            .range(self.range.0, self.range.1)
            .unit(self.unit)
    }
}

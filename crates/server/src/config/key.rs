//! A row of the table of keys: how a key is written, read and documented. The macro `keys!` makes
//! a struct with one field a row, its reader, and the rows' description for flags and reference.

use super::source::Section;
use super::value::Setting;
use super::{ConfigError, Source};

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

/// A row as flags and reference show it.
#[derive(Clone, Debug)]
pub struct Key {
    /// The section as it is written, such as `[storage]`; empty for the first one.
    pub section: &'static str,
    /// The key's name.
    pub name: &'static str,
    /// What its value is in a file.
    pub kind: Kind,
    /// The same in words, with the range.
    pub takes: String,
    /// The default in words.
    pub default: String,
    /// The flag and what stands for its value, such as `--io IO`; empty if there is none.
    pub flag: &'static str,
    /// The commands that have the flag.
    pub commands: &'static [Command],
    /// What the key means; its first sentence is the help of the flag.
    pub help: &'static str,
}

/// A row before its name and help are known.
pub struct Row<T> {
    default: Result<T, &'static str>,
    told: Option<&'static str>,
    pub(super) range: (u64, u64),
    pub(super) unit: &'static str,
    flag: &'static str,
    commands: &'static [Command],
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
        told: None,
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
    pub(super) fn told(mut self, default: &'static str) -> Row<T> {
        self.told = Some(default);
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

    /// The value where the key is not written, or what to do.
    pub(super) fn default(self) -> Result<T, &'static str> {
        self.default
    }
}

impl<T: Setting> Row<T> {
    /// The row's description.
    pub(super) fn describe(
        self,
        section: &'static str,
        name: &'static str,
        help: &'static str,
    ) -> Key {
        let default = match (self.told, &self.default) {
            (Some(told), _) => told.to_string(),
            (None, Ok(value)) => value.shown(self.unit),
            (None, Err(_)) => "must be set".to_string(),
        };
        Key {
            section,
            name,
            kind: T::KIND,
            takes: T::takes(&self),
            default,
            flag: self.flag,
            commands: self.commands,
            help: help.trim(),
        }
    }
}

/// A part of the configuration that rows describe.
pub(super) trait Keys: Sized {
    /// The section as it is written; empty for the first one.
    const SECTION: &'static str;
    /// The names of its keys.
    const NAMES: &'static [&'static str];

    /// Its rows.
    fn keys() -> Vec<Key>;

    /// Reads its keys, and leaves others of the section alone.
    fn read(section: &mut Section) -> Result<Self, ConfigError>;

    /// Takes the section and reads it; unknown keys are refused.
    fn take(source: &mut Source) -> Result<(Self, Section), ConfigError> {
        let mut section = source.section(Self::SECTION);
        section.only(Self::NAMES)?;
        Ok((Self::read(&mut section)?, section))
    }
}

/// Makes a struct of rows `KEY: TYPE = ROW;` with their help as comments above them. Fields after
/// `with` are no keys: they begin as their type's default.
macro_rules! keys {
    (
        $(#[$about:meta])*
        $vis:vis struct $name:ident in $section:literal {
            $($(#[doc = $help:literal])* $key:ident: $type:ty = $row:expr;)*
        }
        $(with { $($(#[$more:meta])* $field:ident: $field_type:ty;)* })?
    ) => {
        $(#[$about])*
        $vis struct $name {
            $($(#[doc = $help])* pub $key: $type,)*
            $($($(#[$more])* pub $field: $field_type,)*)?
        }

        impl Keys for $name {
            const SECTION: &'static str = $section;
            const NAMES: &'static [&'static str] = &[$(stringify!($key)),*];

            fn keys() -> Vec<Key> {
                vec![$(Row::<$type>::describe(
                    $row, $section, stringify!($key), concat!($($help),*),
                )),*]
            }

            fn read(section: &mut Section) -> Result<$name, ConfigError> {
                Ok($name {
                    $($key: section.read(stringify!($key), $row)?,)*
                    $($($field: Default::default(),)*)?
                })
            }
        }
    };
}
pub(super) use keys;

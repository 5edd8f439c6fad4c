//! Keys as flags and reference show them. The macro `keys!` makes of rows a struct with one field a
//! row, its reader, and the description of each row.

use super::row::{Command, Kind, Row};
use super::source::Section;
use super::value::Setting;
use super::{ConfigError, Source};

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

/// A row's description.
pub(super) fn describe<T: Setting>(
    row: Row<T>,
    section: &'static str,
    name: &'static str,
    help: &'static str,
) -> Key {
    Key {
        section,
        name,
        kind: T::KIND,
        takes: T::takes(&row),
        flag: row.flag,
        commands: row.commands,
        help: help.trim(),
        default: match (row.default_words, &row.default) {
            (Some(words), _) => words.to_string(),
            (None, Ok(value)) => value.shown(row.unit),
            (None, Err(_)) => "must be set".to_string(),
        },
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
                vec![$(describe::<$type>(
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

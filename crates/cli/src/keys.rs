//! Flags for keys of a forwarder's configuration, made from the table of keys.

use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Args, FromArgMatches, value_parser};
use tidegate_server::config::{Command, Key, Kind, Value, keys};

/// A value for a key: section, key, the flag that sets it, and the value.
pub type Setting = (&'static str, &'static str, &'static str, Value);

/// The keys that are set by flags of `tidegate up`, or else of `tidegate serve`.
#[derive(Clone)]
pub struct KeyFlags<const UP: bool>(pub Vec<Setting>);

impl<const UP: bool> KeyFlags<UP> {
    fn keys() -> impl Iterator<Item = Key> {
        let command = if UP { Command::Up } else { Command::Serve };
        let keys = keys().into_iter();
        keys.filter(move |key| key.commands.contains(&command))
    }
}

impl<const UP: bool> Args for KeyFlags<UP> {
    fn augment_args(command: clap::Command) -> clap::Command {
        command.args(Self::keys().map(|key| argument(&key)))
    }

    fn augment_args_for_update(command: clap::Command) -> clap::Command {
        Self::augment_args(command)
    }
}

impl<const UP: bool> FromArgMatches for KeyFlags<UP> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let settings = Self::keys().filter_map(|key| setting(&key, matches));
        Ok(KeyFlags(settings.collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// A text without its links to other parts of the documents.
fn without_links(text: &str) -> String {
    let mut kept = String::new();
    let mut rest = text;
    while let Some((before, link)) = rest.split_once(" ([") {
        let Some((_, after)) = link.split_once("))") else {
            break;
        };
        kept += before;
        rest = after;
    }
    kept + rest
}

/// The flag of a key. Its help is the first sentence of what the key means.
fn argument(key: &Key) -> Arg {
    let (flag, value) = key.flag.split_once(' ').unwrap_or((key.flag, ""));
    let help = key.help.split(". ").next().unwrap_or_default();
    let mut help = without_links(help);
    if key.kind == Kind::Text && key.takes.starts_with('`') {
        help = format!("{help}: {}", key.takes);
    }
    if key.kind == Kind::List {
        help = format!("{help}; may be repeated");
    }
    if !value.is_empty() && key.default != "must be set" {
        help = format!("{help} [default: {}]", key.default);
    }
    let argument = Arg::new(flag)
        .long(flag.trim_start_matches('-'))
        .help(help.replace(['`', '"'], ""));
    match key.kind {
        Kind::Bool if value.is_empty() => argument.action(ArgAction::SetTrue),
        Kind::Bool => argument
            .value_name(value)
            .value_parser(value_parser!(bool))
            .num_args(0..=1)
            .default_missing_value("true"),
        Kind::List => argument.value_name(value).action(ArgAction::Append),
        Kind::Number | Kind::Text => argument.value_name(value),
    }
}

fn setting(key: &Key, matches: &ArgMatches) -> Option<Setting> {
    let flag = key.flag.split(' ').next().unwrap_or_default();
    if matches.value_source(flag) != Some(ValueSource::CommandLine) {
        return None;
    }
    let value = match key.kind {
        Kind::Bool => Value::Boolean(*matches.get_one(flag)?),
        Kind::List => {
            let texts = matches.get_many::<String>(flag)?.cloned();
            Value::Array(texts.map(Value::String).collect())
        }
        Kind::Text | Kind::Number => key_value(key.kind, matches.get_one::<String>(flag)?),
    };
    Some((key.section, key.name, flag, value))
}

/// The value that a text states for a key of this kind. What states none stays text, which the
/// configuration reads with a unit or refuses.
pub fn key_value(kind: Kind, text: &str) -> Value {
    let stated = match kind {
        Kind::Number => text.parse().ok().map(Value::Integer),
        Kind::Bool => text.parse().ok().map(Value::Boolean),
        Kind::List | Kind::Text => None,
    };
    stated.unwrap_or_else(|| Value::String(text.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn help_has_no_links_of_the_documents() {
        let text = without_links("mount of root's ([munge](#munge)), or (not) one ([A](#a)).");
        assert_eq!(text, "mount of root's, or (not) one.");
        assert_eq!(without_links("an open ([link"), "an open ([link");
    }
}

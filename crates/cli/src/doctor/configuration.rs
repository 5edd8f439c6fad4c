//! What the files of a state directory say, for who looks at a set: settings without secrets.

use crate::doctor::kernel::Rings;
use crate::state::{FORWARDERS_MAX, StateDir};
use serde_json::Value;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// A file is read no further.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// What stands for what is left out.
pub const LEFT_OUT: &str = "(left out)";

/// Words in the names of settings whose value may be a secret, if it is no path.
const SECRET_WORDS: [&str; 5] = ["secret", "password", "passwd", "token", "key"];

/// Settings that are names of users' data.
const OF_USERS: [&str; 1] = ["directory"];

/// The configurations of a set, each with its name: `client.toml` and those of forwarders.
#[derive(Clone, Default)]
pub struct Configurations(pub Vec<(String, toml::Table)>);

impl Configurations {
    /// Reads them. Returns also what is wrong with those that cannot be read. The directory must
    /// have been entered.
    pub fn read(state: &StateDir) -> (Configurations, Vec<String>) {
        let forwarders = (0..FORWARDERS_MAX).map(|index| state.forwarder(index, "toml"));
        let files = std::iter::once(state.client_file()).chain(forwarders);
        let (mut read, mut wrong) = (Vec::new(), Vec::new());
        for file in files {
            let name = file.file_name().unwrap_or_default().to_string_lossy();
            match table_of(&state.inside(&file)) {
                Ok(Some(table)) => read.push((name.into_owned(), table)),
                Ok(None) => {}
                Err(why) => wrong.push(format!("{name} {why}")),
            }
        }
        (Configurations(read), wrong)
    }

    /// Those of forwarders.
    fn of_forwarders(&self) -> impl Iterator<Item = &toml::Table> {
        let named = self.0.iter();
        let forwarders = named.filter(|(name, _)| name.starts_with("forwarder."));
        forwarders.map(|(_, table)| table)
    }

    /// How many forwarders they are of.
    pub fn forwarders(&self) -> usize {
        self.of_forwarders().count()
    }

    /// What they ask of io_uring.
    pub fn rings(&self) -> Rings {
        let is = |table: &toml::Table, key: &str, value: &str| {
            let storage = table.get("storage").and_then(toml::Value::as_table);
            storage.and_then(|it| it.get(key)?.as_str()) == Some(value)
        };
        let mut tables = self.of_forwarders();
        let wished = tables.any(|table| is(table, "io", "direct"));
        let mut tables = self.of_forwarders();
        let needed = tables.any(|table| is(table, "engine", "uring"));
        Rings { wished, needed }
    }

    /// Paths that they name: they are of the configuration, and not of users' data.
    pub fn paths(&self) -> Vec<PathBuf> {
        let mut paths = Vec::new();
        for (_, table) in &self.0 {
            note_paths(table, &mut paths);
        }
        paths
    }

    /// All of them, without secrets and names of users' data.
    pub fn shown(&self) -> Value {
        let shown = self.0.iter();
        let shown = shown.map(|(name, table)| (name.clone(), shown_table(table)));
        Value::Object(shown.collect())
    }
}

/// What a file holds; None if there is none. The error says what is wrong with it, and none of its
/// words: one could be a secret.
fn table_of(file: &Path) -> Result<Option<toml::Table>, String> {
    let len = match std::fs::metadata(file) {
        Ok(found) => found.len(),
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(format!("cannot be read: {error}")),
    };
    if len > FILE_BYTES_MAX {
        return Err(format!("has {len} bytes, and may have {FILE_BYTES_MAX}"));
    }
    let text = std::fs::read_to_string(file);
    let text = text.map_err(|error| format!("cannot be read: {error}"))?;
    let line_of = |error: toml::de::Error| {
        let begins = error.span().map_or(0, |span| span.start);
        let before = text.get(..begins).unwrap_or_default();
        let line = before.matches('\n').count() + 1;
        format!("is no TOML in line {line}")
    };
    text.parse().map(Some).map_err(line_of)
}

fn note_paths(table: &toml::Table, paths: &mut Vec<PathBuf>) {
    for (key, value) in table {
        match value {
            toml::Value::String(text) if text.starts_with('/') && is_shown(key) => {
                paths.push(text.into());
            }
            toml::Value::Table(inner) => note_paths(inner, paths),
            _ => {}
        }
    }
}

fn is_of_users(key: &str) -> bool {
    OF_USERS.contains(&key)
}

/// Whether a text is no secret and no name of users' data. A file that holds a secret is none.
fn is_shown(key: &str) -> bool {
    let is_secret = SECRET_WORDS.iter().any(|word| key.contains(word));
    !is_of_users(key) && (!is_secret || key.ends_with("_file"))
}

fn shown_table(table: &toml::Table) -> Value {
    let shown = table.iter();
    let shown = shown.map(|(key, value)| (key.clone(), shown_value(key, value)));
    Value::Object(shown.collect())
}

fn shown_value(key: &str, value: &toml::Value) -> Value {
    match value {
        _ if is_of_users(key) => LEFT_OUT.into(),
        toml::Value::String(_) if !is_shown(key) => LEFT_OUT.into(),
        toml::Value::String(text) => without_login(text).into(),
        toml::Value::Integer(number) => (*number).into(),
        toml::Value::Float(number) => (*number).into(),
        toml::Value::Boolean(is) => (*is).into(),
        toml::Value::Datetime(time) => time.to_string().into(),
        toml::Value::Array(all) => all.iter().map(|one| shown_value(key, one)).collect(),
        toml::Value::Table(table) => shown_table(table),
    }
}

/// An address without a user's name and password.
fn without_login(text: &str) -> String {
    match (text.split_once("://"), text.rsplit_once('@')) {
        (Some((scheme, _)), Some((_, host))) => format!("{scheme}://{LEFT_OUT}@{host}"),
        (None, Some((_, host))) => format!("{LEFT_OUT}@{host}"),
        _ => text.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Configurations {
        let table = text.parse().expect("it is TOML");
        Configurations(vec![("forwarder.0.toml".to_string(), table)])
    }

    #[test]
    fn secrets_and_names_of_data_are_left_out() {
        let all = of(
            "export = \"/data\"\nsecret_file = \"/etc/s\"\nsecret = \"/hush\"\n\
                      [ownership.etcd]\npassword = [\"hush\"]\nkey = \"hush\"\n\
                      address = \"me:hush@host:1\"\n\
                      endpoints = [\"https://me:hush@etcd1:2379\", \"http://etcd2:2379\"]\n\
                      [[view]]\nname = \"a\"\ndirectory = \"hush/hush\"\n",
        );
        let shown = all.shown();
        let text = shown.to_string();
        assert!(!text.contains("hush"), "{text}");
        let one = &shown["forwarder.0.toml"];
        assert_eq!(
            (&one["export"], &one["secret_file"]),
            (&"/data".into(), &"/etc/s".into())
        );
        let endpoints = &one["ownership"]["etcd"]["endpoints"];
        assert_eq!(endpoints[0], "https://(left out)@etcd1:2379");
        assert_eq!(endpoints[1], "http://etcd2:2379");
        let paths = ["/data", "/etc/s"].map(PathBuf::from);
        assert_eq!(all.paths(), paths);
    }

    #[test]
    fn what_forwarders_want_of_io_uring_is_read() {
        let rings = |wished, needed| Rings { wished, needed };
        assert_eq!(of("export = \"/data\"").rings(), rings(false, false));
        let direct = of("[storage]\nio = \"direct\"");
        assert_eq!(direct.rings(), rings(true, false));
        let needed = of("[storage]\nio = \"direct\"\nengine = \"uring\"");
        assert_eq!(needed.rings(), rings(true, true));
        assert_eq!(needed.forwarders(), 1);
    }
}

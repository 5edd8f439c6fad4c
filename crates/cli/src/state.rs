//! The state directory of `tidegate up`: sockets, configurations, process ids, logs, `client.toml`.

use crate::fail::Fail;
use serde::{Deserialize, Serialize};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// Names the state directory for all commands.
pub const STATE_DIR: &str = "TIDEGATE_STATE_DIR";

/// `client.toml`: what the other commands need to know of a set of forwarders.
#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct ClientFile {
    /// Addresses, and @FILE for a file with one a line; some of them are enough. Or one @_NAME, a
    /// name of DNS with SRV records.
    pub forwarders: Vec<String>,
    /// File with the shared secret, for TCP.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret_file: Option<PathBuf>,
    /// How many pieces of a transfer may be under way at once: `none`, `serial` or `parallel`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pipelining: Option<String>,
    /// Bytes of each piece of a transfer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pipeline_bytes: Option<u32>,
    /// The exported directory, if it is on this node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub export: Option<PathBuf>,
    /// Where the files are mounted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mount: Option<PathBuf>,
}

impl ClientFile {
    /// Reads a `client.toml`.
    pub fn read(path: &Path) -> Result<ClientFile, Fail> {
        let wrong = |what: String| Fail::usage(format!("{}: {what}", path.display()));
        let text = std::fs::read_to_string(path)
            .map_err(|error| wrong(format!("cannot be read: {error}")))?;
        toml::from_str(&text).map_err(|error| {
            let start = error.span().map_or(0, |span| span.start);
            let line = text[..start].matches('\n').count() + 1;
            Fail::usage(format!("{}:{line}: {}", path.display(), error.message()))
        })
    }
}

/// A state directory.
#[derive(Clone, Debug)]
pub struct StateDir {
    path: PathBuf,
}

impl StateDir {
    /// The given directory, else the environment's, else the user's own.
    pub fn choose(given: Option<&Path>) -> StateDir {
        let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty());
        let path = if let Some(path) = given {
            path.to_path_buf()
        } else if let Some(path) = variable(STATE_DIR) {
            path.into()
        } else if let Some(path) = variable("XDG_RUNTIME_DIR") {
            Path::new(&path).join("tidegate")
        } else if rustix::process::geteuid().is_root() {
            "/run/tidegate".into()
        } else {
            let uid = rustix::process::geteuid().as_raw();
            std::env::temp_dir().join(format!("tidegate-{uid}"))
        };
        StateDir {
            path: std::path::absolute(&path).unwrap_or(path),
        }
    }

    /// Makes the directory, for this user only.
    pub fn create(&self) -> Result<(), Fail> {
        let made = std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&self.path);
        made.map_err(|error| {
            let path = self.path.display();
            Fail::usage(format!(
                "state directory {path}: {error}; choose another with --state-dir"
            ))
        })
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// `client.toml`, which the other commands read.
    pub fn client_file(&self) -> PathBuf {
        self.path.join("client.toml")
    }

    /// `forwarder.INDEX.WHAT`.
    pub fn forwarder(&self, index: usize, what: &str) -> PathBuf {
        self.path.join(format!("forwarder.{index}.{what}"))
    }

    /// Any other file.
    pub fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }
}

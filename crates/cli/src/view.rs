//! `tidegate view`: directories with a share of their own, which jobs use as their place.

use crate::fail::Fail;
use crate::share::{Forwarders, Key};
use crate::state::ClientFile;
use crate::target::Target;
use std::path::Path;
use std::process::ExitCode;
use tidegate_client::wire::Keep;
use tidegate_client::{Client, Context, Errno};
use tidegate_server::config::rule;

/// Show, create or remove views: directories whose users have a share together.
///
/// A program that `tidegate run --view NAME` starts, and whatever works in a `tidegate mount --view
/// NAME`, finds the directory as its whole file system, and counts as the application NAME.
#[derive(clap::Args)]
pub struct View {
    #[command(subcommand)]
    action: Option<Action>,
    #[command(flatten)]
    target: Target,
    /// Print JSON
    #[arg(long, global = true)]
    json: bool,
    /// Change it in each forwarder until that ends, and keep nothing for the export
    #[arg(long, global = true, conflicts_with = "save")]
    temporary: bool,
    /// Keep what is changed for the export, over restarts of the forwarders: the default
    #[arg(long, global = true)]
    save: bool,
}

#[derive(clap::Subcommand)]
enum Action {
    /// Show the views and their shares (what is done when nothing is said)
    List,
    /// Create one, and its directory if that is not there; or change its share
    Create {
        /// Its name, which is the application's that its users count as
        #[arg(value_name = "NAME")]
        name: String,
        /// Directory of the export, from its root
        #[arg(value_name = "DIR")]
        directory: String,
        /// weight, min, max, latency and percentile, as for `tidegate share set`
        #[arg(value_name = "KEY=VALUE")]
        shares: Vec<String>,
    },
    /// Remove one and its share; the directory and its files stay
    Remove {
        /// Its name
        #[arg(value_name = "NAME")]
        name: String,
    },
}

impl View {
    fn keep(&self) -> Keep {
        // What --save says holds without it.
        if self.temporary {
            Keep::Run
        } else {
            Keep::Saved
        }
    }

    /// Does it.
    pub fn perform(self) -> Result<ExitCode, Fail> {
        let forwarders = Forwarders::find(&self.target)?;
        match &self.action {
            None | Some(Action::List) => {}
            Some(Action::Create {
                name,
                directory,
                shares,
            }) => {
                let directory = from_root(directory, &forwarders.found);
                let directory = directory.trim_matches('/');
                let words = [("directory", Some(directory))];
                let what = format!("view create {name}");
                forwarders.change(self.keep(), &what, &|document| {
                    let key = Key::view(name);
                    let before = document.word(&key, "directory");
                    if let Some(before) = before.filter(|before| before != directory) {
                        return Err(Fail::usage(format!(
                            "{what}: there is a view {name} already, of directory {before}; \
                             remove that one first, or take another name"
                        )));
                    }
                    document.set(&key, &words, &[])?;
                    document.set(&Key::app(name, None, None), &[], shares)?;
                    document.check(&what)?;
                    make(&forwarders.client, directory)
                })?;
            }
            Some(Action::Remove { name }) => {
                forwarders.change(self.keep(), &format!("view remove {name}"), &|document| {
                    document.remove(&Key::view(name))?;
                    let app = Key::app(name, None, None);
                    match document.has(&app) {
                        true => document.remove(&app),
                        false => Ok(()),
                    }
                })?;
            }
        }
        forwarders.show(self.json)?;
        Ok(ExitCode::SUCCESS)
    }
}

/// A directory of the export by its name there. It may be given by its name on this node, too.
fn from_root<'a>(directory: &'a str, found: &ClientFile) -> &'a str {
    let places = [&found.export, &found.mount].into_iter().flatten();
    let mut inside = places.filter_map(|place| {
        let inside = Path::new(directory).strip_prefix(place).ok()?;
        inside.to_str()
    });
    inside.next().unwrap_or(directory)
}

/// Finds the view of that name.
pub fn find(
    client: std::sync::Arc<Client>,
    found: &crate::state::ClientFile,
    name: &str,
) -> Result<rule::View, Fail> {
    let found = found.clone();
    let rules = Forwarders { found, client }.rules()?;
    let view = rules.views.iter().find(|view| view.name == name).cloned();
    view.ok_or_else(|| {
        let names: Vec<_> = rules.views.iter().map(|view| view.name.as_str()).collect();
        let known = match names.is_empty() {
            true => "there are none; `tidegate view create NAME DIR` makes one".to_string(),
            false => format!("there are {}", names.join(", ")),
        };
        Fail::usage(format!("there is no view {name}; {known}"))
    })
}

/// Makes the directory, and those above it.
fn make(client: &Client, directory: &str) -> Result<(), Fail> {
    let ctx = Context::default();
    let mut parent = client.root().handle;
    for name in directory.split('/') {
        let made = match client.mkdir(&ctx, parent, name.as_bytes(), 0o755) {
            Err(Errno::EXIST) => client.lookup(&ctx, parent, name.as_bytes()),
            made => made,
        };
        let failed = |what: String| {
            Fail::runtime(format!(
                "directory {directory} of the export: {name}: {what}"
            ))
        };
        let attr = made.map_err(|errno| failed(errno.to_string()))?;
        if attr.mode & 0o170_000 != 0o040_000 {
            return Err(failed("is no directory; name another".to_string()));
        }
        parent = attr.handle;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_may_be_named_where_it_lies_on_this_node() {
        let found = ClientFile {
            export: Some("/data".into()),
            mount: Some("/run/mnt".into()),
            ..ClientFile::default()
        };
        for given in ["jobs/fast", "/data/jobs/fast", "/run/mnt/jobs/fast"] {
            assert_eq!(from_root(given, &found), "jobs/fast");
        }
        for given in ["/jobs/fast", "/database/fast"] {
            assert_eq!(from_root(given, &found), given);
        }
    }
}

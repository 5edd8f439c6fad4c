//! Rules of shares that come at run time: read, written down, or those of the configuration again.

use super::Reactor;
use crate::config;
use crate::storage::posix::replace_hidden_file;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use tidegate_forward::shares::Rules;
use tidegate_forward::{Errno, Input, PolicyId};
use tidegate_wire::Keep;

/// What the rules of this forwarder are read from and written to.
pub struct ShareKeeper {
    /// Those of the configuration.
    configured: Rules,
    /// Where those of run time are written down, for all forwarders of the export.
    file: PathBuf,
    /// Ends the wait of the event loop.
    waker: Arc<mio::Waker>,
    written: (Sender<Written>, Receiver<Written>),
}

/// Rules are in the file, or why they are not.
struct Written {
    policy: PolicyId,
    rules: Result<Rules, (Errno, Box<str>)>,
}

impl ShareKeeper {
    /// For the forwarders of one export, whose hidden folder this is.
    pub fn new(configured: Rules, hidden: &Path, waker: Arc<mio::Waker>) -> ShareKeeper {
        ShareKeeper {
            configured,
            file: file_in(hidden),
            waker,
            written: channel(),
        }
    }

    /// Reads the text. What has to be written is written by a thread: a slow back end must not hold
    /// the reactor, and until it is done nothing has changed.
    fn parse(
        &self,
        policy: PolicyId,
        text: &[u8],
        keep: Keep,
    ) -> Option<Result<Rules, (Errno, Box<str>)>> {
        let refused = |what: String| Some(Err((Errno::EINVAL, what.into_boxed_str())));
        let rules = match (keep, std::str::from_utf8(text)) {
            (Keep::Configured, _) => self.configured.clone(),
            (_, Err(_)) => return refused("the rules are not UTF-8".to_string()),
            (_, Ok(text)) => match config::rules(text, "shares") {
                Ok(rules) => rules,
                Err(error) => return refused(error.to_string()),
            },
        };
        if keep == Keep::Run {
            return Some(Ok(rules));
        }
        let (file, done, waker) = (
            self.file.clone(),
            self.written.0.clone(),
            self.waker.clone(),
        );
        std::thread::spawn(move || {
            let written = match keep {
                Keep::Saved => write(&file, &rules),
                _ => remove(&file),
            };
            let rules = written.map(|()| rules).map_err(|error| {
                let what = format!("{}: {error}", file.display());
                (Errno::EIO, what.into_boxed_str())
            });
            // The forwarder has ended when these fail.
            let _ = done.send(Written { policy, rules });
            let _ = waker.wake();
        });
        None
    }
}

/// The file of rules.
const NAME: &str = "shares.toml";

/// The file of rules in the hidden folder.
pub fn file_in(hidden: &Path) -> PathBuf {
    hidden.join(NAME)
}

/// Puts a file in the place of the other in one step. All forwarders of an export do so with the
/// same rules, each from a file of its own: nodes can have processes of the same number. One
/// forwarder writes one after another, because its core asks for one at a time.
fn write(file: &Path, rules: &Rules) -> io::Result<()> {
    let hidden = File::open(file.parent().unwrap_or(Path::new("/")))?;
    let text = format!("# Written by `tidegate share ... --save`; read at the start.\n{rules}");
    replace_hidden_file(hidden.as_fd(), NAME, &text, true)
}

fn remove(file: &Path) -> io::Result<()> {
    match std::fs::remove_file(file) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

impl Reactor {
    /// The policy that is followed, in words.
    pub fn policy(&self) -> Box<str> {
        self.core.forwarder.policy_in_force()
    }

    pub(super) fn parse_shares(&mut self, policy: PolicyId, text: &[u8], keep: Keep) {
        if let Some(rules) = self.shares.parse(policy, text, keep) {
            self.shares_parsed(policy, rules);
        }
    }

    /// Tells the core of rules that have been written down meanwhile.
    pub(super) fn turn_shares(&mut self) {
        while let Ok(Written { policy, rules }) = self.shares.written.1.try_recv() {
            self.shares_parsed(policy, rules);
        }
    }

    fn shares_parsed(&mut self, policy: PolicyId, rules: Result<Rules, (Errno, Box<str>)>) {
        // The core logs what is refused.
        self.core
            .forwarder
            .handle(self.core.now, Input::SharesParsed { policy, rules });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::scratch::Scratch;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn rules_are_written_for_the_forwarders_alone() {
        let scratch = Scratch::new("rules");
        let file = file_in(scratch.path());
        write(&file, &Rules::default()).expect("written");
        let mode = std::fs::metadata(&file)
            .expect("there")
            .permissions()
            .mode();
        assert_eq!(mode & 0o777 & !0o600, 0, "{mode:o}");
        // Nothing else is left behind.
        let names = std::fs::read_dir(scratch.path()).expect("a folder");
        assert_eq!(names.count(), 1);
        remove(&file).expect("removed");
        remove(&file).expect("nothing is as good");
    }
}

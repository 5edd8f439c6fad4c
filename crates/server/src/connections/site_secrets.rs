//! The secrets of the site that are valid now, and which of those derived from them were taken
//! back: what the files of the configuration hold, read again when a file has changed, so that a
//! secret is replaced or revoked without a restart.

use crate::lock::lock;
use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use tidegate_net::{SecretError, SiteSecret, read_private};
use tidegate_sched::Time;
use tidegate_wire::Grant;
use tracing::{info, warn};

/// How long after one look at the files the next one may follow, in ns.
const LOOK_NS: u64 = 1_000_000_000;

/// See the head of the file.
pub struct SiteSecrets {
    state: Mutex<State>,
}

/// What is valid at a time.
pub struct Valid {
    /// The newest first.
    pub sites: Vec<SiteSecret>,
    /// Names of grants that were taken back.
    revoked: BTreeSet<String>,
}

impl Valid {
    /// Whether a grant was taken back, or that of its giver.
    pub fn revokes(&self, grant: &Grant) -> bool {
        let by = grant.by.as_ref().map(|by| &*by.name);
        let mut names = by.into_iter().chain([&*grant.name]);
        names.any(|name| self.revoked.contains(name))
    }
}

struct State {
    files: Vec<SecretFile>,
    looked: Time,
    valid: Arc<Valid>,
}

/// What a file holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Holds {
    Secret,
    OldSecret,
    Revoked,
}

struct SecretFile {
    holds: Holds,
    path: PathBuf,
    /// What the file was when it was last read; None: there was none.
    seen: Option<Mark>,
}

/// What changes with a file: its inode, and when it or its mode was changed (s, ns).
type Mark = (u64, i64, i64);

impl SiteSecrets {
    /// Reads the secret; and the one that was valid before it, and the names of those that were
    /// taken back, if these files are there. An error names the file.
    pub fn read(
        secret: &Path,
        old_secret: Option<&Path>,
        revoked: Option<&Path>,
    ) -> Result<SiteSecrets, (PathBuf, SecretError)> {
        let all = [
            (Holds::Secret, Some(secret)),
            (Holds::OldSecret, old_secret),
            (Holds::Revoked, revoked),
        ];
        let files = all.into_iter().filter_map(|(holds, path)| {
            Some(SecretFile {
                holds,
                path: path?.to_path_buf(),
                seen: mark(path?),
            })
        });
        let files: Vec<SecretFile> = files.collect();
        let valid = valid(&files)?;
        Ok(SiteSecrets {
            state: Mutex::new(State {
                files,
                looked: Time(0),
                valid,
            }),
        })
    }

    /// What is valid now. `now` is the forwarder's time.
    pub fn valid(&self, now: Time) -> Arc<Valid> {
        let mut state = lock(&self.state);
        if now.since(state.looked) >= LOOK_NS {
            state.looked = now;
            state.look();
        }
        Arc::clone(&state.valid)
    }
}

impl State {
    /// Reads the files again if one has changed. What cannot be read leaves all as it was, as files
    /// are for a moment while they are replaced.
    fn look(&mut self) {
        let marks: Vec<Option<Mark>> = self.files.iter().map(|file| mark(&file.path)).collect();
        if self.files.iter().map(|file| &file.seen).eq(&marks) {
            return;
        }
        for (file, mark) in self.files.iter_mut().zip(marks) {
            file.seen = mark;
        }
        match valid(&self.files) {
            Ok(valid) => {
                let (secrets, revoked) = (valid.sites.len(), valid.revoked.len());
                info!(secrets, revoked, "the site's secret was read again");
                self.valid = valid;
            }
            Err((path, error)) => {
                let path = path.display();
                warn!("secret file {path} {error}; what was valid before still is");
            }
        }
    }
}

fn valid(files: &[SecretFile]) -> Result<Arc<Valid>, (PathBuf, SecretError)> {
    let mut valid = Valid {
        sites: Vec::new(),
        revoked: BTreeSet::new(),
    };
    for file in files {
        let read = match file.holds {
            Holds::Secret | Holds::OldSecret => {
                SiteSecret::read(&file.path).map(|secret| valid.sites.push(secret))
            }
            Holds::Revoked => read_private(&file.path).map(|text| {
                valid.revoked = names(&String::from_utf8_lossy(&text));
            }),
        };
        match read {
            Ok(()) => {}
            // The change is over, or nothing was taken back.
            Err(SecretError::Read(error))
                if file.holds != Holds::Secret && error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err((file.path.clone(), error)),
        }
    }
    Ok(Arc::new(valid))
}

/// The names in a list, one a line.
fn names(text: &str) -> BTreeSet<String> {
    let lines = text
        .lines()
        .map(|line| line.split('#').next().unwrap_or_default().trim());
    lines
        .filter(|name| !name.is_empty())
        .map(String::from)
        .collect()
}

fn mark(path: &Path) -> Option<Mark> {
    use std::os::unix::fs::MetadataExt;
    let found = std::fs::metadata(path).ok()?;
    Some((found.ino(), found.ctime(), found.ctime_nsec()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;
    use tidegate_net::{Encryption, Initiator, Secret, accept};

    const SECOND: u64 = 1_000_000_000;

    fn write(path: &Path, text: &str) {
        let new = path.with_extension("new");
        std::fs::write(&new, text).expect("it is ours");
        std::fs::set_permissions(&new, PermissionsExt::from_mode(0o600)).expect("it is ours");
        std::fs::rename(&new, path).expect("it is ours");
    }

    #[test]
    fn a_secret_is_replaced_while_both_are_valid() {
        let name = format!("tidegate-site-secrets-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&folder).expect("it is ours");
        let (file, old) = (folder.join("secret"), folder.join("old"));
        let (first, second) = (
            "the first secret of the site",
            "the second secret of the site",
        );
        write(&file, first);
        let before = Secret::read(&file).expect("it is good");
        let sites =
            SiteSecrets::read(&file, Some(&old), None).expect("the other need not be there");
        let mut now = Time(0);
        let mut takes = |secret: &Secret| {
            now = now + SECOND;
            let (_, greeting) = Initiator::begin(secret, Encryption::On);
            accept(&sites.valid(now).sites, Encryption::On, 0, &greeting).is_ok()
        };
        assert!(takes(&before));
        write(&old, first);
        write(&file, second);
        let after = Secret::read(&file).expect("it is good");
        assert!(takes(&before) && takes(&after));
        std::fs::remove_file(&old).expect("it is ours");
        assert!(!takes(&before) && takes(&after));
        // What is wrong is not taken, and changes nothing.
        write(&file, "short");
        assert!(!takes(&before) && takes(&after));
        std::fs::remove_file(&file).expect("it is ours");
        assert!(takes(&after));
        // A wrong mode is seen, and that it was mended.
        write(&file, first);
        std::fs::set_permissions(&file, PermissionsExt::from_mode(0o644)).expect("it is ours");
        assert!(!takes(&before) && takes(&after));
        std::fs::set_permissions(&file, PermissionsExt::from_mode(0o600)).expect("it is ours");
        assert!(takes(&before) && !takes(&after));
        std::fs::remove_dir_all(&folder).expect("it is ours");
    }

    #[test]
    fn what_is_taken_back_is_void_with_its_tickets_and_nothing_else_is() {
        let name = format!("tidegate-revoked-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&folder).expect("it is ours");
        let (file, list) = (folder.join("secret"), folder.join("revoked"));
        write(&file, "the only secret of the site");
        let sites = SiteSecrets::read(&file, None, Some(&list)).expect("it need not be there");
        let grant = |name: &str| Grant {
            role: tidegate_wire::Role::Mount(tidegate_wire::Limits::default()),
            name: name.into(),
            expires: None,
            by: None,
        };
        let user = tidegate_wire::Caller::alone(1000, 100);
        let ticket = grant("cn1").ticket(user.clone(), "", 9).expect("it may");
        let of_site = Grant::site().ticket(user, "io1", 9).expect("it may");
        let all = [grant("cn1"), ticket, grant("cn2"), Grant::site(), of_site];
        let mut now = Time(0);
        let mut revoked = || {
            now = now + SECOND;
            let valid = sites.valid(now);
            assert_eq!(valid.sites.len(), 1);
            all.each_ref().map(|grant| valid.revokes(grant))
        };
        assert_eq!(revoked(), [false; 5]);
        write(&list, "# lost in March\n cn1 # and its disk\n\ncn\n");
        assert_eq!(revoked(), [true, true, false, false, false]);
        // What others could write is not believed, and changes nothing.
        write(&list, "cn2");
        std::fs::set_permissions(&list, PermissionsExt::from_mode(0o666)).expect("it is ours");
        assert_eq!(revoked(), [true, true, false, false, false]);
        std::fs::set_permissions(&list, PermissionsExt::from_mode(0o600)).expect("it is ours");
        assert_eq!(revoked(), [false, false, true, false, false]);
        std::fs::remove_file(&list).expect("it is ours");
        assert_eq!(revoked(), [false; 5]);
        std::fs::remove_dir_all(&folder).expect("it is ours");
    }
}

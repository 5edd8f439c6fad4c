//! The secrets of the site that are valid now: what the files of the configuration hold, read again
//! when a file has changed, so that a secret is replaced without a restart.

use crate::lock::lock;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use tidegate_net::{SecretError, SiteSecret};
use tidegate_sched::Time;
use tracing::{info, warn};

/// How long after one look at the files the next one may follow, in ns.
const LOOK_NS: u64 = 1_000_000_000;

/// See the head of the file.
pub struct SiteSecrets {
    state: Mutex<State>,
}

struct State {
    /// The first is the one that must be there.
    files: Vec<SecretFile>,
    looked: Time,
    valid: Arc<[SiteSecret]>,
}

struct SecretFile {
    path: PathBuf,
    /// What the file was when it was last read; None: there was none.
    seen: Option<Mark>,
}

/// What changes with a file: its inode, and when it or its mode was changed (s, ns).
type Mark = (u64, i64, i64);

impl SiteSecrets {
    /// Reads the secret, and the one that was valid before it, if that file is there. An error
    /// names the file.
    pub fn read(
        secret: &Path,
        old_secret: Option<&Path>,
    ) -> Result<SiteSecrets, (PathBuf, SecretError)> {
        let paths = [secret].into_iter().chain(old_secret);
        let files: Vec<SecretFile> = paths
            .map(|path| SecretFile {
                path: path.to_path_buf(),
                seen: mark(path),
            })
            .collect();
        let valid = valid(&files)?;
        Ok(SiteSecrets {
            state: Mutex::new(State {
                files,
                looked: Time(0),
                valid,
            }),
        })
    }

    /// The secrets that are valid now, the newest first. `now` is the forwarder's time.
    pub fn valid(&self, now: Time) -> Arc<[SiteSecret]> {
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
                info!(valid = valid.len(), "the site's secret was read again");
                self.valid = valid;
            }
            Err((path, error)) => {
                let path = path.display();
                warn!("secret file {path} {error}; what was valid before still is");
            }
        }
    }
}

fn valid(files: &[SecretFile]) -> Result<Arc<[SiteSecret]>, (PathBuf, SecretError)> {
    let mut valid = Vec::new();
    for (number, file) in files.iter().enumerate() {
        match SiteSecret::read(&file.path) {
            Ok(secret) => valid.push(secret),
            // The change is over.
            Err(SecretError::Read(error)) if number > 0 && error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err((file.path.clone(), error)),
        }
    }
    Ok(valid.into())
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
        let sites = SiteSecrets::read(&file, Some(&old)).expect("the other need not be there");
        let mut now = Time(0);
        let mut takes = |secret: &Secret| {
            now = now + SECOND;
            let (_, greeting) = Initiator::begin(secret, Encryption::On);
            accept(&sites.valid(now), Encryption::On, 0, &greeting).is_ok()
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
}

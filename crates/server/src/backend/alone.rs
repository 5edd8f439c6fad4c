//! Trials of a back end that one node can make by itself.

mod groups;

use super::Backend;
use super::property::{Findings, Found, passing};
use super::side::{Aligned, BLOCK};
use crate::storage::ofd::{self, Kind};
use rustix::fs::{AtFlags, FallocateFlags, Mode, OFlags, RenameFlags, StatxFlags, XattrFlags};
use rustix::io::Errno;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt;
use std::time::{SystemTime, UNIX_EPOCH};

/// Mount options that keep a file system's locks on the node.
const LOCAL_LOCKS: &[&str] = &["localflock", "nolock", "local_lock=all", "local_lock=posix"];
/// The largest acceptable difference between the clocks of node and back end, in ms.
const CLOCK_MS_MAX: u64 = 1000;
const LARGE: u64 = 16 << 40;

/// Tries the properties that forwarders need. `prefix` belongs to this trial alone. The long form
/// also tries properties that only users may want to know of.
pub(crate) fn trials(
    folder: BorrowedFd<'_>,
    backend: &Backend,
    prefix: &str,
    short: bool,
) -> Findings {
    let mut alone = Alone {
        folder,
        prefix: format!("t-{prefix}-alone"),
        findings: Findings::new(),
        made: Vec::new(),
    };
    alone.options(backend);
    alone.locks();
    alone.links();
    alone.direct();
    alone.groups();
    if !short {
        alone.case();
        alone.rename_flags();
        alone.births();
        alone.attributes();
        alone.long_names();
        alone.large();
        alone.space();
        alone.mapping();
        alone.clock();
    }
    let findings = std::mem::take(&mut alone.findings);
    drop(alone);
    findings
}

struct Alone<'a> {
    folder: BorrowedFd<'a>,
    prefix: String,
    findings: Findings,
    /// Names of files that are removed at the end.
    made: Vec<String>,
}

type Tried<T> = rustix::io::Result<T>;

impl Alone<'_> {
    fn name(&mut self, word: &str) -> String {
        let name = format!("{}-{word}", self.prefix);
        self.made.push(name.clone());
        name
    }

    fn open(&self, name: &str, more: OFlags) -> Tried<File> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW | more;
        let fd = rustix::fs::openat(self.folder, name, flags, Mode::RUSR | Mode::WUSR)?;
        Ok(File::from(fd))
    }

    /// Records what a trial of one property has found: that it holds, or why it does not.
    fn tell(&mut self, property: &str, tried: Tried<Result<(), String>>) {
        match tried {
            Ok(Ok(())) => self.findings.note(property, Found::Yes, String::new()),
            Ok(Err(seen)) => self.findings.note(property, Found::No, seen),
            Err(error) => {
                let found = match passing(error.raw_os_error()) {
                    true => Found::Unknown,
                    false => Found::No,
                };
                self.findings.note(property, found, error.to_string());
            }
        }
    }

    fn options(&mut self, backend: &Backend) {
        let local = LOCAL_LOCKS.iter().find(|option| backend.has_option(option));
        self.findings
            .tell("locks leave the node", local.is_none(), || {
                format!("mounted with {}", local.expect("there is one"))
            });
        // Trials with two mounts cannot show this: it goes wrong only after a brick was away.
        if backend.is_gluster() {
            let lacks = backend.gluster_lacks();
            let good = lacks.as_ref().is_ok_and(Vec::is_empty);
            self.findings
                .tell("settings of the volume", good, || match lacks {
                    Ok(lacks) => format!("it lacks {}", lacks.join(", ")),
                    Err(error) => format!("the mount does not show them: {error}"),
                });
        }
    }

    fn locks(&mut self) {
        let name = self.name("locks");
        let tried = || -> Tried<Result<(), String>> {
            let (a, b) = (
                self.open(&name, OFlags::empty())?,
                self.open(&name, OFlags::empty())?,
            );
            let lock = |file: &File| {
                let tried = ofd::try_lock(file.as_fd(), 1 << 62, Kind::Exclusive);
                tried.map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::IO))
            };
            match (lock(&a)?, lock(&b)?) {
                (true, false) => Ok(Ok(())),
                (true, true) => Ok(Err("two open files got the same lock".to_owned())),
                (false, _) => Ok(Err("a lock cannot be had".to_owned())),
            }
        };
        let tried = tried();
        self.tell("byte locks", tried);
    }

    fn links(&mut self) {
        let (name, second) = (self.name("link"), self.name("second"));
        let tried = || -> Tried<Result<(), String>> {
            let file = self.open(&name, OFlags::empty())?;
            let (from, to) = (name.as_str(), second.as_str());
            rustix::fs::linkat(self.folder, from, self.folder, to, AtFlags::empty())?;
            let links = rustix::fs::fstat(&file)?.st_nlink;
            Ok(if links == 2 {
                Ok(())
            } else {
                Err(format!("{links} links for 2"))
            })
        };
        let tried = tried();
        self.tell("hard links", tried);
    }

    fn direct(&mut self) {
        let name = self.name("direct");
        let tried = |at: u64, len: usize| -> Tried<Result<(), String>> {
            drop(self.open(&name, OFlags::empty())?);
            let file = self.open(&name, OFlags::DIRECT)?;
            let io = |error: std::io::Error| Errno::from_io_error(&error).unwrap_or(Errno::IO);
            let mut memory = Aligned::new(2 * BLOCK);
            memory.bytes().fill(7);
            file.write_all_at(&memory.bytes()[..len], at).map_err(io)?;
            memory.bytes().fill(0);
            file.read_exact_at(&mut memory.bytes()[..len], at)
                .map_err(io)?;
            let same = memory.bytes()[..len].iter().all(|byte| *byte == 7);
            Ok(if same {
                Ok(())
            } else {
                Err("other bytes come back".to_owned())
            })
        };
        let (aligned, unaligned) = (tried(BLOCK as u64, BLOCK), tried(3, 1001));
        self.tell("direct I/O", aligned);
        self.tell("unaligned direct I/O", unaligned);
    }

    fn groups(&mut self) {
        let name = self.name("groups");
        match groups::trial(self.folder, &name) {
            Ok(Ok(())) => self.tell("groups of callers", Ok(Ok(()))),
            Ok(Err(seen)) => self.tell("groups of callers", Ok(Err(seen))),
            // A forwarder that is not root serves its own user only, whose groups do not change.
            Err(why) => self.findings.note("groups of callers", Found::Unknown, why),
        }
    }

    fn case(&mut self) {
        let (upper, lower) = (self.name("case-A"), self.name("case-a"));
        let tried = || -> Tried<Result<(), String>> {
            drop(self.open(&upper, OFlags::empty())?);
            let found = rustix::fs::statat(self.folder, &lower, AtFlags::SYMLINK_NOFOLLOW);
            Ok(match found {
                Err(Errno::NOENT) => Ok(()),
                _ => Err("A and a are one name".to_owned()),
            })
        };
        let tried = tried();
        self.tell("case of names", tried);
    }

    fn rename_flags(&mut self) {
        let (a, b) = (self.name("flags-a"), self.name("flags-b"));
        let tried = || -> Tried<Result<(), String>> {
            drop((
                self.open(&a, OFlags::empty())?,
                self.open(&b, OFlags::empty())?,
            ));
            let rename = |flags| {
                let (from, to) = (a.as_str(), b.as_str());
                rustix::fs::renameat_with(self.folder, from, self.folder, to, flags)
            };
            let refused = rename(RenameFlags::NOREPLACE);
            let exchanged = rename(RenameFlags::EXCHANGE);
            Ok(match (refused, exchanged) {
                (Err(Errno::EXIST), Ok(())) => Ok(()),
                (Err(Errno::EXIST), Err(error)) => Err(format!("RENAME_EXCHANGE: {error}")),
                (Err(error), Ok(())) => Err(format!("RENAME_NOREPLACE: {error}")),
                (Ok(()), _) => Err("RENAME_NOREPLACE replaced a file".to_owned()),
                (Err(error), Err(_)) => Err(error.to_string()),
            })
        };
        let tried = tried();
        self.tell("rename flags", tried);
    }

    fn births(&mut self) {
        let name = self.name("birth");
        let tried = || -> Tried<Result<(), String>> {
            let file = self.open(&name, OFlags::empty())?;
            let (flags, mask) = (AtFlags::EMPTY_PATH, StatxFlags::BTIME);
            let found = rustix::fs::statx(&file, "", flags, mask)?;
            let has = found.stx_mask & StatxFlags::BTIME.bits() != 0;
            Ok(if has { Ok(()) } else { Err("none".to_owned()) })
        };
        let tried = tried();
        self.tell("birth times", tried);
    }

    fn attributes(&mut self) {
        let name = self.name("attributes");
        let tried = || -> Tried<Result<(), String>> {
            let file = self.open(&name, OFlags::empty())?;
            let (key, value) = ("user.tidegate", b"value");
            rustix::fs::fsetxattr(&file, key, value, XattrFlags::empty())?;
            let mut read = [0u8; 16];
            let len = rustix::fs::fgetxattr(&file, key, &mut read)?;
            let same = &read[..len] == value;
            Ok(if same {
                Ok(())
            } else {
                Err("another value comes back".to_owned())
            })
        };
        let tried = tried();
        self.tell("extended attributes", tried);
    }

    fn long_names(&mut self) {
        let name = self.name("long");
        let long = format!("{name:-<255}");
        self.made.push(long.clone());
        let tried = self.open(&long, OFlags::empty()).map(|_| Ok(()));
        self.tell("names of 255 bytes", tried);
    }

    /// Writes one byte at the largest offset, which takes no space.
    fn large(&mut self) {
        let name = self.name("large");
        let tried = || -> Tried<Result<(), String>> {
            let file = self.open(&name, OFlags::empty())?;
            rustix::fs::ftruncate(&file, LARGE)?;
            let size = rustix::fs::fstat(&file)?.st_size as u64;
            Ok(if size == LARGE {
                Ok(())
            } else {
                Err(format!("{size} bytes"))
            })
        };
        let tried = tried();
        self.tell("files of 16 TiB", tried);
    }

    fn space(&mut self) {
        let (name, copy) = (self.name("space"), self.name("copy"));
        let opened = (
            self.open(&name, OFlags::empty()),
            self.open(&copy, OFlags::empty()),
        );
        let (file, copied) = match opened {
            (Ok(file), Ok(copied)) => (file, copied),
            (Err(error), _) | (_, Err(error)) => return self.tell("fallocate", Err(error)),
        };
        let allocated = rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, 65536);
        self.tell("fallocate", allocated.map(Ok));
        let _ = file.write_all_at(&[1; 5000], 0);
        let len = rustix::fs::copy_file_range(&file, Some(&mut 0), &copied, Some(&mut 0), 5000);
        self.tell(
            "copy_file_range",
            len.map(|len| match len {
                5000 => Ok(()),
                len => Err(format!("{len} bytes of 5000")),
            }),
        );
        let sparse = || -> Tried<Result<(), String>> {
            rustix::fs::ftruncate(&copied, 64 << 20)?;
            copied.write_all_at(&[1], 32 << 20).map_err(|_| Errno::IO)?;
            let at = rustix::fs::seek(&copied, rustix::fs::SeekFrom::Data(1 << 20))?;
            let told = (1 << 20..=32 << 20).contains(&at);
            let whole = at == 1 << 20;
            Ok(match (told, whole) {
                (true, false) => Ok(()),
                (true, true) => Err("a hole counts as data".to_owned()),
                (false, _) => Err(format!("data is found at {at}")),
            })
        };
        let sparse = sparse();
        self.tell("holes", sparse);
    }

    fn mapping(&mut self) {
        let name = self.name("map");
        let tried = || -> Tried<Result<(), String>> {
            let file = self.open(&name, OFlags::empty())?;
            rustix::fs::ftruncate(&file, BLOCK as u64)?;
            super::side::can_map(&file)?;
            Ok(Ok(()))
        };
        let tried = tried();
        self.tell("shared mappings", tried);
    }

    /// Compares the time that the back end stamps on a file with this node's clock.
    fn clock(&mut self) {
        let name = self.name("clock");
        let now_ms = || {
            let since = SystemTime::now().duration_since(UNIX_EPOCH);
            since.unwrap_or_default().as_millis() as u64
        };
        let tried = || -> Tried<Result<(), String>> {
            let before = now_ms();
            let file = self.open(&name, OFlags::empty())?;
            file.write_all_at(b"x", 0).map_err(|_| Errno::IO)?;
            file.sync_all().map_err(|_| Errno::IO)?;
            let after = now_ms();
            let (flags, mask) = (AtFlags::EMPTY_PATH, StatxFlags::MTIME);
            let time = rustix::fs::statx(&file, "", flags, mask)?.stx_mtime;
            let given = time.tv_sec.max(0) as u64 * 1000 + u64::from(time.tv_nsec) / 1_000_000;
            let apart = before
                .saturating_sub(given)
                .max(given.saturating_sub(after));
            Ok(match apart {
                0..=CLOCK_MS_MAX => Ok(()),
                _ => Err(format!("{apart} ms apart from this node's")),
            })
        };
        let tried = tried();
        self.tell("clock", tried);
    }
}

impl Drop for Alone<'_> {
    fn drop(&mut self) {
        for name in &self.made {
            // Not all were made.
            let _ = rustix::fs::unlinkat(self.folder, name, AtFlags::empty());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::Reach;
    use crate::storage::scratch::Scratch;

    #[test]
    fn a_local_directory_has_what_one_node_needs_and_nothing_stays() {
        let scratch = Scratch::new("alone");
        let folder = File::open(scratch.path()).expect("it is there");
        let backend = Backend::of(&folder).expect("it lies somewhere");
        let findings = trials(folder.as_fd(), &backend, "1", false);
        assert_eq!(findings.missing(false, Reach::Cached), None, "{findings:?}");
        for name in ["byte locks", "hard links", "case of names", "clock"] {
            assert_eq!(
                findings.of(name).expect("tried").found,
                Found::Yes,
                "{name}"
            );
        }
        let left = std::fs::read_dir(scratch.path())
            .expect("it is there")
            .count();
        assert_eq!(left, 0);
    }

    #[test]
    fn a_mount_without_locks_between_nodes_is_told_by_its_option() {
        let scratch = Scratch::new("nolock");
        let folder = File::open(scratch.path()).expect("it is there");
        let mut backend = Backend::of(&folder).expect("it lies somewhere");
        backend.options.push("local_lock=all".to_owned());
        let findings = trials(folder.as_fd(), &backend, "1", true);
        let missing = findings.missing(true, Reach::Node).expect("it must be");
        assert_eq!(missing.property.name, "locks leave the node");
        assert_eq!(missing.seen, "mounted with local_lock=all");
        assert_eq!(findings.missing(false, Reach::Cached), None);
    }

    #[test]
    fn a_gluster_volume_is_told_by_the_settings_that_it_lacks() {
        let scratch = Scratch::new("volume");
        let folder = File::open(scratch.path()).expect("it is there");
        let mut backend = Backend::of(&folder).expect("it lies somewhere");
        let property = "settings of the volume";
        assert_eq!(
            trials(folder.as_fd(), &backend, "1", true).of(property),
            None
        );
        backend.kind = "fuse.glusterfs".to_owned();
        backend.mount_point = scratch.path().to_owned();
        let layer = scratch.path().join(".meta/graphs/active/v-replicate-0");
        std::fs::create_dir_all(&layer).expect("room");
        std::fs::write(layer.join("type"), "cluster/replicate\n").expect("room");
        let findings = trials(folder.as_fd(), &backend, "1", true);
        let missing = findings.missing(true, Reach::Node).expect("it must be");
        assert_eq!(missing.property.name, property);
        assert_eq!(missing.seen, "it lacks cluster.post-op-delay-secs 0");
        assert_eq!(findings.missing(false, Reach::Cached), None);
    }
}

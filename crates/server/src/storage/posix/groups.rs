//! Tries whether the back end judges a caller by the groups that the caller has now.
//!
//! A storage thread serves many callers, one after the other, and takes on the groups of each. A
//! file system that caches the groups of a thread, as GlusterFS does for 300 s by default, refuses
//! members of a group and admits others.

use super::PosixFiles;
use super::hidden::draft_name;
use super::sys::Done;
use rustix::fs::{AtFlags, Gid, Mode, OFlags};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use tidegate_forward::{Access, Errno};
use tidegate_wire::Caller;

/// A user and a group for this trial only, which nobody else uses.
const CALLER: u32 = 2_000_000_017;
const GROUP: u32 = 2_000_000_029;

impl PosixFiles {
    /// Whether a thread is refused by a directory without its group, admitted with it, and refused
    /// again without it. None where that cannot be tried.
    pub(crate) fn groups_count(&self) -> io::Result<Option<bool>> {
        if !self.export.own.acts_for_callers() {
            return Ok(None);
        }
        let name = draft_name("groups");
        rustix::fs::mkdirat(self.hidden(), &name, Mode::RWXU)?;
        let tried = self.try_groups(&name);
        rustix::fs::unlinkat(self.hidden(), &name, AtFlags::REMOVEDIR)?;
        tried
    }

    fn try_groups(&self, name: &str) -> io::Result<Option<bool>> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let directory = rustix::fs::openat(self.hidden(), name, flags, Mode::empty())?;
        // A server may treat root as an unprivileged user.
        if rustix::fs::fchown(&directory, None, Some(Gid::from_raw(GROUP))).is_err() {
            return Ok(None);
        }
        rustix::fs::fchmod(&directory, Mode::RWXU | Mode::RWXG)?;
        // A separate thread has no groups from earlier, and leaves none behind.
        let answers = std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().name("groups".to_owned());
            let thread = thread.spawn_scoped(scope, || {
                [false, true, false].map(|member| self.enter(&directory, member))
            })?;
            Ok::<_, io::Error>(thread.join().expect("it does not panic"))
        })?;
        Ok(Some(are_right(&answers)))
    }

    /// Makes a file in the directory, as a member of its group or not: only this makes every back
    /// end check the group.
    fn enter(&self, directory: &OwnedFd, member: bool) -> Done<()> {
        let caller = Caller {
            uid: CALLER,
            gid: CALLER,
            groups: if member { [GROUP].into() } else { [].into() },
        };
        let name = draft_name("f");
        let acting = self.export.own.act_as(Some(&caller))?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
        let made = self.export.open_at(directory, name.as_str(), flags, 0o600);
        drop(acting);
        if made.is_ok() {
            let gone = rustix::fs::unlinkat(directory.as_fd(), &name, AtFlags::empty());
            gone.map_err(super::no)?;
        }
        made.map(drop)
    }
}

/// Whether the answers are: refused, admitted, refused.
fn are_right(answers: &[Done<()>; 3]) -> bool {
    let refused = Err(Access::Errno(Errno::EACCES));
    *answers == [refused, Ok(()), refused]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::ExportOptions;
    use crate::storage::scratch::Scratch;
    use tidegate_wire::Layout;

    #[test]
    fn a_local_file_system_goes_by_the_groups_of_now() {
        let scratch = Scratch::new("groups");
        let layout = Layout {
            seats: 1,
            stripe: 1 << 20,
        };
        let files = PosixFiles::open(scratch.path(), &ExportOptions::new(layout)).expect("export");
        let acts = files.export.own.acts_for_callers();
        let expected = acts.then_some(true);
        assert_eq!(files.groups_count().expect("tried"), expected);
        let left = std::fs::read_dir(scratch.path().join(".tidegate")).expect("there");
        let names = left.map(|entry| entry.expect("an entry").file_name());
        assert!(
            names
                .into_iter()
                .all(|name| !name.to_string_lossy().contains("groups"))
        );
    }

    #[test]
    fn remembered_groups_are_told() {
        let no = Err(Access::Errno(Errno::EACCES));
        assert!(are_right(&[no, Ok(()), no]));
        assert!(!are_right(&[no, no, no]), "the groups of the first time");
        assert!(!are_right(&[no, Ok(()), Ok(())]), "those of the second");
        assert!(!are_right(&[Err(Access::Errno(Errno::EIO)), Ok(()), no]));
    }
}

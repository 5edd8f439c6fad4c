//! A directory that forwarders export, or shall: the type of its file system, rights, room, locks.
//! Nothing is left there: what is tried is tried on a file without a name.

use super::bounded::apart;
use super::finding::Finding;
use crate::table;
use rustix::fs::{Access, AtFlags, CWD, FlockOperation, Mode, OFlags, StatVfsMountFlags};
use rustix::io::Errno;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tidegate_server::backend::{Backend, Reach};

/// How long the directory may take.
const ANSWER_MAX: Duration = Duration::from_secs(5);

/// What this process is called to look at one directory.
pub const PROBE: &str = "folder";

/// Each seat's table of replies takes so much in the hidden folder.
const TABLE_BYTES: u64 = 16 << 20;

/// Less room than this, and less than a twentieth of all, is little.
const ROOM_BYTES: u64 = 1 << 30;

/// Fewer free inodes than this are few.
const INODES: u64 = 1000;

/// Types that forwarders ran over for long in tests, and how far.
const TRIED: [&str; 3] = ["fuse.ceph-fuse", "fuse.ceph", "fuse.glusterfs"];

/// Types that cannot carry forwarders on several nodes.
const OF_ONE_NODE: [&str; 3] = ["fuse.sshfs", "orangefs", "pvfs2"];

/// Options with which a mount keeps its locks on the node.
const LOCAL_LOCKS: [&str; 4] = ["localflock", "nolock", "local_lock=all", "local_lock=posix"];

/// Looks, by a process of its own.
pub fn look(dir: &Path) -> Vec<Finding> {
    let dir = std::path::absolute(dir).unwrap_or_else(|_| dir.to_path_buf());
    apart(PROBE, &dir, ANSWER_MAX).unwrap_or_else(|| {
        let seconds = ANSWER_MAX.as_secs();
        vec![Finding::fails(
            "directory",
            format!("{} does not answer within {seconds} s", dir.display()),
            "see whether its file system hangs: no forwarder can serve it so",
        )]
    })
}

/// What is known of the directory.
struct Folder {
    path: PathBuf,
    backend: Option<Backend>,
    /// Settings that a GlusterFS volume lacks, or why they are not known.
    lacks: Result<Vec<&'static str>, String>,
    writable: Result<(), Errno>,
    /// Room that an ordinary user can have, and all of it, in bytes.
    room: (u64, u64),
    /// Inodes that such a user can have; None: the file system has no bound.
    inodes: Option<u64>,
    /// Byte locks and whole-file locks; None: not tried.
    locks: Option<Result<(), Errno>>,
}

/// What this process finds there: it may be held there for long.
pub fn probe(dir: &Path) -> Vec<Finding> {
    match Folder::look(dir) {
        Ok(folder) => folder.findings(),
        Err(error) => vec![Finding::fails(
            "directory",
            format!("{}: {error}", dir.display()),
            "name a directory that is there and that this user can list",
        )],
    }
}

impl Folder {
    fn look(dir: &Path) -> rustix::io::Result<Folder> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = rustix::fs::open(dir, flags, Mode::empty())?;
        let found = rustix::fs::fstatvfs(&opened)?;
        let writable = match found.f_flag.contains(StatVfsMountFlags::RDONLY) {
            true => Err(Errno::ROFS),
            false => rustix::fs::accessat(
                CWD,
                dir,
                Access::WRITE_OK | Access::EXEC_OK,
                AtFlags::EACCESS,
            ),
        };
        let backend = Backend::of(&opened).ok();
        let lacks = backend.as_ref().map(Backend::gluster_lacks);
        let lacks = lacks.unwrap_or(Ok(Vec::new()));
        Ok(Folder {
            path: dir.to_path_buf(),
            lacks: lacks.map_err(|error| error.to_string()),
            locks: writable.is_ok().then(|| locks(&opened)).flatten(),
            writable,
            room: (
                found.f_bavail.saturating_mul(found.f_frsize),
                found.f_blocks.saturating_mul(found.f_frsize),
            ),
            inodes: (found.f_files > 0).then_some(found.f_favail),
            backend,
        })
    }

    fn findings(&self) -> Vec<Finding> {
        let mut all = vec![self.kind()];
        all.extend(self.local_locks());
        all.push(self.rights());
        all.push(self.space());
        all.push(self.names());
        all.extend(self.locks());
        all
    }

    /// What docs/backends.md says of the type.
    fn kind(&self) -> Finding {
        let check = "file system";
        let path = self.path.display();
        let Some(backend) = &self.backend else {
            return Finding::warning(
                check,
                format!("the kernel does not say what {path} is mounted from"),
                format!("`tidegate check {path}` tries what forwarders need"),
            );
        };
        let (kind, point) = (&backend.kind, backend.mount_point.display());
        let text = format!("{path} is on {kind} at {point}");
        let tries = format!("`tidegate check {path} --nodes 2`, on two I/O nodes at once");
        let settings = backend.settings().line();
        if kind == "fuse.tidegate" {
            return Finding::fails(
                check,
                format!("{text}: a mount of forwarders, which no other can export"),
                "name the directory that those forwarders export",
            );
        }
        if backend.reach == Reach::Node {
            return Finding::ok(check, format!("{text}: forwarders all run on this node"));
        }
        if OF_ONE_NODE.contains(&kind.as_str()) {
            return Finding::warning(
                check,
                format!("{text}: it has no locks between nodes"),
                "run forwarders on one node only (one_node = true), or let etcd keep the seats",
            );
        }
        if !TRIED.contains(&kind.as_str()) {
            return Finding::warning(
                check,
                format!("{text}: nobody has run forwarders over that type"),
                format!("try it: {tries}; {settings} (docs/backends.md)"),
            );
        }
        match &self.lacks {
            Ok(lacks) if lacks.is_empty() => {
                Finding::ok(check, format!("{text}: tested; {tries} tries this one"))
            }
            Ok(lacks) => Finding::warning(
                check,
                format!("{text}: the volume lacks {}", lacks.join(", ")),
                format!("{settings}; then mount it anew (docs/backends.md)"),
            ),
            Err(why) => Finding::warning(
                check,
                format!("{text}: its settings are not known: {why}"),
                format!("mount the volume itself, not a folder of it; {tries}"),
            ),
        }
    }

    fn local_locks(&self) -> Option<Finding> {
        let backend = self.backend.as_ref()?;
        let option = LOCAL_LOCKS.iter().find(|it| backend.has_option(it))?;
        Some(Finding::warning(
            "locks between nodes",
            format!("mounted with {option}: locks stay on this node"),
            format!("mount it without; {}", backend.settings().line()),
        ))
    }

    fn rights(&self) -> Finding {
        let check = "rights";
        match self.writable {
            Ok(()) => Finding::ok(check, "this user may make files there"),
            Err(Errno::ROFS) => Finding::fails(
                check,
                "it can only be read: forwarders keep their state there, in .tidegate",
                "mount it so that it can be written",
            ),
            Err(error) => Finding::fails(
                check,
                format!("this user may not make files there ({error}): nor may his forwarders"),
                "name a directory of the user's, or let root start the forwarders",
            ),
        }
    }

    fn space(&self) -> Finding {
        let check = "room";
        let (free, all) = self.room;
        let text = format!("{} of {} are free", table::bytes(free), table::bytes(all));
        let advice = "make room: a write into a full file system is refused to the program";
        match () {
            () if free < TABLE_BYTES => Finding::fails(
                check,
                format!("{text}: a forwarder needs 16 MiB for its table of replies"),
                advice,
            ),
            () if free < ROOM_BYTES && free < all / 20 => Finding::warning(check, text, advice),
            () => Finding::ok(check, text),
        }
    }

    fn names(&self) -> Finding {
        let check = "inodes";
        let advice = "remove files, or make the file system with more inodes";
        match self.inodes {
            None => Finding::ok(check, "no bound"),
            Some(0) => Finding::fails(check, "none is free: no file can be made", advice),
            Some(free) if free < INODES => {
                Finding::warning(check, format!("{free} are free"), advice)
            }
            Some(free) => Finding::ok(check, format!("{free} are free")),
        }
    }

    fn locks(&self) -> Option<Finding> {
        let check = "locks";
        if self.writable.is_err() {
            return None;
        }
        let tries = format!("`tidegate check {}` tries them", self.path.display());
        Some(match self.locks {
            Some(Ok(())) => Finding::ok(check, "byte locks and flock, on this node"),
            Some(Err(error)) => Finding::fails(
                check,
                format!("a lock cannot be had ({error}): forwarders keep seats apart by locks"),
                "mount it with locks (docs/backends.md), or let etcd keep the seats",
            ),
            None => Finding::ok(check, format!("not tried without a name in it; {tries}")),
        })
    }
}

/// Locks a file that has no name; None where there can be none.
fn locks(dir: &OwnedFd) -> Option<Result<(), Errno>> {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let file = rustix::fs::openat(dir, c".", flags, Mode::RUSR | Mode::WUSR).ok()?;
    let bytes = rustix::fs::fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive);
    Some(bytes.and_then(|()| rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::finding::Verdict::{self, Fails, Ok as Well, Warning};

    fn folder(kind: &str) -> Folder {
        let line = format!("7 1 0:9 / /data rw - {kind} source rw");
        Folder {
            path: "/data/x".into(),
            backend: Backend::in_mounts(&line, "7"),
            lacks: Ok(Vec::new()),
            writable: Ok(()),
            room: (1 << 40, 1 << 41),
            inodes: Some(1 << 20),
            locks: Some(Ok(())),
        }
    }

    fn verdict(folder: &Folder, check: &str) -> Verdict {
        let mut found = folder.findings().into_iter();
        found.find(|one| one.check == check).expect(check).verdict
    }

    #[test]
    fn each_type_of_file_system_has_its_verdict() {
        for (kind, wanted) in [
            ("ext4", Well),
            ("fuse.ceph-fuse", Well),
            ("fuse.glusterfs", Well),
            ("lustre", Warning),
            ("nfs4", Warning),
            ("fuse.sshfs", Warning),
            ("fuse.unheard-of", Warning),
            ("fuse.tidegate", Fails),
        ] {
            assert_eq!(verdict(&folder(kind), "file system"), wanted, "{kind}");
        }
        let mut gluster = folder("fuse.glusterfs");
        gluster.lacks = Ok(vec!["performance.write-behind off"]);
        assert_eq!(verdict(&gluster, "file system"), Warning);
        gluster.lacks = Err("a bind mount".to_string());
        assert_eq!(verdict(&gluster, "file system"), Warning);
        gluster.backend = None;
        assert_eq!(verdict(&gluster, "file system"), Warning);
        let mut local = folder("nfs4");
        let backend = local.backend.as_mut().expect("it is known");
        backend.options.push("nolock".to_string());
        assert_eq!(verdict(&local, "locks between nodes"), Warning);
    }

    #[test]
    fn rights_room_and_locks_have_theirs() {
        let mut full = folder("ext4");
        assert_eq!(verdict(&full, "room"), Well);
        full.room = (512 << 20, 1 << 40);
        assert_eq!(verdict(&full, "room"), Warning);
        full.room = (1 << 20, 1 << 40);
        assert_eq!(verdict(&full, "room"), Fails);
        full.inodes = Some(9);
        assert_eq!(verdict(&full, "inodes"), Warning);
        full.inodes = Some(0);
        assert_eq!(verdict(&full, "inodes"), Fails);
        full.inodes = None;
        assert_eq!(verdict(&full, "inodes"), Well);
        full.locks = Some(Err(Errno::NOLCK));
        assert_eq!(verdict(&full, "locks"), Fails);
        full.locks = None;
        assert_eq!(verdict(&full, "locks"), Well);
        full.writable = Err(Errno::ACCESS);
        assert_eq!(verdict(&full, "rights"), Fails);
        assert!(full.locks().is_none());
    }

    #[test]
    fn a_directory_is_looked_at_and_nothing_is_left() {
        let place = std::env::temp_dir().join(format!("tidegate-doctor-{}", std::process::id()));
        std::fs::create_dir(&place).expect("room");
        let found = probe(&place);
        assert!(found.iter().all(|it| it.check != "directory"), "{found:?}");
        let entries = std::fs::read_dir(&place).expect("it is there");
        assert_eq!(entries.count(), 0);
        std::fs::remove_dir(&place).expect("it is empty");
        assert_eq!(probe(&place)[0].verdict, Fails);
    }
}

//! Which memory holds bytes that were acknowledged and not synced. Also the names of users.

use rustix::fs::{AtFlags, StatxFlags};
use std::ffi::{CStr, CString};
use std::fs::Metadata;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use tidegate_sched::AppId;

/// Asks `statx` for a number of the mount that no other mount gets before the next boot (Linux
/// 6.8).
const MNT_ID_UNIQUE: StatxFlags = StatxFlags::from_bits_retain(0x4000);

/// Most groups of a user that are asked for: as many as Linux lets a process have.
const GROUPS_MAX: libc::c_int = 65_536;

/// The memory that holds acknowledged bytes until they are synced. The forwarder's hello names it
/// to clients. Any forwarder with the same write cache can sync such bytes. If no such forwarder is
/// left, the bytes may be lost, and the client reports that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteCache {
    /// A number of the memory: the page cache of a node or mount, or the back end's servers.
    pub host: u64,
    /// A number that changes when that memory is lost, as by a reboot.
    pub boot: u64,
}

impl WriteCache {
    /// That of bytes that no node's memory holds: all forwarders see the same servers.
    pub fn of_servers() -> WriteCache {
        let servers = hash("the servers of the back end");
        WriteCache {
            host: servers,
            boot: servers,
        }
    }

    /// This node's page cache of an export; `is_fuse` says whether a process
    /// serves the export through the kernel's FUSE. Fails if the system does not tell what file
    /// system `export` is on.
    pub fn of_page_cache(export: impl AsFd, is_fuse: bool) -> std::io::Result<WriteCache> {
        let boot = boot_text();
        let (device, stat) = device_text(export)?;
        // A FUSE mount's process caches bytes too, and they are lost when it ends. The next mount
        // may get the same device number.
        let told = stat.stx_mask & MNT_ID_UNIQUE.bits() != 0;
        let mount = match is_fuse && told {
            true => stat.stx_mnt_id,
            false => 0,
        };
        Ok(WriteCache {
            host: hash(&format!("{boot} {device} {mount}")),
            boot: hash(&boot),
        })
    }
}

/// A number of this boot of the node.
pub fn boot() -> u64 {
    hash(&boot_text())
}

/// A number of the page cache that this node has of a file's file system. Two nodes have
/// two numbers, and so have two mounts that share no page cache. Fails if `statx` does.
pub fn page_cache(file: impl AsFd) -> std::io::Result<u64> {
    let (device, _) = device_text(file)?;
    Ok(hash(&format!("{} {device}", boot_text())))
}

/// A page cache belongs to one kernel and one file system, however often that is mounted there.
fn device_text(file: impl AsFd) -> std::io::Result<(String, rustix::fs::Statx)> {
    let wanted = StatxFlags::BASIC_STATS | MNT_ID_UNIQUE;
    let stat = rustix::fs::statx(file, c"", AtFlags::EMPTY_PATH, wanted)?;
    let device = format!("{}:{}", stat.stx_dev_major, stat.stx_dev_minor);
    Ok((device, stat))
}

/// A text that differs for every boot of every kernel, even of copied images. Where it cannot be
/// read, the machine's id and name.
fn boot_text() -> String {
    match std::fs::read_to_string("/proc/sys/kernel/random/boot_id") {
        Ok(boot) => boot.trim().to_owned(),
        Err(_) => {
            let machine = std::fs::read_to_string("/etc/machine-id").unwrap_or_default();
            let uname = rustix::system::uname();
            format!("{} {}", machine.trim(), uname.nodename().to_string_lossy())
        }
    }
}

/// The number of the user with this name, from the system's user database.
pub fn uid_of(name: &str) -> Option<u32> {
    let name = CString::new(name).ok()?;
    // No longer entries are expected; a user with one counts as unknown.
    let mut buffer = [0 as libc::c_char; 16_384];
    let mut found = std::ptr::null_mut();
    // SAFETY: all zero is a valid passwd, which is only looked at after it was filled.
    let mut entry: libc::passwd = unsafe { std::mem::zeroed() };
    // SAFETY: name ends with a NUL; the others outlive the call, and the length is the buffer's.
    let error = unsafe {
        libc::getpwnam_r(
            name.as_ptr(),
            &mut entry,
            buffer.as_mut_ptr(),
            buffer.len(),
            &mut found,
        )
    };
    (error == 0 && !found.is_null()).then_some(entry.pw_uid)
}

/// The name of the user with this number, from the system's user database.
pub fn user_of(uid: u32) -> Option<String> {
    with_user(uid, |name, _| name.to_str().ok().map(str::to_string))?
}

/// Why the groups of a user are not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoGroups {
    /// There is no such user.
    NoUser,
    /// He is in more than Linux lets a process have.
    TooMany,
}

/// The groups of the user with this number, from the system's databases of users and groups. May
/// wait for servers of the databases.
pub fn groups_of(uid: u32) -> Result<Vec<u32>, NoGroups> {
    let groups = with_user(uid, |name, group| {
        let mut room: libc::c_int = 64;
        loop {
            let mut groups = vec![0; usize::try_from(room).ok()?];
            let mut count = room;
            // SAFETY: the name ends with a NUL, and there is room for so many groups.
            let all = unsafe {
                libc::getgrouplist(name.as_ptr(), group, groups.as_mut_ptr(), &mut count)
            };
            if all >= 0 {
                groups.truncate(usize::try_from(count).ok()?);
                return Some(groups);
            }
            room *= 2;
            (room <= GROUPS_MAX).then_some(())?;
        }
    });
    groups.ok_or(NoGroups::NoUser)?.ok_or(NoGroups::TooMany)
}

/// The files of users and groups that there are. Programs that change them put others in their
/// place.
#[derive(PartialEq, Eq)]
pub(crate) struct UserFiles([Option<(u64, u64)>; 2]);

impl UserFiles {
    /// Those of now.
    pub(crate) fn now() -> UserFiles {
        UserFiles::of(["/etc/passwd", "/etc/group"])
    }

    fn of(paths: [&str; 2]) -> UserFiles {
        let id = |found: Metadata| (found.dev(), found.ino());
        UserFiles(paths.map(|path| std::fs::metadata(path).ok().map(id)))
    }

    /// Whether one of them is another file now.
    pub(crate) fn are_replaced(&self) -> bool {
        *self != UserFiles::now()
    }
}

/// Looks at the name and the group of the user with this number.
fn with_user<T>(uid: u32, then: impl FnOnce(&CStr, libc::gid_t) -> T) -> Option<T> {
    let mut buffer = [0 as libc::c_char; 16_384];
    let mut found = std::ptr::null_mut();
    // SAFETY: all zero is a valid passwd, which is only looked at after it was filled.
    let mut entry: libc::passwd = unsafe { std::mem::zeroed() };
    // SAFETY: all outlive the call, and the length is the buffer's.
    let error = unsafe {
        libc::getpwuid_r(
            uid,
            &mut entry,
            buffer.as_mut_ptr(),
            buffer.len(),
            &mut found,
        )
    };
    if error != 0 || found.is_null() {
        return None;
    }
    // SAFETY: an entry that was found has a name, which ends with a NUL and lies in the buffer.
    let name = unsafe { CStr::from_ptr(entry.pw_name) };
    Some(then(name, entry.pw_gid))
}

/// The hash that application names have, the same in all versions.
fn hash(text: &str) -> u64 {
    AppId::from_name(text).0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::scratch::{Scratch, Tmpfs};
    use std::fs::File;

    #[test]
    fn a_file_of_users_that_was_replaced_is_seen() {
        assert!(!UserFiles::now().are_replaced());
        let scratch = Scratch::new("users");
        let [one, other] = ["one", "other"].map(|name| scratch.path().join(name));
        for path in [&one, &other] {
            std::fs::write(path, "root:x:0:").expect("room");
        }
        let of = || UserFiles::of([one.to_str().expect("so named"), "/nowhere"]);
        let before = of();
        std::fs::write(&one, "daemon:x:1:").expect("room");
        assert!(of() == before, "it was only changed");
        std::fs::rename(&other, &one).expect("they are there");
        assert!(of() != before);
    }

    #[test]
    fn bytes_lie_in_a_page_cache_or_of_servers() {
        let scratch = Scratch::new("place");
        let of = |path: &std::path::Path| {
            let directory = File::open(path).expect("it is there");
            WriteCache::of_page_cache(directory, false).expect("the kernel says")
        };
        let here = of(scratch.path());
        let below = scratch.path().join("below");
        std::fs::create_dir(&below).expect("room");
        assert_eq!(of(&below), here, "the same file system");
        let beyond = WriteCache::of_servers();
        assert_ne!(beyond, here);
        if let Some(_mount) = Tmpfs::mount(&below, "64k") {
            let there = of(&below);
            assert_ne!(there.host, here.host, "another file system");
            assert_eq!(there.boot, here.boot);
        }
    }
}

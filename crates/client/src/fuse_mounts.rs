//! The FUSE mounts that this process sees, as the kernel lists them. No mount is asked, so one that
//! hangs holds nobody up.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

/// One mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FuseMount {
    /// Where it is.
    pub point: PathBuf,
    /// The minor number of its device; the major one is 0.
    pub device: u64,
    /// What kind of file system it is: `fuse`, or `fuse.` and a name.
    pub kind: String,
    /// The user whose process serves it.
    pub owner: u32,
}

impl FuseMount {
    /// Whether Tidegate has made it. What it is called (`df`) may be anything.
    pub fn is_tidegates(&self) -> bool {
        self.kind == "fuse.tidegate"
    }

    /// Whether this process may believe what the mount says: root serves it, or the user himself.
    pub fn is_trusted(&self) -> bool {
        self.owner == 0 || self.owner == rustix::process::geteuid().as_raw()
    }
}

/// The mounts, the latest last. Empty if the kernel does not tell them.
pub fn fuse_mounts() -> Vec<FuseMount> {
    fuse_mounts_in(&std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default())
}

/// The mounts in the text of `mountinfo`. Whoever mounts something shapes a line of it.
pub fn fuse_mounts_in(text: &str) -> Vec<FuseMount> {
    text.lines().filter_map(mount_of).collect()
}

/// The mount of one line of `mountinfo`; None if it is of another kind.
fn mount_of(line: &str) -> Option<FuseMount> {
    let (place, kind) = line.rsplit_once(" - ")?;
    let mut fields = kind.split(' ');
    let kind = fields.next().filter(|kind| kind.starts_with("fuse"))?;
    let options = fields.nth(1)?;
    let mut place = place.split(' ').skip(2);
    let (device, point) = (place.next()?, place.nth(1)?);
    // What the process that mounts says of itself stands before what the kernel says.
    let owner = options
        .rsplit(',')
        .find_map(|it| it.strip_prefix("user_id="))?;
    Some(FuseMount {
        point: OsString::from_vec(unescaped(point)).into(),
        device: device.strip_prefix("0:")?.parse().ok()?,
        kind: String::from_utf8_lossy(&unescaped(kind)).into_owned(),
        owner: owner.parse().ok()?,
    })
}

/// A field in which the kernel writes blanks, line feeds and backslashes as `\` and three octal
/// digits.
fn unescaped(field: &str) -> Vec<u8> {
    let (mut bytes, mut left) = (Vec::new(), field.as_bytes());
    while let Some((first, rest)) = left.split_first() {
        let code = rest.get(..3).filter(|_| *first == b'\\');
        let code = code.and_then(|it| u8::from_str_radix(std::str::from_utf8(it).ok()?, 8).ok());
        match code {
            Some(byte) => (bytes.push(byte), left = &rest[3..]),
            None => (bytes.push(*first), left = rest),
        };
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_kernel_are_read() {
        let line = "36 35 0:41 / /mnt/a\\040b rw,nosuid shared:1 - fuse.tidegate a,b \
                    rw,user_id=1000,group_id=0,default_permissions,allow_other";
        let mount = FuseMount {
            point: "/mnt/a b".into(),
            device: 41,
            kind: "fuse.tidegate".to_string(),
            owner: 1000,
        };
        assert!(mount.is_tidegates());
        assert_eq!(mount_of(line), Some(mount));
        for other in ["fuse", "fuse.sshfs", "fuseblk", "fuse.tidegate2"] {
            let mount = mount_of(&line.replace("fuse.tidegate", other)).expect("it is one");
            assert!(!mount.is_tidegates(), "{other}");
        }
        let optional = line.replace(" shared:1", "");
        assert_eq!(mount_of(&optional).map(|it| it.owner), Some(1000));
        for wrong in [
            line.replace("- fuse.tidegate ", "- ext4 "),
            line.replace("0:41", "8:1"),
            line.replace("user_id=1000,", ""),
            line.replace("1000", "a"),
            "36 35 0:41 /".to_string(),
        ] {
            assert_eq!(mount_of(&wrong), None, "{wrong}");
        }
    }
}

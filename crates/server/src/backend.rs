//! What the type and the mount of an export's file system tell about it before anything is tried:
//! above all, whether other nodes may have it mounted too.
//!
//! This module is a table by type. Forwarders among themselves and `tidegate check` try out whether
//! a file system keeps the promises of its type. The table only decides which of the two ways of
//! working a forwarder begins with.

mod alone;
pub mod check;
pub mod heard;
#[cfg(test)]
mod lies;
mod messages;
mod op;
mod peers;
pub mod property;
pub mod settings;
mod side;
mod talk;
mod trials;

use crate::config::Config;
use crate::storage::Trust;
pub(crate) use peers::Peers;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::path::{Path, PathBuf};

/// How far a file system reaches, by its type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// Only one node has it mounted, so what that node's kernel caches is never stale: ext4, XFS.
    Node,
    /// Several nodes may have it mounted, and their kernels keep each other's caches consistent:
    /// Lustre, GPFS, the kernel's CephFS.
    Coherent,
    /// Several nodes may have it mounted, and what a node caches may be stale: NFS, FUSE.
    Cached,
}

/// Layers of GlusterFS's client that cache or delay bytes, sizes or names. Each comes with the
/// setting of the volume that removes it.
const GLUSTER_CACHES: &[(&str, &str)] = &[
    ("performance/write-behind", "performance.write-behind off"),
    ("performance/md-cache", "performance.stat-prefetch off"),
    ("performance/quick-read", "performance.quick-read off"),
    ("performance/io-cache", "performance.io-cache off"),
    ("performance/read-ahead", "performance.read-ahead off"),
    ("performance/nl-cache", "performance.nl-cache off"),
];

/// The layer that writes each brick of a replicated volume.
const GLUSTER_REPLICATE: &str = "cluster/replicate";

/// An option of that layer as the mount shows it, which is the value at its start; whether that
/// value is acceptable; and the setting to use. An option that nobody has set is not shown.
struct Replicate {
    option: &'static str,
    fits: fn(Option<&str>) -> bool,
    setting: &'static str,
    /// Whether names or bytes may be lost without it even if a single mount uses the volume.
    also_alone: bool,
}

const GLUSTER_REPLICATED: &[Replicate] = &[
    // How long after a write the other bricks are told that one brick has missed it. Until then a
    // mount that finds the brick again reads from it, and gets sizes and bytes from before the
    // brick went away.
    Replicate {
        option: "post-op-delay-secs",
        fits: |value| value == Some("0"),
        setting: "cluster.post-op-delay-secs 0",
        also_alone: false,
    },
    // How a brick that is back loses a name: by a rename onto another name of the same file, which
    // rename(2) leaves alone where both are one file. So of two removed names one stays for good.
    Replicate {
        option: "use-anonymous-inode",
        fits: |value| matches!(value, None | Some("no" | "off" | "false" | "disable" | "0")),
        setting: "cluster.use-anonymous-inode off",
        also_alone: true,
    },
];

/// Whether a setting that [`Backend::gluster_lacks`] names is needed even on one node.
pub(crate) fn is_needed_alone(setting: &str) -> bool {
    let mut known = GLUSTER_REPLICATED.iter();
    known.any(|needed| needed.setting == setting && needed.also_alone)
}

/// The file system of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Backend {
    /// Its type, as the kernel names it: `ext4`, `nfs4`, `fuse.glusterfs`.
    pub kind: String,
    /// What is mounted, as the kernel names it: a device, `server:/path`, a volume.
    pub source: String,
    /// Where it is mounted.
    pub mount_point: PathBuf,
    /// The options of the mount and of the file system.
    pub options: Vec<String>,
    /// How far it reaches.
    pub reach: Reach,
}

/// File systems that only one node can mount.
const OF_ONE_NODE: &[&str] = &[
    "bcachefs", "btrfs", "exfat", "ext2", "ext3", "ext4", "f2fs", "fuseblk", "jfs", "nilfs2",
    "ntfs3", "overlay", "ramfs", "reiserfs", "tmpfs", "vfat", "xfs", "zfs",
];

/// Shared file systems whose clients keep each other's caches consistent, according to their
/// documentation.
const COHERENT: &[&str] = &["ceph", "gfs2", "gpfs", "lustre", "ocfs2", "wekafs"];

impl Backend {
    /// The file system of an open directory. Fails if the system does not tell its mount.
    pub fn of(directory: impl AsFd) -> io::Result<Backend> {
        let number = directory.as_fd().as_raw_fd();
        let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{number}"))?;
        let id = info.lines().find_map(|line| line.strip_prefix("mnt_id:"));
        let mounts = std::fs::read_to_string("/proc/self/mountinfo")?;
        id.and_then(|id| Backend::in_mounts(&mounts, id.trim()))
            .ok_or_else(|| io::Error::other("the kernel does not say where it is mounted"))
    }

    /// The mount of this number in the text of `mountinfo`.
    pub fn in_mounts(mounts: &str, id: &str) -> Option<Backend> {
        mounts.lines().find_map(|line| parse(line, id))
    }

    /// The file system of the directory with this path.
    pub fn of_path(directory: &Path) -> io::Result<Backend> {
        Backend::of(std::fs::File::open(directory)?)
    }

    /// Whether forwarders on several nodes may have this export, according to type and
    /// configuration. A single forwarder makes no difference: it may be started on another node
    /// while the first one is only cut off, and the first one continues when it is connected again.
    pub fn is_shared(&self, config: &Config) -> bool {
        !config.ownership.one_node && self.reach != Reach::Node
    }

    /// What a forwarder with this configuration may rely on in this back end.
    pub fn trust(&self, config: &Config) -> Trust {
        Trust {
            attributes: self.reach == Reach::Node,
            pages: self.reach != Reach::Cached || !self.is_shared(config),
            copies: !(self.is_gluster() && self.is_shared(config)),
            zero_range: !self.is_gluster(),
        }
    }

    /// Whether a process serves it through the kernel's FUSE.
    pub fn is_fuse(&self) -> bool {
        self.kind == "fuse" || self.kind.starts_with("fuse.")
    }

    /// Whether it is a GlusterFS volume.
    pub fn is_gluster(&self) -> bool {
        self.kind == "fuse.glusterfs"
    }

    /// Where the mount of a GlusterFS volume shows its settings: a folder that no listing has.
    pub(crate) fn settings_folder(&self) -> PathBuf {
        self.mount_point.join(".meta")
    }

    /// The settings that the GlusterFS volume lacks for use by several nodes. Most of them are for
    /// caches in the mount's process, of which the kernel knows nothing. Fails if the mount does
    /// not show its settings, as the bind mount of a folder does not.
    pub fn gluster_lacks(&self) -> io::Result<Vec<&'static str>> {
        if !self.is_gluster() {
            return Ok(Vec::new());
        }
        let layers = self.settings_folder().join("graphs/active");
        let named = |error: io::Error| {
            io::Error::new(error.kind(), format!("{}: {error}", layers.display()))
        };
        let mut lacks = Vec::new();
        let mut count = 0;
        for layer in std::fs::read_dir(&layers).map_err(named)? {
            let layer = layer.map_err(named)?;
            // Beside the layers lies a plain file, the graph's text.
            if layer.file_type().map_err(named)?.is_file() {
                continue;
            }
            lacks.extend(lacks_of(&layer.path())?);
            count += 1;
        }
        if count == 0 {
            return Err(named(io::ErrorKind::NotFound.into()));
        }
        lacks.sort_unstable();
        lacks.dedup();
        Ok(lacks)
    }

    /// Whether the mount has this option, such as `nolock`.
    pub fn has_option(&self, option: &str) -> bool {
        self.options.iter().any(|one| one == option)
    }
}

/// The settings that a layer of GlusterFS's client, shown as this folder, lacks.
fn lacks_of(layer: &Path) -> io::Result<Vec<&'static str>> {
    let read = |path: PathBuf| {
        let named = |error| io::Error::other(format!("{}: {error}", path.display()));
        match std::fs::read_to_string(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            read => read.map(Some).map_err(named),
        }
    };
    let at = layer.join("type");
    let Some(kind) = read(at.clone())? else {
        return Err(io::Error::other(format!("{}: not there", at.display())));
    };
    let kind = kind.trim();
    if kind != GLUSTER_REPLICATE {
        let known = GLUSTER_CACHES.iter().filter(|(cache, _)| *cache == kind);
        return Ok(known.map(|(_, setting)| *setting).collect());
    }
    let mut lacks = Vec::new();
    for needed in GLUSTER_REPLICATED {
        let value = read(layer.join("options").join(needed.option))?;
        if !(needed.fits)(value.as_deref().map(str::trim)) {
            lacks.push(needed.setting);
        }
    }
    Ok(lacks)
}

/// Parses a line of mountinfo. None if it is not the mount with that number.
fn parse(line: &str, id: &str) -> Option<Backend> {
    let (left, right) = line.split_once(" - ")?;
    let mut left = left.split(' ');
    if left.next() != Some(id) {
        return None;
    }
    let mount_point = unescape(left.nth(3)?);
    let mut options: Vec<String> = left.next()?.split(',').map(str::to_owned).collect();
    let mut right = right.split(' ');
    let kind = right.next()?.to_owned();
    let source = unescape(right.next()?);
    options.extend(right.next().unwrap_or("").split(',').map(str::to_owned));
    let reach = match kind.as_str() {
        kind if OF_ONE_NODE.contains(&kind) => Reach::Node,
        kind if COHERENT.contains(&kind) => Reach::Coherent,
        _ => Reach::Cached,
    };
    Some(Backend {
        kind,
        source,
        mount_point: mount_point.into(),
        options,
        reach,
    })
}

/// Decodes spaces and the like, which the kernel writes as `\040`.
fn unescape(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, tail)) = rest.split_first() {
        let code = tail.get(..3).filter(|_| first == b'\\');
        let code = code.and_then(|digits| std::str::from_utf8(digits).ok());
        match code.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &tail[3..];
            }
            None => {
                bytes.push(first);
                rest = tail;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Source;

    #[test]
    fn a_line_of_mountinfo_says_type_source_place_and_options() {
        let line = "77 25 0:52 / /mnt/a\\040b rw,relatime shared:3 - fuse.ceph-fuse ceph-fuse \
                    rw,user_id=0,allow_other";
        assert_eq!(parse(line, "7"), None);
        let found = parse(line, "77").expect("its number");
        assert_eq!(found.kind, "fuse.ceph-fuse");
        assert_eq!(found.source, "ceph-fuse");
        assert_eq!(found.mount_point, Path::new("/mnt/a b"));
        assert!(found.has_option("relatime") && found.has_option("allow_other"));
        assert_eq!(found.reach, Reach::Cached);
        let local = "30 1 8:1 / / rw - ext4 /dev/sda1 rw";
        assert_eq!(parse(local, "30").expect("it is").reach, Reach::Node);
        let bare = "30 1 8:1 / / rw - lustre mgs@tcp:/fs";
        assert_eq!(parse(bare, "30").expect("it is").reach, Reach::Coherent);
    }

    #[test]
    fn caches_are_believed_where_nobody_else_changes_files() {
        let config = |more: &str| {
            let text = format!("export = \"/tmp\"\nlisten = [\"unix:/tmp/x.sock\"]\n{more}");
            let source = Source::parse(&text, "f.toml").expect("it is TOML");
            Config::from_source(source).expect("it is valid")
        };
        let on = |kind: &str| parse(&format!("7 1 0:9 / / rw - {kind} s rw"), "7").expect("7");
        let several = config("seats = 2\n");
        let alone = config("seats = 1\n");
        let one_node = config("seats = 2\n[ownership]\none_node = true\n");
        let trust = |attributes, pages| Trust {
            attributes,
            pages,
            ..Trust::WHOLE
        };
        for config in [&several, &alone, &one_node] {
            assert_eq!(on("ext4").trust(config), Trust::WHOLE);
            assert_eq!(on("lustre").trust(config), trust(false, true));
            let here = std::ptr::eq(config, &one_node);
            assert_eq!(on("fuse.ceph-fuse").trust(config), trust(false, here));
            assert_eq!(on("nfs4").trust(config), trust(false, here));
            let gluster = Trust {
                copies: here,
                zero_range: false,
                ..trust(false, here)
            };
            assert_eq!(on("fuse.glusterfs").trust(config), gluster);
        }
    }

    #[test]
    fn layers_of_gluster_that_remember_are_named_by_their_options() {
        let scratch = crate::storage::scratch::Scratch::new("layers");
        let line = "7 1 0:9 / / rw - fuse.glusterfs s rw";
        let mut backend = parse(line, "7").expect("7");
        backend.mount_point = scratch.path().to_owned();
        let lacks = |backend: &Backend| backend.gluster_lacks().expect("shown");
        let unknown = backend.gluster_lacks().expect_err("a folder's bind mount");
        assert!(
            unknown.to_string().contains(".meta/graphs/active"),
            "{unknown}"
        );
        for (name, kind) in [
            ("v-write-behind", "performance/write-behind\n"),
            ("v-md-cache", "performance/md-cache\n"),
            ("v-client-0", "protocol/client\n"),
        ] {
            let layer = scratch.path().join(".meta/graphs/active").join(name);
            std::fs::create_dir_all(&layer).expect("room");
            std::fs::write(layer.join("type"), kind).expect("room");
        }
        let text = scratch.path().join(".meta/graphs/active/volfile");
        std::fs::write(text, "volume v-client-0\n").expect("room");
        let unnamed = scratch.path().join(".meta/graphs/active/v-unnamed");
        std::fs::create_dir(&unnamed).expect("room");
        let unknown = backend
            .gluster_lacks()
            .expect_err("a layer that shows no type");
        assert!(unknown.to_string().contains("v-unnamed"), "{unknown}");
        std::fs::remove_dir(unnamed).expect("it is empty");
        let caches = [
            "performance.stat-prefetch off",
            "performance.write-behind off",
        ];
        assert_eq!(lacks(&backend), caches);
        backend.kind = "fuse.ceph-fuse".to_owned();
        assert!(lacks(&backend).is_empty());
    }

    #[test]
    fn a_replicated_gluster_must_be_set_for_bricks_that_come_back() {
        let scratch = crate::storage::scratch::Scratch::new("replicated");
        let mut backend = parse("7 1 0:9 / / rw - fuse.glusterfs s rw", "7").expect("7");
        backend.mount_point = scratch.path().to_owned();
        let lacks = || backend.gluster_lacks().expect("shown");
        for name in ["v-replicate-0", "v-replicate-1"] {
            let layer = scratch.path().join(".meta/graphs/active").join(name);
            std::fs::create_dir_all(layer.join("options")).expect("room");
            std::fs::write(layer.join("type"), "cluster/replicate\n").expect("room");
            assert_eq!(lacks(), ["cluster.post-op-delay-secs 0"]);
            std::fs::write(layer.join("options/post-op-delay-secs"), "1\n").expect("room");
            assert_eq!(lacks(), ["cluster.post-op-delay-secs 0"]);
            std::fs::write(layer.join("options/post-op-delay-secs"), "0\n").expect("room");
            assert!(lacks().is_empty());
            std::fs::write(layer.join("options/use-anonymous-inode"), "yes\n").expect("room");
            assert_eq!(lacks(), ["cluster.use-anonymous-inode off"]);
            std::fs::write(layer.join("options/use-anonymous-inode"), "off\n").expect("room");
            assert!(lacks().is_empty());
        }
    }

    #[test]
    fn every_directory_lies_somewhere() {
        let proc = Backend::of_path(Path::new("/proc")).expect("it is mounted");
        assert_eq!(
            (&*proc.kind, &*proc.mount_point),
            ("proc", Path::new("/proc"))
        );
    }
}

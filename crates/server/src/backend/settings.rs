//! How each type of file system must be mounted and set up for forwarders on several nodes.
//! docs/backends.md adds what the settings cost, and how far each type was tested.

use super::property::Finding;
use super::{Backend, Reach};

/// The settings for a type of file system.
#[derive(Debug)]
pub struct Settings {
    /// Types as the kernel names them. A name that ends with `*` is a prefix.
    kinds: &'static [&'static str],
    /// Its name for people.
    pub name: &'static str,
    /// The mount options.
    pub mount: &'static str,
    /// The settings of the servers; empty for none.
    pub servers: &'static str,
    /// How long the locks of a dead node persist, and what shortens that; empty if it is not known.
    dead_node: &'static str,
    /// Properties whose lack has another remedy than the settings above.
    cures: &'static [(&'static str, &'static str)],
}

const LOCKS: &str = "locks between nodes";
const LOCAL: &str = "locks leave the node";
const BYTE_LOCKS: &str = "byte locks";
const GROUPS: &str = "groups of callers";
const VOLUME: &str = "settings of the volume";
const TURNS: &str = "writes by turns";

const CEPH_DEAD: &str = "ceph fs set FS session_timeout 30; ceph fs set FS session_autoclose 30 \
                         (300 s by default until a dead node is evicted)";

const SETTINGS: &[Settings] = &[
    Settings {
        kinds: &["fuse.glusterfs"],
        name: "GlusterFS",
        mount: "attribute-timeout=0,entry-timeout=0,negative-timeout=0,direct-io-mode=enable,\
                gid-timeout=0",
        servers: "gluster volume set VOLUME network.remote-dio enable; for o in stat-prefetch \
                  quick-read io-cache read-ahead readdir-ahead write-behind open-behind \
                  nl-cache; do gluster volume set VOLUME performance.$o off; done; gluster \
                  volume set VOLUME cluster.post-op-delay-secs 0; gluster volume set VOLUME \
                  cluster.use-anonymous-inode off; gluster volume set VOLUME \
                  cluster.heal-timeout 60",
        dead_node: "gluster volume set VOLUME network.ping-timeout 10; gluster volume set VOLUME \
                    server.tcp-user-timeout 10 (42 s each by default)",
        cures: &[
            (GROUPS, "mount it with gid-timeout=0"),
            (
                VOLUME,
                "gluster volume set VOLUME each of them, then mount it again, for a mount shows \
                 what it began with; the volume itself, not a folder of it by a bind mount, which \
                 shows nothing",
            ),
            (
                TURNS,
                "gluster volume set VOLUME cluster.post-op-delay-secs 0 (replicated); \
                 disperse.eager-lock off and disperse.other-eager-lock off (dispersed)",
            ),
        ],
    },
    Settings {
        kinds: &["fuse.ceph-fuse", "fuse.ceph"],
        name: "CephFS (ceph-fuse)",
        mount: "as it is by default",
        servers: "",
        dead_node: CEPH_DEAD,
        cures: &[(
            BYTE_LOCKS,
            "set fuse_default_permissions and locks as by default",
        )],
    },
    Settings {
        kinds: &["ceph"],
        name: "CephFS (kernel)",
        mount: "as it is by default, with a cephx user that may write",
        servers: "",
        dead_node: CEPH_DEAD,
        cures: &[],
    },
    Settings {
        kinds: &["nfs", "nfs4"],
        name: "NFS",
        mount: "vers=4.2,noac,lookupcache=none,hard, and neither nolock nor local_lock",
        servers: "",
        dead_node: "lease-time=30 and grace-time=30 under [nfsd] in the server's nfs.conf (90 s by \
                    default; those of other servers in their documentation)",
        cures: &[
            (
                LOCKS,
                "mount it with vers=4.2, without nolock and without local_lock",
            ),
            (
                LOCAL,
                "mount it with vers=4.2, without nolock and without local_lock",
            ),
            (
                BYTE_LOCKS,
                "mount it with vers=4.2, or let rpc.statd run for version 3",
            ),
        ],
    },
    Settings {
        kinds: &["lustre"],
        name: "Lustre",
        mount: "flock",
        servers: "",
        dead_node: "servers evict it within some 1.5 times their obd_timeout (`lctl get_param \
                    timeout`, 100 s by default): lower it as far as the network allows, or let \
                    etcd keep the seats",
        cures: &[(LOCAL, "mount it with flock, not with localflock")],
    },
    Settings {
        kinds: &["gpfs"],
        name: "GPFS",
        mount: "as it is by default",
        servers: "",
        dead_node: "its disk lease ends after some 35 s by default (failureDetectionTime in \
                    mmlsconfig), then its log is recovered",
        cures: &[],
    },
    Settings {
        kinds: &["beegfs"],
        name: "BeeGFS",
        mount: "as it is by default",
        servers: "in beegfs-client.conf tuneUseGlobalFileLocks = true, sysXAttrsEnabled = true, \
                  sysCreateHardlinksAsSymlinks = false",
        dead_node: "tuneClientAutoRemoveMins in beegfs-mgmtd.conf (half an hour or an hour by \
                    default, never less than 5 min): longer than any client waits, so let etcd \
                    keep the seats if nodes may die",
        cures: &[],
    },
    Settings {
        kinds: &["pvfs2", "orangefs"],
        name: "OrangeFS",
        mount: "it has no byte locks between nodes: one node only",
        servers: "",
        dead_node: "",
        cures: &[],
    },
    Settings {
        kinds: &["fuse.sshfs"],
        name: "sshfs",
        mount: "it has no locks and no common view of a file: one node only",
        servers: "",
        dead_node: "",
        cures: &[],
    },
    Settings {
        kinds: &["9p", "virtiofs"],
        name: "a folder of the host",
        mount: "cache=none",
        servers: "",
        dead_node: "",
        cures: &[],
    },
    Settings {
        kinds: &["fuse*"],
        name: "a FUSE file system",
        mount: "without caches of attributes, names and data (often attr_timeout=0,\
                entry_timeout=0,negative_timeout=0,direct_io)",
        servers: "",
        dead_node: "",
        cures: &[],
    },
];

/// For file systems that no other node can mount.
const OF_ONE_NODE: Settings = Settings {
    kinds: &[],
    name: "a file system of one node",
    mount: "none are needed, and its forwarders all run on this node",
    servers: "",
    dead_node: "",
    cures: &[],
};

/// For types that are not in the table.
const UNKNOWN: Settings = Settings {
    kinds: &[],
    name: "a file system that is not known here",
    mount: "without caches of attributes, names and data, and with locks between nodes",
    servers: "",
    dead_node: "",
    cures: &[],
};

impl Backend {
    /// The settings for this file system.
    pub fn settings(&self) -> &'static Settings {
        let matches = |pattern: &&str| match pattern.strip_suffix('*') {
            Some(begin) => self.kind.starts_with(begin),
            None => self.kind == *pattern,
        };
        if self.reach == Reach::Node {
            return &OF_ONE_NODE;
        }
        let of = SETTINGS.iter().find(|one| one.kinds.iter().any(matches));
        of.unwrap_or(&UNKNOWN)
    }

    /// What to do about a missing property, in one line.
    pub fn advice(&self, finding: &Finding) -> String {
        let settings = self.settings();
        let cure = settings
            .cures
            .iter()
            .find(|(name, _)| *name == finding.property.name);
        if let Some((_, cure)) = cure {
            return (*cure).to_owned();
        }
        settings.line()
    }
}

impl Settings {
    /// What to set so that programs survive the death of a node, in one line; None if there is
    /// nothing to set.
    pub fn dead_node(&self) -> Option<String> {
        let say = || {
            format!(
                "clients wait 60 s, so its locks must be free by then: {}",
                self.dead_node
            )
        };
        (!self.dead_node.is_empty()).then(say)
    }

    /// The settings of mount and servers in one line.
    pub fn line(&self) -> String {
        let mount = format!("mount options of {}: {}", self.name, self.mount);
        match self.servers {
            "" => mount,
            servers => format!("{mount}; {servers}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::property::Findings;

    fn of(kind: &str) -> Backend {
        Backend {
            kind: kind.to_owned(),
            source: "x".to_owned(),
            mount_point: "/mnt".into(),
            options: Vec::new(),
            reach: Reach::Cached,
        }
    }

    #[test]
    fn each_type_has_its_settings_and_strangers_have_some() {
        for (kind, name) in [
            ("fuse.glusterfs", "GlusterFS"),
            ("nfs4", "NFS"),
            ("fuse.other", "a FUSE file system"),
            ("plan9", "a file system that is not known here"),
        ] {
            assert_eq!(of(kind).settings().name, name);
        }
        let local = Backend {
            reach: Reach::Node,
            ..of("ext4")
        };
        assert_eq!(local.settings().name, "a file system of one node");
    }

    #[test]
    fn each_type_that_nodes_share_has_its_time_limits_for_a_dead_one() {
        for (kind, names) in [
            (
                "fuse.glusterfs",
                ["server.tcp-user-timeout", "network.ping-timeout"],
            ),
            ("fuse.ceph-fuse", ["session_timeout", "session_autoclose"]),
            ("ceph", ["session_timeout", "session_autoclose"]),
            ("nfs4", ["lease-time", "grace-time"]),
            ("lustre", ["obd_timeout", "evict"]),
            ("gpfs", ["failureDetectionTime", "lease"]),
            ("beegfs", ["tuneClientAutoRemoveMins", "etcd"]),
        ] {
            let told = of(kind).settings().dead_node().expect(kind);
            assert!(names.iter().all(|name| told.contains(name)), "{told}");
            assert!(told.contains("60 s"), "{told}");
        }
        assert_eq!(of("9p").settings().dead_node(), None);
    }

    #[test]
    fn beegfs_is_told_no_setting_that_it_does_not_have() {
        let line = of("beegfs").settings().line();
        for name in [
            "tuneUseGlobalFileLocks",
            "sysXAttrsEnabled",
            "sysCreateHardlinksAsSymlinks",
        ] {
            assert!(line.contains(name), "{line}");
        }
        assert!(!line.contains("tuneFileCacheType = none"), "{line}");
    }

    #[test]
    fn a_cure_is_that_of_the_property() {
        let mut findings = Findings::new();
        findings.tell("groups of callers", false, || "refused".to_owned());
        findings.tell("sizes", false, || "3 for 4".to_owned());
        let advice = |name: &str| of("fuse.glusterfs").advice(findings.of(name).expect("told"));
        assert_eq!(advice("groups of callers"), "mount it with gid-timeout=0");
        let sizes = advice("sizes");
        assert!(
            sizes.contains("attribute-timeout=0") && sizes.contains("$o off"),
            "{sizes}"
        );
    }
}

//! The record of a lease. It says who holds the seat, and counts renewals, so that others see
//! whether the lease is kept. It is written in the first page of the lease's file or, if the back
//! end has no room for that, in an extended attribute of the file.
//!
//! Some full back ends accept no bytes at all, not even in place of others, but set attributes
//! (CephFS). Others overwrite existing bytes and set no attributes (GlusterFS). Each record has a
//! higher count than those before, so the newest record counts, wherever it is.

use super::room::is_full;
use super::uncached::{Page, UncachedFile};
use crate::identity;
use std::io;
use tidegate_forward::lease::LeaseRecord;
use tidegate_wire::frame::checksum;

const MAGIC: [u8; 8] = *b"tidelese";
/// The version of the file's format. Since version 3 the record fills one sector, and the pages of
/// the table lie in the order of their first use.
const VERSION: u32 = 3;
/// The size of a record in bytes. Devices and servers write that much atomically.
const RECORD_BYTES: usize = 512;
const CRC_AT: usize = RECORD_BYTES - 4;
/// The longest name of a node, in bytes.
const HOST_MAX: usize = 255;
const TABLE_OF_AT: usize = 344;
/// The number of bytes in use; only the checksum follows.
const USED: usize = TABLE_OF_AT + 8;

/// How far the taking of a seat has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// The holder is still copying the table.
    Taking,
    Held,
    /// The holder has released the seat.
    Free,
}

/// The process of a forwarder. Another process on the same node can tell whether it is alive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Holder {
    /// A random number.
    pub(super) id: u64,
    /// The forwarder's index, which is also the seat that it owns.
    pub(super) forwarder: u16,
    /// The boot of its node, and its namespace of processes.
    pub(super) boot: u64,
    pub(super) namespace: u64,
    pub(super) pid: u32,
    /// When the process began, in clock ticks since the boot.
    pub(super) began: u64,
    /// The name of its node, for messages.
    pub(super) host: String,
}

/// Why a page contains no record.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Unread {
    /// The page was never written.
    Empty,
    /// The page is damaged, or has another version.
    Bad(String),
}

/// The contents of the record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) stage: Stage,
    pub(super) generation: u64,
    /// How many records of this generation were written before.
    pub(super) renewals: u64,
    pub(super) ttl_ns: u64,
    pub(super) holder: Holder,
    /// The generation whose file has the complete table; 0 if this one's has. While the back end
    /// has no room for a copy, the table stays where it is.
    pub(super) table_of: u64,
    /// Whether the table may lack clients that have open files or locks, because there was no room
    /// for them.
    pub(super) lacks_holders: bool,
}

/// What a lease's file records.
pub(super) enum Last {
    Record(Record),
    /// It has no record: its maker has not written one.
    Unwritten(u64),
    /// It was listed, and does not exist any more.
    Gone(u64),
    /// It contains something else; the text says why that is no record.
    Unreadable(u64, String),
}

impl Holder {
    /// This process, with a new random number. Fails if the system gives none.
    pub(super) fn own(forwarder: u16) -> io::Result<Holder> {
        let mut id = [0; 8];
        getrandom::fill(&mut id).map_err(io::Error::other)?;
        let pid = std::process::id();
        let uname = rustix::system::uname();
        Ok(Holder {
            id: u64::from_le_bytes(id),
            forwarder,
            boot: identity::boot(),
            namespace: process_namespace(),
            pid,
            began: began(pid).unwrap_or(0),
            host: uname.nodename().to_string_lossy().into_owned(),
        })
    }

    /// Whether the process is certainly dead: it ran on this node, and this process could see it if
    /// it lived.
    pub(super) fn is_dead(&self) -> bool {
        let visible = self.boot == identity::boot() && self.namespace == process_namespace();
        visible && self.namespace != 0 && began(self.pid) != Some(self.began)
    }

    /// The forwarder's index and node, for messages.
    pub(super) fn name(&self) -> String {
        format!("forwarder {} on {}", self.forwarder, self.host)
    }
}

impl Record {
    /// What the rules of leases need to know.
    pub(super) fn lease(&self) -> LeaseRecord {
        LeaseRecord {
            generation: self.generation,
            holder: self.holder.id,
            renewals: self.renewals,
            ttl_ns: self.ttl_ns,
            free: self.stage == Stage::Free || self.holder.is_dead(),
        }
    }

    /// Writes the next record of the same lease.
    pub(super) fn write_next(&mut self, file: &UncachedFile) -> io::Result<()> {
        self.renewals += 1;
        let page = self.encode();
        let written = file.write(0, std::slice::from_ref(&page));
        match &written {
            Err(error) if is_full(error) => {
                let noted = file.set_note(&Record::shorten(&page));
                noted.or(written)
            }
            _ => written,
        }
    }

    pub(super) fn encode(&self) -> Page {
        let mut page = Page::ZERO;
        let bytes = &mut page.0;
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
        bytes[TABLE_OF_AT..USED].copy_from_slice(&self.table_of.to_le_bytes());
        bytes[12..14].copy_from_slice(&self.holder.forwarder.to_le_bytes());
        bytes[14] = match self.stage {
            Stage::Taking => 1,
            Stage::Held => 2,
            Stage::Free => 3,
        };
        bytes[15] = u8::from(self.lacks_holders);
        let holder = &self.holder;
        let words = [
            self.generation,
            holder.id,
            self.renewals,
            self.ttl_ns,
            u64::from(holder.pid),
            holder.began,
            holder.boot,
            holder.namespace,
        ];
        for (number, word) in words.iter().enumerate() {
            bytes[16 + number * 8..][..8].copy_from_slice(&word.to_le_bytes());
        }
        let host = holder.host.as_bytes();
        let len = host.len().min(HOST_MAX);
        bytes[80] = len as u8;
        bytes[81..81 + len].copy_from_slice(&host[..len]);
        let crc = checksum(&bytes[..CRC_AT]);
        bytes[CRC_AT..RECORD_BYTES].copy_from_slice(&crc.to_le_bytes());
        page
    }

    /// Decodes a page.
    fn decode(page: &Page) -> Result<Record, Unread> {
        let bytes = &page.0[..RECORD_BYTES];
        if bytes.iter().all(|byte| *byte == 0) {
            return Err(Unread::Empty);
        }
        let crc = u32::from_le_bytes(bytes[CRC_AT..].try_into().expect("four bytes"));
        let version = u32::from_le_bytes(bytes[8..12].try_into().expect("four bytes"));
        if bytes[..8] != MAGIC {
            return Err(Unread::Bad(
                "it does not begin as a lease's file does".to_owned(),
            ));
        }
        if version != VERSION {
            let what = format!("it has version {version}, this forwarder knows {VERSION}");
            return Err(Unread::Bad(what));
        }
        if crc != checksum(&bytes[..CRC_AT]) {
            return Err(Unread::Bad("its checksum is wrong".to_owned()));
        }
        let word = |number: usize| {
            let at = 16 + number * 8;
            u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
        };
        let stage = match bytes[14] {
            1 => Stage::Taking,
            2 => Stage::Held,
            3 => Stage::Free,
            stage => return Err(Unread::Bad(format!("it has the unknown stage {stage}"))),
        };
        let len = usize::from(bytes[80]);
        Ok(Record {
            stage,
            generation: word(0),
            renewals: word(2),
            ttl_ns: word(3),
            holder: Holder {
                id: word(1),
                forwarder: u16::from_le_bytes([bytes[12], bytes[13]]),
                boot: word(6),
                namespace: word(7),
                pid: word(4) as u32,
                began: word(5),
                host: String::from_utf8_lossy(&bytes[81..81 + len]).into_owned(),
            },
            lacks_holders: bytes[15] != 0,
            table_of: u64::from_le_bytes(bytes[TABLE_OF_AT..USED].try_into().expect("eight bytes")),
        })
    }

    /// An encoded record without the zeros before its checksum.
    fn shorten(page: &Page) -> Vec<u8> {
        [&page.0[..USED], &page.0[CRC_AT..RECORD_BYTES]].concat()
    }

    /// The page of a shortened record; None if the number of bytes is wrong.
    fn lengthen(bytes: &[u8]) -> Option<Page> {
        let (used, crc) = bytes.split_at_checked(USED)?;
        let mut page = Page::ZERO;
        page.0[..USED].copy_from_slice(used);
        page.0[CRC_AT..RECORD_BYTES].copy_from_slice(<&[u8; 4]>::try_from(crc).ok()?);
        Some(page)
    }
}

impl Last {
    /// The record in the file of a generation. If the page or the attribute is damaged and the
    /// other one is a valid record, the valid one counts, because the two are not written together.
    pub(super) fn read(file: &UncachedFile, generation: u64) -> io::Result<Last> {
        let mut page = [Page::ZERO];
        file.read(0, &mut page)?;
        let noted = file.note()?.map(|bytes| match Record::lengthen(&bytes) {
            Some(page) => Record::decode(&page),
            None => Err(Unread::Bad(format!("a note of {} bytes", bytes.len()))),
        });
        let mut found = None::<Record>;
        let mut damage = None;
        for read in [Some(Record::decode(&page[0])), noted]
            .into_iter()
            .flatten()
        {
            match read {
                Ok(record) if record.generation == generation => {
                    let newer = |found: &Record| record.renewals > found.renewals;
                    if found.as_ref().is_none_or(newer) {
                        found = Some(record);
                    }
                }
                Ok(record) => {
                    damage = Some(format!("it speaks of generation {}", record.generation))
                }
                Err(Unread::Bad(why)) => damage = Some(why),
                Err(Unread::Empty) => {}
            }
        }
        Ok(match (found, damage) {
            (Some(record), _) => Last::Record(record),
            (None, Some(why)) => Last::Unreadable(generation, why),
            (None, None) => Last::Unwritten(generation),
        })
    }

    pub(super) fn lease(&self) -> LeaseRecord {
        match self {
            Last::Record(record) => record.lease(),
            Last::Unwritten(generation)
            | Last::Gone(generation)
            | Last::Unreadable(generation, _) => LeaseRecord {
                generation: *generation,
                holder: 0,
                renewals: 0,
                ttl_ns: 0,
                free: false,
            },
        }
    }

    pub(super) fn name(&self) -> String {
        match self {
            Last::Record(record) => record.holder.name(),
            _ => "a forwarder that did not say its name".to_owned(),
        }
    }
}

/// The number of this process's namespace of processes. 0 if the system does not tell it, or if
/// `/proc` belongs to another namespace, in which processes have other numbers.
fn process_namespace() -> u64 {
    use std::os::unix::fs::MetadataExt;
    let own = std::fs::read_link("/proc/self").ok();
    let shown = own.and_then(|own| own.to_str()?.parse().ok());
    if shown != Some(std::process::id()) {
        return 0;
    }
    std::fs::metadata("/proc/self/ns/pid").map_or(0, |found| found.ino())
}

/// When a process began, in clock ticks since the boot; None if it does not exist.
fn began(pid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in brackets may hold anything.
    let (_, rest) = stat.rsplit_once(") ")?;
    let mut fields = rest.split(' ');
    let state = fields.next()?;
    // A leader that has ended is a zombie until its last thread has: one may hang in the kernel, in
    // a call to the back end.
    let ended = state == "X" || state == "Z" && !has_other_threads(pid);
    (!ended).then_some(())?;
    fields.nth(18)?.parse().ok()
}

fn has_other_threads(pid: u32) -> bool {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task"));
    threads.is_ok_and(|threads| threads.count() > 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> Record {
        Record {
            stage: Stage::Held,
            generation: 1 << 40,
            renewals: 5,
            ttl_ns: 8_000_000_000,
            holder: Holder::own(3).expect("random numbers"),
            table_of: 0,
            lacks_holders: false,
        }
    }

    #[test]
    fn a_record_comes_back_and_a_damaged_one_does_not() {
        let record = record();
        let page = record.encode();
        assert_eq!(Record::decode(&page), Ok(record.clone()));
        let elsewhere = Record {
            table_of: 1 << 39,
            lacks_holders: true,
            ..record
        };
        let short = Record::shorten(&elsewhere.encode());
        let again = Record::lengthen(&short).expect("as long as it was");
        assert_eq!(Record::decode(&again), Ok(elsewhere));
        assert!(Record::lengthen(&short[1..]).is_none());
        for at in [0, 9, 14, 17, 90, RECORD_BYTES - 1] {
            let mut damaged = page.clone();
            damaged.0[at] ^= 1;
            let read = Record::decode(&damaged);
            assert!(matches!(read, Err(Unread::Bad(_))), "byte {at}: {read:?}");
        }
        assert_eq!(Record::decode(&Page::ZERO), Err(Unread::Empty));
    }

    #[test]
    fn a_renewal_changes_one_sector_and_another_version_is_named() {
        let mut record = record();
        let before = record.encode();
        record.renewals += 1;
        let after = record.encode();
        let differ = |at: &usize| before.0[*at] != after.0[*at];
        assert!((0..before.0.len()).filter(differ).all(|at| at < 512));
        let mut older = before;
        older.0[8] = 1;
        let read = Record::decode(&older);
        assert!(matches!(read, Err(Unread::Bad(why)) if why.contains("version 1")));
    }

    #[test]
    fn a_holder_of_this_node_is_seen_to_live_or_to_be_dead() {
        let mut record = record();
        assert!(!record.lease().free, "it is this process");
        record.holder.began += 1;
        assert!(record.lease().free, "another process had the number before");
        record.holder.boot += 1;
        assert!(!record.lease().free, "on another node nobody can know");
        record.stage = Stage::Free;
        assert!(record.lease().free);
    }

    /// Run by the next one.
    #[test]
    #[ignore = "means something only in a namespace of its own"]
    fn processes_of_another_namespace_are_told_apart() {
        assert_ne!(std::fs::read_link("/proc/self").expect("mounted"), {
            std::path::PathBuf::from(std::process::id().to_string())
        });
        let holder = Holder::own(0).expect("random numbers");
        assert!(
            !Holder {
                began: holder.began + 1,
                ..holder
            }
            .is_dead()
        );
    }

    #[test]
    fn nobody_is_dead_where_proc_shows_the_processes_of_another_namespace() {
        let inner = "seats::lease_record::tests::processes_of_another_namespace_are_told_apart";
        let mut command = std::process::Command::new("unshare");
        command.args(["--user", "--map-root-user", "--pid", "--fork"]);
        if !command
            .arg("true")
            .status()
            .is_ok_and(|status| status.success())
        {
            return println!("skipped: this system lets no user make namespaces");
        }
        let mut command = std::process::Command::new("unshare");
        command.args(["--user", "--map-root-user", "--pid", "--fork"]);
        command.arg(std::env::current_exe().expect("its path"));
        let ran = command
            .args(["--exact", inner, "--ignored"])
            .output()
            .expect("it is there");
        let said = String::from_utf8_lossy(&ran.stdout);
        assert!(ran.status.success() && said.contains("1 passed"), "{said}");
    }
}

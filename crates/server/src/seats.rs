//! Seats: who is in charge of which part of the files, told by locks on files in `.tidegate`, and
//! on several nodes by leases too (`leased.rs`).
//!
//! `.tidegate/seat.N` belongs to seat N. Its holder has three bytes to lock: byte 0 says that the
//! seat is held, byte 2 that its holder has been told all open files; on byte 1 the owner waits
//! while a stand-in holds the seat. On one node the locks vanish with the holder's process,
//! whatever ended it, and not before. There the file also has the seat's generation, which grows
//! with each taking, and its reply table, which the next holder finds as the last one left it. With
//! leases both are in the lease's file.

mod claims;
mod etcd;
mod file_claims;
mod generations;
mod lease_keeper;
mod lease_record;
mod leased;
mod mapped_table;
mod marks;
mod persisted_table;
mod record_place;
mod room;
mod spare;
mod table_memory;
mod uncached;

pub use etcd::EtcdError;
pub use lease_keeper::LeaseKeeper;
pub use leased::{LeaseOptions, LeasedSeats, Renewal, Tried};

use crate::identity;
use crate::storage::ofd::{self, Kind};
use crate::storage::posix::{
    PosixFiles, SETTLED_BYTE, open_hidden_file, open_hidden_with, read_or_record,
};
use mapped_table::{FILE_BYTES_MIN, MappedTable, allocate, segments};
use rustix::fs::OFlags;
use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use tidegate_forward::SeatTable;
use tidegate_wire::Layout;

/// Byte that the holder of a seat locks.
const HELD_BYTE: u64 = 0;
/// Byte that the owner locks while it waits.
const WANTED_BYTE: u64 = 1;

/// First bytes of a seat's file.
const MAGIC: [u8; 8] = *b"tideseat";
/// Version of the file's form: since 3 tables grow, and say which pages of a client's rows are
/// used. A table of version 2 reads as one of version 3.
const VERSION: u32 = 3;
const VERSION_MIN: u32 = 2;

/// Where a seat's file says which page cache its holder uses.
const CACHE_AT: u64 = 12;

/// Why seats cannot be had on this export.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SeatsError {
    /// A file of the hidden folder refused.
    #[error("{}: {source}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The file system is too full for a seat's table.
    #[error("{}: no room for the reply table (16 MiB); free some space", path.display())]
    NoRoom {
        /// The seat's file.
        path: PathBuf,
    },
    /// The export is used with another layout.
    #[error(
        "{} says {theirs}, this forwarder's configuration says {ours}; all forwarders of an export \
         need the same seats and stripe (to change them, stop all forwarders, remove that file)",
        path.display()
    )]
    Layout {
        /// The layout file.
        path: PathBuf,
        /// What it says.
        theirs: String,
        /// What was configured.
        ours: String,
    },
    /// The forwarders of the export keep their seats in another way.
    #[error(
        "{} says that forwarders of this export keep their seats by {theirs}; this one would by \
         {ours}, and two could serve one seat: see keeper and one_node in [ownership], and \
         durability where one node has the back end (to change them, stop all forwarders and \
         mounts, remove that file)",
        path.display()
    )]
    Keeper {
        /// The file.
        path: PathBuf,
        /// What it says.
        theirs: String,
        /// What was configured.
        ours: String,
    },
    /// A forwarder elsewhere serves the export, and this one was told that all are here.
    #[error(
        "a forwarder that holds seat {seat} reaches the export by another mount, of this node or \
         of another one, and locks alone keep the seats only where all use the same mount: remove \
         one_node = true from [ownership] of all forwarders of this export, or start them all \
         where one mount is"
    )]
    Elsewhere {
        /// Its seat.
        seat: u16,
    },
    /// etcd, which keeps the seats, does not do what it must.
    #[error(transparent)]
    Etcd(#[from] EtcdError),
    /// The seat's file was written by something else.
    #[error("{}: not a seat file of this version; if no forwarder runs, remove it", path.display())]
    Foreign {
        /// The seat's file.
        path: PathBuf,
    },
}

/// A seat that is now held here.
pub struct TakenSeat {
    /// Which.
    pub seat: u16,
    /// Its new generation, higher than all before.
    pub generation: u64,
    /// Its reply table.
    pub table: Arc<dyn SeatTable>,
}

/// The seats of one export, as one forwarder sees them. Calls are short; none waits for a lock.
pub struct Seats {
    folder: OwnedFd,
    path: PathBuf,
    locks_work: bool,
    own: u16,
    /// Seats of the export.
    count: u16,
    /// What tells the page cache here from others; never 0.
    page_cache: u32,
    held: Mutex<BTreeMap<u16, File>>,
    wanted: Mutex<BTreeMap<u16, File>>,
    /// Descriptions that never lock, to look at the locks of others.
    watched: Mutex<BTreeMap<u16, OwnedFd>>,
}

impl Seats {
    /// Uses the hidden folder of an export; `own` is the seat that this forwarder owns. The layout
    /// is recorded by the first forwarder and must agree with what it recorded.
    pub fn open(files: &PosixFiles, layout: Layout, own: u16) -> Result<Seats, SeatsError> {
        let path = files.hidden_path().to_owned();
        let folder = files.hidden().try_clone_to_owned();
        let folder = folder.map_err(|source| SeatsError::File {
            path: path.clone(),
            source,
        })?;
        let page_cache = identity::page_cache(&folder).map_err(|source| SeatsError::File {
            path: path.clone(),
            source,
        })?;
        let seats = Seats {
            folder,
            path,
            locks_work: files.locks_work(),
            own,
            count: layout.seats,
            page_cache: page_cache as u32 | 1,
            held: Mutex::default(),
            wanted: Mutex::default(),
            watched: Mutex::default(),
        };
        seats.agree_on(layout)?;
        Ok(seats)
    }

    /// Why this forwarder must not stand in for others here, if so: a start with fail-over is then
    /// refused with these words.
    pub fn fail_over_refusal(&self) -> Option<String> {
        if !self.locks_work {
            return Some(format!(
                "fail-over is refused: {} is on a file system without working byte locks, so two \
                 forwarders could serve one seat; mount it with locks (Lustre: flock; NFS: without \
                 nolock), or set fail_over = false",
                self.path.display()
            ));
        }
        local_locks_option(&self.path).map(|option| {
            format!(
                "fail-over is refused: {} is mounted with {option}, so locks do not reach other \
                 nodes; mount it without, or set fail_over = false",
                self.path.display()
            )
        })
    }

    /// Takes the seat, raising its generation, or says None while another forwarder holds it. One
    /// that its owner waits for is the owner's: stand-ins could else pass it on between them for
    /// ever.
    pub fn try_take(&self, seat: u16) -> Result<Option<TakenSeat>, SeatsError> {
        let mut held = lock(&self.held);
        if held.contains_key(&seat) || (seat != self.own && self.wanted(seat)) {
            return Ok(None);
        }
        let file = self.open_file(seat)?;
        if !self.try_lock(seat, &file, HELD_BYTE)? {
            return Ok(None);
        }
        // From here on the lock goes with `file` if anything fails.
        let generation = self.raise_generation(seat, &file)?;
        if seat == self.own {
            self.refuse_others_elsewhere()?;
        }
        let table = MappedTable::map(&file).map_err(|e| self.file_error(seat, e))?;
        held.insert(seat, file);
        drop(held);
        self.stop_wanting(seat);
        Ok(Some(TakenSeat {
            seat,
            generation,
            table: Arc::new(table),
        }))
    }

    /// An error if a live forwarder has another page cache than this one: what one writes the other
    /// may not see. Of two that start at once the later one sees the other, or both do: each has
    /// its lock and has said where it is before it looks.
    fn refuse_others_elsewhere(&self) -> Result<(), SeatsError> {
        for seat in (0..self.count).filter(|seat| *seat != self.own) {
            let error = |e| self.file_error(seat, e);
            let opened = open_hidden_with(self.folder.as_fd(), &file_name(seat), OFlags::RDONLY);
            let file = match opened {
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
                opened => File::from(opened.map_err(error)?),
            };
            let mut cache = [0; 4];
            let held = self.locks_work && self.look(seat, HELD_BYTE).map_err(error)?;
            // A file of before, or one that is just being made, does not say.
            let said = held && file.read_exact_at(&mut cache, CACHE_AT).is_ok();
            let cache = u32::from_le_bytes(cache);
            if said && cache != 0 && cache != self.page_cache {
                return Err(SeatsError::Elsewhere { seat });
            }
        }
        Ok(())
    }

    /// Says that the grace period of a seat held here is over: from now on this forwarder knows
    /// which of the seat's files are open. Call `PosixFiles::sweep` afterwards.
    pub fn settle(&self, seat: u16) -> Result<(), SeatsError> {
        match lock(&self.held).get(&seat) {
            Some(file) => self.try_lock(seat, file, SETTLED_BYTE).map(|_| ()),
            None => Ok(()),
        }
    }

    /// Lets the seat go. Nobody may use its table any more. Not holding it is no error.
    pub fn release(&self, seat: u16) {
        let Some(file) = lock(&self.held).remove(&seat) else {
            return;
        };
        // Told explicitly: the mapping keeps the description alive as long as somebody has the
        // table.
        for byte in [SETTLED_BYTE, HELD_BYTE] {
            if self.locks_work
                && let Err(error) = ofd::unlock(file.as_fd(), byte)
            {
                tracing::error!(seat, %error, "seat stays locked");
            }
        }
    }

    /// Tells whoever stands in on the seat that its owner waits for it. Idempotent; ends when the
    /// seat is taken or [`Seats::stop_wanting`] is called.
    pub fn want(&self, seat: u16) -> Result<(), SeatsError> {
        let error = |e| self.file_error(seat, e);
        let mut wanted = lock(&self.wanted);
        if wanted.contains_key(&seat) {
            let there = !self.locks_work || self.look(seat, WANTED_BYTE).map_err(error)?;
            if there {
                return Ok(());
            }
            // The back end has dropped it.
            wanted.remove(&seat);
        }
        let file = self.open_file(seat)?;
        if self.try_lock(seat, &file, WANTED_BYTE)? {
            wanted.insert(seat, file);
        }
        Ok(())
    }

    /// Waits for the seat no longer.
    pub fn stop_wanting(&self, seat: u16) {
        // Closing the description drops its lock.
        lock(&self.wanted).remove(&seat);
    }

    /// Whether somebody waits for a seat: its stand-in asks ten times a second.
    pub fn wanted(&self, seat: u16) -> bool {
        self.is_locked(seat, WANTED_BYTE)
    }

    /// The seats held here.
    pub fn held(&self) -> Vec<u16> {
        lock(&self.held).keys().copied().collect()
    }

    fn is_locked(&self, seat: u16, byte: u64) -> bool {
        self.locks_work && self.look(seat, byte).unwrap_or(false)
    }

    /// Whether the back end knows of a holder of the seat.
    fn is_held(&self, seat: u16) -> std::io::Result<bool> {
        self.look(seat, HELD_BYTE)
    }

    fn look(&self, seat: u16, byte: u64) -> std::io::Result<bool> {
        use std::collections::btree_map::Entry;
        let mut watched = lock(&self.watched);
        let fd = match watched.entry(seat) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => {
                entry.insert(open_hidden_file(self.folder.as_fd(), &file_name(seat))?)
            }
        };
        Ok(ofd::held_elsewhere(fd.as_fd(), byte)?.is_some())
    }

    /// Without working locks only the own seat can be had, and the configuration vouches for it.
    fn try_lock(&self, seat: u16, file: &File, byte: u64) -> Result<bool, SeatsError> {
        if !self.locks_work {
            return Ok(seat == self.own);
        }
        let locked = ofd::try_lock(file.as_fd(), byte, Kind::Exclusive);
        locked.map_err(|e| self.file_error(seat, e))
    }

    fn open_file(&self, seat: u16) -> Result<File, SeatsError> {
        let opened = open_hidden_file(self.folder.as_fd(), &file_name(seat));
        opened.map(File::from).map_err(|e| self.file_error(seat, e))
    }

    /// Reads the header of a seat's file, or makes file and header, and stores the next generation
    /// so that it survives the node.
    fn raise_generation(&self, seat: u16, file: &File) -> Result<u64, SeatsError> {
        let error = |e| self.file_error(seat, e);
        let len = file.metadata().map_err(error)?.len();
        let last = match len {
            0 => 0,
            _ => self.read_generation(seat, file)?,
        };
        allocate(file).map_err(|e| match e.raw_os_error() {
            Some(libc::ENOSPC | libc::EDQUOT) => SeatsError::NoRoom {
                path: self.path.join(file_name(seat)),
            },
            _ => error(e),
        })?;
        let generation = match last {
            0 => generations::first_generation(),
            last => last + 1,
        };
        let mut header = [0; 24];
        header[..8].copy_from_slice(&MAGIC);
        header[8..12].copy_from_slice(&VERSION.to_le_bytes());
        header[CACHE_AT as usize..16].copy_from_slice(&self.page_cache.to_le_bytes());
        header[16..].copy_from_slice(&generation.to_le_bytes());
        file.write_all_at(&header, 0).map_err(error)?;
        file.sync_data().map_err(error)?;
        Ok(generation)
    }

    fn read_generation(&self, seat: u16, file: &File) -> Result<u64, SeatsError> {
        let mut header = [0; 24];
        let len = file.metadata().map_err(|e| self.file_error(seat, e))?.len();
        let read = file.read_exact_at(&mut header, 0);
        if header == [0; 24] && len <= FILE_BYTES_MIN {
            // Whoever began the file died, or found no room, before it wrote a header.
            return Ok(0);
        }
        read.map_err(|e| self.file_error(seat, e))?;
        let version = u32::from_le_bytes(header[8..12].try_into().expect("4 bytes"));
        let known = (VERSION_MIN..=VERSION).contains(&version);
        if header[..8] != MAGIC || !known || segments(len).is_none() {
            return Err(SeatsError::Foreign {
                path: self.path.join(file_name(seat)),
            });
        }
        let generation: [u8; 8] = header[16..].try_into().expect("8 bytes");
        Ok(u64::from_le_bytes(generation))
    }

    /// Records the layout if nobody has, and compares it with what is recorded.
    fn agree_on(&self, layout: Layout) -> Result<(), SeatsError> {
        let ours = format!("seats = {}\nstripe = {}\n", layout.seats, layout.stripe);
        let (path, theirs) = self.recorded("layout", &ours)?;
        if theirs == ours {
            return Ok(());
        }
        let one_line = |text: &str| text.trim().replace('\n', ", ");
        Err(SeatsError::Layout {
            path,
            theirs: one_line(&theirs),
            ours: one_line(&ours),
        })
    }

    /// The same of how seats are kept, in words: who keeps them in one way does not see what is
    /// held in the other.
    pub fn agree_on_keeper(&self, ours: &str) -> Result<(), SeatsError> {
        let (path, theirs) = self.recorded("keeper", &format!("{ours}\n"))?;
        let theirs = theirs.trim().to_owned();
        if theirs == ours {
            return Ok(());
        }
        let ours = ours.to_owned();
        Err(SeatsError::Keeper { path, theirs, ours })
    }

    fn recorded(&self, name: &str, ours: &str) -> Result<(PathBuf, String), SeatsError> {
        let path = self.path.join(name);
        match read_or_record(self.folder.as_fd(), name, ours) {
            Ok(theirs) => Ok((path, theirs)),
            Err(source) => Err(SeatsError::File { path, source }),
        }
    }

    fn file_error(&self, seat: u16, source: std::io::Error) -> SeatsError {
        SeatsError::File {
            path: self.path.join(file_name(seat)),
            source,
        }
    }
}

/// Removes what nobody opened again of a seat's files without a name, where all know that its grace
/// period is over. A listing of a slow back end must not hold the caller.
pub(crate) fn sweep_if_settled(files: &PosixFiles, seat: u16, settled: Result<(), SeatsError>) {
    if let Err(error) = settled {
        tracing::warn!(seat, %error, "files without a name stay until the next time");
        return;
    }
    let files = files.clone();
    std::thread::spawn(move || match files.sweep(seat) {
        Ok(0) => {}
        Ok(count) => tracing::info!(seat, count, "removed files without a name"),
        Err(error) => {
            tracing::warn!(seat, %error, "files without a name stay until the next time");
        }
    });
}

fn file_name(seat: u16) -> String {
    format!("seat.{seat}")
}

/// The mount option that keeps locks on this node, if the folder's file system has one.
fn local_locks_option(folder: &Path) -> Option<String> {
    let folder = folder.canonicalize().ok()?;
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").ok()?;
    let mount = |line: &str| {
        let at = line.split(' ').nth(4)?.to_owned();
        folder.starts_with(&at).then(|| (at.len(), line.to_owned()))
    };
    // The last of the longest: later mounts hide earlier ones.
    let (_, line) = mounts
        .lines()
        .filter_map(mount)
        .max_by_key(|(len, _)| *len)?;
    let local = ["localflock", "nolock", "local_lock=all", "local_lock=posix"];
    line.split([' ', ','])
        .find(|option| local.contains(option))
        .map(str::to_owned)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Maps of descriptors are consistent whatever panicked.
    mutex
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner())
}

#[cfg(test)]
mod tests;

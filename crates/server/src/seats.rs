//! Seats: which forwarder serves which part of the files. A forwarder holds a seat by locks on a
//! file in `.tidegate`, and on several nodes by a lease too (`leased.rs`).
//!
//! Three bytes of the file `.tidegate/seat.N` are locked, on one node and on several:
//!
//! - byte 0 by the forwarder that holds seat N,
//! - byte 1 by the seat's owner, while a stand-in holds the seat and the owner wants it back,
//! - byte 2 by the holder, once it knows which of the seat's files are open.
//!
//! On one node the kernel drops the locks when the holder's process ends, however it ends, and not
//! before. There the file also contains the seat's generation, which each taking increases, and the
//! seat's reply table, which the next holder finds as the last one left it. With leases, generation
//! and reply table are in the file of the lease.

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
mod room;
mod served;
mod spare;
mod uncached;

pub use etcd::EtcdError;
pub use lease_keeper::LeaseKeeper;
pub use leased::{LeaseOptions, LeasedSeats, Renewal, Tried};
pub use served::is_served;

use crate::identity;
use crate::lock::lock;
use crate::short_turns;
use crate::storage::ofd::{self, Kind};
use crate::storage::posix::{
    PosixFiles, SETTLED_BYTE, Vouching, open_hidden_file, open_hidden_with, read_or_record,
};
use crate::thread_rights::{Work, keep_for};
use mapped_table::{FILE_BYTES_MIN, MappedTable, allocate, first_bytes, segments};
use rustix::fs::OFlags;
use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use tidegate_forward::SeatTable;
use tidegate_wire::Layout;

/// The byte that the holder of a seat locks.
const HELD_BYTE: u64 = 0;
/// The byte that the owner of a seat locks while it waits.
const WANTED_BYTE: u64 = 1;

/// For how many clients a table has room from the start, if nothing else is said.
const CLIENTS: u16 = 256;

/// The first bytes of a seat's file.
const MAGIC: [u8; 8] = *b"tideseat";
/// The version of the file's format. Since version 3 tables grow, and record which pages of a
/// client's reply slots are used. A table of version 2 reads as one of version 3.
const VERSION: u32 = 3;
const VERSION_MIN: u32 = 2;

/// The offset at which a seat's file names the page cache that its holder uses.
const CACHE_AT: u64 = 12;

/// Why the seats of this export cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SeatsError {
    /// A file of the hidden folder cannot be used.
    #[error("{}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        source: std::io::Error,
    },
    /// The file system is too full for a seat's table.
    #[error("{}: no room for the reply table ({bytes} bytes); free some space", path.display())]
    NoRoom {
        /// The seat's file.
        path: PathBuf,
        /// What the table takes.
        bytes: u64,
    },
    /// The export's layout differs from this forwarder's.
    #[error(
        "{} says {theirs}, this forwarder's configuration says {ours}; all forwarders of an export \
         need the same seats and stripe (to change them, stop all forwarders, remove that file)",
        path.display()
    )]
    Layout {
        /// The layout file.
        path: PathBuf,
        /// The layout that the file records.
        theirs: String,
        /// The layout that was configured.
        ours: String,
    },
    /// The other forwarders of the export keep their seats in another way.
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
        /// The way that the file records.
        theirs: String,
        /// The way that was configured.
        ours: String,
    },
    /// A forwarder on another mount serves the export, although the configuration says that all use
    /// one.
    #[error(
        "a forwarder that holds seat {seat} reaches the export by another mount, of this node or \
         of another one, and locks alone keep the seats only where all use the same mount: remove \
         one_node = true from [ownership] of all forwarders of this export, or start them all \
         where one mount is"
    )]
    Elsewhere {
        /// The seat that it holds.
        seat: u16,
    },
    /// etcd, which keeps the seats, cannot be used.
    #[error(transparent)]
    Etcd(#[from] EtcdError),
    /// The seat's file has another format.
    #[error("{}: not a seat file of this version; if no forwarder runs, remove it", path.display())]
    Foreign {
        /// The seat's file.
        path: PathBuf,
    },
}

/// A seat that this forwarder holds now.
pub struct TakenSeat {
    /// The seat.
    pub seat: u16,
    /// Its new generation, higher than all before.
    pub generation: u64,
    /// Its reply table.
    pub table: Arc<dyn SeatTable>,
}

/// The seats of one export, as one forwarder uses them. Calls are short; none waits for a lock.
pub struct Seats {
    folder: OwnedFd,
    path: PathBuf,
    locks_work: bool,
    own: u16,
    /// The number of seats of the export.
    count: u16,
    /// The number of the page cache that this node uses; never 0.
    page_cache: u32,
    /// For how many clients a table has room on the back end from the start.
    clients: u16,
    held: Mutex<BTreeMap<u16, File>>,
    vouching: Arc<Vouching>,
    wanted: Mutex<BTreeMap<u16, File>>,
    /// Descriptors that never lock, for looking at the locks of others.
    watched: Mutex<BTreeMap<u16, OwnedFd>>,
}

impl Drop for Seats {
    fn drop(&mut self) {
        self.vouching.end_all();
    }
}

impl Seats {
    /// Opens the seats of an export; `own` is the seat that this forwarder owns. The first
    /// forwarder records the layout, and this one's must equal the recorded one. Fails if the
    /// layouts differ or the hidden folder cannot be used.
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
            clients: CLIENTS,
            held: Mutex::default(),
            vouching: files.vouching(),
            wanted: Mutex::default(),
            watched: Mutex::default(),
        };
        seats.agree_on(layout)?;
        Ok(seats)
    }

    /// The same, with tables that have room for so many clients on the back end from the start.
    pub fn with_room_for(mut self, clients: u16) -> Seats {
        self.clients = clients;
        self
    }

    /// Why this forwarder must not stand in for others on this export, such as locks that do not
    /// reach other nodes; None if it may. A start with fail-over is then refused with this text.
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

    /// Takes the seat and increases its generation. None while another forwarder holds it. A seat
    /// that its owner waits for is left to the owner, because stand-ins could otherwise pass it
    /// among themselves for ever.
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
        let table = MappedTable::map(&file, first_bytes(self.clients))
            .map_err(|e| self.file_error(seat, e))?;
        held.insert(seat, file);
        drop(held);
        self.stop_wanting(seat);
        Ok(Some(TakenSeat {
            seat,
            generation,
            table: Arc::new(table),
        }))
    }

    /// Fails if a live forwarder uses another page cache than this one, because one may not see
    /// what the other writes. Of two forwarders that start at once, at least the later one sees the
    /// other: each locks and records its page cache before it looks.
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
            // An older file, or one that is just being made, does not name a page cache.
            let said = held && file.read_exact_at(&mut cache, CACHE_AT).is_ok();
            let cache = u32::from_le_bytes(cache);
            if said && cache != 0 && cache != self.page_cache {
                return Err(SeatsError::Elsewhere { seat });
            }
        }
        Ok(())
    }

    /// Records that the grace period of a seat held here has ended, so that this forwarder knows
    /// which of the seat's files are open. The caller then calls `PosixFiles::seat_settled` and
    /// `PosixFiles::sweep`.
    pub fn settle(&self, seat: u16) -> Result<(), SeatsError> {
        match lock(&self.held).get(&seat) {
            Some(file) if self.locks_work => {
                let begun = self.vouching.begin(seat, file);
                begun.map_err(|e| self.file_error(seat, e))
            }
            _ => Ok(()),
        }
    }

    /// Releases the seat, if it is held. Its table must not be used any more.
    pub fn release(&self, seat: u16) {
        let Some(file) = lock(&self.held).remove(&seat) else {
            return;
        };
        self.vouching.end(seat);
        // Unlock explicitly: the mapping keeps the description open as long as the table is in use.
        for byte in [SETTLED_BYTE, HELD_BYTE] {
            if self.locks_work
                && let Err(error) = ofd::unlock(file.as_fd(), byte)
            {
                tracing::error!(seat, %error, "seat stays locked");
            }
        }
    }

    /// Tells a stand-in on the seat that the owner waits for it. May be called repeatedly. Ends
    /// when the seat is taken or [`Seats::stop_wanting`] is called.
    pub fn want(&self, seat: u16) -> Result<(), SeatsError> {
        let error = |e| self.file_error(seat, e);
        let mut wanted = lock(&self.wanted);
        if wanted.contains_key(&seat) {
            let there = !self.locks_work || self.look(seat, WANTED_BYTE).map_err(error)?;
            if there {
                return Ok(());
            }
            // The back end has dropped the lock.
            wanted.remove(&seat);
        }
        let file = self.open_file(seat)?;
        if self.try_lock(seat, &file, WANTED_BYTE)? {
            wanted.insert(seat, file);
        }
        Ok(())
    }

    /// Stops waiting for the seat.
    pub fn stop_wanting(&self, seat: u16) {
        // Closing the description drops its lock.
        lock(&self.wanted).remove(&seat);
    }

    /// Whether the owner waits for a seat. Its stand-in asks ten times a second.
    pub fn wanted(&self, seat: u16) -> bool {
        self.is_locked(seat, WANTED_BYTE)
    }

    /// The seats that this forwarder holds.
    pub fn held(&self) -> Vec<u16> {
        lock(&self.held).keys().copied().collect()
    }

    fn is_locked(&self, seat: u16, byte: u64) -> bool {
        self.locks_work && self.look(seat, byte).unwrap_or(false)
    }

    /// Whether the back end knows a holder of the seat.
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

    /// Locks a byte of a seat's file. Without working locks only the own seat can be taken, and the
    /// configuration guarantees that nobody else takes it.
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

    /// Reads the header of a seat's file, or makes file and header. Stores the next generation so
    /// that it survives a crash of the node.
    fn raise_generation(&self, seat: u16, file: &File) -> Result<u64, SeatsError> {
        let error = |e| self.file_error(seat, e);
        let len = file.metadata().map_err(error)?.len();
        let last = match len {
            0 => 0,
            _ => self.read_generation(seat, file)?,
        };
        allocate(file, first_bytes(self.clients)).map_err(|e| match room::is_full(&e) {
            true => SeatsError::NoRoom {
                path: self.path.join(file_name(seat)),
                bytes: first_bytes(self.clients),
            },
            false => error(e),
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
            // The process that began the file died, or found no room, before it wrote a header.
            return Ok(0);
        }
        read.map_err(|e| self.file_error(seat, e))?;
        let version = u32::from_le_bytes(header[8..12].try_into().expect("4 bytes"));
        let known = (VERSION_MIN..=VERSION).contains(&version);
        let generation = u64::from_le_bytes(header[16..].try_into().expect("8 bytes"));
        let known = known && generation <= generations::GENERATION_MAX;
        if header[..8] != MAGIC || !known || segments(len).is_none() {
            return Err(SeatsError::Foreign {
                path: self.path.join(file_name(seat)),
            });
        }
        Ok(generation)
    }

    /// Records the layout if no forwarder has, and compares it with the recorded one.
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

    /// Records how seats are kept, as text, or compares it with the recorded text. A forwarder that
    /// keeps seats in one way does not see which are held in the other. Fails if the texts differ.
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

/// Removes those of a seat's files without a name that nobody has reopened, if the end of the
/// seat's grace period could be recorded. Runs in a thread, because listing a slow back end must
/// not delay the caller.
pub(crate) fn sweep_if_settled(files: &PosixFiles, seat: u16, settled: Result<(), SeatsError>) {
    if let Err(error) = settled {
        tracing::warn!(seat, %error, "files without a name stay until the next time");
        return;
    }
    let files = files.clone();
    let sweep = move || {
        short_turns::go_with_others();
        keep_for(Work::OwnFiles);
        match files.sweep(seat) {
            Ok(0) => {}
            Ok(count) => tracing::info!(seat, count, "removed files without a name"),
            Err(error) => {
                tracing::warn!(seat, %error, "files without a name stay until the next time");
            }
        }
    };
    let thread = std::thread::Builder::new().name("sweep".to_string());
    if let Err(error) = thread.spawn(sweep) {
        tracing::warn!(seat, %error, "files without a name stay until the next time");
    }
}

fn file_name(seat: u16) -> String {
    format!("seat.{seat}")
}

/// The mount option that keeps locks on this node, if the folder's mount has one.
fn local_locks_option(folder: &Path) -> Option<String> {
    let folder = folder.canonicalize().ok()?;
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").ok()?;
    let mount = |line: &str| {
        let at = line.split(' ').nth(4)?.to_owned();
        folder.starts_with(&at).then(|| (at.len(), line.to_owned()))
    };
    // The last one with the longest path: later mounts hide earlier ones.
    let (_, line) = mounts
        .lines()
        .filter_map(mount)
        .max_by_key(|(len, _)| *len)?;
    let local = ["localflock", "nolock", "local_lock=all", "local_lock=posix"];
    line.split([' ', ','])
        .find(|option| local.contains(option))
        .map(str::to_owned)
}

#[cfg(test)]
mod tests;

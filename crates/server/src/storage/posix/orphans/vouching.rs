//! Whether the locks of open files say it all. The holder of a seat that knows all opens of the
//! seat's files locks a byte of the seat's file ([`super::SETTLED_BYTE`]). It lets go of that byte
//! while it has so many files open that it locks none of them.

use super::SETTLED_BYTE;
use crate::lock::lock;
use crate::storage::ofd::{self, Kind};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Mutex;

/// The seats held here all of whose opens are known, as others see it.
#[derive(Default)]
pub(crate) struct Vouching {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The files of the seats. Each is the description that locks the seat.
    files: BTreeMap<u16, OwnedFd>,
    withheld: bool,
    /// How often that began.
    began: u64,
}

impl Vouching {
    /// Vouches for a seat from now on. Fails if the byte cannot be locked.
    pub(crate) fn begin(&self, seat: u16, file: impl AsFd) -> io::Result<()> {
        let mut state = lock(&self.state);
        let file = file.as_fd().try_clone_to_owned()?;
        if !state.withheld {
            ofd::try_lock(file.as_fd(), SETTLED_BYTE, Kind::Exclusive)?;
        }
        state.files.insert(seat, file);
        Ok(())
    }

    /// Must be called before a seat is released.
    pub(crate) fn end(&self, seat: u16) {
        lock(&self.state).files.remove(&seat);
    }

    /// Lets go of all seats. Storage threads that hang in a dead back end keep this value, and must
    /// not keep the seats.
    pub(crate) fn end_all(&self) {
        lock(&self.state).files.clear();
    }

    /// Whether this forwarder alone knows of opens of the seat's files.
    pub(super) fn is_withheld_of(&self, seat: u16) -> bool {
        let state = lock(&self.state);
        state.withheld && state.files.contains_key(&seat)
    }

    /// The seats for which that is so.
    pub(super) fn withheld(&self) -> Vec<u16> {
        let state = lock(&self.state);
        let seats = state.files.keys().filter(|_| state.withheld);
        seats.copied().collect()
    }

    /// Vouches for no seat, until [`Vouching::resume`].
    pub(super) fn withhold(&self) -> io::Result<()> {
        let mut state = lock(&self.state);
        state.began += 1;
        state.withheld = true;
        let mut files = state.files.values();
        files.try_for_each(|file| ofd::unlock(file.as_fd(), SETTLED_BYTE))
    }

    /// How often [`Vouching::withhold`] was called; None if the forwarder vouches.
    pub(super) fn began(&self) -> Option<u64> {
        let state = lock(&self.state);
        state.withheld.then_some(state.began)
    }

    /// Vouches again, unless [`Vouching::withhold`] was called since `began` was told.
    pub(super) fn resume(&self, began: u64) -> io::Result<()> {
        let mut state = lock(&self.state);
        if state.began != began {
            return Ok(());
        }
        for file in state.files.values() {
            ofd::try_lock(file.as_fd(), SETTLED_BYTE, Kind::Exclusive)?;
        }
        state.withheld = false;
        Ok(())
    }
}

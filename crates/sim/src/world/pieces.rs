//! What goes to servers and back: calls of forwarders and clients, and the pieces of a call.

use tidegate_device::Access;
use tidegate_sched::Direction;
use tidegate_wire::{Extent, Handle};

/// What servers are to do.
pub(super) enum Asked {
    /// Reads or writes of a file.
    Io {
        handle: Handle,
        write: bool,
        extents: Vec<Extent>,
    },
    /// What was written is made durable, at all of them.
    Flush,
}

impl Asked {
    pub(super) fn io(
        handle: Handle,
        direction: Direction,
        extents: impl Iterator<Item = (u64, u64)>,
    ) -> Asked {
        Asked::Io {
            handle,
            write: direction == Direction::Write,
            extents: extents
                .map(|(offset, len)| Extent { offset, len })
                .collect(),
        }
    }
}

/// A piece of a call, on its way to a server.
pub(super) struct Piece {
    pub(super) server: u32,
    pub(super) transfer: u64,
    pub(super) accesses: Vec<Access>,
}

impl Piece {
    pub(super) fn bytes(&self) -> u64 {
        self.accesses.iter().map(|access| access.len).sum()
    }
}

/// The answer to a piece.
#[derive(Clone, Copy)]
pub(super) struct Answer {
    pub(super) server: u32,
    pub(super) transfer: u64,
}

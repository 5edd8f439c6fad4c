//! Who holds a seat, and with what number: what a keeper of seats has to tell.
//!
//! The rest of a lease is the same with all of them: the file of each generation, its reply table,
//! and until when its holder may serve ([`super::leased`]).

use super::SeatsError;
use std::io;
use tidegate_sched::Time;

/// What came of claiming a seat.
pub(super) enum Claim {
    /// It is ours.
    Ours {
        /// A number that nobody else was or will be given for this seat.
        generation: u64,
        /// From when on the lease counts.
        began: Time,
    },
    /// Somebody holds it, or its owner waits for it.
    Busy,
    /// Nobody holds it, but the last holder, of this name, may still believe that it does.
    Waits(String),
}

/// Decides who holds a seat. Calls may wait for the keeper, each for a bounded time unless the
/// back end itself is the keeper.
pub(super) trait Claims: Send {
    /// Claims a seat that is not held here.
    fn claim(&mut self, seat: u16) -> Result<Claim, SeatsError>;

    /// The table of a seat that was claimed is complete; an error if it is not ours after all.
    fn confirm(&mut self, seat: u16) -> io::Result<()>;

    /// Says that these seats, with these generations, are still held here; for each, why it is
    /// lost, if it is, or why that cannot be told. An error is one of all.
    fn renew(&mut self, held: &[(u16, u64)]) -> io::Result<Vec<io::Result<Option<String>>>>;

    /// Lets a seat go that was claimed.
    fn release(&mut self, seat: u16) -> io::Result<()>;

    /// Says that the holder of a seat has been told all open files.
    fn settle(&mut self, seat: u16) -> Result<(), SeatsError>;

    /// Tells whoever stands in on the seat that its owner waits for it, until the owner has it.
    /// Called again and again while it waits.
    fn want(&mut self, seat: u16) -> Result<(), SeatsError>;

    /// Those of these seats, which are held here, that their owners wait for.
    fn wanted(&mut self, held: &[u16]) -> io::Result<Vec<u16>>;

    /// Looks at a seat that was asked for and could not be had.
    fn look(&mut self, seat: u16);

    /// The name of another live process that was given the index of a seat, if it holds the seat.
    fn double(&mut self, seat: u16) -> Option<String>;
}

//! Who holds a seat, and with which generation: the interface to what keeps the seats.
//!
//! The rest of a lease works the same with every keeper: the file of each generation, its reply
//! table, and the time until which its holder may serve ([`super::leased`]).

use super::SeatsError;
use std::io;
use tidegate_sched::Time;

/// The result of claiming a seat.
pub(super) enum Claim {
    /// This forwarder has the seat.
    Ours {
        /// A generation that no other claim of this seat got or will get.
        generation: u64,
        /// When the lease begins.
        began: Time,
    },
    /// Another forwarder holds the seat, or its owner waits for it.
    Busy,
    /// No forwarder holds the seat, but the last holder, named here, may still believe that it
    /// does.
    Waits(String),
}

/// Decides who holds a seat. A call may wait for the keeper. The wait is bounded, unless the back
/// end itself is the keeper.
pub(super) trait Claims: Send {
    /// Claims a seat that this forwarder does not hold.
    fn claim(&mut self, seat: u16) -> Result<Claim, SeatsError>;

    /// Notes that the table of a claimed seat is complete. Fails if another forwarder has the seat
    /// after all.
    fn confirm(&mut self, seat: u16) -> io::Result<()>;

    /// Renews the claims of these seats, each given with its generation. Returns for each None, or
    /// why it is lost, or an error if that cannot be told. An outer error concerns all seats.
    fn renew(&mut self, held: &[(u16, u64)]) -> io::Result<Vec<io::Result<Option<String>>>>;

    /// Releases a seat that was claimed.
    fn release(&mut self, seat: u16) -> io::Result<()>;

    /// Records that the holder of a seat knows which of its files are open.
    fn settle(&mut self, seat: u16) -> Result<(), SeatsError>;

    /// Tells a stand-in on the seat that the owner waits for it. The owner calls this again and
    /// again while it waits.
    fn want(&mut self, seat: u16) -> Result<(), SeatsError>;

    /// Which of these seats, all held here, their owners wait for.
    fn wanted(&mut self, held: &[u16]) -> io::Result<Vec<u16>>;

    /// Looks at a seat that could not be claimed.
    fn look(&mut self, seat: u16);

    /// The name of another live process with the same forwarder index, if it holds the seat.
    fn double(&mut self, seat: u16) -> Option<String>;
}

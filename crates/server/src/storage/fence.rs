//! Blocks changes of the back end after this forwarder has lost a seat: because the lease of all
//! its seats has expired, or because it has lost that seat alone.
//!
//! The forwarder refuses requests that come too late. But at that time a job may still wait for a
//! storage thread, its thread may be stopped, or an earlier call of the same job may hang while
//! another forwarder takes the seat. So a storage thread asks the fence right before each call that
//! changes anything, with no other call to the back end in between. A call that the kernel already
//! has cannot be called back.

use crate::clock::Zero;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tidegate_forward::Access;
use tidegate_sched::Time;

/// The most seats of a layout.
const SEATS_MAX: usize = 1 << 16;

/// Which seats were lost, and when the lease of all seats expires. Clones share one state.
#[derive(Clone)]
pub struct Fence {
    shared: Arc<Shared>,
}

struct Shared {
    until_ns: AtomicU64,
    /// One bit a seat: it was lost and has not been taken again.
    lost: Box<[AtomicU64]>,
    zero: Zero,
    #[cfg(test)]
    test: TestAids,
}

/// What tests set.
#[cfg(test)]
#[derive(Default)]
struct TestAids {
    /// The time to use instead of the clock's.
    now_ns: Option<Arc<AtomicU64>>,
    /// How many more times the fence is found open.
    looks: Option<AtomicU64>,
}

/// The fence for jobs of one seat, or for jobs that belong to no seat.
#[derive(Clone, Debug, Default)]
pub struct Permit {
    fence: Fence,
    seat: Option<u16>,
}

impl Default for Fence {
    /// A fence that never closes, where there are no leases.
    fn default() -> Fence {
        Fence::new(Zero::now())
    }
}

impl fmt::Debug for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fence")
            .field("until", &self.until())
            .finish_non_exhaustive()
    }
}

impl Fence {
    /// A fence that stays open until it is told a time or a loss; `zero` is the zero of the
    /// forwarder's time.
    pub fn new(zero: Zero) -> Fence {
        Fence::of(Shared {
            until_ns: AtomicU64::new(u64::MAX),
            lost: (0..SEATS_MAX / 64).map(|_| AtomicU64::new(0)).collect(),
            zero,
            #[cfg(test)]
            test: TestAids::default(),
        })
    }

    fn of(shared: Shared) -> Fence {
        Fence {
            shared: Arc::new(shared),
        }
    }

    /// A fence whose time is that of the returned number, in ns.
    #[cfg(test)]
    pub(crate) fn with_time_set() -> (Fence, Arc<AtomicU64>) {
        let time = Arc::new(AtomicU64::new(0));
        let mut shared = Arc::into_inner(Fence::default().shared).expect("the only one");
        shared.test.now_ns = Some(time.clone());
        (Fence::of(shared), time)
    }

    /// A fence that is found open `looks` times. So it closes while the call after the last of
    /// these is under way.
    #[cfg(test)]
    pub(crate) fn closing_after(looks: u64) -> Fence {
        let mut shared = Arc::into_inner(Fence::default().shared).expect("the only one");
        shared.test.looks = Some(AtomicU64::new(looks));
        Fence::of(shared)
    }

    /// Closes the fence at that time, unless a later time is set before.
    pub fn opens_until(&self, until: Time) {
        self.shared.until_ns.store(until.0, Ordering::Release);
    }

    /// When the fence closes.
    pub fn until(&self) -> Time {
        Time(self.shared.until_ns.load(Ordering::Acquire))
    }

    /// The forwarder's time.
    pub fn now(&self) -> Time {
        #[cfg(test)]
        if let Some(set) = &self.shared.test.now_ns {
            return Time(set.load(Ordering::Acquire));
        }
        self.shared.zero.time()
    }

    /// Whether the fence is closed to all calls.
    pub fn is_closed(&self) -> bool {
        #[cfg(test)]
        if let Some(looks) = &self.shared.test.looks {
            let less = |looks: u64| looks.checked_sub(1);
            return looks
                .fetch_update(Ordering::SeqCst, Ordering::SeqCst, less)
                .is_err();
        }
        let until = self.until();
        until != Time(u64::MAX) && self.now() >= until
    }

    /// Whether the fence is closed to calls that change files of that seat.
    pub fn is_closed_to(&self, seat: u16) -> bool {
        self.is_lost(seat) || self.is_closed()
    }

    /// Notes that this one seat was lost.
    pub fn is_lost(&self, seat: u16) -> bool {
        let (word, bit) = self.lost(seat);
        word.load(Ordering::Acquire) & bit != 0
    }

    /// Notes that the seat was taken. No job of an earlier taking is left, because the forwarder
    /// releases a lost seat only when its last job has ended.
    pub fn taken(&self, seat: u16) -> Permit {
        let (word, bit) = self.lost(seat);
        word.fetch_and(!bit, Ordering::AcqRel);
        self.permit(Some(seat))
    }

    /// The permit for jobs of the seat.
    pub fn permit(&self, seat: Option<u16>) -> Permit {
        Permit {
            fence: self.clone(),
            seat,
        }
    }

    fn lost(&self, seat: u16) -> (&AtomicU64, u64) {
        (&self.shared.lost[usize::from(seat / 64)], 1 << (seat % 64))
    }
}

impl Permit {
    /// Must be called right before each call that changes something on the back end. Fails if the
    /// fence is closed.
    pub fn begin(&self) -> Result<(), Access> {
        match self.is_closed() {
            true => Err(Access::NotHeld),
            false => Ok(()),
        }
    }

    /// Whether calls under this permit may not begin any more.
    pub fn is_closed(&self) -> bool {
        match self.seat {
            Some(seat) => self.fence.is_closed_to(seat),
            None => self.fence.is_closed(),
        }
    }

    /// Notes that the seat of this permit is lost; other seats are not.
    pub fn close(&self) {
        if let Some(seat) = self.seat {
            let (word, bit) = self.fence.lost(seat);
            word.fetch_or(bit, Ordering::AcqRel);
        }
    }

    /// Uses the same fence for jobs of another seat.
    pub fn turn_to(&mut self, seat: Option<u16>) {
        self.seat = seat;
    }

    /// The seat whose jobs this permit is for, if any.
    pub fn seat(&self) -> Option<u16> {
        self.seat
    }

    /// The fence behind this permit.
    pub fn fence(&self) -> &Fence {
        &self.fence
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_closes_when_its_time_has_come_and_not_without_one() {
        let fence = Fence::default();
        assert!(!fence.is_closed());
        let same = fence.clone();
        same.opens_until(Time(0));
        assert!(fence.is_closed());
        same.opens_until(Time(fence.now().0 + 60_000_000_000));
        assert!(!fence.is_closed());
    }

    #[test]
    fn a_lost_seat_is_closed_while_the_others_are_renewed() {
        let fence = Fence::default();
        let [lost, other] = [64, 65].map(|seat| fence.taken(seat));
        lost.close();
        fence.opens_until(Time(fence.now().0 + 60_000_000_000));
        assert_eq!(lost.begin(), Err(Access::NotHeld));
        assert!(fence.is_closed_to(64) && !fence.is_closed_to(65));
        assert_eq!(
            (other.begin(), fence.permit(None).begin()),
            (Ok(()), Ok(()))
        );
        fence.opens_until(Time(0));
        assert_eq!(other.begin(), Err(Access::NotHeld));
        fence.opens_until(Time(u64::MAX));
        assert_eq!(fence.taken(64).begin(), Ok(()));
    }
}

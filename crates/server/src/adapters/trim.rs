//! Memory of connections that have ended goes back to the system.
//!
//! The allocator keeps what thousands of small pieces leave behind, in case they come back. Asking
//! it to let go takes milliseconds, so it is asked once for many, in a pass that is not in a hurry.

/// Connections that ended since it was asked last, before it is asked again.
const ENDED_MIN: u32 = 256;

/// Counts connections that end.
#[derive(Default)]
pub struct Trim {
    ended: u32,
}

impl Trim {
    /// A connection has ended.
    pub fn ended(&mut self) {
        self.ended = self.ended.saturating_add(1);
    }

    /// Whether [`Trim::tidy`] has something to do.
    pub fn is_due(&self) -> bool {
        self.ended >= ENDED_MIN
    }

    /// Called about once a second.
    pub fn tidy(&mut self) {
        if !self.is_due() {
            return;
        }
        self.ended = 0;
        // SAFETY: it takes no pointer, and what it gives back is free memory.
        #[cfg(target_env = "gnu")]
        unsafe {
            libc::malloc_trim(0)
        };
    }
}

//! Returns the memory of ended connections to the system.
//!
//! The allocator keeps the thousands of small pieces that connections free, in case they are needed
//! again. Asking the allocator to return them takes milliseconds. So the loop asks once for many
//! connections, in a pass that has nothing urgent to do.

/// How many connections must have ended since the last time before the allocator is asked again.
const ENDED_MIN: u32 = 256;

/// Counts connections that have ended.
#[derive(Default)]
pub struct Trim {
    ended: u32,
}

impl Trim {
    /// Notes that a connection has ended.
    pub fn ended(&mut self) {
        self.ended = self.ended.saturating_add(1);
    }

    /// Whether [`Trim::tidy`] has something to do.
    pub fn is_due(&self) -> bool {
        self.ended >= ENDED_MIN
    }

    /// Asks the allocator to return memory, if that is due. The loop calls this about once a
    /// second.
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

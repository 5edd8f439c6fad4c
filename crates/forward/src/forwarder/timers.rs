//! What happens at a given time: ends of leases and of grace, and the wait for the own seat. Also
//! notices when the process itself was stopped for a while.

use super::Forwarder;
use super::seat_loss::Lease;
use tidegate_sched::Time;

impl Forwarder {
    /// Notes the time. If nobody called for much longer than [`Forwarder::wake_at`] asked for, this
    /// process (or its node) was stopped, and the clients could not reach it: their leases move on.
    pub(super) fn pass(&mut self, now: Time) {
        let now = self.now.max(now);
        let gap = now.since(self.now);
        if gap > self.config.lease_ns / 2 && self.now > Time(0) {
            self.move_leases_on(gap);
        }
        self.now = now;
        if let Lease::Until(until) = self.lease
            && now >= until
        {
            self.lease_ran_out();
        }
    }

    #[cold]
    fn move_leases_on(&mut self, gap: u64) {
        if self.clients.is_empty() {
            return;
        }
        for client in self.clients.values_mut() {
            client.seen = client.seen + gap;
        }
        for seat in self.seats.iter_mut() {
            seat.pause(gap);
        }
    }

    /// Makes sure that [`Forwarder::expire`] runs at `at`.
    pub(super) fn wake_by(&mut self, at: Time) {
        self.timer = Some(self.timer.map_or(at, |timer| timer.min(at)));
    }

    /// Does what is due.
    pub(super) fn expire(&mut self) {
        if self.timer.is_none_or(|timer| timer > self.now) {
            return;
        }
        self.timer = None;
        if let Lease::Until(until) = self.lease {
            self.wake_by(until);
        }
        let dead: alloc::vec::Vec<u64> = {
            let late = |seen: Time| seen + self.config.lease_ns <= self.now;
            let clients = self.clients.values();
            clients
                .filter(|client| late(client.seen))
                .map(|client| client.id)
                .collect()
        };
        for client in dead {
            self.lease_ended(client);
        }
        for seat in self.seats.numbers() {
            self.expire_seat(seat);
        }
        self.expire_back_end();
        let alive = self.clients.values().filter(|client| !client.ended);
        if let Some(oldest) = alive.map(|client| client.seen).min() {
            // Often enough that a gap between two calls tells a pause of this process.
            let often = self.now + (self.config.lease_ns / 8).max(1);
            self.wake_by(often.min(oldest + self.config.lease_ns));
        }
    }
}

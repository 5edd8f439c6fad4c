//! Takes a forwarder out of service, so that an operator can work on its node (`tidegate drain`).
//! Other forwarders take its seats, while this one keeps its sessions and shows its status.
//!
//! The forwarder finishes the requests that it has accepted. It answers later ones with "not my
//! seat", and clients find the forwarder that stands in. If the host gets a seat that the forwarder
//! asked for earlier, the forwarder releases it at once. The order holds until the process ends.

use super::Forwarder;
use super::receive::Key;
use crate::back_end_files::Errno;
use tidegate_wire::{Outcome, Status};

impl Forwarder {
    /// A request to set this forwarder aside, or to take it back.
    pub(super) fn set_aside(&mut self, key: Key, aside: bool) {
        let alone = self.config.layout.seats < 2 || !self.config.fail_over;
        let refused = match (self.is_trusted(key), aside && alone) {
            (false, _) => Some(Errno::EPERM),
            (true, true) => Some(Errno::EOPNOTSUPP),
            (true, false) => None,
        };
        if let Some(errno) = refused {
            return self.answer(key, Err(Status::Errno(errno.0)));
        }
        if aside != self.aside && !self.draining {
            self.aside = aside;
            match aside {
                true => self.leave_seats(),
                false => self.come_back(),
            }
        }
        self.answer(key, Ok(Outcome::Done));
    }

    fn leave_seats(&mut self) {
        self.log("an operator has set this forwarder aside: others take its seats");
        for number in self.seats.numbers() {
            if self.seats[number].asked_at().is_some() {
                // It stays asked for: should the order end before the answer, that is as good.
                self.turn_away(number);
            }
            self.seat_wanted(number);
        }
    }

    fn come_back(&mut self) {
        self.log("this forwarder is set aside no longer: it takes its own seat again");
        let own = self.config.forwarder;
        // One that still drains is asked for when it has been released.
        if self.seats[own].is_released() {
            self.take_seat(own);
        }
    }
}

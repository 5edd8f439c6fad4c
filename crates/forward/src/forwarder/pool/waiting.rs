//! Connections that wait for room in order of arrival of the requests that they wait with.

use crate::host::ConnId;
use alloc::collections::BTreeMap;
use tidegate_sched::Time;

/// The place of a request in the order in which requests of all connections arrived at the host,
/// and when it did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ArrivalNumber(pub u64, pub Time);

/// Connections without room, and what they wait for.
#[derive(Default)]
pub(super) struct Waiting {
    /// The bytes that each request wants, by the number of its arrival.
    places: BTreeMap<u64, u64>,
    place_of: BTreeMap<ConnId, u64>,
    /// Of all of them.
    pub(super) bytes: u64,
}

impl Waiting {
    /// Whether those that wait before this request leave it `bytes` of `room`. A host that asks
    /// again in order of arrival gets its answer at once from the first request that waits: that
    /// one found no room itself.
    pub(super) fn leaves(&self, number: ArrivalNumber, room: u64, bytes: u64) -> bool {
        let ArrivalNumber(number, _) = number;
        let Some(mut left) = room.checked_sub(bytes) else {
            return false;
        };
        if self
            .places
            .last_key_value()
            .is_none_or(|(last, _)| *last < number)
        {
            return self.bytes <= left;
        }
        self.places.range(..number).all(|(_, bytes)| {
            let rest = left.checked_sub(*bytes);
            left = rest.unwrap_or(0);
            rest.is_some()
        })
    }

    /// Lets a connection wait with this request, which wants so many bytes.
    pub(super) fn enter(&mut self, conn: ConnId, number: ArrivalNumber, bytes: u64) {
        let ArrivalNumber(number, _) = number;
        if self
            .place_of
            .get(&conn)
            .is_some_and(|before| *before != number)
        {
            self.leave(conn);
        }
        self.place_of.insert(conn, number);
        self.bytes += bytes;
        self.bytes -= self.places.insert(number, bytes).unwrap_or(0);
    }

    pub(super) fn has(&self, conn: ConnId) -> bool {
        self.place_of.contains_key(&conn)
    }

    /// The request that waits first, and the bytes that it wants.
    pub(super) fn first(&self) -> Option<(u64, u64)> {
        self.places
            .first_key_value()
            .map(|(number, bytes)| (*number, *bytes))
    }

    /// Removes a connection. True if it waited.
    pub(super) fn leave(&mut self, conn: ConnId) -> bool {
        let place = self.place_of.remove(&conn);
        if let Some(place) = place {
            self.bytes -= self.places.remove(&place).unwrap_or(0);
        }
        place.is_some()
    }
}

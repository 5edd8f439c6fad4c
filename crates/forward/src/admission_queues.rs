//! Requests that wait for room in the pool, in order of arrival.
//!
//! A request that finds no room waits, and so do the requests behind it on its connection.
//! Connections wait in queues ([`Queue`]), each in the order in which its first waiting request
//! arrived. The host asks for them in this order and stops at the first one that finds no room, so
//! that no later request of a queue takes room from an earlier one.

use crate::forwarder::{ArrivalNumber, Forwarder, Queue};
use crate::host::ConnId;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use tidegate_sched::Time;

/// A host of a forwarder that asks whether there is room for requests of type `T`.
pub trait Admits<T> {
    /// Takes a request if there is room for its payload; otherwise returns it. Drops the request if
    /// its connection is to end.
    fn admit(&mut self, conn: ConnId, number: ArrivalNumber, request: T) -> Option<T>;

    /// The application that needs room for a request, by its hints; None if the request needs
    /// none, see [`Forwarder::app_of`].
    fn app_of(request: &T) -> Option<u64>;

    /// The forwarder that was asked.
    fn forwarder(&mut self) -> &mut Forwarder;
}

/// The requests of all connections that wait for room.
#[derive(Debug)]
pub struct AdmissionQueues<T> {
    /// Requests that have arrived.
    arrivals: u64,
    /// Connections by their first request.
    order: BTreeMap<Queue, BTreeMap<ArrivalNumber, ConnId>>,
    waiting: BTreeMap<ConnId, Waiting<T>>,
    /// Queues whose first connection has ended: the next one may find room where that one did not.
    led_by_others: Vec<Queue>,
}

/// A connection that waits.
#[derive(Debug)]
struct Waiting<T> {
    queue: Queue,
    /// The request that has no room, and those behind it.
    requests: VecDeque<(ArrivalNumber, T)>,
}

impl<T> Default for AdmissionQueues<T> {
    fn default() -> AdmissionQueues<T> {
        AdmissionQueues {
            arrivals: 0,
            order: BTreeMap::new(),
            waiting: BTreeMap::new(),
            led_by_others: Vec::new(),
        }
    }
}

impl<T> AdmissionQueues<T> {
    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// The number of requests that a connection waits with.
    #[cfg(test)]
    pub(crate) fn waits_with(&self, conn: ConnId) -> usize {
        self.waiting.get(&conn).map_or(0, |its| its.requests.len())
    }

    /// The number of a request that arrives now.
    pub fn arrived(&mut self, now: Time) -> ArrivalNumber {
        self.arrivals += 1;
        ArrivalNumber(self.arrivals, now)
    }

    /// Puts a request behind those that its connection waits with. Returns the request if its
    /// connection does not wait.
    pub fn behind(&mut self, conn: ConnId, number: ArrivalNumber, request: T) -> Option<T> {
        match self.waiting.get_mut(&conn) {
            Some(before) => {
                before.requests.push_back((number, request));
                None
            }
            None => Some(request),
        }
    }

    /// Lets a connection wait with a request that found no room, in [`Forwarder::queue_of`] it.
    pub fn wait(&mut self, conn: ConnId, number: ArrivalNumber, request: T, queue: Queue) {
        self.enter(conn, VecDeque::from([(number, request)]), queue);
    }

    fn enter(&mut self, conn: ConnId, requests: VecDeque<(ArrivalNumber, T)>, queue: Queue) {
        let (first, _) = requests.front().expect("it waits with a request");
        self.order.entry(queue).or_default().insert(*first, conn);
        self.waiting.insert(conn, Waiting { queue, requests });
    }

    /// Takes a connection out of its queue, which goes with its last one.
    fn leave(&mut self, conn: ConnId) -> Option<Waiting<T>> {
        let left = self.waiting.remove(&conn)?;
        let order = self.order.get_mut(&left.queue);
        let order = order.expect("a connection that waits is in a queue");
        order.remove(&left.requests[0].0);
        // Clients choose the names of some queues, so none may stay behind.
        if order.is_empty() {
            self.order.remove(&left.queue);
        }
        Some(left)
    }

    /// The connection that is first in a queue.
    fn first(&self, queue: Queue) -> Option<ConnId> {
        self.order.get(&queue)?.values().next().copied()
    }

    /// Forgets the requests of a connection that has ended. [`AdmissionQueues::retry`] must follow.
    pub fn closed(&mut self, conn: ConnId) {
        let Some(queue) = self.waiting.get(&conn).map(|its| its.queue) else {
            return;
        };
        let was_first = self.first(queue) == Some(conn);
        self.leave(conn);
        if self.waiting.is_empty() {
            self.led_by_others.clear();
        } else if was_first && self.order.contains_key(&queue) {
            self.led_by_others.push(queue);
        }
    }

    /// Asks again for those that wait, after room was freed. True if one of them went on.
    pub fn retry<H: Admits<T>>(&mut self, host: &mut H) -> bool {
        let mut any = false;
        while let Some(queue) = self.next_queue(host) {
            any |= self.retry_queue(queue, host);
        }
        // Who leaves one queue, for room or for its holder's, may have kept others from it.
        while Queue::OF_KINDS
            .iter()
            .any(|queue| self.retry_queue(*queue, host))
        {
            any = true;
        }
        any
    }

    /// The next queue of a holder or an application in which somebody may find room.
    fn next_queue(&mut self, host: &mut impl Admits<T>) -> Option<Queue> {
        let led = self.led_by_others.pop();
        led.or_else(|| host.forwarder().roomier())
    }

    /// Asks for the requests of one queue in order. True if one of them waits there no longer.
    fn retry_queue<H: Admits<T>>(&mut self, queue: Queue, host: &mut H) -> bool {
        let mut any = false;
        while let Some(conn) = self.first(queue) {
            let left = self.leave(conn).expect("it is in a queue");
            let mut requests = left.requests;
            let (mut first, mut now_in) = (None, queue);
            while let Some((number, request)) = requests.pop_front() {
                // One of the application that was first has its turn in this queue. Others wait
                // elsewhere, or for nothing.
                let app = H::app_of(&request);
                if app.is_some() && first == Some(app) {
                    requests.push_front((number, request));
                    break;
                }
                let is_first = first.is_none();
                first = first.or(Some(app));
                let Some(request) = host.admit(conn, number, request) else {
                    continue;
                };
                requests.push_front((number, request));
                now_in = host.forwarder().queue_of(conn);
                if is_first && now_in == queue {
                    // It stays first, and those behind it find no room either. Stop here, because
                    // thousands may wait.
                    self.enter(conn, requests, queue);
                    return any;
                }
                break;
            }
            any = true;
            if !requests.is_empty() {
                self.enter(conn, requests, now_in);
            }
        }
        any
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_that_ends_leaves_no_queue_behind() {
        let mut queues = AdmissionQueues::default();
        for app in 0..3 {
            for conn in [app, 10 + app] {
                let number = queues.arrived(Time(0));
                queues.wait(ConnId(conn), number, (), Queue::of_app(app));
            }
            queues.closed(ConnId(app));
            assert_eq!(queues.order.len(), 1);
            queues.closed(ConnId(10 + app));
            assert!(queues.is_empty() && queues.order.is_empty());
            assert!(queues.led_by_others.is_empty());
        }
    }
}

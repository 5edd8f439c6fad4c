//! In which order requests get room in the pool.

use super::*;
use crate::{AdmissionQueues, Admits};
use tidegate_wire::Hints;

const KIB: u64 = 1024;

/// A write of so many KiB of an application.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Asked {
    app: u64,
    kib: u64,
}

/// A host whose requests wait.
struct Waiting {
    host: Host,
    queues: AdmissionQueues<Asked>,
    clients: BTreeMap<ConnId, Tester>,
    /// Who had room, in order.
    admitted: Vec<(ConnId, Asked)>,
    /// Those of them whose payload is on its way.
    under_way: VecDeque<(ConnId, Request, SlotId)>,
    /// How often the forwarder was asked.
    asked: usize,
}

impl Waiting {
    fn new(pool_kib: u64, payload_kib: u64) -> Waiting {
        let mut world = World::new();
        let mut config = world.config(0, 1);
        config.pool_bytes_max = pool_kib * KIB;
        config.payload_max = (payload_kib * KIB) as u32;
        (config.sessions_max, config.sessions_of_user_max) = (1000, 1000);
        let mut host = Host::new(&world, config);
        host.give_seat(&mut world, 0);
        Waiting {
            host,
            queues: AdmissionQueues::default(),
            clients: BTreeMap::new(),
            admitted: Vec::new(),
            under_way: VecDeque::new(),
            asked: 0,
        }
    }

    fn connect(&mut self) -> ConnId {
        let client = Tester::new(&mut self.host, self.clients.len() as u64 + 1);
        let conn = client.conn;
        self.clients.insert(conn, client);
        conn
    }

    fn arrives(&mut self, conn: ConnId, asked: Asked) {
        let mut queues = std::mem::take(&mut self.queues);
        let number = queues.arrived(self.host.now);
        if let Some(asked) = queues.behind(conn, number, asked)
            && let Some(asked) = self.admit(conn, number, asked)
        {
            let queue = self.host.forwarder.queue_of(conn);
            queues.wait(conn, number, asked, queue);
        }
        self.queues = queues;
    }

    fn retry(&mut self) {
        let mut queues = std::mem::take(&mut self.queues);
        queues.retry(self);
        self.queues = queues;
    }

    /// The connection ends, and what was on its way from it.
    fn ends(&mut self, conn: ConnId) {
        self.queues.closed(conn);
        self.under_way.retain(|(its, ..)| *its != conn);
        self.host.tell(Input::Closed { conn });
    }

    /// The next payload of the connection that has this one has arrived, and its request is done.
    fn done(&mut self, at: usize) {
        let of = self.under_way[at].0;
        let first = self.under_way.iter().position(|(conn, ..)| *conn == of);
        let next = self.under_way.remove(first.expect("there is one"));
        let (conn, request, slot) = next.expect("there is one");
        let received = Input::Received {
            conn,
            request,
            slot: Some(slot),
        };
        self.host.tell(received);
        self.host.replies.clear();
        assert_eq!(self.host.closed, []);
    }

    /// So many requests that have room, of an application.
    fn fill(&mut self, number: usize, asked: Asked) {
        let conn = self.connect();
        for _ in 0..number {
            self.arrives(conn, asked);
        }
        assert_eq!(self.admitted.len(), number);
        self.admitted.clear();
    }
}

impl Admits<Asked> for Waiting {
    fn admit(&mut self, conn: ConnId, number: ArrivalNumber, asked: Asked) -> Option<Asked> {
        self.asked += 1;
        let client = self.clients.get_mut(&conn).expect("it is connected");
        let bytes = asked.kib * KIB;
        if bytes == 0 {
            self.admitted.push((conn, asked));
            return None;
        }
        let request = Request {
            hints: Some(Hints {
                app: asked.app,
                ..Hints::default()
            }),
            ..client.request(write(client.root, 0, bytes), bytes as usize)
        };
        match (self.host.forwarder).admit(self.host.now, conn, number, &request) {
            Admission::Slot { slot, .. } => {
                self.host.slots.insert(slot, vec![0; bytes as usize]);
                self.admitted.push((conn, asked));
                self.under_way.push_back((conn, request, slot));
                None
            }
            Admission::Wait => Some(asked),
            other => panic!("{other:?}"),
        }
    }

    fn app_of(asked: &Asked) -> Option<u64> {
        (asked.kib > 0).then_some(asked.app)
    }

    fn forwarder(&mut self) -> &mut Forwarder {
        &mut self.host.forwarder
    }
}

#[test]
fn requests_get_room_in_order_of_arrival_whatever_their_connections() {
    let mut waiting = Waiting::new(1024, 1024);
    let large = Asked { app: 1, kib: 256 };
    waiting.fill(4, large);
    let [a, b] = [waiting.connect(), waiting.connect()];
    let order = [a, a, b, a, b, b, a];
    for (conn, app) in order.into_iter().zip(2..) {
        waiting.arrives(conn, Asked { app, ..large });
    }
    assert_eq!(waiting.admitted, []);
    while !waiting.under_way.is_empty() {
        waiting.done(0);
        waiting.retry();
    }
    let admitted: Vec<(ConnId, u64)> = (waiting.admitted.iter())
        .map(|(conn, asked)| (*conn, asked.app))
        .collect();
    let in_order: Vec<(ConnId, u64)> = order.into_iter().zip(2..).collect();
    assert_eq!(admitted, in_order);
}

#[test]
fn who_waits_behind_one_that_ends_is_asked_at_once() {
    let mut waiting = Waiting::new(1024, 1024);
    waiting.fill(4, Asked { app: 1, kib: 256 });
    let [large, small] = [waiting.connect(), waiting.connect()];
    waiting.arrives(large, Asked { app: 2, kib: 1024 });
    waiting.arrives(small, Asked { app: 3, kib: 256 });
    waiting.done(0);
    waiting.retry();
    assert_eq!(waiting.admitted, [], "the large one waits for it");
    waiting.ends(large);
    waiting.retry();
    assert_eq!(waiting.admitted, [(small, Asked { app: 3, kib: 256 })]);
}

#[test]
fn of_its_application_too_who_waits_behind_one_that_ends_is_asked_at_once() {
    let mut waiting = Waiting::new(64 * 64, 64);
    let small = Asked { app: 1, kib: 64 };
    waiting.fill(56, small);
    let [a, b] = [waiting.connect(), waiting.connect()];
    waiting.arrives(a, small);
    waiting.arrives(b, small);
    assert_eq!(waiting.admitted, []);
    // One that was not asked for yet, since those before it are.
    waiting.arrives(a, small);
    waiting.done(0);
    waiting.retry();
    assert_eq!(waiting.admitted, [(a, small)]);
    // There would be room, and the one before it ends.
    waiting.ends(b);
    waiting.done(0);
    waiting.retry();
    assert_eq!(waiting.admitted, [(a, small); 2]);
}

#[test]
fn whatever_ends_and_comes_nobody_waits_for_ever() {
    for seed in 1..200 {
        let mut state = seed;
        let mut below = |most: usize| {
            state = 6_364_136_223_846_793_005_u64.wrapping_mul(state) + 1;
            (state >> 33) as usize % most
        };
        let mut waiting = Waiting::new([1024, 256][below(2)], 32);
        let mut conns: Vec<ConnId> = (0..6).map(|_| waiting.connect()).collect();
        let (mut arrived, mut lost) = (0, 0);
        for _ in 0..300 {
            let at = below(conns.len());
            match below(10) {
                0 => {
                    lost += waiting.queues.waits_with(conns[at]);
                    waiting.ends(conns[at]);
                    conns[at] = waiting.connect();
                }
                1..4 if !waiting.under_way.is_empty() => {
                    waiting.done(below(waiting.under_way.len()));
                }
                _ => {
                    let kib = [4, 4, 8, 32][below(4)];
                    let app = below(3) as u64;
                    waiting.arrives(conns[at], Asked { app, kib });
                    arrived += 1;
                }
            }
            waiting.retry();
        }
        while !waiting.under_way.is_empty() {
            waiting.done(0);
            waiting.retry();
        }
        assert!(waiting.queues.is_empty(), "seed {seed}");
        assert_eq!(waiting.admitted.len(), arrived - lost, "seed {seed}");
    }
}

#[test]
fn behind_one_that_got_room_another_applications_does_not_wait_for_it() {
    let other = Asked { app: 2, kib: 64 };
    for seconds in [[other, other], [other, Asked { app: 1, kib: 0 }]] {
        let mut waiting = Waiting::new(64 * 64, 64);
        let first = Asked { app: 1, kib: 64 };
        waiting.fill(56, first);
        let [a, b] = [waiting.connect(), waiting.connect()];
        waiting.arrives(a, first);
        waiting.arrives(b, first);
        for second in seconds {
            waiting.arrives(a, second);
        }
        assert_eq!(waiting.admitted, []);
        waiting.done(0);
        waiting.retry();
        let [second, third] = seconds;
        assert_eq!(waiting.admitted, [(a, first), (a, second), (a, third)]);
    }
}

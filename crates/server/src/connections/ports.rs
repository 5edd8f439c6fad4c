//! The loop's side of all connections: it knows which shard serves which connection, owns the
//! threads of the shards, and carries the messages between loop and shards.

use super::session::Session;
use super::shard::{Shard, ShardThread, WAKER};
use super::traffic::{Published, Traffic};
use super::{ConnectionPolicy, HANDED_MAX, ToLoop, ToShard};
use crate::clock::Zero;
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use tidegate_forward::ConnId;
use tidegate_net::{Incoming, Outgoing, Poller, Waker, mailbox};

/// All connections, and the shards that serve them.
#[derive(Default)]
pub struct Ports {
    ports: BTreeMap<ConnId, Port>,
    /// The number of connections of shard 0.
    own: usize,
    /// Messages for shard 0.
    to_own: Vec<ToShard>,
    /// The other shards, from number 1 on, each with a thread of its own.
    threads: Vec<Thread>,
    /// How many shards have sent everything since the loop asked them to flush.
    flushed: usize,
    /// The waker of the loop's thread; None if there are no other threads.
    waker: Option<Arc<Waker>>,
}

struct Thread {
    outgoing: Outgoing<ToShard>,
    incoming: Incoming<ToLoop>,
    /// The number of connections that it serves.
    conns: usize,
    traffic: Arc<Published>,
    handle: Option<JoinHandle<io::Result<()>>>,
}

/// One connection.
struct Port {
    shard: usize,
    /// Whether a reply on it may be sent as pages of a file.
    takes_pages: bool,
    /// Requests that the loop has taken and has not told the shard of yet.
    taken: u32,
    /// Whether the loop has cut the connection. Messages of it that still arrive are dropped.
    cut: bool,
}

impl Ports {
    /// Begins without connections. Starts a thread for each shard but the first; `waker` wakes the
    /// loop's thread. Fails if the system gives no thread or descriptor.
    pub fn start(
        shards: usize,
        waker: &Arc<mio::Waker>,
        policy: &Arc<ConnectionPolicy>,
        zero: Zero,
    ) -> io::Result<Ports> {
        let mut ports = Ports::default();
        for number in 1..shards {
            let own = ports.waker.get_or_insert_with(|| Waker::new(waker.clone()));
            let poller = Poller::new()?;
            let waker = Waker::new(Arc::new(mio::Waker::new(poller.registry(), WAKER)?));
            let (outgoing, theirs) = mailbox(waker.clone());
            let (their_outgoing, incoming) = mailbox(own.clone());
            let traffic = Arc::<Published>::default();
            let shard = ShardThread {
                shard: Shard::new(poller, policy.clone()),
                waker,
                incoming: theirs,
                outgoing: their_outgoing,
                published: traffic.clone(),
                zero,
            };
            let thread = std::thread::Builder::new().name(format!("shard.{number}"));
            ports.threads.push(Thread {
                outgoing,
                incoming,
                conns: 0,
                traffic,
                handle: Some(thread.spawn(move || shard.run())?),
            });
        }
        Ok(ports)
    }

    /// The waker of the loop's thread; None if no other thread of this process has to wake it.
    pub fn waker(&self) -> Option<&Waker> {
        self.waker.as_deref()
    }

    /// Whether the thread of a shard has handed over messages.
    pub fn has_mail(&self) -> bool {
        self.threads.iter().any(|thread| thread.incoming.is_any())
    }

    /// The number of connections of all shards.
    pub fn len(&self) -> usize {
        self.ports.len()
    }

    /// Adds the counts of the other threads to `traffic`.
    pub fn add_traffic(&self, traffic: &mut Traffic) {
        for thread in &self.threads {
            traffic.add(&thread.traffic.read());
        }
    }

    /// Gives a new connection to the shard that has the fewest. A connection through libfabric goes
    /// to shard 0, whose thread alone registers memory with libfabric.
    pub fn serve(&mut self, session: Box<Session>) {
        let takes_pages = session.stream.link().is_none();
        let least = (0..self.threads.len()).min_by_key(|at| self.threads[*at].conns);
        let least = least.filter(|at| takes_pages && self.threads[*at].conns < self.own);
        let shard = least.map_or(0, |at| at + 1);
        let port = Port {
            shard,
            takes_pages,
            taken: 0,
            cut: false,
        };
        self.ports.insert(session.id, port);
        *self.conns_of(shard) += 1;
        self.push(shard, ToShard::Serve(session));
    }

    /// Notes that a connection has ended. False if that was known already.
    pub fn closed(&mut self, conn: ConnId) -> bool {
        let Some(port) = self.ports.remove(&conn) else {
            return false;
        };
        *self.conns_of(port.shard) -= 1;
        true
    }

    /// Whether replies on a connection may be sent as pages of a file. None if the loop takes no
    /// more requests of the connection, because it has ended or was cut.
    pub fn hears(&self, conn: ConnId) -> Option<bool> {
        let port = self.ports.get(&conn).filter(|port| !port.cut)?;
        Some(port.takes_pages)
    }

    /// Notes that the loop has taken a request of a connection, so that its shard learns of it.
    pub fn taken(&mut self, conn: ConnId) {
        let Some(port) = self.ports.get_mut(&conn) else {
            return;
        };
        port.taken += 1;
        // Often enough that the shard hardly ever waits for this message, seldom enough to cost
        // nothing.
        if port.taken >= HANDED_MAX / 2 {
            let (taken, shard) = (std::mem::take(&mut port.taken), port.shard);
            self.push(shard, ToShard::Taken(conn, taken));
        }
    }

    /// Ends a connection at once; `reason` is for the log.
    pub fn cut(&mut self, conn: ConnId, reason: Box<str>) {
        if let Some(port) = self.ports.get_mut(&conn) {
            port.cut = true;
        }
        self.tell(conn, ToShard::Cut(conn, reason));
    }

    /// Sends a message to the shard of a connection. Returns the message if the connection is gone.
    pub fn tell(&mut self, conn: ConnId, message: ToShard) -> Option<ToShard> {
        match self.ports.get(&conn) {
            Some(port) => {
                self.push(port.shard, message);
                None
            }
            None => Some(message),
        }
    }

    /// Asks all shards to report when they have nothing left to send.
    pub fn flush(&mut self) {
        self.flushed = 0;
        (0..=self.threads.len()).for_each(|shard| self.push(shard, ToShard::Flush));
    }

    /// Notes that one shard has nothing left to send.
    pub fn flushed(&mut self) {
        self.flushed += 1;
    }

    /// Whether all shards have reported that they have nothing left to send.
    pub fn are_flushed(&self) -> bool {
        self.flushed > self.threads.len()
    }

    /// The messages for shard 0.
    pub fn for_own(&mut self) -> &mut Vec<ToShard> {
        &mut self.to_own
    }

    /// Hands the waiting messages over to the threads of the other shards.
    pub fn hand_over(&mut self) {
        for thread in &mut self.threads {
            thread.outgoing.hand_over();
        }
    }

    /// How many threads serve connections beside the loop's.
    pub fn threads(&self) -> usize {
        self.threads.len()
    }

    /// Takes what the thread of a shard has handed over; `into` must be empty. An error means that
    /// this thread has ended, and is the thread's own.
    pub fn take(&mut self, thread: usize, into: &mut Vec<ToLoop>) -> io::Result<()> {
        let thread = &mut self.threads[thread];
        let ended = thread.incoming.is_ended();
        thread.incoming.take(into);
        match ended {
            true => Err(thread.failed()),
            false => Ok(()),
        }
    }

    fn push(&mut self, shard: usize, message: ToShard) {
        match shard {
            0 => self.to_own.push(message),
            number => self.threads[number - 1].outgoing.push(message),
        }
    }

    fn conns_of(&mut self, shard: usize) -> &mut usize {
        match shard {
            0 => &mut self.own,
            number => &mut self.threads[number - 1].conns,
        }
    }
}

impl Thread {
    /// Why the thread has ended. A panic of the thread is raised again here.
    fn failed(&mut self) -> io::Error {
        let joined = self.handle.take().map(JoinHandle::join);
        match joined {
            Some(Err(panic)) => std::panic::resume_unwind(panic),
            Some(Ok(Err(error))) => error,
            Some(Ok(Ok(()))) | None => io::Error::other("a thread of connections has ended"),
        }
    }
}

impl Drop for Ports {
    /// Ends the threads, which wait for nothing else than messages and sockets.
    fn drop(&mut self) {
        for thread in &mut self.threads {
            thread.outgoing.push(ToShard::End);
            thread.outgoing.hand_over();
        }
        for thread in &mut self.threads {
            // A panic of the thread has already been reported.
            let _ = thread.handle.take().map(JoinHandle::join);
        }
    }
}

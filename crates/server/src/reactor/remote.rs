//! The core's side of connections that network threads serve: which thread has which, and what
//! came on them that waits for a slot or its payload.

use super::Core;
use super::admit::{Admitted, Due};
use super::conn::{Conn, HANDED_MAX};
use super::mail::{Bell, Incoming, Outgoing, letter_box};
use super::network::{Network, ToCore, ToNetwork, run};
use super::output::Body;
use super::receive::Door;
use super::sockets::{Desk, Sockets};
use super::traffic::Published;
use crate::clock::Zero;
use crate::storage::SharedMemory;
use mio::{Poll, Token, Waker};
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use tidegate_forward::ConnId;
use tidegate_wire::{Reply, Request};

/// The network threads and their connections. None of them costs nothing.
#[derive(Default)]
pub struct Remotes {
    threads: Vec<Thread>,
    conns: BTreeMap<ConnId, Remote>,
    letters: Vec<ToCore>,
    /// Threads that have sent everything since they were asked to.
    flushed: usize,
    /// The core's thread's; None without network threads.
    bell: Option<Arc<Bell>>,
}

struct Thread {
    outgoing: Outgoing<ToNetwork>,
    incoming: Incoming<ToCore>,
    /// Connections that it serves.
    conns: usize,
    handle: Option<JoinHandle<io::Result<()>>>,
}

/// A connection of a network thread.
#[derive(Default)]
struct Remote {
    thread: usize,
    /// Requests that came behind one that waits; at most [`HANDED_MAX`], then the thread reads no
    /// further.
    behind: VecDeque<Came>,
    /// The request that waits for its slot or its payload.
    due: Option<Due>,
    /// Requests taken that the thread has not been told of.
    taken: u32,
    /// It was told to end at once; what still comes is thrown away.
    cut: bool,
}

/// A request, and where its payload lies if it lies in the client's memory.
struct Came {
    request: Box<Request>,
    shared: Option<(Arc<SharedMemory>, u64)>,
}

/// What asking again for a connection's slot came to.
pub enum Asked {
    /// It waits as before.
    Waits,
    /// It waits no longer, or for another request.
    Over,
}

/// What all network threads are given.
pub struct ForAll {
    /// What a connection must prove and may offer.
    pub door: Arc<Door>,
    /// A connection that keeps others waiting this long is closed.
    pub stall_ns_max: u64,
    /// Zero of the forwarder's time.
    pub zero: Zero,
}

impl Remotes {
    /// Starts network threads; `waker` is the core's thread's. Their counts are read from what is
    /// returned beside them.
    pub fn start(
        count: usize,
        waker: &Arc<Waker>,
        all: &ForAll,
    ) -> io::Result<(Remotes, Vec<Arc<Published>>)> {
        let mut remotes = Remotes::default();
        let mut counts = Vec::new();
        for number in 1..=count {
            let own = remotes.bell.get_or_insert_with(|| Bell::new(waker.clone()));
            let poll = Poll::new()?;
            let bell = Bell::new(Arc::new(Waker::new(poll.registry(), Token(0))?));
            let (outgoing, theirs) = letter_box(bell.clone());
            let (their_outgoing, incoming) = letter_box(own.clone());
            let published = Arc::<Published>::default();
            counts.push(published.clone());
            let network = Network {
                sockets: Sockets::new(poll),
                bell,
                incoming: theirs,
                outgoing: their_outgoing,
                door: all.door.clone(),
                published,
                stall_ns_max: all.stall_ns_max,
                zero: all.zero,
            };
            let thread = std::thread::Builder::new().name(format!("network.{number}"));
            remotes.threads.push(Thread {
                outgoing,
                incoming,
                conns: 0,
                handle: Some(thread.spawn(move || run(network))?),
            });
        }
        Ok((remotes, counts))
    }

    /// What ends the sleep of the core's thread, if somebody but the system does.
    pub fn bell(&self) -> Option<&Bell> {
        self.bell.as_deref()
    }

    /// Whether a thread has handed something over.
    pub fn has_mail(&self) -> bool {
        self.threads.iter().any(|thread| thread.incoming.is_any())
    }

    /// Connections of all network threads.
    pub fn len(&self) -> usize {
        self.conns.len()
    }

    /// The thread for a new connection: the one with the fewest, the core's (None), which has
    /// `own`, if it has no more than that.
    pub fn thread_for_next(&self, own: usize) -> Option<usize> {
        let least = (0..self.threads.len()).min_by_key(|at| self.threads[*at].conns)?;
        (self.threads[least].conns < own).then_some(least)
    }

    /// Gives a connection to a thread.
    pub fn serve(&mut self, thread: usize, conn: Conn) {
        let remote = Remote {
            thread,
            ..Remote::default()
        };
        self.conns.insert(conn.id, remote);
        self.threads[thread].conns += 1;
        let letter = ToNetwork::Serve(Box::new(conn));
        self.threads[thread].outgoing.push(letter);
    }

    /// Sends a reply. False if the connection is gone.
    pub fn answer(&mut self, conn: ConnId, op: u8, reply: Reply, body: Body) -> bool {
        let letter = ToNetwork::Answer {
            conn,
            op,
            reply,
            body,
        };
        self.tell(conn, letter)
    }

    /// Ends a connection when what is queued on it is sent.
    pub fn close(&mut self, conn: ConnId, reason: Box<str>) {
        self.tell(conn, ToNetwork::Close(conn, reason));
    }

    /// Asks all threads to say when they have nothing left to send.
    pub fn flush(&mut self) {
        self.flushed = 0;
        for thread in &mut self.threads {
            thread.outgoing.push(ToNetwork::Flush);
        }
    }

    /// Whether all have said so.
    pub fn are_flushed(&self) -> bool {
        self.flushed == self.threads.len()
    }

    /// Hands over what the threads are to be told.
    pub fn hand_over(&mut self) {
        for thread in &mut self.threads {
            thread.outgoing.hand_over();
        }
    }

    /// Does what the threads have to say. An error is that of a thread that has ended.
    pub fn take(&mut self, core: &mut Core) -> io::Result<()> {
        for at in 0..self.threads.len() {
            let ended = self.threads[at].incoming.is_ended();
            let mut letters = std::mem::take(&mut self.letters);
            self.threads[at].incoming.take(&mut letters);
            for letter in letters.drain(..) {
                self.open(core, letter);
            }
            self.letters = letters;
            if ended {
                return Err(self.threads[at].failed());
            }
        }
        Ok(())
    }

    /// Asks again for the slot that a connection waits for; None if it is no network thread's.
    pub fn ask_again(&mut self, core: &mut Core, id: ConnId) -> Option<Asked> {
        let remote = self.conns.get_mut(&id)?;
        let Some(due) = remote.due.take() else {
            return Some(Asked::Over);
        };
        let came = Came {
            request: due.request,
            shared: None,
        };
        if self.admit(core, id, came) {
            return Some(Asked::Waits);
        }
        self.go_on(core, id);
        Some(Asked::Over)
    }

    fn open(&mut self, core: &mut Core, letter: ToCore) {
        match letter {
            ToCore::Request {
                conn,
                request,
                shared,
            } => {
                let Some(remote) = self.conns.get_mut(&conn).filter(|remote| !remote.cut) else {
                    return;
                };
                remote.behind.push_back(Came { request, shared });
                self.go_on(core, conn);
            }
            ToCore::Payload(conn) => {
                let due = self
                    .conns
                    .get_mut(&conn)
                    .and_then(|remote| remote.due.take());
                if let Some(Due { request, slot }) = due {
                    core.received(conn, request, slot);
                    self.go_on(core, conn);
                }
            }
            ToCore::Sent(slot) => core.sent(slot),
            ToCore::Closed(conn) => {
                if let Some(remote) = self.conns.remove(&conn) {
                    self.threads[remote.thread].conns -= 1;
                    core.closed(conn);
                }
            }
            ToCore::Flushed => self.flushed += 1,
        }
    }

    /// Takes the requests of a connection, up to one that waits.
    fn go_on(&mut self, core: &mut Core, id: ConnId) {
        while let Some(remote) = self.conns.get_mut(&id)
            && remote.due.is_none()
            && let Some(came) = remote.behind.pop_front()
        {
            if self.admit(core, id, came) {
                core.waiting.push_back(id);
            }
        }
    }

    /// Asks where a request's payload goes. True if the connection waits with it.
    fn admit(&mut self, core: &mut Core, id: ConnId, came: Came) -> bool {
        let admitted = match came.shared {
            None => core.admit(id, came.request, true),
            Some((memory, place)) => core
                .admit_shared(id, came.request, &memory, place)
                .map(|()| Admitted::Taken),
        };
        let remote = self.conns.get_mut(&id).expect("its requests are admitted");
        let outgoing = &mut self.threads[remote.thread].outgoing;
        match admitted {
            Ok(Admitted::Taken) => {}
            Ok(Admitted::Payload(due, buffer)) => {
                remote.due = Some(due);
                outgoing.push(ToNetwork::Payload(id, buffer));
            }
            Ok(Admitted::Wait(request)) => {
                remote.due = Some(Due {
                    request,
                    slot: None,
                });
                return true;
            }
            Err(reason) => {
                remote.cut = true;
                remote.behind.clear();
                outgoing.push(ToNetwork::Cut(id, reason));
                return false;
            }
        }
        remote.taken += 1;
        // Often enough that the thread hardly ever waits for it, seldom enough to cost nothing.
        if remote.taken >= HANDED_MAX / 2 {
            let taken = std::mem::take(&mut remote.taken);
            outgoing.push(ToNetwork::Taken(id, taken));
        }
        false
    }

    /// Tells the thread of a connection. False if it is nobody's.
    fn tell(&mut self, conn: ConnId, letter: ToNetwork) -> bool {
        match self.conns.get(&conn) {
            Some(remote) => {
                self.threads[remote.thread].outgoing.push(letter);
                true
            }
            None => false,
        }
    }
}

impl Thread {
    /// Why it has ended; a panic goes on here.
    fn failed(&mut self) -> io::Error {
        let joined = self.handle.take().map(JoinHandle::join);
        match joined {
            Some(Err(panic)) => std::panic::resume_unwind(panic),
            Some(Ok(Err(error))) => error,
            Some(Ok(Ok(()))) | None => io::Error::other("a network thread has ended"),
        }
    }
}

impl Drop for Remotes {
    /// Ends the threads, which wait for nothing else.
    fn drop(&mut self) {
        for thread in &mut self.threads {
            thread.outgoing.push(ToNetwork::End);
            thread.outgoing.hand_over();
        }
        for thread in &mut self.threads {
            // A panic there has been its own report.
            let _ = thread.handle.take().map(JoinHandle::join);
        }
    }
}

//! Gives tickets to users of other nodes for whom munge vouches.
//!
//! munged and the database of users may answer late or never. So a few threads ask them, which do
//! nothing else, and which send what they have to say themselves: a connection that asks for a
//! ticket is good for nothing else, and no other connection waits for it.

use super::doors::Whose;
use super::site_secrets::Valid;
use crate::clock::wall_s;
use crate::config::{Config, Munge as Use, Sandbox};
use crate::identity::{NoGroups, UserFiles, groups_of};
use crate::lock::lock;
use crate::thread_rights::{Work, keep_for};
use rustix::fd::OwnedFd;
use rustix::net::{self, SendFlags, Shutdown, SocketAddrAny};
use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tidegate_net::munge::{Munge, MungeError, Vouched};
use tidegate_net::{Carried, Greeting, Refusal, Stream, give_ticket};
use tidegate_wire::{Caller, Grant, GrantError};
use tracing::{debug, info, warn};

/// How long a ticket is good. A user who has lost a group in the database has lost it everywhere
/// after less than a minute.
const TICKET_LIFE: Duration = Duration::from_secs(45);
/// Threads that ask munged and the database of users.
const THREADS: usize = 4;
/// Connections that may wait for one of them.
const WAITING_MAX: usize = 64;
/// Those of one node, with those that are asked for.
const OF_NODE_MAX: usize = 16;
/// How long a connection may wait for its turn.
const TURN_MAX: Duration = Duration::from_secs(5);
/// How long after one line of the log about refusals the next one may follow.
const LINE_EACH: Duration = Duration::from_secs(1);

/// See the head of the file.
pub struct TicketDesk {
    asking: SyncSender<Asked>,
    of_nodes: OfNodes,
}

/// How many connections of each node wait or are served.
type OfNodes = Arc<Mutex<BTreeMap<Whose, usize>>>;

/// A connection that asks for a ticket.
struct Asked {
    socket: OwnedFd,
    greeting: Greeting,
    /// The address at which the client has reached this forwarder.
    here: SocketAddr,
    node: SocketAddr,
    /// The site's secrets that were valid when it came.
    valid: Arc<Valid>,
    came: Instant,
    _place: Place,
}

/// Counts for its node until it is dropped.
struct Place {
    whose: Whose,
    of_nodes: OfNodes,
}

impl Place {
    /// None if the node has as many as it may have.
    fn of(whose: &Whose, of_nodes: &OfNodes) -> Option<Place> {
        let mut nodes = lock(of_nodes);
        let count = nodes.entry(whose.clone()).or_default();
        if *count >= OF_NODE_MAX {
            return None;
        }
        *count += 1;
        Some(Place {
            whose: whose.clone(),
            of_nodes: Arc::clone(of_nodes),
        })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut nodes = lock(&self.of_nodes);
        if let Some(count) = nodes.get_mut(&self.whose) {
            *count -= 1;
            if *count == 0 {
                nodes.remove(&self.whose);
            }
        }
    }
}

impl TicketDesk {
    /// Starts the threads, if the configuration wants them. Fails if MUNGE's library cannot be
    /// loaded, or the system gives no thread.
    pub fn start(config: &Config) -> io::Result<Option<TicketDesk>> {
        if config.munge == Use::Off {
            return Ok(None);
        }
        let library = Munge::load().map_err(io::Error::other)?;
        let socket = config.munge_socket.clone();
        let (asking, asked) = sync_channel(WAITING_MAX);
        let asked = Arc::new(Mutex::new(asked));
        let clerk = Arc::new(Clerk {
            asked,
            library,
            socket,
            said: Mutex::new(None),
            users: (config.sandbox == Sandbox::On).then(UserFiles::now),
        });
        for number in 0..THREADS {
            let clerk = Arc::clone(&clerk);
            let thread = std::thread::Builder::new().name(format!("munge.{number}"));
            // They are not waited for: one may be inside a call that never ends.
            thread.spawn(move || clerk.run())?;
        }
        Ok(Some(TicketDesk {
            asking,
            of_nodes: OfNodes::default(),
        }))
    }

    /// Takes over what is to be said to a client that asks for a ticket.
    pub fn ask(
        &self,
        stream: &Stream,
        whose: &Whose,
        greeting: &Greeting,
        valid: Arc<Valid>,
    ) -> Result<(), Refusal> {
        let place = Place::of(whose, &self.of_nodes).ok_or(Refusal::Busy)?;
        // Through libfabric nothing would be sent on the socket.
        let ends = match stream.link() {
            None => net::getsockname(stream)
                .ok()
                .zip(net::getpeername(stream).ok().flatten()),
            Some(_) => None,
        };
        let ends = ends.and_then(|(here, node)| Some((address(here)?, address(node)?)));
        let (here, node) = ends.ok_or(Refusal::NoMunge)?;
        // Out of descriptors, which passes too.
        let socket = rustix::io::fcntl_dupfd_cloexec(stream, 0).map_err(|_| Refusal::Busy)?;
        let asked = Asked {
            socket,
            greeting: greeting.clone(),
            here,
            node,
            valid,
            came: Instant::now(),
            _place: place,
        };
        self.asking.try_send(asked).map_err(|error| match error {
            TrySendError::Full(_) => Refusal::Busy,
            TrySendError::Disconnected(_) => Refusal::Munged,
        })
    }
}

fn address(found: SocketAddrAny) -> Option<SocketAddr> {
    SocketAddr::try_from(found).ok()
}

/// What the threads share.
struct Clerk {
    asked: Arc<Mutex<Receiver<Asked>>>,
    library: &'static Munge,
    /// munged's; None: the usual one.
    socket: Option<PathBuf>,
    /// When the last line about a refusal was written.
    said: Mutex<Option<Instant>>,
    /// Those that the sandbox lets this process read, if there is one.
    users: Option<UserFiles>,
}

impl Clerk {
    /// Serves until the forwarder has ended.
    fn run(&self) {
        keep_for(Work::Nothing);
        loop {
            let next = lock(&self.asked).recv();
            let Ok(asked) = next else {
                return;
            };
            self.serve(&asked);
        }
    }

    fn serve(&self, asked: &Asked) {
        let answer = match asked.came.elapsed() > TURN_MAX {
            true => Err((Refusal::Busy, "it waited for too long".to_string())),
            false => self.ticket(asked),
        };
        let answer = answer.unwrap_or_else(|(refusal, why)| {
            let node = asked.node;
            let mut said = lock(&self.said);
            if said.is_none_or(|said| said.elapsed() >= LINE_EACH) {
                *said = Some(Instant::now());
                match refusal {
                    Refusal::Busy | Refusal::Munged | Refusal::Database | Refusal::NoTicket => {
                        warn!(%node, why, "no ticket by munge");
                    }
                    _ => info!(%node, why, "no ticket by munge"),
                }
            } else {
                debug!(%node, why, "no ticket by munge");
            }
            Greeting::refusal(refusal)
        });
        // It is the only thing that is sent here, and has room; a client that is gone needs none.
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        let _ = net::send(&asked.socket, &answer.to_bytes(), flags);
        let _ = net::shutdown(&asked.socket, Shutdown::Write);
    }

    /// The answer with a ticket; or why there is none, for the client and for the log.
    fn ticket(&self, asked: &Asked) -> Result<Greeting, (Refusal, String)> {
        let no = |refusal: Refusal| (refusal, refusal.to_string());
        let credential = asked.greeting.credential();
        let credential = credential.ok_or_else(|| no(Refusal::Credential))?;
        let vouched = self.library.decode(self.socket.as_deref(), credential);
        let vouched = vouched.map_err(|error| (refusal_of(&error), error.to_string()))?;
        let carried = Carried::of_bytes(&vouched.carried);
        let carried = carried.ok_or_else(|| no(Refusal::Credential))?;
        if !carried.is_for(asked.here) {
            return Err(no(Refusal::Elsewhere));
        }
        if self.users.as_ref().is_some_and(UserFiles::are_replaced) {
            // What can still be read may lack groups.
            let why = "/etc/passwd or /etc/group was replaced, and the sandbox lets the forwarder \
                       read only what was there at its start: start it again";
            return Err((Refusal::Database, why.to_string()));
        }
        let user = user_of(&vouched).map_err(|refusal| {
            let uid = vouched.uid;
            (refusal, format!("user {uid}: {refusal}"))
        })?;
        let node = asked.node.ip().to_canonical().to_string();
        let node = format!("munge-{}", node.replace(':', "-"));
        let expires = wall_s() + TICKET_LIFE.as_secs();
        let [site, ..] = &asked.valid.sites[..] else {
            return Err(no(Refusal::Insecure));
        };
        let ticket = site
            .derive(Grant::site())
            .and_then(|site| site.ticket(user, &node, expires));
        let ticket = ticket.map_err(|error| (unmade(&error), error.to_string()))?;
        if asked.valid.revokes(ticket.grant()) {
            return Err(no(Refusal::Revoked));
        }
        debug!(node = %asked.node, uid = vouched.uid, "a ticket was given by munge");
        give_ticket(&asked.greeting, &carried, &ticket, TICKET_LIFE).map_err(no)
    }
}

/// The user for whom munge vouches, with the groups that this node's database says he has: that of
/// the process if it is one of them, and the others. A node with the key can vouch for anybody, so
/// never for root.
fn user_of(vouched: &Vouched) -> Result<Caller, Refusal> {
    if vouched.uid == 0 {
        return Err(Refusal::Root);
    }
    if vouched.uid == u32::MAX || vouched.gid == u32::MAX {
        return Err(Refusal::Stranger);
    }
    let groups = groups_of(vouched.uid).map_err(|none| match none {
        NoGroups::NoUser => Refusal::Stranger,
        NoGroups::TooMany => Refusal::Groups,
    })?;
    let primary = *groups.first().ok_or(Refusal::Stranger)?;
    // Root of the user's node can run a process in any group.
    let gid = match groups.contains(&vouched.gid) {
        true => vouched.gid,
        false => primary,
    };
    Ok(Caller {
        groups: groups.into(),
        ..Caller::alone(vouched.uid, gid)
    })
}

/// What a client is told of whom no ticket can be made.
fn unmade(error: &GrantError) -> Refusal {
    match error {
        GrantError::TooLong { .. } => Refusal::Groups,
        GrantError::Wrong(_) => Refusal::NoTicket,
    }
}

/// What a client is told of an error of munge's.
fn refusal_of(error: &MungeError) -> Refusal {
    match error {
        MungeError::Library(_) | MungeError::Daemon(_) => Refusal::Munged,
        MungeError::Expired => Refusal::Stale,
        MungeError::Rewound => Refusal::Rewound,
        MungeError::Replayed => Refusal::Replayed,
        MungeError::Unauthorized => Refusal::Reader,
        MungeError::Open | MungeError::Invalid(_) => Refusal::Credential,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_takes_no_more_places_than_it_may_have() {
        let of_nodes = OfNodes::default();
        let node = |number: usize| Whose::Node(format!("tcp:10.0.0.{number}"));
        let taken: Vec<Place> = (0..OF_NODE_MAX)
            .map(|_| Place::of(&node(1), &of_nodes).expect("there is room"))
            .collect();
        assert!(Place::of(&node(1), &of_nodes).is_none());
        assert!(
            Place::of(&node(2), &of_nodes).is_some(),
            "another has its own"
        );
        drop(taken);
        assert!(lock(&of_nodes).is_empty());
        assert!(Place::of(&node(1), &of_nodes).is_some());
    }

    #[test]
    fn only_too_many_groups_are_called_so() {
        let no = |uid, groups: &[u32]| {
            let user = Caller {
                groups: groups.into(),
                ..Caller::alone(uid, 100)
            };
            let made = Grant::site().ticket(user, "munge-10.0.0.7", 8);
            unmade(&made.expect_err("no ticket"))
        };
        assert_eq!(no(1000, &[4_000_000_000; 300]), Refusal::Groups);
        assert_eq!(no(1000, &[u32::MAX]), Refusal::NoTicket);
        assert_eq!(no(0, &[]), Refusal::NoTicket);
    }

    #[test]
    fn a_fault_of_this_node_is_not_called_a_lack_of_time() {
        // Clients ask again where there is no time.
        for error in [
            MungeError::Library(String::new()),
            MungeError::Daemon(String::new()),
        ] {
            assert_eq!(refusal_of(&error), Refusal::Munged);
        }
    }

    #[test]
    fn nobody_becomes_root_and_strangers_nobody() {
        let vouched = |uid, gid| Vouched {
            uid,
            gid,
            carried: Vec::new(),
        };
        let no = |uid, gid| user_of(&vouched(uid, gid)).expect_err("it is nobody's");
        assert_eq!(no(0, 0), Refusal::Root);
        assert_eq!(no(0, 100), Refusal::Root);
        assert_eq!(no(u32::MAX, 100), Refusal::Stranger);
        assert_eq!(no(1, u32::MAX), Refusal::Stranger);
        assert_eq!(
            no(2_000_000_123, 100),
            Refusal::Stranger,
            "the database has no such user"
        );
        // Every system has this one, in a group of the same number.
        for gid in [1, 77, 0] {
            let user = user_of(&vouched(1, gid)).expect("daemon");
            assert_eq!((user.uid, user.gid), (1, 1), "the database has no other");
        }
        let user = user_of(&vouched(1, 1)).expect("daemon");
        assert!(
            user.groups.contains(&1),
            "those of the database come beside: {user:?}"
        );
    }
}

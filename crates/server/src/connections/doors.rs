//! Who may connect: bounds of connections, and of those that have not said hello yet, by user on
//! Unix sockets and by address on TCP.
//!
//! Connections without a hello are cheap to make, so they must not keep others out. Each peer may
//! have some, as many as a node full of processes opens at once; all peers together may have some
//! more. At either bound the oldest goes: that of the peer, or that of the peer with the most. Root
//! and the forwarder's own user have no bound but that of all, and some that nobody else can take.

use std::collections::{BTreeMap, BTreeSet};
use tidegate_forward::ConnId;
use tidegate_net::Origin;

/// Whose connection it is, as far as that is known before its hello.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Whose {
    /// The forwarder's own user's, or root's.
    Own,
    /// Another user's of this node.
    User(u32),
    /// That of a node, by its address.
    Node(String),
}

impl Whose {
    /// Who made a connection to the forwarder of the user `owner`.
    pub fn of(origin: &Origin, owner: u32) -> Whose {
        match &origin.credentials {
            Some(it) if it.powerless.is_none() && [0, owner].contains(&it.caller.uid) => Whose::Own,
            Some(it) => Whose::User(it.caller.uid),
            None => {
                // The port says nothing.
                let node = origin.address.rsplit_once(':');
                Whose::Node(node.map_or(&*origin.address, |(node, _)| node).to_string())
            }
        }
    }
}

impl std::fmt::Display for Whose {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Whose::Own => f.write_str("root, or the forwarder's user"),
            Whose::User(uid) => write!(f, "user {uid}"),
            Whose::Node(address) => f.write_str(address),
        }
    }
}

/// How many connections there may be.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// All connections.
    pub conns_max: usize,
    /// Connections without a hello, of all peers.
    pub ungreeted_max: usize,
    /// Connections without a hello, of one peer.
    pub ungreeted_of_peer_max: usize,
}

impl Bounds {
    /// The bounds that follow from the most connections at once.
    pub fn new(conns_max: usize) -> Bounds {
        Bounds {
            conns_max,
            ungreeted_max: (conns_max / 3).clamp(2, 1024),
            ungreeted_of_peer_max: (conns_max / 6).clamp(1, 512),
        }
    }

    /// The connections that only the forwarder's own user and root can have.
    fn reserve(&self) -> usize {
        (self.conns_max / 32).min(64)
    }
}

/// What to do with a new connection.
#[derive(Debug, PartialEq, Eq)]
pub enum Entry {
    /// Serve it.
    Welcome,
    /// Serve it, and end this older one, which has said no hello.
    InsteadOf(ConnId),
    /// There are too many.
    Refused,
}

/// The connections that exist.
pub struct Doors {
    bounds: Bounds,
    /// Of each: whose it is, and whether it has said hello.
    conns: BTreeMap<ConnId, (Whose, bool)>,
    /// Those without a hello, oldest first, of each peer that has some.
    ungreeted: BTreeMap<Whose, BTreeSet<ConnId>>,
    /// How many of them there are.
    ungreeted_len: usize,
}

impl Doors {
    /// No connection yet.
    pub fn new(bounds: Bounds) -> Doors {
        Doors {
            bounds,
            conns: BTreeMap::new(),
            ungreeted: BTreeMap::new(),
            ungreeted_len: 0,
        }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.conns.len()
    }

    /// Decides about a new connection. Unless it is refused, [`Doors::came`] must follow.
    pub fn ask(&self, whose: &Whose) -> Entry {
        let own = *whose == Whose::Own;
        let mine = self.ungreeted.get(whose);
        let reserve = if own { 0 } else { self.bounds.reserve() };
        let oldest = |conns: Option<&BTreeSet<ConnId>>| {
            let oldest = conns.and_then(|conns| conns.first());
            oldest.map_or(Entry::Refused, |conn| Entry::InsteadOf(*conn))
        };
        if !own && mine.map_or(0, BTreeSet::len) >= self.bounds.ungreeted_of_peer_max {
            return oldest(mine);
        }
        let full = self.conns.len() >= self.bounds.conns_max.saturating_sub(reserve);
        if full || !own && self.ungreeted_len >= self.bounds.ungreeted_max {
            let others = self.ungreeted.iter().filter(|(of, _)| **of != Whose::Own);
            let most = others.max_by_key(|(_, conns)| conns.len());
            return oldest(most.map(|(_, conns)| conns));
        }
        Entry::Welcome
    }

    /// A connection came.
    pub fn came(&mut self, conn: ConnId, whose: Whose) {
        let conns = self.ungreeted.entry(whose.clone()).or_default();
        conns.insert(conn);
        self.ungreeted_len += 1;
        self.conns.insert(conn, (whose, false));
    }

    /// A connection said hello.
    pub fn greeted(&mut self, conn: ConnId) {
        let Some((whose, greeted)) = self.conns.get_mut(&conn) else {
            return;
        };
        if !std::mem::replace(greeted, true) {
            let whose = whose.clone();
            self.no_longer_ungreeted(conn, &whose);
        }
    }

    /// A connection ended, or was told to.
    pub fn ended(&mut self, conn: ConnId) {
        if let Some((whose, greeted)) = self.conns.remove(&conn)
            && !greeted
        {
            self.no_longer_ungreeted(conn, &whose);
        }
    }

    fn no_longer_ungreeted(&mut self, conn: ConnId, whose: &Whose) {
        if let Some(conns) = self.ungreeted.get_mut(whose) {
            self.ungreeted_len -= usize::from(conns.remove(&conn));
            if conns.is_empty() {
                self.ungreeted.remove(whose);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lets a peer connect without a hello; the connection is the next number.
    fn knock(doors: &mut Doors, number: &mut u64, whose: &Whose) -> bool {
        match doors.ask(whose) {
            Entry::Welcome => {}
            Entry::InsteadOf(older) => doors.ended(older),
            Entry::Refused => return false,
        }
        *number += 1;
        doors.came(ConnId(*number), whose.clone());
        true
    }

    #[test]
    fn a_flood_of_one_peer_keeps_nobody_out() {
        let bounds = Bounds::new(6208);
        let (mut doors, mut number) = (Doors::new(bounds), 0);
        let quiet = Whose::Node("tcp:10.0.0.1".into());
        assert!(knock(&mut doors, &mut number, &quiet));
        for _ in 0..10_000 {
            assert!(knock(&mut doors, &mut number, &Whose::User(7)));
        }
        assert_eq!(doors.conns.len(), 1 + bounds.ungreeted_of_peer_max);
        // Many peers: whoever has the most loses.
        for peer in 0..100 {
            for _ in 0..200 {
                let peer = Whose::Node(format!("tcp:10.0.1.{peer}"));
                assert!(knock(&mut doors, &mut number, &peer));
            }
        }
        assert_eq!(doors.ungreeted_len, bounds.ungreeted_max);
        assert!(doors.conns.contains_key(&ConnId(1)), "the quiet one stays");
        // Root's own, as when a mount of thousands comes back, are not dropped.
        let before = doors.conns.len();
        for _ in 0..2000 {
            assert!(knock(&mut doors, &mut number, &Whose::Own));
        }
        assert_eq!(doors.conns.len(), before + 2000);
    }

    #[test]
    fn root_has_a_reserve_when_all_have_said_hello() {
        let bounds = Bounds::new(64);
        let (mut doors, mut number) = (Doors::new(bounds), 0);
        while knock(&mut doors, &mut number, &Whose::User(7)) {
            doors.greeted(ConnId(number));
        }
        assert_eq!(number, 62);
        assert_eq!(doors.ask(&Whose::User(8)), Entry::Refused);
        for _ in 0..2 {
            assert!(knock(&mut doors, &mut number, &Whose::Own));
            doors.greeted(ConnId(number));
        }
        assert_eq!(doors.ask(&Whose::Own), Entry::Refused);
        doors.ended(ConnId(1));
        assert_eq!(doors.ask(&Whose::Own), Entry::Welcome);
        let one = Doors::new(Bounds::new(1));
        assert_eq!(one.ask(&Whose::User(7)), Entry::Welcome);
    }
}

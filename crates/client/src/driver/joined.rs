//! Further connections of a session. The client makes them when several requests are under way at
//! once, so that several threads of the forwarder serve the session.
//!
//! They carry data only. All connections of a session end together, so a session can be lost in one
//! way only. Where the client cannot make a further connection, it works without it.

use super::connection::JOIN;
use super::reactor::{Link, Reactor, Ready};
use super::shared::Shared;
use crate::wire::{Outcome, Reply};
use std::sync::Arc;
use tidegate_net::Address;

impl Reactor {
    /// The forwarder that a link is a connection to.
    pub(super) fn forwarder(&self, link: usize) -> usize {
        link % self.dialers.len()
    }

    pub(super) fn address(&self, link: usize) -> &Address {
        self.dialers[self.forwarder(link)].address()
    }

    /// Begins to make further connections, up to this number in all for this generation.
    pub(super) fn join(
        &mut self,
        shared: &Shared,
        forwarder: usize,
        generation: u64,
        connections: u16,
    ) {
        let present = matches!(&self.links[forwarder], Link::Present(live)
            if live.generation == generation);
        // With libfabric there is one pair of endpoints, each with memory of its own.
        if !present || self.address(forwarder).provider.is_some() {
            return;
        }
        for number in 1..usize::from(connections) {
            let link = forwarder + number * self.dialers.len();
            while self.links.len() <= link {
                self.links.push(Link::Absent);
            }
            self.dialers[forwarder].again();
            self.connect(shared, link, generation);
        }
    }

    /// Takes in what has arrived on the other connections of a session, because one connection has
    /// ended: these replies still count.
    pub(super) fn take_in_joined(&mut self, shared: &Shared, ended: usize) {
        let rest = Ready {
            readable: true,
            writable: false,
            closed: true,
        };
        let first = self.forwarder(ended);
        for link in (first..self.links.len()).step_by(self.dialers.len()) {
            if link != ended {
                // The session ends in any case, so an error here adds nothing.
                let _ = self.receive(shared, link, rest);
            }
        }
    }

    /// Asks the forwarder to take a new connection into the session.
    pub(super) fn ask_to_join(&mut self, shared: &Shared, link: usize, proof: Box<[u8]>) {
        let forwarder = self.forwarder(link);
        let Link::Present(live) = &self.links[link] else {
            return;
        };
        let state = shared.state();
        let current = state.peers[forwarder].generation == live.generation;
        let request = state.core.join(forwarder, JOIN, proof);
        drop(state);
        let Some(request) = request.filter(|_| current) else {
            return self.release(link);
        };
        live.connection.enqueue_request(&request, Vec::new());
        live.connection.offer();
        live.connection.flush();
    }

    /// Handles the forwarder's reply: it has taken the connection into the session, or refuses.
    pub(super) fn join_answered(&mut self, shared: &Shared, link: usize, reply: &Reply) {
        let forwarder = self.forwarder(link);
        let Link::Present(live) = &self.links[link] else {
            return;
        };
        let mut state = shared.state();
        let peer = &mut state.peers[forwarder];
        let in_use = link == forwarder || peer.joined.iter().any(|(joined, _)| *joined == link);
        if in_use {
            // The reply belongs to no request of this kind.
            return;
        }
        let granted = matches!(&reply.result, Ok(Outcome::Hello(granted))
            if usize::from(granted.forwarder) == forwarder);
        if !granted {
            drop(state);
            tracing::debug!(forwarder, result = ?reply.result, "no further connection");
            return self.release(link);
        }
        if peer.generation == live.generation && peer.connection.is_some() {
            peer.joined.push((link, Arc::clone(&live.connection)));
        }
    }

    /// Releases all connections to a forwarder.
    pub(super) fn release_all(&mut self, forwarder: usize) {
        for link in (forwarder..self.links.len()).step_by(self.dialers.len()) {
            self.release(link);
        }
    }
}

//! The graph of conflicting requests: which request waits for which.
//!
//! A node stands for a request, and is done when the request has finished. A node without a request
//! is a *join*, and is done when all nodes that it waits for are done. Joins let one reference
//! stand for many requests, and keep the place of a request that was cancelled while it waited.

use crate::hash_table::NONE;
use crate::requests::Index;
use alloc::vec::Vec;

/// A reference to a node, which can tell that the node is done even when its number is in use
/// again.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Ref {
    node: u32,
    generation: u32,
}

impl Ref {
    /// Refers to nothing.
    pub(super) const NONE: Ref = Ref {
        node: NONE,
        generation: 0,
    };
}

struct Node {
    generation: u32,
    /// The request, or `NONE` for a join.
    index: Index,
    file: u32,
    /// Edges that end here.
    waits_for: u32,
    /// First of the edges that start here.
    edges: u32,
}

struct Edge {
    to: u32,
    next: u32,
}

/// All nodes of all files.
pub(super) struct Graph {
    nodes: Vec<Node>,
    nodes_free: Vec<u32>,
    edges: Vec<Edge>,
    /// First of the edges that are free, chained like those of a node.
    edges_free: u32,
    work: Vec<u32>,
}

impl Graph {
    pub(super) fn new() -> Graph {
        Graph {
            nodes: Vec::new(),
            nodes_free: Vec::new(),
            edges: Vec::new(),
            edges_free: NONE,
            work: Vec::new(),
        }
    }

    /// A node for a request, or a join for `NONE`.
    pub(super) fn add(&mut self, index: Index, file: u32) -> u32 {
        let mut node = Node {
            generation: 0,
            index,
            file,
            waits_for: 0,
            edges: NONE,
        };
        if let Some(number) = self.nodes_free.pop() {
            node.generation = self.nodes[number as usize].generation;
            self.nodes[number as usize] = node;
            return number;
        }
        self.nodes.push(node);
        self.nodes.len() as u32 - 1
    }

    /// A reference to a node that is not done.
    pub(super) fn refer(&self, node: u32) -> Ref {
        Ref {
            node,
            generation: self.nodes[node as usize].generation,
        }
    }

    /// Whether the node exists and is not done.
    pub(super) fn is_live(&self, target: Ref) -> bool {
        target.node != NONE && self.nodes[target.node as usize].generation == target.generation
    }

    /// Whether the node still waits for another.
    pub(super) fn is_waiting(&self, node: u32) -> bool {
        self.nodes[node as usize].waits_for > 0
    }

    /// Makes `node` wait for `target`, unless that is done already.
    pub(super) fn wait_for(&mut self, node: u32, target: Ref) {
        if !self.is_live(target) {
            return;
        }
        let first = self.nodes[target.node as usize].edges;
        let edge = Edge {
            to: node,
            next: first,
        };
        let number = self.edges_free;
        let number = if number == NONE {
            self.edges.push(edge);
            self.edges.len() as u32 - 1
        } else {
            self.edges_free = self.edges[number as usize].next;
            self.edges[number as usize] = edge;
            number
        };
        self.nodes[target.node as usize].edges = number;
        self.nodes[node as usize].waits_for += 1;
    }

    /// Turns the node of a cancelled request, which still waits, into a join.
    pub(super) fn leave_join(&mut self, node: u32) {
        self.nodes[node as usize].index = NONE;
    }

    /// Gives back a join that waits for nothing. Nothing refers to it yet.
    pub(super) fn discard(&mut self, node: u32) {
        debug_assert!(!self.is_waiting(node));
        self.free(node);
    }

    /// Marks a node as done that waits for nothing, and all joins that are done with it.
    /// `freed` gets the requests that now wait for nothing; `gone` sees the file of each node.
    pub(super) fn done(&mut self, node: u32, freed: &mut Vec<Index>, mut gone: impl FnMut(u32)) {
        debug_assert!(self.work.is_empty());
        self.work.push(node);
        while let Some(node) = self.work.pop() {
            assert!(
                !self.is_waiting(node),
                "a request finished before one that it waits for"
            );
            gone(self.nodes[node as usize].file);
            let mut edge = self.nodes[node as usize].edges;
            self.free(node);
            while edge != NONE {
                let Edge { to, next } = self.edges[edge as usize];
                self.edges[edge as usize].next = self.edges_free;
                self.edges_free = edge;
                edge = next;
                let waiter = &mut self.nodes[to as usize];
                waiter.waits_for -= 1;
                if waiter.waits_for == 0 {
                    match waiter.index {
                        NONE => self.work.push(to),
                        index => freed.push(index),
                    }
                }
            }
        }
    }

    #[cfg(test)]
    pub(super) fn edges_made(&self) -> usize {
        self.edges.len()
    }

    fn free(&mut self, node: u32) {
        let generation = &mut self.nodes[node as usize].generation;
        *generation = generation.wrapping_add(1);
        self.nodes_free.push(node);
    }
}

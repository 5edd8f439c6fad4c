//! Programs that reach the servers by themselves, as clients of a parallel file system do where
//! nothing is forwarded.

use super::World;
use super::node::{Asked, handle_of};
use super::pieces;
use super::program::Access;
use super::servers::By;

impl World {
    /// Makes a read or write of a process.
    pub(super) fn access_directly(&mut self, node: u32, process: u32, access: Access) {
        let now = self.now();
        let asked = Asked::access(now, process, &access);
        self.direct_work.calls += 1;
        self.direct_work.requests += 1 + access.extents.rest.len() as u64;
        self.direct_work.bytes += asked.bytes;
        let call = self.nodes[node as usize].ask_past(asked);
        let extents = access.extents.iter().map(|it| (it.offset, it.len));
        let asked = pieces::Asked::io(handle_of(access.file), access.direction, extents);
        self.ask_servers(By::Client { node, call }, asked);
    }

    /// Makes an fsync of a process.
    pub(super) fn sync_directly(&mut self, node: u32, process: u32) {
        let asked = Asked::sync(self.now(), process);
        let call = self.nodes[node as usize].ask_past(asked);
        self.ask_servers(By::Client { node, call }, pieces::Asked::Flush);
    }
}

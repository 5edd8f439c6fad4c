//! Clears the kernel's cache of attributes that forwarders have lent, before others may change
//! them.
//!
//! An answer that is on its way to the kernel must not be cached there either. The kernel sees to
//! it where it knows the node: it drops an answer to a request that is older than the notice. A
//! node that it does not know yet it learns by the answer to a look-up. If that is sent, the notice
//! is repeated until the kernel has taken the answer in; else the answer says that it must not be
//! cached ([`Nodes::found_since`]).

use super::nodes::Nodes;
use crate::fuse::Kernel;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};
use tidegate_client::Invalidates;
use tidegate_client::wire::Handle;

/// First and longest pause before a notice is repeated.
const PAUSES: (Duration, Duration) = (Duration::from_micros(50), Duration::from_millis(5));
/// For how long a notice is repeated. A program that does not run for so long, although its answer
/// is there, may see attributes that are older than the contract allows.
const PATIENCE: Duration = Duration::from_millis(500);

pub(super) struct KernelCache {
    pub(super) nodes: Arc<Nodes>,
    pub(super) kernel: Kernel,
}

impl Invalidates for KernelCache {
    fn invalidate(&self, files: &[Handle]) {
        let mut left = self.nodes.cleared(files);
        left.retain(|node| !self.kernel.forget_attributes(*node));
        let (begun, mut pause) = (Instant::now(), PAUSES.0);
        while !left.is_empty() && begun.elapsed() < PATIENCE {
            thread::sleep(pause);
            pause = (pause * 2).min(PAUSES.1);
            left.retain(|node| self.nodes.knows(*node) && !self.kernel.forget_attributes(*node));
        }
        if !left.is_empty() {
            tracing::debug!(
                nodes = left.len(),
                "the kernel takes in no answer about them"
            );
        }
    }
}

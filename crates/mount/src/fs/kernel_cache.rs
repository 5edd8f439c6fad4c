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
use tidegate_client::Invalidates;
use tidegate_client::wire::Handle;

pub(super) struct KernelCache {
    pub(super) nodes: Arc<Nodes>,
    pub(super) kernel: Kernel,
}

impl Invalidates for KernelCache {
    fn invalidate(&self, files: &[Handle]) -> Vec<Handle> {
        let mut left = self.nodes.cleared(files);
        left.retain(|(_, node)| !self.kernel.forget_attributes(*node));
        left.into_iter().map(|(file, _)| file).collect()
    }
}

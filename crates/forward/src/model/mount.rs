//! A node's mount of the shared disk: what a back end keeps on the node, and for how long it
//! believes it. Processes of one node share it; it ends with the node, or when the back end evicts
//! the node.
//!
//! | back end | attributes | bytes read | bytes written |
//! |---|---|---|---|
//! | NFS | believed for 3 s | until the attributes show another change | at the server |
//! | Gluster | believed for 1 s (md-cache) | until the file is opened | at the bricks |
//! | Ceph | coherent | until they are dropped | on the node, until others look or fsync |
//!
//! Only calls that go the cached way meet stale attributes and bytes: a forwarder asks past them.

use super::lock;
use super::model_data::Data;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::vec::Vec;
use tidegate_wire::{Attr, Handle};

const PAGE: u64 = 4096;

/// Which back end's caches a mount has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BackEnd {
    /// Attributes with a time to live, bytes from close to open.
    Nfs,
    /// Attributes for a second, bytes until the next open.
    Gluster,
    /// Coherent attributes; a page cache that must be bypassed; written bytes stay on the node.
    Ceph,
}

/// Whether something is asked of the back end itself, or of what the node has cached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// As with AT_STATX_FORCE_SYNC, or O_DIRECT.
    Fresh,
    /// As without.
    Cached,
}

/// One mount. Clones are the same one.
#[derive(Clone)]
pub struct Mount {
    pub(super) number: u64,
    back_end: BackEnd,
    attributes: Way,
    bytes: Way,
    caches: Arc<Mutex<Caches>>,
}

#[derive(Default)]
struct Caches {
    /// Attributes, and until when they are believed.
    attrs: BTreeMap<u64, (Attr, i64)>,
    /// Pages of files, and the time of the change that they were read after.
    pages: BTreeMap<u64, (i64, BTreeMap<u64, Vec<u8>>)>,
}

impl Mount {
    /// A mount with a number of its own, nothing cached.
    pub fn new(number: u64, back_end: BackEnd, attributes: Way, bytes: Way) -> Mount {
        Mount {
            number,
            back_end,
            attributes,
            bytes,
            caches: Arc::default(),
        }
    }

    pub(super) fn believed_attr(&self, attr: Attr, wall_ns: i64) -> Attr {
        let ttl_ns = match self.back_end {
            BackEnd::Nfs => 3_000_000_000,
            BackEnd::Gluster => 1_000_000_000,
            BackEnd::Ceph => 0,
        };
        if self.attributes == Way::Fresh || ttl_ns == 0 {
            return attr;
        }
        let mut caches = lock(&self.caches);
        let cached = caches.attrs.get(&attr.handle.inode);
        let cached = cached.filter(|(old, until)| old.handle == attr.handle && wall_ns < *until);
        if let Some((cached, _)) = cached {
            return *cached;
        }
        let until = wall_ns + ttl_ns;
        caches.attrs.insert(attr.handle.inode, (attr, until));
        attr
    }

    /// The node has changed the file itself, and was told what it is like now.
    pub(super) fn changed(&self, attr: Attr) {
        let mut caches = lock(&self.caches);
        if let Some((cached, _)) = caches.attrs.get_mut(&attr.handle.inode) {
            *cached = attr;
        }
        caches.pages.remove(&attr.handle.inode);
    }

    /// The node has written up to there, and believes of the rest what it believed before.
    pub(super) fn wrote(&self, handle: Handle, end: u64) {
        let mut caches = lock(&self.caches);
        if let Some((cached, _)) = caches.attrs.get_mut(&handle.inode) {
            cached.size = cached.size.max(end);
        }
        caches.pages.remove(&handle.inode);
    }

    /// The file is opened.
    pub(super) fn opened(&self, handle: Handle) {
        if self.back_end == BackEnd::Gluster {
            lock(&self.caches).pages.remove(&handle.inode);
        }
    }

    /// Bytes of a file as the node sees them.
    pub(super) fn read(&self, data: &Data, attr: &Attr, offset: u64, len: u64) -> Vec<u8> {
        if self.bytes == Way::Fresh {
            return data.read(offset, len);
        }
        let mut caches = lock(&self.caches);
        let fill = (attr.mtime_ns, BTreeMap::new());
        let (since, pages) = caches.pages.entry(attr.handle.inode).or_insert(fill);
        if self.back_end == BackEnd::Nfs && *since != attr.mtime_ns {
            (*since, *pages) = (attr.mtime_ns, BTreeMap::new());
        }
        let end = offset.saturating_add(len).min(data.size);
        let mut bytes = Vec::new();
        let mut at = offset;
        while at < end {
            let number = at / PAGE;
            let fresh = || data.read(number * PAGE, PAGE);
            let page = pages.entry(number).or_insert_with(fresh);
            page.resize(PAGE as usize, 0);
            let to = end.min((number + 1) * PAGE);
            bytes.extend_from_slice(&page[(at % PAGE) as usize..][..(to - at) as usize]);
            at = to;
        }
        bytes
    }

    pub(super) fn keeps_writes(&self) -> bool {
        self.back_end == BackEnd::Ceph
    }
}

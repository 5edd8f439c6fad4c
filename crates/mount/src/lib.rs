//! The Tidegate mount: a FUSE file system whose files live behind the forwarders.

pub mod fuse;

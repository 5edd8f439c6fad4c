//! The file system on a real mount, over a local directory in the place of the forwarders.

mod caching;
mod callers;
mod data;
mod local;
mod locking;
mod locks;
mod mount;
mod names;
mod stopped;

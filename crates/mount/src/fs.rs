//! The file system: answers the kernel's requests with calls on the forwarders.
//!
//! To the kernel, names are valid for no time, attributes as long as forwarders have lent them
//! (`kernel_cache`), and reads and writes of regular files pass by the page cache. What forwarders
//! have lent the client answers. The mount keeps only what the kernel refers to: nodes, open files
//! and the holders of locks.

mod application;
mod call;
mod control;
mod convert;
mod data;
mod directory;
mod forwarders;
mod kernel_cache;
mod locks;
mod names;
mod nodes;
mod opens;
mod process;
mod shown;

pub(crate) use forwarders::{ClientForwarders, Tickets};
pub use forwarders::{Forwarders, Held};
pub use shown::Shown;

use crate::Checks;
use crate::fuse::{self, CancelToken, Entry, Errno, FileSystem, Kernel, Operation, Reply, Request};
use application::Applications;
use call::Call;
use directory::OpenDirectory;
use kernel_cache::KernelCache;
use locks::Locks;
use nodes::Nodes;
use opens::{OpenFile, Opens};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tidegate_client::wire::{Attr, Handle};

/// How long the kernel may cache names, and attributes that are not lent.
const NEVER: Duration = Duration::ZERO;

/// How much is left of the time.
fn left(until: Instant) -> Duration {
    until.saturating_duration_since(Instant::now())
}

/// The forwarders' files as the kernel sees them.
pub(crate) struct RemoteFiles {
    forwarders: Arc<dyn Forwarders>,
    /// Whether the mount passes on each caller's user, instead of acting as the user who mounted.
    pass_callers: bool,
    checks: Checks,
    /// Whether the kernel may cache attributes.
    caches: bool,
    nodes: Arc<Nodes>,
    files: Opens<OpenFile>,
    directories: Opens<OpenDirectory>,
    locks: Locks,
    applications: Applications,
}

/// The part that all requests have: the node, the process, and whether the request was cancelled.
struct Asked {
    node: u64,
    caller: fuse::Caller,
    cancel: CancelToken,
}

impl RemoteFiles {
    pub(crate) fn new(
        forwarders: Arc<dyn Forwarders>,
        pass_callers: bool,
        checks: Checks,
        application: Option<String>,
        kernel: Option<Kernel>,
    ) -> Self {
        let nodes = Arc::new(Nodes::new(forwarders.root().handle));
        let cache = kernel.map(|kernel| KernelCache {
            nodes: Arc::clone(&nodes),
            kernel,
        });
        let caches = cache.is_some_and(|cache| forwarders.caches_by(Arc::new(cache)));
        Self {
            nodes,
            caches,
            files: Opens::new(),
            directories: Opens::new(),
            locks: Locks::new(Arc::clone(&forwarders)),
            applications: Applications::new(application),
            forwarders,
            pass_callers,
            checks,
        }
    }

    /// Whether a file or directory is open, or a file mapped.
    pub(crate) fn has_open_files(&self) -> bool {
        !(self.files.is_empty() && self.directories.is_empty())
    }

    /// Closes what the kernel has not closed, because the mount is gone.
    pub(crate) fn close_all(&self) {
        self.files.clear();
        self.directories.clear();
    }

    /// A call on behalf of the process that made the request.
    fn call(&self, asked: &Asked) -> Call<'_> {
        let fuse::Caller { uid, gid, tid } = asked.caller;
        let caller = self.pass_callers.then(|| process::caller(uid, gid, tid));
        Call::new(&*self.forwarders, &asked.cancel, caller, 0, self.caches)
    }

    /// A call on behalf of the process that opened the file.
    fn call_through(&self, asked: &Asked, file: &OpenFile) -> Call<'_> {
        Call::new(
            &*self.forwarders,
            &asked.cancel,
            file.caller.clone(),
            file.app(),
            false,
        )
    }

    fn handle_of(&self, asked: &Asked) -> Result<Handle, Errno> {
        self.nodes.handle(asked.node)
    }

    /// Answers with a file that was found or made in the directory of the request.
    fn answer_entry(&self, reply: Reply, asked: &Asked, found: Result<Attr, Errno>) {
        match found {
            Ok(attr) => {
                let entry = self.entry(asked, &attr);
                if !reply.entry(&entry) {
                    self.forget_lookups(entry.node, 1);
                }
            }
            Err(errno) => reply.error(errno),
        }
    }

    /// Answers a look-up with what it found, asked for when the kernel's cache had been cleared so
    /// many times.
    fn answer_found(
        &self,
        reply: Reply,
        asked: &Asked,
        found: Result<(Attr, Instant), Errno>,
        clears: u64,
    ) {
        let (attr, until) = match found {
            Ok(found) => found,
            Err(errno) => return reply.error(errno),
        };
        let parent_inode = self.handle_of(asked).map_or(0, |parent| parent.inode);
        let (node, current) = self.nodes.found_since(attr.handle, parent_inode, clears);
        let entry = Entry {
            node,
            generation: 0,
            entry_valid: NEVER,
            attributes_valid: if current { left(until) } else { NEVER },
            attributes: convert::attributes(&attr),
        };
        if !reply.entry(&entry) {
            self.forget_lookups(node, 1);
        }
    }

    /// An entry for the kernel, which counts as a lookup of its node.
    fn entry(&self, asked: &Asked, attr: &Attr) -> Entry {
        let parent_inode = self.handle_of(asked).map_or(0, |parent| parent.inode);
        Entry {
            node: self.nodes.found(attr.handle, parent_inode),
            generation: 0,
            entry_valid: NEVER,
            attributes_valid: NEVER,
            attributes: convert::attributes(attr),
        }
    }

    /// Serves locks and device control; passes on requests that are not about an open file.
    fn handle_other(&self, asked: &Asked, operation: Operation, reply: Reply) {
        match operation {
            Operation::Getlk(lock) => {
                answer(reply, self.test_lock(asked, &lock), |reply, lock| {
                    reply.lock(&lock)
                });
            }
            Operation::Setlk(lock) => done(reply, self.set_lock(asked, &lock, false)),
            Operation::Setlkw(lock) => done(reply, self.set_lock(asked, &lock, true)),
            Operation::Ioctl(ioctl) => {
                answer(reply, self.control(asked, &ioctl), |reply, output| {
                    reply.ioctl(0, &output)
                });
            }
            named => self.handle_named(asked, named, reply),
        }
    }

    fn forget_lookups(&self, node: u64, lookups: u64) {
        if let Some(handle) = self.nodes.forget(node, lookups) {
            self.forwarders.forget(handle);
        }
    }
}

impl FileSystem for RemoteFiles {
    fn handle(&self, request: Request, reply: Reply) {
        let Request {
            node,
            caller,
            cancel,
            operation,
            payload,
            ..
        } = request;
        let asked = Asked {
            node,
            caller,
            cancel,
        };
        match operation {
            Operation::Read(read) => self.answer_read(reply, &asked, read),
            Operation::Write(write) => {
                answer(reply, self.write(&asked, write, payload), Reply::written);
            }
            Operation::Open { flags } => self.answer_open(reply, &asked, flags),
            Operation::Flush { handle, lock_owner } => {
                if let Ok(file) = self.files.find(handle) {
                    self.locks.flushed(&file, lock_owner);
                }
                reply.done();
            }
            Operation::Release {
                handle,
                lock_owner,
                unlock,
                ..
            } => {
                if let Some(file) = self.files.remove(handle) {
                    self.locks.closed(&file, unlock.then_some(lock_owner));
                }
                reply.done();
            }
            Operation::Fsync { handle, data_only } => {
                done(reply, self.fsync(&asked, handle, data_only));
            }
            Operation::Fallocate {
                handle,
                offset,
                len,
                mode,
            } => {
                done(reply, self.fallocate(&asked, handle, mode, offset, len));
            }
            Operation::Lseek {
                handle,
                offset,
                whence,
            } => {
                answer(
                    reply,
                    self.seek(&asked, handle, offset, whence),
                    Reply::offset,
                );
            }
            Operation::CopyFileRange(copy) => {
                answer(reply, self.copy(&asked, copy), |reply, len| {
                    reply.copied(&copy, len)
                });
            }
            other => self.handle_other(&asked, other, reply),
        }
    }

    fn forget(&self, node: u64, lookups: u64) {
        self.forget_lookups(node, lookups);
    }
}

/// Answers with a result, or with its error.
fn answer<T>(reply: Reply, result: Result<T, Errno>, send: impl FnOnce(Reply, T)) {
    match result {
        Ok(value) => send(reply, value),
        Err(errno) => reply.error(errno),
    }
}

/// Answers an operation that has no result.
fn done(reply: Reply, result: Result<(), Errno>) {
    answer(reply, result, |reply, ()| reply.done());
}

//! A small file system in memory, with a few files that misbehave on purpose.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;
use tidegate_mount::fuse::{
    Attributes, CancelToken, Entry, Errno, FileSystem, Names, Opened, Operation, ROOT, Read, Reply,
    Request, SetAttributes, Space,
};

/// Reading it never ends by itself.
pub const BLOCKED: &str = "blocked";
/// Reading it panics.
pub const PANICS: &str = "panics";
/// Reading it is never answered.
pub const FORGETFUL: &str = "forgetful";
/// A directory of [`MANY_LEN`] entries.
pub const MANY: &str = "many";
pub const MANY_LEN: u64 = 10_000;

const MANY_FIRST: u64 = 1 << 32;
const NEVER: Duration = Duration::ZERO;

#[derive(Default)]
pub struct Memory {
    state: Mutex<State>,
    /// Whether files are opened past the page cache.
    pub direct_io: bool,
    /// Requests that block now.
    pub blocked: AtomicUsize,
    /// Requests that ended because they were cancelled.
    pub cancelled: AtomicUsize,
    /// Lookups that the kernel has taken and not forgotten.
    pub lookups: AtomicUsize,
    /// Open files and directories.
    pub open: AtomicUsize,
}

#[derive(Default)]
struct State {
    names: BTreeMap<OsString, u64>,
    files: BTreeMap<u64, File>,
    node_next: u64,
}

#[derive(Default, Clone)]
struct File {
    mode: u32,
    data: Vec<u8>,
}

impl Memory {
    pub fn new(direct_io: bool) -> Arc<Self> {
        let memory = Self {
            direct_io,
            ..Self::default()
        };
        {
            let mut state = memory.state.lock().unwrap();
            state.node_next = ROOT + 1;
            for name in [BLOCKED, PANICS, FORGETFUL] {
                state.make(name.into(), 0o100_644);
            }
            state.make(MANY.into(), 0o040_755);
        }
        Arc::new(memory)
    }

    pub fn content(&self, name: &str) -> Option<Vec<u8>> {
        let state = self.state.lock().unwrap();
        let node = state.names.get(&OsString::from(name))?;
        Some(state.files[node].data.clone())
    }

    fn attributes(&self, node: u64) -> Result<Attributes, Errno> {
        let state = self.state.lock().unwrap();
        let (mode, size) = match state.files.get(&node) {
            Some(file) => (file.mode, file.data.len() as u64),
            None if node == ROOT => (0o040_755, 0),
            None if node >= MANY_FIRST => (0o100_644, 0),
            None => return Err(Errno::NOENT),
        };
        let size = match state.names.get(&OsString::from(BLOCKED)) {
            Some(blocked) if *blocked == node => 4096,
            _ => size,
        };
        Ok(Attributes {
            inode: node,
            size,
            mode,
            nlink: 1,
            block_size: 4096,
            ..Default::default()
        })
    }

    fn entry(&self, node: u64) -> Result<Entry, Errno> {
        let attributes = self.attributes(node)?;
        Ok(Entry {
            node,
            generation: 0,
            entry_valid: NEVER,
            attributes_valid: NEVER,
            attributes,
        })
    }

    fn lookup(&self, parent: u64, name: &OsString) -> Result<Entry, Errno> {
        let many = self.node(MANY);
        if parent == many {
            let number = name.to_str().and_then(|name| name.strip_prefix("entry-"));
            let number = number.and_then(|number| number.parse::<u64>().ok());
            let number = number.filter(|number| *number < MANY_LEN);
            return self.entry(MANY_FIRST + number.ok_or(Errno::NOENT)?);
        }
        let node = self.state.lock().unwrap().names.get(name).copied();
        self.entry(node.ok_or(Errno::NOENT)?)
    }

    fn node(&self, name: &str) -> u64 {
        self.state.lock().unwrap().names[&OsString::from(name)]
    }

    fn set_attributes(&self, node: u64, set: SetAttributes) -> Result<Attributes, Errno> {
        if let Some(file) = self.state.lock().unwrap().files.get_mut(&node) {
            if let Some(size) = set.size {
                file.data.resize(size as usize, 0);
            }
            if let Some(mode) = set.mode {
                file.mode = mode;
            }
        }
        self.attributes(node)
    }

    fn read(&self, node: u64, read: Read, cancel: &CancelToken) -> Result<Vec<u8>, Errno> {
        if node == self.node(BLOCKED) {
            return Err(self.block(cancel));
        }
        assert_ne!(node, self.node(PANICS), "told to panic");
        let state = self.state.lock().unwrap();
        let data = &state.files.get(&node).ok_or(Errno::NOENT)?.data;
        let start = data.len().min(read.offset as usize);
        let end = data.len().min(start + read.len as usize);
        Ok(data[start..end].to_vec())
    }

    fn write(&self, node: u64, offset: u64, bytes: &[u8]) -> Result<u32, Errno> {
        let mut state = self.state.lock().unwrap();
        let data = &mut state.files.get_mut(&node).ok_or(Errno::NOENT)?.data;
        let (start, end) = (offset as usize, offset as usize + bytes.len());
        if data.len() < end {
            data.resize(end, 0);
        }
        data[start..end].copy_from_slice(bytes);
        Ok(bytes.len() as u32)
    }

    /// Blocks until cancelled, in the way a client waits for a forwarder.
    fn block(&self, cancel: &CancelToken) -> Errno {
        let woken = Arc::new((Mutex::new(()), Condvar::new()));
        let waker = Arc::clone(&woken);
        let _registered = cancel.on_cancel(move || {
            let _guard = waker.0.lock().unwrap();
            waker.1.notify_all();
        });
        self.blocked.fetch_add(1, Ordering::SeqCst);
        let mut guard = woken.0.lock().unwrap();
        while !cancel.is_cancelled() {
            guard = woken.1.wait(guard).unwrap();
        }
        self.blocked.fetch_sub(1, Ordering::SeqCst);
        self.cancelled.fetch_add(1, Ordering::SeqCst);
        Errno::INTR
    }

    fn names(&self, node: u64, read: Read, plus: bool) -> Names {
        let mut names = Names::new(read.len);
        let all: Vec<(u64, Vec<u8>)> = if node == self.node(MANY) {
            let name = |number| (MANY_FIRST + number, format!("entry-{number}").into_bytes());
            (0..MANY_LEN).map(name).collect()
        } else {
            let state = self.state.lock().unwrap();
            let name = |(name, node): (&OsString, &u64)| (*node, name.as_bytes().to_vec());
            state.names.iter().map(name).collect()
        };
        for (at, (node, name)) in all.iter().enumerate().skip(read.offset as usize) {
            let entry = self.entry(*node).expect("listed");
            let (mode, next) = (entry.attributes.mode, at as u64 + 1);
            let pushed = if plus {
                let pushed = names.push_plus(Some(&entry), *node, next, mode, name);
                self.lookups
                    .fetch_add(usize::from(pushed), Ordering::SeqCst);
                pushed
            } else {
                names.push(*node, next, mode, name)
            };
            if !pushed {
                break;
            }
        }
        names
    }

    fn opened(&self) -> Opened {
        self.open.fetch_add(1, Ordering::SeqCst);
        Opened {
            direct_io: self.direct_io,
            parallel_direct_writes: self.direct_io,
            ..Default::default()
        }
    }

    fn answer_entry(&self, entry: Result<Entry, Errno>, reply: Reply) {
        match entry {
            Ok(entry) => {
                let taken = reply.entry(&entry);
                self.lookups.fetch_add(usize::from(taken), Ordering::SeqCst);
            }
            Err(errno) => reply.error(errno),
        }
    }
}

impl State {
    fn make(&mut self, name: OsString, mode: u32) -> u64 {
        let node = self.node_next;
        self.node_next += 1;
        let data = Vec::new();
        self.files.insert(node, File { mode, data });
        self.names.insert(name, node);
        node
    }
}

impl FileSystem for Memory {
    fn handle(&self, request: Request, reply: Reply) {
        let node = request.node;
        match request.operation {
            Operation::Lookup { name } => self.answer_entry(self.lookup(node, &name), reply),
            Operation::Getattr { .. } => answer_attributes(self.attributes(node), reply),
            Operation::Setattr(set) => answer_attributes(self.set_attributes(node, set), reply),
            Operation::Create { name, mode, .. } => {
                let node = self.state.lock().unwrap().make(name, mode);
                let entry = self.entry(node).expect("just made");
                let taken = reply.created(&entry, &self.opened());
                self.lookups.fetch_add(usize::from(taken), Ordering::SeqCst);
            }
            Operation::Unlink { name } => {
                self.state.lock().unwrap().names.remove(&name);
                reply.done();
            }
            Operation::Open { .. } | Operation::Opendir { .. } => {
                assert!(reply.opened(&self.opened()));
            }
            Operation::Read(_) if node == self.node(FORGETFUL) => drop(reply),
            Operation::Read(read) => match self.read(node, read, &request.cancel) {
                Ok(bytes) => reply.bytes(&bytes),
                Err(errno) => reply.error(errno),
            },
            Operation::Write(write) => match self.write(node, write.offset, &request.payload) {
                Ok(len) => reply.written(len),
                Err(errno) => reply.error(errno),
            },
            Operation::Readdir(read) => reply.bytes(self.names(node, read, false).as_bytes()),
            Operation::Readdirplus(read) => reply.bytes(self.names(node, read, true).as_bytes()),
            Operation::Release { .. } | Operation::Releasedir { .. } => {
                self.open.fetch_sub(1, Ordering::SeqCst);
                reply.done();
            }
            Operation::Flush { .. } | Operation::Fsync { .. } => reply.done(),
            Operation::Setlkw(_) => reply.error(self.block(&request.cancel)),
            Operation::Statfs => reply.space(&Space {
                blocks: 100,
                block_size: 4096,
                fragment_size: 4096,
                name_max: 255,
                ..Default::default()
            }),
            Operation::Ioctl(_) => reply.error(Errno::NOTTY),
            _ => reply.error(Errno::OPNOTSUPP),
        }
    }

    fn forget(&self, _node: u64, lookups: u64) {
        self.lookups.fetch_sub(lookups as usize, Ordering::SeqCst);
    }
}

fn answer_attributes(attributes: Result<Attributes, Errno>, reply: Reply) {
    match attributes {
        Ok(attributes) => reply.attributes(&attributes, NEVER),
        Err(errno) => reply.error(errno),
    }
}

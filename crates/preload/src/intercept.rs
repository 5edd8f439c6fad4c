//! Decides for which open files the library itself does the reads and writes: regular files on a
//! mount that says how to reach its forwarders. It takes a file over at the file's third data call,
//! and at the first where the MPI shim has announced requests.

use crate::count;
use crate::libc_next;
use crate::state::{self, Allows, Identity, Intercepted, Kind, Mode, State, lock};
use libc::c_int;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use tidegate_client::opened::Word;
use tidegate_client::shortcut::{ANSWER_LEN, Answer, COMMAND};
use tidegate_client::{Application, Client, Context, EmbeddedOptions, Options};
use tidegate_client::{fuse_mounts, job_from_env, project_from_env};

/// The library intercepts a file with this data call on it. So files that a program reads with one
/// call, or of which it reads only the head, cost no more than on the mount.
const CALLS_OF_FILE: u16 = 3;

/// It intercepts no file before this number of data calls of the process, because connecting takes
/// longer than it saves in a program that does little.
const CALLS_OF_PROCESS: u64 = 16;

/// How long to wait for a connection; without one the mount serves the file.
const CONNECT_MAX: std::time::Duration = std::time::Duration::from_secs(1);

/// `f_type` of a FUSE file system.
const FUSE_SUPER_MAGIC: libc::__fsword_t = 0x6573_5546;

/// Device and inode of a regular file on a device without a major number, as FUSE mounts have; None
/// for other files. The kernel knows both and does not ask the mount.
pub(crate) fn identity(fd: c_int) -> Option<Identity> {
    let mut found = MaybeUninit::<libc::statx>::uninit();
    let flags = libc::AT_EMPTY_PATH | libc::AT_STATX_DONT_SYNC;
    let mask = libc::STATX_TYPE | libc::STATX_INO;
    // SAFETY: the path is a string, and there is room for the answer.
    let found = unsafe {
        if libc::statx(fd, c"".as_ptr(), flags, mask, found.as_mut_ptr()) != 0 {
            return None;
        }
        found.assume_init()
    };
    let is_file = u32::from(found.stx_mode) & libc::S_IFMT == libc::S_IFREG;
    (is_file && found.stx_dev_major == 0).then(|| (u64::from(found.stx_dev_minor), found.stx_ino))
}

/// The intercepted file behind a descriptor; None if the kernel serves its data calls.
pub(crate) fn find(state: &State, fd: c_int) -> Option<Arc<Intercepted>> {
    match state::kind(fd) {
        Kind::Foreign | Kind::Own => None,
        Kind::Intercepted => {
            let files = state.files.read().unwrap_or_else(PoisonError::into_inner);
            let found = files.get(&fd).cloned();
            drop(files);
            let now = identity(fd);
            match found {
                Some(file) if now == Some(file.identity) => {
                    check_flags(fd, &file);
                    Some(file)
                }
                _ => {
                    changed(fd);
                    look(state, fd, 0)
                }
            }
        }
        Kind::Seen(calls) => look(state, fd, calls),
        Kind::Unknown => look(state, fd, 0),
    }
}

/// Handles a descriptor that has become another file without a hook seeing it.
fn changed(fd: c_int) {
    state::set_kind(fd, Kind::Unknown);
    if state::mode() == Mode::Check {
        libc_next::say(b"tidegate: a descriptor became another file unseen\n");
        std::process::abort();
    }
}

/// In the mode for tests, checks that the flags of the open file description have not changed
/// without a hook seeing it.
fn check_flags(fd: c_int, file: &Intercepted) {
    if state::mode() == Mode::Check && allows(fd) != file.allows {
        libc_next::say(b"tidegate: a descriptor got other flags unseen\n");
        std::process::abort();
    }
}

/// The file behind a descriptor. The library takes it over at this call, because the MPI shim has
/// announced requests for it.
pub(crate) fn take(state: &State, fd: c_int) -> Option<Arc<Intercepted>> {
    find(state, fd).or_else(|| match state::kind(fd) {
        Kind::Seen(_) => look_at(state, fd, 0, true),
        _ => None,
    })
}

fn look(state: &State, fd: c_int, calls: u16) -> Option<Arc<Intercepted>> {
    look_at(state, fd, calls, state::mode() != Mode::Normal)
}

/// Examines a descriptor that has had this number of data calls, and intercepts it if that is
/// enough.
#[cold]
fn look_at(state: &State, fd: c_int, calls: u16, eager: bool) -> Option<Arc<Intercepted>> {
    // SAFETY: it cannot fail.
    if unsafe { libc::getpid() } != state.process {
        // In a vfork child, which shares the parent's memory but not its descriptors.
        return None;
    }
    let found = identity(fd).filter(|identity| is_on_mount(state, fd, identity.0));
    let Some(identity) = found else {
        state::set_kind(fd, Kind::Foreign);
        return None;
    };
    let all = state.calls.fetch_add(1, Ordering::Relaxed);
    let calls = calls.saturating_add(1);
    if !eager && (calls < CALLS_OF_FILE || all < CALLS_OF_PROCESS) {
        state::set_kind(fd, Kind::Seen(calls));
        return None;
    }
    let intercepted = intercept(state, fd, identity).map(Arc::new);
    let kind = match &intercepted {
        Some(file) => {
            count::add(Word::Taken);
            let mut files = state.files.write().unwrap_or_else(PoisonError::into_inner);
            let before = files.insert(fd, Arc::clone(file));
            drop(files);
            drop(before);
            Kind::Intercepted
        }
        None => Kind::Foreign,
    };
    state::set_kind(fd, kind);
    intercepted
}

/// Whether a device is a FUSE mount, which may be one of ours.
pub(crate) fn is_on_mount(state: &State, fd: c_int, device: u64) -> bool {
    if let Some(known) = lock(&state.mounts).get(&device) {
        return *known;
    }
    let mut found = MaybeUninit::<libc::statfs64>::uninit();
    // SAFETY: there is room for the answer.
    let is_fuse = unsafe {
        libc::fstatfs64(fd, found.as_mut_ptr()) == 0
            && found.assume_init().f_type == FUSE_SUPER_MAGIC
    };
    let is_mount = is_fuse && is_trusted(device) && ask(fd).is_some();
    lock(&state.mounts).insert(device, is_mount);
    is_mount
}

/// Whether root or this user serves the FUSE file system. The library must trust the server's
/// answer, because it names addresses and where a secret or tickets are.
fn is_trusted(device: u64) -> bool {
    let mut mounts = fuse_mounts().into_iter();
    mounts.any(|mount| mount.device == device && mount.is_trusted())
}

/// Asks the mount which file this is, and how to reach its forwarders.
fn ask(fd: c_int) -> Option<Answer> {
    let mut bytes = [0u8; ANSWER_LEN];
    // SAFETY: the command says how much is written, for which there is room.
    let result = unsafe { libc::ioctl(fd, COMMAND as _, bytes.as_mut_ptr()) };
    (result == 0).then(|| Answer::decode(&bytes)).flatten()
}

/// What the library may do through a descriptor. The kernel keeps writes that must be stable before
/// the call returns, and writes of processes with a file size limit.
fn allows(fd: c_int) -> Allows {
    // SAFETY: plain numbers.
    let flags = unsafe { libc_next::fcntl64(fd, libc::F_GETFL, 0) };
    if flags < 0 || flags & libc::O_PATH != 0 {
        return Allows::default();
    }
    let mode = flags & libc::O_ACCMODE;
    let stable = flags & (libc::O_SYNC | libc::O_DSYNC) != 0;
    Allows {
        reads: mode != libc::O_WRONLY,
        writes: mode != libc::O_RDONLY && !stable && !is_limited(),
        appends: flags & libc::O_APPEND != 0,
    }
}

/// Whether the open file description has O_APPEND at the moment.
pub(crate) fn appends(fd: c_int) -> bool {
    // SAFETY: plain numbers.
    let flags = unsafe { libc_next::fcntl64(fd, libc::F_GETFL, 0) };
    flags >= 0 && flags & libc::O_APPEND != 0
}

/// Whether the process has a limit on the size of files, which the kernel enforces.
fn is_limited() -> bool {
    let mut limit = MaybeUninit::<libc::rlimit>::uninit();
    // SAFETY: there is room for the answer.
    unsafe {
        libc::getrlimit(libc::RLIMIT_FSIZE, limit.as_mut_ptr()) != 0
            || limit.assume_init().rlim_cur != libc::RLIM_INFINITY
    }
}

fn intercept(state: &State, fd: c_int, identity: Identity) -> Option<Intercepted> {
    if lock(&state.mapped).contains(&identity) {
        return None;
    }
    let allows = allows(fd);
    if !allows.reads && !allows.writes {
        return None;
    }
    let Answer {
        handle,
        app,
        forwarders,
        name,
        path,
        ..
    } = ask(fd)?;
    let client = connected(state, forwarders, identity.0)?;
    if !name.is_empty() {
        let variable = |name: &str| std::env::var(name).ok();
        client.name_application(Application {
            name,
            job: job_from_env(variable).unwrap_or_default(),
            project: project_from_env(variable).unwrap_or_default(),
            caller: None,
        });
    }
    let context = Context {
        app,
        ..Context::default()
    };
    // A forwarder of root asks for it, to see whether this user can walk there.
    client.tell_path(handle, &path);
    let open = client
        .open(&context, handle, allows.reads, allows.writes)
        .ok()?;
    Some(Intercepted {
        open,
        context,
        identity,
        allows,
        hints: Mutex::default(),
        is_hinted: AtomicBool::new(false),
    })
}

/// The client for these forwarders, of which the mount with this device has told. The library tries
/// once to connect it.
fn connected(state: &State, forwarders: String, device: u64) -> Option<Arc<Client>> {
    let mut connections = lock(&state.connections);
    if let Some(known) = connections.get(&forwarders) {
        return known.clone();
    }
    let connect = || {
        let mut options = Options::from_text(&forwarders).ok()?;
        options.connect_timeout = CONNECT_MAX;
        if let Some(told) = &mut options.tickets {
            // In a container the mount may be elsewhere than its process says.
            let here = fuse_mounts().into_iter().find(|it| it.device == device);
            *told = here?.point;
        }
        // The kernel asks the mount for names, and programs that are stopped give nothing back.
        options.loans = false;
        options.embedded = EmbeddedOptions {
            thread_begins: Some(state::stay_inside),
            place: Some(state::place),
        };
        Client::connect(options).ok()
    };
    let made = state::as_client(connect);
    connections.insert(forwarders, made.clone());
    made
}

/// Leaves all files to the kernel that were served by the client of this one, because forwarders
/// take that client no longer. Says so, once in the process.
#[cold]
pub(crate) fn expired(state: &State, file: &Intercepted) {
    static SAID: AtomicBool = AtomicBool::new(false);
    let over = file.open.client();
    let mut files = state.files.write().unwrap_or_else(PoisonError::into_inner);
    let is_over = |it: &Intercepted| Arc::ptr_eq(it.open.client(), over);
    let (gone, kept): (Vec<_>, Vec<_>) = files.drain().partition(|(_, it)| is_over(it));
    files.extend(kept);
    drop(files);
    for (fd, _) in &gone {
        state::set_kind(*fd, Kind::Foreign);
    }
    for known in lock(&state.connections).values_mut() {
        // Nobody connects it again.
        known.take_if(|client| Arc::ptr_eq(client, over));
    }
    drop(gone);
    if !SAID.swap(true, Ordering::Relaxed) {
        libc_next::say(
            b"tidegate: the ticket of this node's mount has expired and there is no other; the \
              mount serves this program\n",
        );
    }
}

/// Leaves the file to the kernel from now on, under all its descriptors.
pub(crate) fn give_up(state: &State, identity: Identity) {
    let mut files = state.files.write().unwrap_or_else(PoisonError::into_inner);
    let fds: Vec<c_int> = files
        .iter()
        .filter(|(_, file)| file.identity == identity)
        .map(|(fd, _)| *fd)
        .collect();
    let gone: Vec<_> = fds.iter().map(|fd| files.remove(fd)).collect();
    for fd in fds {
        state::set_kind(fd, Kind::Foreign);
    }
    drop(files);
    drop(gone);
}

/// Makes the kernel ask the mount for the file's attributes.
pub(crate) fn refresh(fd: c_int) {
    let mut found = MaybeUninit::<libc::statx>::uninit();
    let flags = libc::AT_EMPTY_PATH | libc::AT_STATX_FORCE_SYNC;
    // SAFETY: the path is a string, and there is room for the answer. What fails here fails again
    // in the call that follows.
    unsafe {
        libc::statx(
            fd,
            c"".as_ptr(),
            flags,
            libc::STATX_BASIC_STATS,
            found.as_mut_ptr(),
        );
    }
}

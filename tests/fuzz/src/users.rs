//! Requests of two users to a forwarder of root: whatever they ask, no byte, name or attribute of
//! the one's private folder reaches the other, who can do nothing there.
//!
//! Each has a folder with mode 0700, of which the other may guess every handle and name, and
//! there is a folder for all. Users do not give away what is private: they change no mode or owner
//! in their folders, and move and copy nothing out. What is private holds a byte that is nowhere
//! else, so it is recognised wherever it comes out.

use crate::Draw;
use crate::host::{Host, SECOND, Sent, plain};
use crate::operation::{Things, operation};
use std::collections::{BTreeMap, BTreeSet};
use tidegate_forward::model::{Disk, ModelFiles, Switch};
use tidegate_forward::{ConnId, Files, Input, Peer};
use tidegate_sched::AppId;
use tidegate_wire::{
    Attr, Caller, Grant, Handle, Hello, Lock, LockKind, Name, Op, OpKind, Outcome, Pipeline,
    ReplySlot, Request, Role, SetAttr, Status,
};

/// Steps of a run.
const STEPS_MAX: usize = 100;
/// The users' ids.
const UIDS: [u32; 2] = [1000, 1001];
/// Of what each user's private bytes, names and values consist.
const MARKS: [u8; 2] = [0xa7, 0xb8];
/// Part of the words by which each user's sessions and applications are called.
const WORDS: [&str; 2] = ["anna's", "berta's"];

/// Errors by which somebody could tell whether a file is there, what it is, and what it holds.
const TELLING: [u16; 9] = [1, 2, 13, 17, 20, 21, 26, 39, 61];

/// What is known of one user.
#[derive(Default)]
struct User {
    folder: Option<Handle>,
    /// All that is or was in the folder.
    private: BTreeSet<Handle>,
    conn: Option<ConnId>,
    incarnation: u64,
    requests: u64,
    generation: u64,
    /// What was asked and not answered, by id.
    asked: BTreeMap<u64, Op>,
    last: Option<(Request, Vec<u8>)>,
}

struct World {
    host: Host,
    /// A look at the disk that is nobody's.
    looks: ModelFiles,
    disk: Disk,
    /// Changes of the disk that were looked at.
    looked_at: Option<u64>,
    root: Handle,
    users: [User; 2],
    names: Vec<Name>,
    /// Handles that users may have or guess.
    handles: Vec<Handle>,
    /// Last sequences of reply slots, by seat and index: of both users, so that a sequence stands
    /// for one operation, whoever repeats it.
    sequences: BTreeMap<(u16, u16), u64>,
}

pub(super) fn run(data: &[u8]) {
    let mut draw = Draw::new(data);
    let mut world = World::new(1 + u16::from(draw.yes()));
    for _ in 0..STEPS_MAX {
        if draw.is_over() {
            break;
        }
        world.step(&mut draw);
        world.look();
        world.hear();
    }
    world.host.holds_jobs = false;
    world.host.settle();
    world.host.advance(100 * SECOND);
    world.look();
    world.hear();
}

/// A name of so many bytes.
fn name(bytes: &[u8]) -> Name {
    bytes.into()
}

impl World {
    fn new(seats: u16) -> World {
        let disk = Disk::new();
        let mut host = Host::new(&disk, seats);
        host.run();
        let mut world = World {
            host,
            looks: disk.files(&Switch::new()),
            root: disk.root().handle,
            disk,
            looked_at: None,
            handles: Vec::new(),
            sequences: BTreeMap::new(),
            users: Default::default(),
            names: [&b"a"[..], b"b", b"c", b"user.d"].map(name).to_vec(),
        };
        world.furnish();
        world.look();
        (0..2).for_each(|user| world.greet(user, user));
        world.host.sent.clear();
        world
    }

    /// Makes the folders. The forwarder has met all that is in them.
    fn furnish(&mut self) {
        let files = &mut self.host.files;
        let mut make = |parent: Handle, name: &[u8], uid: u32, mode: u32, folder: bool| {
            let caller = Caller::alone(uid, uid);
            let made = match folder {
                true => files.mkdir(None, parent, name, mode),
                false => files.create(None, parent, name, mode),
            };
            let handle = made.expect("the disk has room").handle;
            let set = SetAttr {
                uid: Some(caller.uid),
                gid: Some(caller.gid),
                ..SetAttr::default()
            };
            files.set_attr(None, handle, &set).expect("it is there");
            handle
        };
        let shared = make(self.root, b"shared", 0, 0o777, true);
        make(shared, b"a", 0, 0o666, false);
        make(shared, b"b", UIDS[0], 0o644, false);
        let mut all = Vec::new();
        for (user, uid) in UIDS.into_iter().enumerate() {
            let mark = [MARKS[user]];
            let called: &[u8] = if user == 0 { b"anna" } else { b"berta" };
            let folder = make(self.root, called, uid, 0o700, true);
            // What is in the folder is closed by nothing but the folder.
            let inner = make(folder, &[&mark[..], b"in"].concat(), uid, 0o777, true);
            let file = make(folder, &mark, uid, 0o666, false);
            let deep = make(inner, &mark, uid, 0o666, false);
            self.users[user].folder = Some(folder);
            all.push((user, folder, [file, deep]));
            self.names.push(name(called));
            self.names.push(name(&mark));
            self.names.push(name(&[&mark[..], b"in"].concat()));
        }
        for (user, folder, written) in all {
            let mark = [MARKS[user]; 5000];
            let caller = Caller::alone(UIDS[user], UIDS[user]);
            for file in written {
                files.write_at(file, 0, &mark).expect("there is room");
                files
                    .setxattr(None, file, &[b"user.", &mark[..1]].concat(), &mark[..9], 0)
                    .expect("there is room");
            }
            let link = [&mark[..1], b"to"].concat();
            files
                .symlink(Some(&caller), folder, &link, &mark[..20])
                .expect("there is room");
            self.names.push(name(&link));
            self.names.push(name(&[b"user.", &mark[..1]].concat()));
        }
        let set = SetAttr {
            mode: Some(0o755),
            ..SetAttr::default()
        };
        files.set_attr(None, self.root, &set).expect("the root");
    }

    /// Notes what is there now, and what of it is private.
    fn look(&mut self) {
        let changes = Some(self.disk.effects());
        if std::mem::replace(&mut self.looked_at, changes) == changes {
            return;
        }
        self.handles = vec![self.root];
        let top = self.list(self.root).into_iter().map(|attr| attr.handle);
        self.handles.extend(top);
        for folder in self.handles.clone() {
            let inside = self.list(folder).into_iter().map(|attr| attr.handle);
            self.handles.extend(inside);
        }
        for user in 0..2 {
            let folder = self.users[user].folder.expect("it has one");
            let mut open = vec![folder];
            while let Some(at) = open.pop() {
                for attr in self.list(at) {
                    if attr.mode & 0o170_000 == 0o040_000 {
                        open.push(attr.handle);
                    }
                    self.users[user].private.insert(attr.handle);
                }
            }
        }
        let private = self.users.iter().flat_map(|user| user.private.iter());
        self.handles.extend(private.copied().take(16));
    }

    fn list(&mut self, folder: Handle) -> Vec<Attr> {
        // Whoever looks has met what leads there.
        let met = [self.root, folder];
        for folder in met {
            if let Ok(listing) = self.looks.readdir(None, folder, 0, u32::MAX, Some(&[]))
                && folder == met[1]
            {
                return listing
                    .entries
                    .iter()
                    .filter_map(|entry| entry.attr)
                    .collect();
            }
        }
        Vec::new()
    }

    fn is_private(&self, user: usize, handle: Handle) -> bool {
        let user = &self.users[user];
        user.folder == Some(handle) || user.private.contains(&handle)
    }

    fn step(&mut self, draw: &mut Draw<'_>) {
        let user = usize::from(draw.yes());
        match draw.u8() % 32 {
            0 => self.repeat(draw, user),
            1 => self.change_places(user),
            2 => self.host.holds_jobs ^= true,
            3 => self.host.settle(),
            4 => self.host.advance(u64::from(draw.u16()) * SECOND / 64),
            5 => self.host.tell(Input::SeatLost { seat: 0 }),
            6 => {
                // Whose session that is, another user may say too.
                let of = usize::from(draw.yes());
                self.greet(user, of);
            }
            _ => self.ask(draw, user),
        }
        for closed in std::mem::take(&mut self.host.closed) {
            for user in &mut self.users {
                if user.conn == Some(closed) {
                    user.conn = None;
                }
            }
        }
    }

    /// The user opens a connection, and says that it is the client of user `of`.
    fn greet(&mut self, user: usize, of: usize) {
        if let Some(conn) = self.users[user].conn.take() {
            self.host.tell(Input::Closed { conn });
        }
        let uid = UIDS[user];
        let remote = self.users[user].incarnation % 2 == 1;
        let role = Role::User {
            uid,
            gid: uid,
            groups: Box::default(),
        };
        let conn = self.host.connect(Peer {
            credentials: (!remote).then(|| Caller::alone(uid, uid)),
            powerless: None,
            address: "fuzz".into(),
            grant: remote.then(|| Grant {
                role,
                name: "fuzz".into(),
                expires: None,
                by: None,
            }),
        });
        let asker = &mut self.users[user];
        // What was asked on the connection before may be answered on this one.
        asker.conn = Some(conn);
        asker.incarnation += 1;
        asker.requests += 1;
        let hello = Op::Hello(Hello {
            version: tidegate_wire::frame::VERSION,
            client: 7 + of as u64,
            incarnation: asker.incarnation,
            joins: false,
            asks: false,
            borrows: true,
            wall_ns: 0,
            payload_max: 1 << 16,
            pipeline: Pipeline::default(),
            uid: UIDS[of],
            gid: UIDS[of],
            name: WORDS[user].as_bytes().into(),
        });
        let request = plain(asker.requests, hello.clone());
        asker.asked.insert(request.id, hello);
        self.host.receive(conn, &request, &[]);
    }

    /// The two go on with each other's numbers of requests and generations.
    fn change_places(&mut self, user: usize) {
        let other = &mut self.users[1 - user];
        let (requests, generation) = (other.requests, other.generation);
        let user = &mut self.users[user];
        (user.requests, user.generation) = (user.requests.max(requests), generation);
    }

    /// Sends the last request of one of them again.
    fn repeat(&mut self, draw: &mut Draw<'_>, user: usize) {
        let of = usize::from(draw.yes());
        let (Some((request, payload)), Some(conn)) = (&self.users[of].last, self.users[user].conn)
        else {
            return;
        };
        let request = Request {
            replay: draw.yes(),
            generation: self.users[user].generation,
            ..request.clone()
        };
        let payload = payload.clone();
        // Who calls himself by the other's name hears it.
        let named = of != user && matches!(request.op, Op::Application { .. });
        if !named && !self.gives_away(user, &request.op) {
            self.send(user, conn, request, payload);
        }
    }

    fn ask(&mut self, draw: &mut Draw<'_>, user: usize) {
        let Some(conn) = self.users[user].conn else {
            return self.greet(user, user);
        };
        let op = self.drawn(draw, user);
        if self.gives_away(user, &op) {
            return;
        }
        let layout = self.host.layout;
        let mut seat = layout.seat_of_op(&op, self.root).unwrap_or(0);
        if draw.one_in(64) {
            seat ^= 1;
        }
        let own = op.files()[0].is_some_and(|(handle, _)| self.is_private(user, handle));
        let fill = if own { MARKS[user] } else { b'.' };
        let len = match &op {
            Op::Write { extents, .. } => extents.bytes().min(1 << 16) as usize,
            Op::Append { .. } => usize::from(draw.u16() % 9000),
            _ => 0,
        };
        let asker = &mut self.users[user];
        asker.requests += 1;
        let index = u16::from(draw.u8() % 3);
        let reply_slot = op.mutates().then(|| {
            let sequence = self.sequences.entry((seat, index)).or_insert(0);
            *sequence += 1;
            ReplySlot {
                index,
                sequence: *sequence,
            }
        });
        // Another caller is believed of nobody here.
        let caller = draw.one_in(8).then(|| {
            let uid = draw.of(&[0, UIDS[1 - user], UIDS[user]]);
            Caller::alone(uid, uid)
        });
        let request = Request {
            seat,
            reply_slot,
            generation: asker.generation,
            caller,
            hints: op.moves_data().then(Default::default),
            payload_len: len as u32,
            ..plain(asker.requests, op)
        };
        self.send(user, conn, request, vec![fill; len]);
    }

    fn send(&mut self, user: usize, conn: ConnId, request: Request, payload: Vec<u8>) {
        let asker = &mut self.users[user];
        // To which of two requests with one number a reply belongs, nobody knows.
        if asker.asked.insert(request.id, request.op.clone()).is_some() {
            asker.asked.insert(request.id, Op::Ping);
        }
        asker.last = Some((request.clone(), payload.clone()));
        self.host.receive(conn, &request, &payload);
    }

    fn drawn(&mut self, draw: &mut Draw<'_>, user: usize) -> Op {
        let paths: Vec<Box<[u8]>> = [MARKS[user], MARKS[1 - user]]
            .iter()
            .flat_map(|mark| {
                let folder = if *mark == MARKS[0] { "anna" } else { "berta" };
                let folder = folder.as_bytes();
                [
                    [folder, b"/", &[*mark]].concat(),
                    [folder, b"/", &[*mark], b"in/", &[*mark]].concat(),
                    [b"shared/../", folder].concat(),
                    b"shared/a".to_vec(),
                    Vec::new(),
                ]
            })
            .map(Vec::into_boxed_slice)
            .collect();
        let open: Vec<Name> = self.names.iter().take(4).cloned().collect();
        let closed = [&[MARKS[user]][..], &[MARKS[user], b'z']].map(name);
        let of = Things {
            handles: &self.handles,
            names: &self.names,
            new_names: &open,
            paths: &paths,
            fill: b'.',
            large: true,
        };
        // So many bytes whatever the operation: what comes behind stays what it was.
        let op = operation(&mut Draw::new(draw.bytes(24)), &of);
        if let Op::Application { project, .. } = &op {
            let name: Name = WORDS[user].as_bytes().into();
            return Op::Application {
                app: AppId::from_name(WORDS[user]).0,
                job: name.clone(),
                name,
                project: vec![b'p'; project.len()].into(),
            };
        }
        // In the own folder, all has the mark.
        let own = |handle: &Handle| self.is_private(user, *handle);
        match op.files().iter().flatten().all(|(handle, _)| own(handle)) {
            // Who finds the folder itself may list the names of its attributes, as with any file.
            true => match &op {
                Op::Setxattr { handle, name, .. } if self.users[user].folder == Some(*handle) => {
                    let open = [name.clone(), name.clone()];
                    marked(op, &open, MARKS[user])
                }
                _ => marked(op, &closed, MARKS[user]),
            },
            false => op,
        }
    }

    /// Whether a user would make something of his folder known by this, or bring something there.
    fn gives_away(&self, user: usize, op: &Op) -> bool {
        let own = |handle: &Handle| self.is_private(user, *handle);
        match op {
            Op::Setattr { handle, set } => {
                own(handle) && (set.mode, set.uid, set.gid) != (None, None, None)
            }
            Op::Link { handle, parent, .. } => own(handle) != own(parent),
            Op::Rename {
                parent, new_parent, ..
            } => own(parent) != own(new_parent),
            Op::CopyRange { source, handle, .. } => own(source) && !own(handle),
            _ => false,
        }
    }

    /// Looks at all replies.
    fn hear(&mut self) {
        while let Some(Sent {
            conn,
            reply,
            payload,
        }) = self.host.sent.pop_front()
        {
            let to = self.users.iter().position(|user| user.conn == Some(conn));
            let Some(to) = to else {
                continue;
            };
            if reply.generation != 0 {
                self.users[to].generation = reply.generation;
            }
            let asked = self.users[to].asked.remove(&reply.id);
            let op = asked.unwrap_or(Op::Ping);
            self.check(to, &op, &reply.result, &payload);
        }
    }

    fn check(&self, to: usize, op: &Op, result: &Result<Outcome, Status>, payload: &[u8]) {
        let other = 1 - to;
        let hidden = |handle: Handle| self.users[other].private.contains(&handle);
        let told = |bytes: &[u8]| bytes.contains(&MARKS[other]);
        assert!(!told(payload), "bytes of the other: {op:?}");
        match result {
            Ok(Outcome::Attr(attr)) => assert!(!hidden(attr.handle), "attributes: {op:?}"),
            Ok(Outcome::Entries(listing)) => {
                for entry in &listing.entries {
                    let handle = entry.attr.map(|attr| attr.handle);
                    let hidden = handle.is_some_and(hidden) || told(&entry.name);
                    assert!(!hidden, "an entry of the other: {op:?}");
                }
            }
            Ok(Outcome::Text(text)) => {
                assert!(!told(text), "a value of the other: {op:?}");
                let word = WORDS[other].as_bytes();
                let said = text.windows(word.len()).any(|it| it == word);
                assert!(!said, "a word of the other: {op:?}");
            }
            _ => {}
        }
        let about = op.files().into_iter().flatten();
        if about.into_iter().any(|(handle, _)| hidden(handle)) {
            // To end what was never begun is no harm.
            let frees = |lock: &Lock| lock.kind == LockKind::None;
            let ends = match op {
                Op::SetLock { lock, .. } | Op::TestLock { lock, .. } => frees(lock),
                _ => matches!(op.kind(), OpKind::Close | OpKind::DropLocks),
            };
            assert!(ends || result.is_err(), "it was done: {op:?}: {result:?}");
            let tells = |errno| TELLING.contains(&errno);
            let told = matches!(result, Err(Status::Errno(errno)) if tells(*errno));
            assert!(!told, "that tells: {op:?}: {result:?}");
        }
    }
}

/// The operation with names and values of somebody's folder.
fn marked(op: Op, names: &[Name; 2], mark: u8) -> Op {
    let with = |name: &Name| names[usize::from(name.len().is_multiple_of(2))].clone();
    match op {
        Op::Create {
            parent,
            name,
            mode,
            exclusive,
        } => Op::Create {
            parent,
            name: with(&name),
            mode,
            exclusive,
        },
        Op::Mkdir { parent, name, mode } => Op::Mkdir {
            parent,
            name: with(&name),
            mode,
        },
        Op::Symlink {
            parent,
            name,
            target,
        } => Op::Symlink {
            parent,
            name: with(&name),
            target: vec![mark; target.len().max(1)].into(),
        },
        Op::Setxattr {
            handle,
            name,
            value,
            flags,
        } => Op::Setxattr {
            handle,
            name: with(&name),
            value: vec![mark; value.len()].into(),
            flags,
        },
        other => other,
    }
}

//! The applications that clients have named, with their users, jobs and projects, and the ids under
//! which the scheduler and the accounts know them.
//!
//! The forwarder's own user counts under the ids that clients claim. Every other user counts under
//! ids that carry his uid ([`AppId::of_user`]), so that nobody's requests count for somebody else.
//! What a user does under an id that nobody has introduced for him counts as one application
//! without a name, which rules for that user match.

use super::Forwarder;
use super::receive::{Dispatch, Key, Pending};
use super::sessions::{Client, Introduced};
use crate::back_end_files::Errno;
use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;
use tidegate_sched::AppId;
use tidegate_wire::{Op, Outcome, Status};

/// Names that the forwarder remembers.
pub(super) const KNOWN_MAX: usize = 4096;

/// How many of them only applications of the forwarder's own user may take.
const RESERVED: usize = 256;

/// Names that one other user may have.
pub(super) const OF_USER_MAX: usize = 512;

/// Users whom the forwarder remembers: more than names, so some have none and can be forgotten.
const USERS_MAX: usize = 2 * KNOWN_MAX;

/// Applications that one client may name.
const INTRODUCED_MAX: usize = 1024;

/// Who an application is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Application {
    /// Empty for what a user does without naming an application.
    pub(super) name: String,
    pub(super) uid: u32,
    /// Empty if there is none.
    pub(super) job: String,
    /// Empty if there is none.
    pub(super) project: String,
}

struct Known {
    application: Application,
    /// None: the forwarder's own.
    user: Option<u32>,
    /// Clients that have named it and are still there.
    clients: u32,
    /// When it was named last, in numbers that grow.
    named: u64,
    /// When it became known, in the same numbers.
    since: u64,
}

/// A user, not the forwarder's own.
struct User {
    /// How many names are his.
    names: usize,
    /// When he came or named something last.
    seen: u64,
}

/// All that are known, by the id under which they are counted.
#[derive(Default)]
pub(super) struct Applications {
    /// With one of each user that has no name.
    known: BTreeMap<u64, Known>,
    users: BTreeMap<u32, User>,
    serial: u64,
}

impl Applications {
    pub(super) fn get(&self, app: u64) -> Option<&Application> {
        self.known.get(&app).map(|known| &known.application)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, &Application)> {
        self.known
            .iter()
            .map(|(app, known)| (*app, &known.application))
    }

    /// A client has gone.
    pub(super) fn left(&mut self, introduced: &Introduced) {
        for (app, since) in &introduced.apps {
            if let Some(known) = self.known.get_mut(app)
                && known.since == *since
            {
                known.clients = known.clients.saturating_sub(1);
            }
        }
    }

    fn next(&mut self) -> u64 {
        self.serial += 1;
        self.serial
    }

    /// Makes room for one more application of a user; None for the forwarder's own. Adds to `gone`
    /// the id of the application that was forgotten for it. False if there is no room.
    ///
    /// A user beyond his part loses his own oldest application that has no client. Where all is
    /// full, whoever has the most loses his oldest.
    fn make_room(&mut self, user: Option<u32>, gone: &mut Vec<u64>) -> bool {
        let own = user.and_then(|uid| self.users.get(&uid));
        let own = own.map_or(0, |user| user.names);
        if own >= OF_USER_MAX {
            return self.forget_one(user, true, gone);
        }
        let names = self.known.len() - self.users.len();
        let room = match user {
            Some(_) => KNOWN_MAX - RESERVED,
            None => KNOWN_MAX,
        };
        if names < room {
            return true;
        }
        let most = self.users.iter().max_by_key(|(_, user)| user.names);
        match most {
            Some((uid, user)) if user.names > own + 1 => {
                let uid = *uid;
                self.forget_one(Some(uid), true, gone) || self.forget_one(Some(uid), false, gone)
            }
            _ => self.forget_one(user, true, gone),
        }
    }

    /// Forgets the oldest application of a user, or of the forwarder's own; of those without
    /// clients only, if `idle`. False if there is none.
    fn forget_one(&mut self, user: Option<u32>, idle: bool, gone: &mut Vec<u64>) -> bool {
        let candidates = self.known.iter().filter(|(_, known)| {
            let named = !known.application.name.is_empty();
            known.user == user && named && (known.clients == 0 || !idle)
        });
        let oldest = candidates.min_by_key(|(_, known)| known.named);
        let Some(app) = oldest.map(|(app, _)| *app) else {
            return false;
        };
        self.known.remove(&app);
        if let Some(user) = user.and_then(|uid| self.users.get_mut(&uid)) {
            user.names -= 1;
        }
        gone.push(app);
        true
    }

    /// Makes sure that a user is known. Adds to `gone` the ids of applications that were forgotten
    /// for him. True if he is new.
    fn note_user(&mut self, uid: u32, gone: &mut Vec<u64>) -> bool {
        let seen = self.next();
        if let Some(user) = self.users.get_mut(&uid) {
            user.seen = seen;
            return false;
        }
        if self.users.len() >= USERS_MAX {
            let nameless = self.users.iter().filter(|(_, user)| user.names == 0);
            let oldest = nameless.min_by_key(|(_, user)| user.seen);
            let oldest = oldest.map(|(uid, _)| *uid);
            let oldest = oldest.expect("there are more users than names");
            self.users.remove(&oldest);
            let app = AppId::unnamed_of(oldest).0;
            self.known.remove(&app);
            gone.push(app);
        }
        self.users.insert(uid, User { names: 0, seen });
        let application = Application {
            name: String::new(),
            uid,
            job: String::new(),
            project: String::new(),
        };
        let known = Known {
            application,
            user: Some(uid),
            clients: 0,
            named: seen,
            since: seen,
        };
        self.known.insert(AppId::unnamed_of(uid).0, known);
        true
    }

    /// Records an application of a client that may name it. Adds to `gone` the ids of those that
    /// were forgotten for it.
    fn learn(
        &mut self,
        client: &mut Client,
        (id, user): (u64, Option<u32>),
        application: Application,
        gone: &mut Vec<u64>,
    ) -> Result<(), Errno> {
        let before = self.known.get(&id);
        if before.is_some_and(|known| known.user != user) {
            return Err(Errno::ENOSPC);
        }
        let since = before.map(|known| known.since);
        let is_new = since.is_none() || client.introduced.apps.get(&id).copied() != since;
        if is_new
            && client.introduced.apps.len() >= INTRODUCED_MAX
            && !client.introduced.apps.contains_key(&id)
        {
            return Err(Errno::ENOSPC);
        }
        if since.is_none() && !self.make_room(user, gone) {
            return Err(Errno::ENOSPC);
        }
        let named = self.next();
        let known = self.known.entry(id).or_insert_with(|| Known {
            application: application.clone(),
            user,
            clients: 0,
            named,
            since: named,
        });
        known.clients += u32::from(is_new);
        known.named = named;
        known.application = application;
        client.introduced.apps.insert(id, known.since);
        if since.is_none()
            && let Some(user) = user.and_then(|uid| self.users.get_mut(&uid))
        {
            user.names += 1;
        }
        Ok(())
    }
}

impl Client {
    /// The user as whose application a request of this client counts: the caller of a client that
    /// speaks for others, else the client's own. None if it is the forwarder's own user.
    pub(super) fn counts_for(&self, owner: u32, pending: &Pending) -> Option<u32> {
        let caller = pending.caller.as_ref().filter(|_| self.standing.trusted);
        let uid = caller.map_or(self.standing.user.uid, |caller| caller.uid);
        // A user's own forwarder serves nobody else, and at root's those without proof are others.
        let own = owner != 0 || self.standing.trusted && uid == owner;
        (!own).then_some(uid)
    }
}

impl Forwarder {
    /// Sets the id under which a request counts that is a user's, not the forwarder's own.
    pub(super) fn count_for_user(&mut self, key: Key, uid: u32) {
        let pending = &mut self.requests[key];
        pending.user = Some(uid);
        if !matches!(pending.dispatch, Dispatch::Data(_) | Dispatch::WholeFile) {
            return;
        }
        let app = AppId(pending.hints.app).of_user(uid).0;
        if pending.hints.app != 0 && self.applications.known.contains_key(&app) {
            pending.hints.app = app;
            return;
        }
        pending.hints.app = AppId::unnamed_of(uid).0;
        if !self.applications.users.contains_key(&uid) {
            self.user_came(uid);
        }
    }

    /// Makes a user known, so that rules which name him hold for what he does.
    #[cold]
    fn user_came(&mut self, uid: u32) {
        let mut changed = Vec::new();
        if self.applications.note_user(uid, &mut changed) {
            changed.push(AppId::unnamed_of(uid).0);
        }
        for app in changed {
            self.share_of(app);
        }
    }

    /// A client describes an application before it sends data requests of it.
    pub(super) fn introduced(&mut self, key: Key) {
        let result = self.introduce(key);
        self.answer(key, result.map(|()| Outcome::Done));
    }

    fn introduce(&mut self, key: Key) -> Result<(), Status> {
        let pending = &mut self.requests[key];
        let user = pending.user;
        let Some(Op::Application {
            app,
            name,
            job,
            project,
        }) = pending.op.take()
        else {
            unreachable!("routed by its operation");
        };
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let name = core::str::from_utf8(&name);
        let refuse = |errno: Errno| Err(Status::Errno(errno.0));
        let Some(name) = name.ok().filter(|name| AppId::from_name(name).0 == app) else {
            return refuse(Errno::EINVAL);
        };
        let (job, project) = (text(&job), text(&project));
        // They would break the lines in which applications are shown. Nothing else has no name.
        let has_control = |text: &str| text.chars().any(char::is_control);
        if name.is_empty() || [name, &job, &project].into_iter().any(has_control) {
            return refuse(Errno::EINVAL);
        }
        let application = Application {
            name: name.into(),
            uid: user.unwrap_or(self.config.uid),
            job,
            project,
        };
        let client = pending.client;
        if let Some(uid) = user {
            self.user_came(uid);
        }
        let id = user.map_or(app, |uid| AppId(app).of_user(uid).0);
        let client = self.clients.get_mut(&client);
        let client = client.expect("a client with a request has state");
        let mut changed = Vec::new();
        let applications = &mut self.applications;
        let learnt = applications.learn(client, (id, user), application, &mut changed);
        changed.push(id);
        for app in changed {
            self.share_of(app);
        }
        learnt.map_err(|errno| Status::Errno(errno.0))
    }
}

//! Names of applications. Before the first data request that carries an application's id, the
//! client sends the forwarder the application's name.

use super::Core;
use super::hints::APPS_MAX;
use super::requests::{Id, Pending, Place, Purpose, Target};
use super::types::Application;
use crate::wire::{NAME_MAX, Op};
use std::collections::BTreeMap;

/// The applications that the host has named, by id.
#[derive(Default)]
pub(super) struct Applications {
    /// By id: the application, and a number that says how recently the host has named it.
    known: BTreeMap<u64, (Application, u64)>,
    told: u64,
}

impl Applications {
    /// Records an application, with job and project cut to what the protocol allows. Where there
    /// are too many, the core forgets the oldest: forwarders that have received its name still know
    /// it.
    fn learn(&mut self, app: u64, mut application: Application) {
        cut(&mut application.job);
        cut(&mut application.project);
        if self.known.len() >= APPS_MAX && !self.known.contains_key(&app) {
            let oldest = self.known.iter().min_by_key(|(_, (_, told))| *told);
            let oldest = oldest.map(|(app, _)| *app);
            oldest.and_then(|app| self.known.remove(&app));
        }
        self.told += 1;
        self.known.insert(app, (application, self.told));
    }
}

fn cut(name: &mut String) {
    let mut len = name.len().min(NAME_MAX);
    while !name.is_char_boundary(len) {
        len -= 1;
    }
    name.truncate(len);
}

impl Core {
    /// Records the application whose id is `app`.
    pub(super) fn application(&mut self, app: u64, application: Application) {
        let known = self.applications.known.get(&app);
        let unchanged = known.is_some_and(|(known, _)| *known == application);
        // A name that is too long for the protocol has an id all the same.
        if unchanged || application.name.len() > NAME_MAX {
            return;
        }
        self.applications.learn(app, application);
        for session in &mut self.sessions {
            session.introduced.remove(&app);
        }
    }

    /// Sends the forwarder the name of the application whose request it is about to get. Returns
    /// false if that took the session's last credit: then the request waits for the next.
    pub(super) fn introduce(&mut self, forwarder: usize, id: Id) -> bool {
        let hints = self.requests.get(&id).and_then(|it| it.hints.as_ref());
        let Some(app) = hints.map(|hints| hints.app) else {
            return true;
        };
        let session = &mut self.sessions[forwarder];
        if session.introduced.contains(&app) {
            return true;
        }
        if session.introduced.len() >= APPS_MAX {
            session.introduced.clear();
        }
        session.introduced.insert(app);
        let Some((application, _)) = self.applications.known.get(&app) else {
            return true;
        };
        let target = Target::Forwarder(forwarder);
        let op = Op::Application {
            app,
            name: application.name.as_bytes().into(),
            job: application.job.as_bytes().into(),
            project: application.project.as_bytes().into(),
        };
        let mut pending = Pending::new(op, 0, target, Purpose::Session);
        pending.caller.clone_from(&application.caller);
        let introduction = self.insert(pending);
        self.sessions[forwarder].introducing.insert(introduction);
        self.transmit(forwarder, introduction);
        let session = &mut self.sessions[forwarder];
        if session.has_credit() {
            return true;
        }
        session.queue.insert(id);
        self.put(id, Place::Queue(forwarder));
        false
    }
}

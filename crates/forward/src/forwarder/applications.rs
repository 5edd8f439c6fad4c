//! The applications that clients have named, with their users, jobs and projects.

use super::Forwarder;
use super::receive::Key;
use super::sessions::Introduced;
use crate::back_end_files::Errno;
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use tidegate_sched::AppId;
use tidegate_wire::{Op, Outcome, Status};

/// Applications that the forwarder remembers. Of those without clients it forgets the oldest first.
pub(super) const KNOWN_MAX: usize = 4096;

/// Applications that one client may name.
const INTRODUCED_MAX: usize = 1024;

/// Who an application is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Application {
    pub(super) name: String,
    pub(super) uid: u32,
    /// Empty if there is none.
    pub(super) job: String,
    /// Empty if there is none.
    pub(super) project: String,
}

struct Known {
    application: Application,
    /// Clients that have named it and are still there.
    clients: u32,
    /// When it was named last, in numbers that grow.
    named: u64,
}

/// All that are known, by the id under which they are counted.
#[derive(Default)]
pub(super) struct Applications {
    known: BTreeMap<u64, Known>,
    named: u64,
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
        for app in &introduced.apps {
            if let Some(known) = self.known.get_mut(app) {
                known.clients = known.clients.saturating_sub(1);
            }
        }
    }

    /// The id of an application. A name belongs to its first user as long as the forwarder
    /// remembers the application. Another user's application of that name is another application.
    fn id_for(&self, application: &Application) -> u64 {
        let id = AppId::from_name(&application.name).0;
        match self.get(id) {
            Some(first) if first.uid != application.uid => {
                AppId::from_name(&format!("{}\0{}", application.name, application.uid)).0
            }
            _ => id,
        }
    }

    /// Makes room for one more application. None if all have clients; else the application that was
    /// forgotten for it, if any.
    fn make_room(&mut self) -> Option<Option<u64>> {
        if self.known.len() < KNOWN_MAX {
            return Some(None);
        }
        let gone = self.known.iter().filter(|(_, known)| known.clients == 0);
        let oldest = gone.min_by_key(|(_, known)| known.named);
        let oldest = oldest.map(|(app, _)| *app)?;
        self.known.remove(&oldest);
        Some(Some(oldest))
    }
}

impl Forwarder {
    /// A client describes an application before it sends data requests of it.
    pub(super) fn introduced(&mut self, key: Key) {
        let result = self.introduce(key);
        self.answer(key, result.map(|()| Outcome::Done));
    }

    fn introduce(&mut self, key: Key) -> Result<(), Status> {
        let pending = &mut self.requests[key];
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
        let client = self.clients.get_mut(&pending.client);
        let client = client.expect("a client with a request has state");
        let refuse = |errno: Errno| Err(Status::Errno(errno.0));
        let Some(name) = name.ok().filter(|name| AppId::from_name(name).0 == app) else {
            return refuse(Errno::EINVAL);
        };
        let (job, project) = (text(&job), text(&project));
        // They would break the lines in which applications are shown.
        let has_control = |text: &str| text.chars().any(char::is_control);
        if [name, &job, &project].into_iter().any(has_control) {
            return refuse(Errno::EINVAL);
        }
        let caller = pending.caller.as_ref().filter(|_| client.trusted);
        let application = Application {
            name: name.into(),
            uid: caller.map_or(client.uid, |caller| caller.uid),
            job,
            project,
        };
        let id = self.applications.id_for(&application);
        let is_new = !client.introduced.apps.contains(&id);
        if is_new && client.introduced.apps.len() >= INTRODUCED_MAX {
            return refuse(Errno::ENOSPC);
        }
        let mut forgotten = None;
        if !self.applications.known.contains_key(&id) {
            match self.applications.make_room() {
                Some(whom) => forgotten = whom,
                None => return refuse(Errno::ENOSPC),
            }
        }
        if is_new {
            client.introduced.apps.insert(id);
        }
        if id != app && client.app_of(app) != id {
            client.introduced.others.retain(|(taken, _)| *taken != app);
            client.introduced.others.push((app, id));
        }
        self.applications.named += 1;
        let named = self.applications.named;
        let known = self.applications.known.entry(id).or_insert(Known {
            application: application.clone(),
            clients: 0,
            named,
        });
        known.clients += u32::from(is_new);
        known.named = named;
        known.application = application;
        if let Some(forgotten) = forgotten {
            self.share_of(forgotten);
        }
        self.share_of(id);
        Ok(())
    }
}

//! How instances of `tidegate check` find each other. Each claims a number by making a file
//! exclusively, and shows in another file that it is running.

use super::{BEAT, CheckError, DIE, FOLDER, system};
use crate::backend::messages::{Message, State};
use crate::backend::side::private_folder;
use crate::backend::talk::Messenger;
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

/// How long an instance may show no sign of life before its claim counts as left over from a killed
/// one.
const DEAD: Duration = Duration::from_secs(3);
/// The leading instance has a second file from this number on, for conversations between two
/// others.
const SECOND: u16 = 1000;

/// The folder in which instances meet. The last instance that leaves removes it.
pub(super) struct Meeting {
    folder: Arc<OwnedFd>,
    parent: OwnedFd,
    nodes: u16,
    ends: Arc<AtomicBool>,
}

/// An instance's place in the meeting.
pub(super) struct Seat {
    pub(super) own: Messenger,
    pub(super) second: Messenger,
    number: u16,
    nodes: u16,
    _claim: Claim,
}

struct Claim {
    folder: Arc<OwnedFd>,
    name: String,
    /// Removes the folder after this claim.
    _meeting: Meeting,
}

impl Meeting {
    pub(super) fn open(dir: &Path, nodes: u16, ends: Arc<AtomicBool>) -> io::Result<Meeting> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let parent = rustix::fs::open(dir, flags, Mode::empty())?;
        let folder = private_folder(parent.as_fd(), FOLDER)?;
        Ok(Meeting {
            folder: Arc::new(folder),
            parent,
            nodes,
            ends,
        })
    }

    pub(super) fn folder(&self) -> Arc<OwnedFd> {
        self.folder.clone()
    }

    /// Claims a number that nobody has.
    pub(super) fn join(self, until: Instant, dies: bool) -> Result<Seat, CheckError> {
        // The instance that dies must not be the one that reports it.
        let numbers = || u16::from(dies)..self.nodes;
        let mut dead = Vec::new();
        let number = loop {
            let mut claimed = None;
            for number in numbers() {
                let name = format!("claim.{number}");
                if dead.contains(&number) {
                    // Two may do so at once; see `wait_for_all`.
                    let _ = rustix::fs::unlinkat(&*self.folder, &name, AtFlags::empty());
                }
                let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
                match rustix::fs::openat(&*self.folder, &name, flags, Mode::RUSR | Mode::WUSR) {
                    Ok(_) => claimed = Some(number),
                    Err(Errno::EXIST) => continue,
                    Err(error) => return Err(system(error.into())),
                }
                break;
            }
            if let Some(number) = claimed {
                break number;
            }
            dead = self.dead(numbers().collect())?;
            if dead.is_empty() || Instant::now() > until {
                let (nodes, dir) = (self.nodes, FOLDER);
                return Err(CheckError::Nodes(format!(
                    "{nodes} instances are here already: wait until they are done, or give all of \
                     them the same --nodes (leftovers are in {dir})"
                )));
            }
        };
        let claim = Claim {
            folder: self.folder.clone(),
            name: format!("claim.{number}"),
            _meeting: self,
        };
        let meeting = &claim._meeting;
        let messenger =
            |number| Messenger::new(meeting.folder.clone(), number, meeting.ends.clone());
        let mut own = messenger(number).map_err(system)?;
        own.beat_with(if dies { DIE } else { "" }).map_err(system)?;
        Ok(Seat {
            own,
            second: messenger(SECOND).map_err(system)?,
            number,
            nodes: meeting.nodes,
            _claim: claim,
        })
    }

    /// The numbers whose instances show no sign of life.
    fn dead(&self, numbers: Vec<u16>) -> Result<Vec<u16>, CheckError> {
        let mut reader = Messenger::new(self.folder.clone(), SECOND + 1, self.ends.clone());
        let reader = reader
            .as_mut()
            .map_err(|error| system(io::Error::other(error.to_string())))?;
        let mut beats = |numbers: &[u16]| -> Result<Vec<u64>, CheckError> {
            let beat = |message: Option<Message>| match message {
                Some(message) if message.state == State::Here => message.beat ^ message.life,
                _ => 0,
            };
            numbers
                .iter()
                .map(|one| reader.read(*one).map(beat).map_err(system))
                .collect()
        };
        let before = beats(&numbers)?;
        std::thread::sleep(DEAD);
        let after = beats(&numbers)?;
        let pairs = before.iter().zip(&after).zip(&numbers);
        Ok(pairs
            .filter(|((a, b), _)| a == b)
            .map(|(_, number)| *number)
            .collect())
    }
}

impl Seat {
    pub(super) fn number(&self) -> u16 {
        self.number
    }

    /// Waits until all others show that they are running. Returns their messages.
    pub(super) fn wait_for_all(&mut self, until: Instant) -> Result<Vec<Message>, CheckError> {
        let mut first = BTreeMap::new();
        loop {
            self.own.beat().map_err(system)?;
            let mut alive = Vec::new();
            for other in (0..self.nodes).filter(|other| *other != self.number) {
                let Some(message) = self.own.read(other).map_err(system)? else {
                    continue;
                };
                let known = *first.entry(other).or_insert(message.beat ^ message.life);
                if message.state == State::Here && known != message.beat ^ message.life {
                    alive.push(message);
                }
            }
            if alive.len() + 1 == usize::from(self.nodes) {
                return Ok(alive);
            }
            let (own, life) = (self.number, self.own.life());
            if self
                .own
                .read(own)
                .map_err(system)?
                .is_some_and(|message| message.life != life)
            {
                let what = "two instances took one number; start this one again";
                return Err(CheckError::Nodes(what.to_owned()));
            }
            if Instant::now() > until || self.own.ends() {
                return Err(CheckError::Nodes(format!(
                    "{} of {} instances came: start the others within --seconds-max on nodes that \
                     have this directory mounted, or this directory does not show them what is \
                     written here",
                    alive.len() + 1,
                    self.nodes
                )));
            }
            std::thread::sleep(BEAT);
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        // If this fails, the others only wait a little longer.
        let _ = self.own.leave();
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let _ = rustix::fs::unlinkat(&*self.folder, &self.name, AtFlags::empty());
    }
}

impl Drop for Meeting {
    fn drop(&mut self) {
        let Ok(entries) = rustix::fs::Dir::read_from(self.folder.as_fd()) else {
            return;
        };
        let names: Vec<_> = entries
            .filter_map(|entry| Some(entry.ok()?.file_name().to_string_lossy().into_owned()))
            .collect();
        if names.iter().any(|name| name.starts_with("claim.")) {
            return;
        }
        let ours = |name: &&String| {
            ["box.", "bell.", "t-"]
                .iter()
                .any(|it| name.starts_with(it))
        };
        for name in names.iter().filter(ours) {
            // Another leaving instance may have removed it already.
            let _ = rustix::fs::unlinkat(&*self.folder, name, AtFlags::empty());
        }
        let _ = rustix::fs::unlinkat(&self.parent, FOLDER, AtFlags::REMOVEDIR);
    }
}

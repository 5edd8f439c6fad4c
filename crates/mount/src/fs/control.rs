//! Device control calls, by which the short-cut and the MPI shim talk to the mount: see
//! `tidegate_client::shortcut`.

use super::opens::OpenFile;
use super::{Asked, RemoteFiles, convert, process};
use crate::fuse::{self, Errno, Ioctl};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tidegate_client::collective::{HINT_LEN, Hint, HintCounts};
use tidegate_client::shortcut::{self, ANSWER_LEN, NAME_LEN, TICKET_LEN};

impl RemoteFiles {
    /// The answer to a device control call on an open file or directory. ENOTTY for an unknown
    /// command.
    pub(super) fn control(&self, asked: &Asked, ioctl: &Ioctl) -> Result<Vec<u8>, Errno> {
        match ioctl.command {
            shortcut::COMMAND if ioctl.output_max as usize >= ANSWER_LEN => {
                self.tell_way(asked, ioctl)
            }
            shortcut::TICKET if ioctl.output_max as usize >= TICKET_LEN => self.give_ticket(asked),
            shortcut::HINT if ioctl.input.len() >= HINT_LEN => {
                let hint = Hint::decode(&ioctl.input).ok_or(Errno::INVAL)?;
                let file = self.told(asked, ioctl)?;
                Ok(answer(file.change_hints(|hints| hints.publish(hint))))
            }
            shortcut::HINT_END if ioctl.input.len() >= HINT_LEN => {
                let operation = Hint::operation_in(&ioctl.input).ok_or(Errno::INVAL)?;
                let file = self.told(asked, ioctl)?;
                Ok(answer(file.change_hints(|hints| hints.end(operation))))
            }
            shortcut::APPLICATION if ioctl.input.len() >= NAME_LEN => self.hear(asked, ioctl),
            _ => Err(Errno::NOTTY),
        }
    }

    /// The open file to which hints belong. Directories are numbered apart, and have none.
    fn told(&self, asked: &Asked, ioctl: &Ioctl) -> Result<Arc<OpenFile>, Errno> {
        let handle = self.handle_of(asked)?;
        let file = self.files.find(ioctl.handle)?;
        (file.handle == handle).then_some(file).ok_or(Errno::NOTTY)
    }

    /// Answers how a program reaches the file without the mount.
    fn tell_way(&self, asked: &Asked, ioctl: &Ioctl) -> Result<Vec<u8>, Errno> {
        let handle = self.handle_of(asked)?;
        // Directories are numbered apart.
        let file = self.files.find(ioctl.handle);
        let file = file.ok().filter(|file| file.handle == handle);
        let directory = self.directories.find(ioctl.handle);
        let is_directory = directory.is_ok_and(|directory| directory.handle() == handle);
        let reached = match self.is_user(asked) {
            true => self.forwarders.reached_by_user(),
            false => self.forwarders.reached(),
        };
        let reached = reached.ok_or(Errno::NOTTY)?;
        let app = match file {
            Some(file) => file.app(),
            None if is_directory => 0,
            None => return Err(Errno::NOTTY),
        };
        let (stripe_bytes, forwarder_count) = self.forwarders.striping();
        let answer = shortcut::Answer {
            handle,
            app,
            clock_ahead_ns: self.forwarders.clock_ahead_ns(),
            stripe_bytes,
            forwarder_count,
            forwarders: reached.to_string(),
            name: self.applications.claimed(app).unwrap_or_default(),
            path: self.forwarders.path_of(handle).unwrap_or_default().into(),
        };
        answer.encode().ok_or(Errno::NOTTY)
    }

    /// Whether the mount of root is asked by an ordinary user.
    fn is_user(&self, asked: &Asked) -> bool {
        self.pass_callers && asked.caller.uid != 0
    }

    /// Gives the calling user a ticket of his own, with the groups that he has now, or that of the
    /// user who has made the mount.
    fn give_ticket(&self, asked: &Asked) -> Result<Vec<u8>, Errno> {
        if asked.caller.uid == 0 {
            return Err(Errno::NOTTY);
        }
        let fuse::Caller { uid, gid, tid } = asked.caller;
        // Without them he would pass where a group of his is kept out.
        let user = process::caller_with_groups(uid, gid, tid).ok_or(Errno::ACCESS)?;
        self.forwarders.ticket_for(user).map_err(convert::errno)
    }

    /// Takes in the application that a program names for itself, as its environment might have.
    fn hear(&self, asked: &Asked, ioctl: &Ioctl) -> Result<Vec<u8>, Errno> {
        let name = ioctl.input.split(|byte| *byte == 0).next().unwrap_or(&[]);
        let name = str::from_utf8(name).map_err(|_| Errno::INVAL)?;
        if name.is_empty() || name.len() >= NAME_LEN {
            return Err(Errno::INVAL);
        }
        let tell = |application| self.introduce(asked.caller, application);
        let app = self.applications.claim(asked.caller, name, tell)?;
        let handle = self.handle_of(asked)?;
        if let Ok(file) = self.files.find(ioctl.handle)
            && file.handle == handle
        {
            file.app.store(app, Ordering::Relaxed);
        }
        Ok(Vec::new())
    }
}

fn answer(counts: HintCounts) -> Vec<u8> {
    let mut bytes = vec![0; HINT_LEN];
    counts.put_into(&mut bytes);
    bytes
}

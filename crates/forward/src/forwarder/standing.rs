//! What a client may do: by the credentials of its socket, or by the secret that it has proved.

use super::Forwarder;
use super::receive::Key;
use crate::back_end_files::Errno;
use crate::host::ConnId;
use tidegate_wire::{Caller, Hello, Role};

/// The user and group of who has no access to files.
const NOBODY: u32 = 65_534;

/// What a client may do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Standing {
    /// The user that it is, with his groups.
    pub(super) user: Caller,
    /// It may act for other users, and the forwarder does not check its rights to data.
    pub(super) trusted: bool,
    /// It may change the forwarder itself: its policy, its shares, whether it serves.
    pub(super) administers: bool,
    /// It may ask for files at all.
    pub(super) reaches_files: bool,
}

impl Standing {
    fn of_user(user: Caller) -> Standing {
        Standing {
            user,
            trusted: false,
            administers: false,
            reaches_files: true,
        }
    }

    /// Whether room is kept for it that other users cannot take.
    pub(super) fn has_reserve(&self) -> bool {
        self.trusted || self.administers
    }

    /// Whether a client that had this standing can be one that has the other: the same user with
    /// the same power, whatever became of his groups.
    pub(super) fn is_of(&self, other: &Standing) -> bool {
        let power = |it: &Standing| (it.trusted, it.administers, it.reaches_files);
        self.user.uid == other.user.uid && power(self) == power(other)
    }
}

impl Forwarder {
    /// What the peer of a connection may do, or why the forwarder refuses it.
    pub(super) fn standing_of(
        &self,
        conn: ConnId,
        hello: &Hello,
    ) -> Result<Standing, (u16, &'static str)> {
        self.check_hello(hello)?;
        let peer = self.peer_of(conn);
        let local = peer.credentials.clone();
        let told = || Caller::alone(hello.uid, hello.gid);
        let standing = match peer.grant.as_ref().map(|grant| &grant.role) {
            None => Standing {
                trusted: local.as_ref().is_some_and(|user| user.uid == 0),
                administers: local.as_ref().is_some_and(|user| user.uid == 0),
                ..Standing::of_user(local.unwrap_or_else(told))
            },
            Some(Role::Site) => Standing {
                trusted: true,
                administers: true,
                ..Standing::of_user(told())
            },
            Some(Role::Mount) => Standing {
                trusted: true,
                ..Standing::of_user(told())
            },
            Some(Role::Operator) => Standing {
                administers: true,
                reaches_files: false,
                ..Standing::of_user(Caller::alone(NOBODY, NOBODY))
            },
            Some(Role::User { uid, gid, groups }) => Standing::of_user(Caller {
                uid: *uid,
                gid: *gid,
                groups: groups.clone(),
            }),
        };
        if self.config.uid != 0 {
            return self.standing_at_own(standing, peer.grant.is_none());
        }
        // To act as uid 0 without capabilities is of no use to anybody, and easily got wrong.
        match peer.powerless.filter(|_| standing.trusted) {
            Some(powerless) => Err((Errno::EACCES.0, powerless)),
            None => Ok(standing),
        }
    }

    /// A forwarder that a user started serves that user only, who may do everything with it unless
    /// his secret says less. `bare`: no secret was proved.
    fn standing_at_own(
        &self,
        standing: Standing,
        bare: bool,
    ) -> Result<Standing, (u16, &'static str)> {
        if !standing.reaches_files {
            return Ok(standing);
        }
        match standing.user.uid == self.config.uid {
            true => Ok(Standing {
                trusted: true,
                administers: standing.administers || bare,
                ..standing
            }),
            false => Err((Errno::EACCES.0, "the forwarder serves another user")),
        }
    }

    /// Whether the request's client may change the forwarder itself.
    pub(super) fn administers(&self, key: Key) -> bool {
        let client = &self.clients[&self.requests[key].client];
        client.standing.administers
    }
}

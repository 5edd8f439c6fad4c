//! What a client may do: by the credentials of its socket, or by the secret that it has proved.

use super::Forwarder;
use super::pool::{Holder, Pool};
use super::receive::Key;
use crate::back_end_files::Errno;
use crate::host::ConnId;
use crate::peer::Peer;
use crate::printable::Printable;
use alloc::boxed::Box;
use alloc::format;
use tidegate_wire::{Caller, Hello, Limits, NOBODY, Role};

/// From one line of the log about callers who were refused to the next, in ns.
const REFUSED_NS: u64 = 10_000_000_000;

/// What a client may do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Standing {
    /// The user that it is, with his groups.
    pub(super) user: Caller,
    /// It may act for other users. Without limits the forwarder does not check its rights to data.
    pub(super) trusted: bool,
    /// For whom it may act, if not for everybody.
    pub(super) limits: Option<Box<Limits>>,
    /// The only user for whom it may act at a forwarder that acts for nobody but its own user. A
    /// remote root has a mount for all users of its node, and the number of root of a namespace.
    pub(super) only: Option<u32>,
    /// The name of its secret, if that has limits: mounts with other secrets are others.
    pub(super) secret: Option<Box<str>>,
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
            limits: None,
            only: None,
            secret: None,
            administers: false,
            reaches_files: true,
        }
    }

    /// A mount that acts for some users only.
    fn of_limits(user: Caller, limits: &Limits, secret: &str) -> Standing {
        Standing {
            trusted: true,
            limits: Some(Box::new(limits.clone())),
            secret: Some(secret.into()),
            ..Standing::of_user(limits.admit_or_nobody(user))
        }
    }

    /// Whether the forwarder checks its rights to data, and that it can find the files it names.
    pub(super) fn is_checked(&self) -> bool {
        !self.trusted || self.limits.is_some()
    }

    /// Replaces the caller of a request by the one as whom it is done. The error is the user for
    /// whom the client does not act.
    pub(super) fn take_caller(&self, caller: &mut Option<Caller>) -> Result<(), u32> {
        if !self.trusted {
            // Nobody else speaks for a caller, and need not keep the memory of his groups.
            *caller = None;
        }
        if let Some(only) = self.only
            && let Some(asked) = caller.take_if(|asked| asked.uid != only)
        {
            return Err(asked.uid);
        }
        let Some(limits) = &self.limits else {
            return Ok(());
        };
        let Some(asked) = caller.take() else {
            return Ok(());
        };
        let uid = asked.uid;
        *caller = limits.admit(asked);
        caller.is_some().then_some(()).ok_or(uid)
    }

    /// Whether room is kept for it that neither users nor mounts with limits can take, whose node
    /// may be a thief's.
    pub(super) fn has_reserve(&self) -> bool {
        self.trusted && self.limits.is_none() || self.administers
    }

    /// Whether it is a mount with limits. What such mounts have counts for their node.
    pub(super) fn is_node(&self) -> bool {
        self.secret.is_some()
    }

    /// For whom its payload counts.
    pub(super) fn holder(&self, pool: &mut Pool) -> Holder {
        match &self.secret {
            _ if self.has_reserve() => Holder::RESERVE,
            Some(name) => pool.node(name),
            None => Holder::user(self.user.uid),
        }
    }

    /// Whether its sessions and those of the other are one user's, or those of one node, which is
    /// the name of a secret: whom a node's hello names is its own choice.
    pub(super) fn is_same_holder(&self, other: &Standing) -> bool {
        match (&self.secret, &other.secret) {
            (None, None) => self.user.uid == other.user.uid,
            (one, other) => one == other,
        }
    }

    /// Whether both share what one holder may have.
    pub(super) fn shares_with(&self, other: &Standing) -> bool {
        self.power() == other.power() && self.is_same_holder(other)
    }

    fn power(&self) -> (bool, bool, bool) {
        (self.trusted, self.administers, self.reaches_files)
    }

    /// Whether a client that had this standing can be one that has the other: the same user with
    /// the same power, whatever became of his groups.
    pub(super) fn is_of(&self, other: &Standing) -> bool {
        self.user.uid == other.user.uid && self.power() == other.power()
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
            Some(Role::Mount(limits)) if limits.is_none() => Standing {
                trusted: true,
                ..Standing::of_user(told())
            },
            Some(Role::Mount(limits)) => {
                let name = peer.grant.as_ref().map_or("", |grant| &grant.name);
                Standing::of_limits(told(), limits, name)
            }
            Some(Role::Operator) => Standing {
                administers: true,
                reaches_files: false,
                ..Standing::of_user(Caller::alone(NOBODY.anonuid, NOBODY.anongid))
            },
            Some(Role::User { uid, gid, groups }) => Standing::of_user(Caller {
                uid: *uid,
                gid: *gid,
                groups: groups.clone(),
            }),
        };
        if !self.config.acts_for_callers {
            return self.standing_at_own(standing, peer);
        }
        // To act as uid 0 without capabilities is of no use to anybody, and easily got wrong.
        match peer.powerless.filter(|_| standing.trusted) {
            Some(powerless) => Err((Errno::EACCES.0, powerless)),
            None => Ok(standing),
        }
    }

    /// A forwarder that a user started serves that user only, who may do everything with it unless
    /// his secret says less.
    fn standing_at_own(
        &self,
        standing: Standing,
        peer: &Peer,
    ) -> Result<Standing, (u16, &'static str)> {
        if !standing.reaches_files {
            return Ok(standing);
        }
        match standing.user.uid == self.config.uid {
            true => Ok(Standing {
                trusted: true,
                administers: standing.administers || peer.grant.is_none(),
                limits: None,
                // Of a peer on this node the kernel has said whose it is.
                only: peer.credentials.is_none().then_some(self.config.uid),
                secret: None,
                ..standing
            }),
            false => Err((Errno::EACCES.0, "the forwarder serves another user")),
        }
    }

    /// Notes that a request was refused, because its client does not act for this user.
    pub(super) fn caller_refused(&mut self, client: u64, uid: u32) {
        let Some(state) = self.clients.get_mut(&client) else {
            return;
        };
        state.refused_callers += 1;
        if state.refused_callers == 1 && self.now >= self.refusals.tells_callers {
            self.refusals.tells_callers = self.now + REFUSED_NS;
            let name = Printable(&state.name);
            let text = format!(
                "client {name} asks for user {uid}, for whom its secret does not act; refused"
            );
            self.log(text);
        }
    }

    /// As whom the rights of a request are judged whose client's rights are checked.
    pub(super) fn judged_as(&self, key: Key) -> Caller {
        let pending = &self.requests[key];
        let user = || self.clients[&pending.client].standing.user.clone();
        pending.caller.clone().unwrap_or_else(user)
    }

    /// Whether the request's client may change the forwarder itself.
    pub(super) fn administers(&self, key: Key) -> bool {
        let client = &self.clients[&self.requests[key].client];
        client.standing.administers
    }
}

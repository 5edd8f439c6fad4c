//! What a mount needs to let each user of its node reach forwarders of other nodes past it.

use super::{Client, Errno};
use crate::ticket::Ticket;
use crate::wire::{Caller, GrantError, Role};
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tidegate_net::Secret;

impl Client {
    /// A line for [`Options::from_text`](crate::Options::from_text), with which processes of users
    /// who cannot read this client's secret reach the same forwarders: they take tickets from the
    /// mount at `mount`. None if this client's secret gives no tickets, or it has none and no munge
    /// vouches for its user either.
    pub fn reached_by_tickets(&self, mount: &Path) -> Option<String> {
        let options = &self.host.options;
        let point = mount.to_str().filter(|it| !it.contains([';', '\n']))?;
        let gives = match &options.secret_file {
            Some(file) => {
                let secret = Secret::read(file).ok()?;
                matches!(secret.grant().role, Role::Site | Role::Mount(_))
            }
            None => self.is_vouched(),
        };
        gives.then(|| options.to_text_by(Some(&format!("tickets={point}"))))
    }

    /// Whether munge vouches for this client's user. Then it hands its own ticket on.
    pub fn is_vouched(&self) -> bool {
        let options = &self.host.options;
        options.secret_file.is_none() && options.tickets.is_none() && options.munge.is_some()
    }

    /// The ticket that this client shows itself, for other processes of its user.
    fn own_ticket(&self, user: &Caller) -> Result<Vec<u8>, Errno> {
        let ticket = self.host.tickets.as_ref().and_then(|it| it.hand_on());
        let ticket = ticket.ok_or(Errno::KEYEXPIRED)?;
        match ticket.secret.grant().role {
            Role::User { uid, .. } if uid == user.uid => ticket.encode().ok_or(Errno::MSGSIZE),
            _ => Err(Errno::PERM),
        }
    }

    /// A ticket for a user of this node, as the answer to
    /// [`shortcut::TICKET`](crate::shortcut::TICKET): with it a process acts as that user at all
    /// forwarders, for as long as `life`. EPERM for root, and if this client's secret gives no
    /// tickets, or none to this user; E2BIG if a ticket has no room for all his groups, which long
    /// lists of limits leave less of; ENOTTY if it has none;
    /// EKEYEXPIRED if that has expired. Where munge vouches for this client's user, it is the
    /// client's own, and EPERM for any other user.
    pub fn ticket_for(&self, user: Caller, life: Duration) -> Result<Vec<u8>, Errno> {
        if self.is_vouched() {
            return self.own_ticket(&user);
        }
        let file = self.host.options.secret_file.as_ref();
        // As at each connection, so that a new secret is followed.
        let secret = Secret::read(file.ok_or(Errno::NOTTY)?).map_err(|_| Errno::ACCES)?;
        let ahead = Duration::from_nanos(self.clock_ahead_ns().unsigned_abs());
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let now = now.map_err(|_| Errno::IO)?;
        // The forwarders' clocks judge it.
        let now = match self.clock_ahead_ns() >= 0 {
            true => now.saturating_add(ahead),
            false => now.saturating_sub(ahead),
        };
        let ends = (now + life).as_secs();
        let ends = secret.grant().ends().map_or(ends, |end| end.min(ends));
        let life = Duration::from_secs(ends).saturating_sub(now);
        if life.is_zero() {
            return Err(Errno::KEYEXPIRED);
        }
        let node = rustix::system::uname();
        let node = node.nodename().to_string_lossy();
        let secret = secret.ticket(user, &node, ends);
        let secret = secret.map_err(|error| errno_of(&error))?;
        Ticket { secret, life }.encode().ok_or(Errno::MSGSIZE)
    }
}

/// What a process is told that gets no ticket.
fn errno_of(error: &GrantError) -> Errno {
    match error {
        GrantError::TooLong { .. } => Errno::TOOBIG,
        GrantError::Wrong(_) => Errno::PERM,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{Grant, Limits};

    #[test]
    fn who_gets_no_ticket_is_told_why() {
        let ids = |last: &str| {
            let ranges = (0..15_u32).map(|it| 4_000_000_000 + 3 * it);
            let ranges = ranges.map(|it| format!("{it}-{}", it + 1));
            let ranges: Vec<String> = ranges.chain([last.to_string()]).collect();
            ranges.join(",").parse().ok()
        };
        let giver = Grant {
            role: Role::Mount(Limits {
                uids: ids("4100000000"),
                gids: ids("4100000000-4200000000"),
                root_squash: None,
            }),
            name: "cn1".into(),
            expires: None,
            by: None,
        };
        let why = |uid, groups: u32| {
            let groups = (0..groups).map(|it| 4_100_000_000 + it).collect();
            let user = Caller {
                groups,
                ..Caller::alone(uid, 4_100_000_000)
            };
            giver
                .ticket(user, "", 8)
                .err()
                .map(|error| errno_of(&error))
        };
        assert_eq!(why(4_000_000_000, 150), None);
        assert_eq!(
            why(4_000_000_000, 240),
            Some(Errno::TOOBIG),
            "the lists take the room"
        );
        assert_eq!(why(4_000_000_000, 300), Some(Errno::TOOBIG));
        assert_eq!(why(7, 300), Some(Errno::PERM), "he lies outside the limits");
    }
}

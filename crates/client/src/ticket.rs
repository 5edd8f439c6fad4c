//! Tickets, by which an ordinary user's programs reach the forwarders of other nodes though only
//! root can read this node's secret: root's mount makes them, and gives each caller the caller's
//! own. No ticket lies in a file; a mount hands it to the process that asks, in the answer to a
//! device control call.

use crate::shortcut::{TICKET, TICKET_LEN, asked};
use crate::wire::TICKET_GROUPS;
use rustix::fd::OwnedFd;
use std::io;
use std::path::Path;
use std::time::Duration;
use tidegate_net::Secret;

/// First bytes of a ticket as a mount hands it out.
const MAGIC: [u8; 8] = *b"tidetkt1";
/// Bytes before its text: magic, life in ms, bytes of the text.
const HEAD: usize = 24;

/// A ticket, and how long it is good for.
pub(crate) struct Ticket {
    pub(crate) secret: Secret,
    pub(crate) life: Duration,
}

impl Ticket {
    /// The bytes of a mount's answer; None if there is no room for it.
    pub(crate) fn encode(&self) -> Option<Vec<u8>> {
        let text = self.secret.to_text();
        let mut bytes = MAGIC.to_vec();
        bytes.extend((self.life.as_millis() as u64).to_le_bytes());
        bytes.extend((text.len() as u64).to_le_bytes());
        bytes.extend(text.as_bytes());
        (bytes.len() <= TICKET_LEN).then_some(bytes)
    }

    /// Reads what [`encode`](Ticket::encode) wrote; ignores the bytes after it.
    fn decode(bytes: &[u8]) -> Option<Ticket> {
        let (head, text) = bytes.split_at_checked(HEAD)?;
        let number = |at: usize| Some(u64::from_le_bytes(*head[at..].first_chunk()?));
        if !head.starts_with(&MAGIC) {
            return None;
        }
        let text = text.get(..usize::try_from(number(16)?).ok()?)?;
        Some(Ticket {
            secret: Secret::of_text(text.trim_ascii_end()).ok()?,
            life: Duration::from_millis(number(8)?),
        })
    }

    /// Takes one from the mount at this directory, which root or this user must serve. `place`
    /// moves the descriptor that this needs for a moment.
    pub(crate) fn take(mount: &Path, place: Option<fn(OwnedFd) -> OwnedFd>) -> io::Result<Ticket> {
        let bytes = asked::<TICKET_LEN>(mount, TICKET, place);
        let bytes = bytes.map_err(|error| match error.raw_os_error() {
            Some(libc::E2BIG) => no_room(own_groups()),
            _ => error,
        })?;
        Ticket::decode(&*bytes).ok_or_else(|| io::Error::other("the mount gives no ticket"))
    }
}

/// Why a mount has no ticket for a process with so many groups: none has room for more than
/// [`TICKET_GROUPS`], and limits of the mount's secret take of that.
fn no_room(groups: usize) -> io::Error {
    let advice = "use the mount alone (--no-shortcut), or be in fewer";
    if groups > TICKET_GROUPS {
        return too_many_groups("", advice);
    }
    let uid = rustix::process::geteuid().as_raw();
    io::Error::other(format!(
        "user {uid} is in {groups} groups, and a ticket has no room for them beside the limits of \
         this node's secret: {advice}"
    ))
}

fn own_groups() -> usize {
    // The kernel keeps them anyway.
    rustix::process::getgroups().map_or(0, |groups| groups.len())
}

/// Says that this process's user is in more groups than a ticket has room for: without some of them
/// he would pass where one of his groups is kept out. `place`: where it was found, else in this
/// process. `advice`: what he can do.
pub(crate) fn too_many_groups(place: &str, advice: &str) -> io::Error {
    let uid = rustix::process::geteuid().as_raw();
    let own = own_groups();
    io::Error::other(format!(
        "user {uid} is in {own} groups{place}, and a ticket has room for {TICKET_GROUPS}: {advice}"
    ))
}

/// The ticket at the front of what a mount has answered, as a mount writes it; None if there is
/// none.
pub fn ticket_in(answer: &[u8]) -> Option<Vec<u8>> {
    Ticket::decode(answer)?.encode()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::wire::Caller;

    /// A ticket that is good for so long.
    pub(crate) fn ticket(life: Duration) -> Ticket {
        let text = b"tidegate-derived-secret 1\n\
            forwarders=AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\n\
            key=AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE=\n\
            role=mount\nname=cn1";
        let mount = Secret::of_text(text).expect("it is right");
        let user = Caller {
            groups: (0..64).map(|group| 4_000_000_000 + group).collect(),
            ..Caller::alone(1000, 100)
        };
        let secret = mount.ticket(user, "", 7).expect("it may");
        Ticket { secret, life }
    }

    #[test]
    fn a_ticket_is_read_as_it_was_handed_out_and_nothing_else_is() {
        let handed = ticket(Duration::from_millis(45_250));
        let mut bytes = handed.encode().expect("there is room");
        let len = bytes.len();
        bytes.resize(TICKET_LEN, 0);
        let read = Ticket::decode(&bytes).expect("it is whole");
        assert_eq!(read.secret.to_text(), handed.secret.to_text());
        assert_eq!(read.life, handed.life);
        for cut in 0..len - 1 {
            assert!(Ticket::decode(&bytes[..cut]).is_none(), "{cut}");
        }
        for wrong in [u64::MAX, TICKET_LEN as u64, 0] {
            bytes[16..HEAD].copy_from_slice(&wrong.to_le_bytes());
            assert!(Ticket::decode(&bytes).is_none(), "{wrong}");
        }
    }

    #[test]
    fn limits_of_the_secret_are_named_where_they_take_the_room() {
        let said = no_room(TICKET_GROUPS).to_string();
        assert!(
            said.contains("in 240 groups") && said.contains("limits"),
            "{said}"
        );
        let said = no_room(TICKET_GROUPS + 1).to_string();
        assert!(said.contains("a ticket has room for 240"), "{said}");
    }

    #[test]
    fn only_mounts_are_asked() {
        let error = Ticket::take(Path::new("/"), None).err().expect("no mount");
        assert!(error.to_string().contains("no mount of root"), "{error}");
        assert!(Ticket::take(Path::new("/nonexistent"), None).is_err());
    }
}

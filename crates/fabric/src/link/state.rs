//! What a link is at: meeting, working, over.

use super::messages::Messages;
use super::moves::Moves;
use super::{Local, Remote, Wait};
use crate::RawBytes;
use crate::domain::{Domain, Error, Registration, SHM_NAME};
use crate::endpoint::{Done, Endpoint};
use crate::greeting::{GREETING_MAX, Greeting};
use crate::provider::Provider;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use std::io::{self, IoSliceMut};
use std::os::fd::{OwnedFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

/// Completions of one look.
const DONE_MAX: usize = 256;
/// Entries of the queue of completions, and most operations of each direction.
const ENTRIES: usize = 128;
/// Between two looks at what has no descriptor, or was put off by the provider.
const LOOK: Duration = Duration::from_millis(1);
/// What is worked on though nothing says that it is stuck is looked at all the same, in case a
/// provider forgets to tell.
const CARE: Duration = Duration::from_millis(100);

enum Phase {
    /// Both greet.
    Meeting {
        ours: Vec<u8>,
        sent: usize,
        theirs: Vec<u8>,
    },
    Up,
    /// Why; empty if the peer ended it in order.
    Over(String),
}

/// See the head of the file. Fields are dropped in order: the endpoint before what it works on.
pub(super) struct State {
    /// Memory that the peer may reach; bound to the endpoint with some providers.
    offered: Vec<Registration>,
    pub(super) endpoint: Endpoint,
    kept: Vec<Box<dyn Send>>,
    phase: Phase,
    pub(super) messages: Messages,
    pub(super) moves: Moves,
    /// The socket may have something.
    pub(super) socket_due: bool,
    /// The end was read.
    told: bool,
    /// Something was begun since the peer's bell was rung.
    pub(super) begun: bool,
    /// A wait for the descriptor was allowed, and nothing was done since.
    armed: bool,
}

impl State {
    pub(super) fn new(domain: &Arc<Domain>) -> Result<State, Error> {
        let random = || {
            getrandom::u64().map_err(|error| Error::Call {
                what: "a random key",
                why: error.to_string(),
            })
        };
        let name = (domain.provider() == Provider::Shm)
            .then(|| random().map(shm_name))
            .transpose()?;
        let mut endpoint = Endpoint::open(domain, name.as_deref(), ENTRIES)?;
        let mut messages = Messages::new(domain, random()?)?;
        messages.take_in(&mut endpoint)?;
        let greeting = Greeting {
            key: messages.key,
            window: messages.window(),
            message_len: messages.message_len(),
            provider: domain.name().to_string(),
            name: endpoint.name()?,
        };
        Ok(State {
            offered: Vec::new(),
            endpoint,
            kept: Vec::new(),
            phase: Phase::Meeting {
                ours: greeting.encode(),
                sent: 0,
                theirs: Vec::new(),
            },
            messages,
            moves: Moves::default(),
            socket_due: true,
            told: false,
            begun: false,
            armed: false,
        })
    }

    pub(super) fn fd(&self) -> Option<RawFd> {
        self.endpoint.fd()
    }

    /// Takes in what has happened, and goes on with what was put off.
    pub(super) fn advance(&mut self, socket: &OwnedFd) {
        if let Phase::Meeting { .. } = self.phase
            && let Err(why) = self.meet(socket)
        {
            self.end(&why);
        }
        if let Phase::Up = self.phase {
            // A peer in this process takes its memory with it when it goes.
            self.socket_due |= self.fd().is_none();
            // What came before the end of the socket is taken in after that was seen.
            let gone = self.socket_due && !self.hear(socket);
            if gone && self.fd().is_none() {
                self.messages.send_no_more();
            }
            if let Err(error) = self.work() {
                self.end(&error.to_string());
            } else if gone {
                self.end("");
            }
            self.ring(socket);
        }
    }

    /// Over, for this reason if there is none yet.
    pub(super) fn end(&mut self, why: &str) {
        if !matches!(self.phase, Phase::Over(_)) {
            self.phase = Phase::Over(why.to_string());
            self.moves.end(why);
        }
    }

    pub(super) fn is_up(&self) -> bool {
        matches!(self.phase, Phase::Up)
    }

    fn is_over(&self) -> bool {
        matches!(self.phase, Phase::Over(_))
    }

    /// Greets, and reads the peer's greeting.
    fn meet(&mut self, socket: &OwnedFd) -> Result<(), String> {
        let Phase::Meeting { ours, sent, theirs } = &mut self.phase else {
            return Ok(());
        };
        while *sent < ours.len() {
            match send(socket, &ours[*sent..], SendFlags::NOSIGNAL) {
                Ok(count) => *sent += count,
                // NOTCONN: it is about to be.
                Err(Errno::AGAIN | Errno::NOTCONN) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.to_string()),
            }
        }
        loop {
            let len = Greeting::len(theirs)?;
            if len.is_some_and(|len| theirs.len() == len) {
                break;
            }
            let mut bytes = [0; GREETING_MAX];
            // Not a byte beyond it: the next may be a bell's.
            let due = len.unwrap_or(2) - theirs.len();
            match recv(socket, &mut bytes[..due], RecvFlags::empty()) {
                Ok((0, _)) => return Err(String::new()),
                Ok((count, _)) => theirs.extend_from_slice(&bytes[..count]),
                Err(Errno::AGAIN | Errno::NOTCONN) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.to_string()),
            }
        }
        let greeting = Greeting::decode(theirs)?;
        let own = self.endpoint.domain.name();
        if greeting.provider != own {
            return Err(format!(
                "the peer's libfabric uses {}, this one {own}; the same version is needed",
                greeting.provider
            ));
        }
        let joined = self.endpoint.join(&greeting.name);
        joined.map_err(|error| error.to_string())?;
        self.messages.met(&greeting);
        self.phase = Phase::Up;
        Ok(())
    }

    /// Takes the bells off the socket; false at its end.
    fn hear(&mut self, socket: &OwnedFd) -> bool {
        let mut bells = [0; 256];
        loop {
            match recv(socket, &mut bells, RecvFlags::empty()) {
                Ok((0, _)) => return false,
                // The end of a stream comes without another edge if it came with bytes.
                Ok(_) | Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    self.socket_due = false;
                    return true;
                }
                Err(_) => return false,
            }
        }
    }

    /// Takes completions, and begins what waits.
    fn work(&mut self) -> Result<(), Error> {
        self.armed = false;
        for _ in 0..DONE_MAX {
            let Some(Done { number, len, error }) = self.endpoint.poll()? else {
                break;
            };
            if Moves::is_own(number) {
                let failed = error.clone();
                self.moves.done(number, error);
                if let Some(why) = failed {
                    // With some providers the peer refuses everything from then on.
                    return Err(Error::Call {
                        what: "reaching for the peer's memory",
                        why,
                    });
                }
            } else {
                self.messages.done(number, len, error)?;
            }
        }
        self.begun |= self.messages.go_on(&mut self.endpoint)?;
        self.begun |= self.moves.go_on(&mut self.endpoint)?;
        // The provider shm takes nothing before the peer has looked for the first time.
        self.begun |= self.is_put_off();
        Ok(())
    }

    /// Tells the peer that there is news, where its provider does not.
    pub(super) fn ring(&mut self, socket: &OwnedFd) {
        if !std::mem::take(&mut self.begun) {
            return;
        }
        self.armed = false;
        if self.fd().is_none() && self.is_up() {
            // A full socket has enough bells in it, and a broken one says so itself.
            let _ = send(socket, &[1], SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
        }
    }

    pub(super) fn read(&mut self, into: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let count = self.messages.read(into);
        if count > 0 {
            if self.is_up()
                && let Err(error) = self.work()
            {
                self.end(&error.to_string());
            }
            return Ok(count);
        }
        self.told = self.is_over();
        match &self.phase {
            Phase::Over(why) if why.is_empty() => Ok(0),
            Phase::Over(why) => Err(io::Error::other(why.clone())),
            _ => Err(io::ErrorKind::WouldBlock.into()),
        }
    }

    pub(super) fn write(&mut self, pieces: &[RawBytes<'_>]) -> io::Result<usize> {
        match &self.phase {
            Phase::Meeting { .. } => {
                self.messages.note_full();
                return Err(io::ErrorKind::WouldBlock.into());
            }
            Phase::Over(why) if why.is_empty() => return Err(io::ErrorKind::BrokenPipe.into()),
            Phase::Over(why) => return Err(io::Error::other(why.clone())),
            Phase::Up => {}
        }
        let count = self.messages.write(pieces);
        match self.messages.go_on(&mut self.endpoint) {
            Ok(begun) => self.begun |= begun || self.messages.is_put_off(),
            Err(error) => {
                self.end(&error.to_string());
                return Err(io::Error::other(error.to_string()));
            }
        }
        match count {
            0 => Err(io::ErrorKind::WouldBlock.into()),
            count => Ok(count),
        }
    }

    pub(super) fn begin_move(
        &mut self,
        put: bool,
        local: Local,
        remote: Remote,
        number: u64,
    ) -> Result<(), Error> {
        if !self.is_up() {
            return Err(Error::Peer("the link is not up".to_string()));
        }
        if local.len as u64 > self.endpoint.domain.message_max {
            return Err(Error::Peer(
                "more bytes than the provider moves at once".to_string(),
            ));
        }
        self.moves.begin(put, local, remote, number);
        self.begun |= self.moves.go_on(&mut self.endpoint)?;
        Ok(())
    }

    pub(super) fn take_moved(&mut self) -> Option<(u64, Result<(), String>)> {
        self.moves.finished.pop_front()
    }

    /// # Safety
    /// See [`Link::offer`](super::Link::offer).
    pub(super) unsafe fn offer(
        &mut self,
        start: *mut u8,
        len: usize,
        keep: Box<dyn Send>,
    ) -> Result<Remote, Error> {
        let domain = Arc::clone(&self.endpoint.domain);
        // SAFETY: the caller's promise; what keeps the memory goes after endpoint and registration.
        let made = unsafe { Registration::new(&domain, self.endpoint.raw(), start, len, true)? };
        let remote = Remote {
            address: made.address,
            key: made.key,
        };
        self.offered.push(made);
        self.kept.push(keep);
        Ok(remote)
    }

    pub(super) fn is_delivered(&mut self) -> bool {
        if self.is_over() {
            return true;
        }
        if self.is_up() && !self.messages.is_delivered() {
            self.messages.ask();
            if let Err(error) = self.work() {
                self.end(&error.to_string());
            }
        }
        let delivered = self.is_over() || self.messages.is_delivered();
        if delivered {
            self.messages.told_news();
        }
        delivered
    }

    pub(super) fn has_room(&self) -> bool {
        self.is_up() && self.messages.has_room()
    }

    pub(super) fn wants_look(&self) -> bool {
        self.messages.is_full() || self.is_put_off() || self.has_news()
    }

    pub(super) fn has_news(&self) -> bool {
        self.has_words() || self.messages.has_news() || !self.moves.finished.is_empty()
    }

    /// Whether a read would tell something.
    fn has_words(&self) -> bool {
        self.messages.has_come() || (self.is_over() && !self.told)
    }

    /// Whether a descriptor tells of whatever comes next.
    pub(super) fn is_armed(&self, awaits: bool) -> bool {
        let tells = match self.fd() {
            Some(_) => self.armed,
            // The peer rings, unless the provider needs both ends.
            None => self.is_up() && !self.is_busy(awaits),
        };
        tells && !self.socket_due && !self.is_put_off()
    }

    /// Whether the provider would not take something.
    fn is_put_off(&self) -> bool {
        self.messages.is_put_off() || self.moves.is_put_off()
    }

    /// Whether something is under way.
    fn is_busy(&self, awaits: bool) -> bool {
        awaits || self.moves.under_way() || !self.messages.is_settled()
    }

    pub(super) fn wait(&mut self, awaits: bool, reads: bool) -> Wait {
        let moved = !self.moves.finished.is_empty();
        if moved || self.messages.has_news() || (reads && self.has_words()) {
            return Wait::Not;
        }
        if self.is_over() {
            return Wait::Any;
        }
        if !self.is_up() {
            return Wait::Any;
        }
        if self.is_put_off() {
            return Wait::AtMost(LOOK);
        }
        let busy = self.is_busy(awaits);
        if self.fd().is_none() {
            return if busy { Wait::AtMost(LOOK) } else { Wait::Any };
        }
        if !self.armed {
            if !self.endpoint.may_wait() {
                return Wait::Not;
            }
            self.armed = true;
        }
        if busy { Wait::AtMost(CARE) } else { Wait::Any }
    }
}

/// An address of an endpoint of the provider shm, which is the name of its memory in `/dev/shm`.
fn shm_name(number: u64) -> String {
    format!("fi_ns://{SHM_NAME}{}.{number:016x}", std::process::id())
}

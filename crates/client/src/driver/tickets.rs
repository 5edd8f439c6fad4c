//! Keeps a ticket at hand that is good: a thread takes the next one well before the last ends. The
//! thread does nothing else, because a mount whose forwarders are silent makes it wait.

use super::SignalGuard;
use crate::ticket::Ticket;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};
use tidegate_net::Secret;

/// Time after which to try again to take a ticket.
const RETRY: Duration = Duration::from_secs(1);
/// A forwarder counts whole seconds.
const MARGIN: Duration = Duration::from_secs(1);
/// Tickets that forwarders refuse one after another before the client gives up.
const REFUSED_MAX: u32 = 3;

/// Takes tickets from somewhere.
type Source = Box<dyn Fn() -> io::Result<Ticket> + Send + Sync>;

/// See the head of the file.
pub(crate) struct Tickets {
    source: Source,
    /// The client waits for the next ticket for as long as it takes: nobody else serves it.
    waits: bool,
    kept: Mutex<Kept>,
    /// Signalled when the thread has something to do.
    due: Condvar,
}

struct Kept {
    secret: Arc<Secret>,
    /// Number of the ticket, from 1 on.
    number: u64,
    ends: Instant,
    /// When to take the next one.
    renew: Instant,
    /// The last try to take one brought none.
    failed: bool,
    /// The number of the last ticket that was refused, and how many there were in a row.
    refused: (u64, u32),
    over: bool,
}

/// Why there is no ticket to show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoTicket {
    /// The mount has not answered yet.
    Waits,
    /// There will be none.
    Ended,
}

impl Kept {
    fn of(ticket: Ticket, number: u64, begun: Instant) -> Kept {
        Kept {
            secret: Arc::new(ticket.secret),
            number,
            ends: begun + ticket.life.saturating_sub(MARGIN),
            renew: begun + ticket.life / 3 * 2,
            failed: false,
            refused: (0, 0),
            over: false,
        }
    }
}

impl Tickets {
    /// Takes the first ticket. With `waits`, a client without a ticket waits for one; else it has
    /// come to its end.
    pub(crate) fn begin(source: Source, waits: bool) -> io::Result<Tickets> {
        let begun = Instant::now();
        let first = source()?;
        Ok(Tickets {
            source,
            waits,
            kept: Mutex::new(Kept::of(first, 1, begun)),
            due: Condvar::new(),
        })
    }

    /// Starts the thread, in which `begins` is called first.
    pub(crate) fn keep(self: &Arc<Self>, begins: Option<fn()>) -> io::Result<()> {
        let tickets = Arc::clone(self);
        let _guard = SignalGuard::begin();
        let thread = thread::Builder::new().name("tidegate-ticket".to_string());
        // It is not waited for: it may be inside a call to the mount for long.
        let started = thread.spawn(move || {
            if let Some(begins) = begins {
                begins();
            }
            tickets.run();
        });
        started.map(drop)
    }

    fn run(&self) {
        let mut kept = self.kept();
        while !kept.over {
            let begun = Instant::now();
            let left = kept.renew.saturating_duration_since(begun);
            if !left.is_zero() {
                let waited = self.due.wait_timeout(kept, left);
                kept = waited.unwrap_or_else(PoisonError::into_inner).0;
                continue;
            }
            drop(kept);
            let taken = (self.source)();
            kept = self.kept();
            match taken {
                Ok(ticket) => {
                    let (number, refused, over) = (kept.number + 1, kept.refused, kept.over);
                    *kept = Kept {
                        refused,
                        over,
                        ..Kept::of(ticket, number, begun)
                    };
                }
                Err(error) => {
                    tracing::debug!(%error, "no ticket");
                    kept.failed = true;
                    kept.renew = Instant::now() + RETRY;
                }
            }
        }
    }

    /// The ticket to show now, with its number.
    pub(crate) fn current(&self) -> Result<(Arc<Secret>, u64), NoTicket> {
        let kept = self.kept();
        match (kept.ends > Instant::now(), kept.failed) {
            (true, _) => Ok((Arc::clone(&kept.secret), kept.number)),
            (false, failed) if self.waits || !failed => Err(NoTicket::Waits),
            (false, _) => Err(NoTicket::Ended),
        }
    }

    /// The ticket to show now, for another process of the same user, if it is good for a while.
    pub(crate) fn hand_on(&self) -> Option<Ticket> {
        let kept = self.kept();
        let life = kept.ends.saturating_duration_since(Instant::now());
        let text = (!life.is_zero()).then(|| kept.secret.to_text())?;
        let secret = Secret::of_text(text.trim_ascii_end().as_bytes()).ok()?;
        Some(Ticket { secret, life })
    }

    /// A forwarder has refused the ticket of this number. The error says that no other will do.
    pub(crate) fn refused(&self, number: u64) -> Result<(), NoTicket> {
        let mut kept = self.kept();
        if number > kept.refused.0 {
            kept.refused = (number, kept.refused.1 + 1);
        }
        // Who waits for one that is taken does not ask for one after another meanwhile.
        let enough = self.waits && kept.refused.1 > REFUSED_MAX;
        if number == kept.number && !enough {
            let now = Instant::now();
            (kept.ends, kept.renew) = (now, now);
            self.due.notify_one();
        }
        match kept.refused.1 >= REFUSED_MAX && !self.waits {
            true => Err(NoTicket::Ended),
            false => Ok(()),
        }
    }

    /// A forwarder has taken one.
    pub(crate) fn taken(&self) {
        self.kept().refused.1 = 0;
    }

    /// Ends the thread.
    pub(crate) fn end(&self) {
        self.kept().over = true;
        self.due.notify_one();
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        // Nothing in here is left half done.
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests;

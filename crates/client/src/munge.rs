//! Tickets by munge, for a client whose user has no secret and whose node has no mount of root's:
//! munged of this node vouches for the user, and a forwarder gives a ticket for that.

use crate::signals::SignalGuard;
use crate::ticket::{Ticket, too_many_groups};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::path::PathBuf;
use std::sync::mpsc::sync_channel;
use std::thread;
use std::time::{Duration, Instant};
use tidegate_net::{Address, Asking, Carried, Greeting, HandshakeError, Place, Refusal, munge};

/// How long a forwarder's node may take to take a connection.
const CONNECT_MAX: Duration = Duration::from_secs(1);
/// How long munged may take; the library itself tries for longer.
const MUNGED_MAX: Duration = Duration::from_secs(5);
/// How long a forwarder may take to answer. It asks its own munged.
const ANSWER_MAX: Duration = Duration::from_secs(10);

/// The least pause before asking again where no forwarder can answer, and the most. All ranks of a
/// job may ask at once, so each chooses its pauses at random.
const PAUSE: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(2);
/// The longest time for which they are asked again.
const LIMIT_MAX: Duration = Duration::from_secs(86_400);
/// The least time for which they are asked again where one has had no time. A forwarder may take
/// half of it to say so.
const BUSY_MIN: Duration = Duration::from_secs(10);

/// The error of a forwarder that has no time: of all that a forwarder says, only this passes by
/// itself.
const BUSY: ErrorKind = ErrorKind::ResourceBusy;

/// How a client has munge vouch for its user.
#[derive(Clone, Debug)]
pub struct Munge {
    /// The user as whom the forwarders run, who alone can read what this one's munged makes.
    forwarders: u32,
    /// munged's socket; None: the usual one.
    socket: Option<PathBuf>,
    /// A value and no call, so that only programs that make one carry what it needs: the short-cut
    /// is loaded into every process, and gets its tickets from a mount.
    ask: fn(&Munge, &[Address], Duration) -> io::Result<Ticket>,
}

impl Munge {
    /// For forwarders that run as the user `forwarders`, which is 0 for those of root. `socket` is
    /// that of this node's munged; None: the one that MUNGE's library knows.
    pub fn new(forwarders: u32, socket: Option<PathBuf>) -> Munge {
        Munge {
            forwarders,
            socket,
            ask,
        }
    }

    /// Gets a ticket of one of the forwarders at these addresses. Waits for some seconds for each
    /// of them, at most; tries again for as long as `limit` where none answers, and for 10 s at
    /// least where one has no time.
    pub(crate) fn ticket(&self, addresses: &[Address], limit: Duration) -> io::Result<Ticket> {
        (self.ask)(self, addresses, limit)
    }

    /// A credential that carries this.
    fn credential(&self, carried: Vec<u8>) -> io::Result<String> {
        let (sender, receiver) = sync_channel(1);
        let (forwarders, socket) = (self.forwarders, self.socket.clone());
        let make = move || {
            let library = munge::Munge::load();
            let made = library.and_then(|it| it.encode(socket.as_deref(), forwarders, &carried));
            // Nobody waits any more where it took too long.
            let _ = sender.send(made);
        };
        let guard = SignalGuard::begin();
        let thread = thread::Builder::new().name("tidegate-munge".to_string());
        thread.spawn(make)?;
        drop(guard);
        match receiver.recv_timeout(MUNGED_MAX) {
            Ok(made) => made.map_err(io::Error::other),
            Err(_) => Err(io::Error::other("munged of this node does not answer")),
        }
    }
}

/// Asks them again and again while none answers, or those that do have no time.
fn ask(munge: &Munge, addresses: &[Address], limit: Duration) -> io::Result<Ticket> {
    let began = Instant::now();
    let mut pauses = Pauses(PAUSE);
    persist(
        || ask_each(addresses, |host_port| ask_at(munge, host_port)),
        |error| {
            let pause = pauses.next();
            let is_time = began.elapsed() + pause < patience(limit, error);
            if is_time {
                thread::sleep(pause);
            }
            is_time
        },
    )
}

/// For how long they are asked who have ended the last attempt so.
fn patience(limit: Duration, error: &io::Error) -> Duration {
    let limit = limit.min(LIMIT_MAX);
    match error.kind() {
        BUSY => limit.max(BUSY_MIN),
        _ => limit,
    }
}

/// Tries again as long as it may pass by itself, and `pause` says that there is time.
fn persist<T>(
    mut attempt: impl FnMut() -> io::Result<T>,
    mut pause: impl FnMut(&io::Error) -> bool,
) -> io::Result<T> {
    loop {
        match attempt() {
            // What else a forwarder or munged has said is no error of the system's.
            Err(error) if error.kind() != ErrorKind::Other && pause(&error) => {}
            tried => return tried,
        }
    }
}

/// Pauses that grow to their double, each between a half and the whole of that.
struct Pauses(Duration);

impl Pauses {
    fn next(&mut self) -> Duration {
        let most = self.0;
        self.0 = (2 * most).min(PAUSE_MAX);
        // Without random numbers all clients pause for the least time.
        let drawn = getrandom::u32().unwrap_or_default();
        most / 2 + (most / 2).mul_f64(f64::from(drawn) / f64::from(u32::MAX))
    }
}

/// What was heard at an address without getting a ticket. The later ones say more.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Heard {
    /// Nobody is there.
    Nothing,
    /// There will be no ticket.
    No,
    /// There may be one later.
    Busy,
}

/// Asks one after another until one gives a ticket. The error is that of a forwarder that has no
/// time, if there is one: it may give a ticket later. Else it is that of one that has answered.
fn ask_each<T>(
    addresses: &[Address],
    mut ask: impl FnMut(&str) -> Result<T, (Heard, io::Error)>,
) -> io::Result<T> {
    let mut failed: Option<(Heard, io::Error)> = None;
    for address in addresses.iter().filter(|it| it.provider.is_none()) {
        let Place::Tcp(host_port) = &address.place else {
            continue;
        };
        let (heard, error) = match ask(host_port) {
            Ok(ticket) => return Ok(ticket),
            Err(error) => error,
        };
        if failed.as_ref().is_none_or(|(before, _)| heard > *before) {
            failed = Some((heard, about(address, &error)));
        }
    }
    Err(failed.map_or_else(
        || {
            io::Error::other(
                "only forwarders at addresses of TCP (tcp:HOST:PORT) take credentials of munge",
            )
        },
        |(_, error)| error,
    ))
}

fn ask_at(munge: &Munge, host_port: &str) -> Result<Ticket, (Heard, io::Error)> {
    let stream = connect(host_port).map_err(|error| (Heard::Nothing, error))?;
    ask_one(munge, stream).map_err(|error| match error.kind() {
        BUSY => (Heard::Busy, error),
        _ => (Heard::No, error),
    })
}

fn about(address: &Address, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{address}: {error}"))
}

fn connect(host_port: &str) -> io::Result<TcpStream> {
    let mut failed = io::Error::from(ErrorKind::AddrNotAvailable);
    for address in host_port.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, CONNECT_MAX) {
            Ok(stream) => return Ok(stream),
            Err(error) => failed = error,
        }
    }
    Err(failed)
}

fn ask_one(munge: &Munge, mut stream: TcpStream) -> io::Result<Ticket> {
    let carried = Carried::new(stream.peer_addr()?)?;
    let credential = munge.credential(carried.to_bytes())?;
    let (asking, greeting) = Asking::begin(&credential, &carried)
        .ok_or_else(|| io::Error::other("munged makes credentials that no forwarder takes"))?;
    stream.set_write_timeout(Some(ANSWER_MAX))?;
    stream.write_all(&greeting.to_bytes())?;
    let until = Instant::now() + ANSWER_MAX;
    let answer = Greeting::read(&mut Until { stream, until }).map_err(|error| {
        let silent = matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut);
        match silent {
            true => io::Error::other("it does not answer; does its munged?"),
            false => error,
        }
    })?;
    match asking.finish(&answer) {
        Ok((secret, life)) => Ok(Ticket { secret, life }),
        Err(error) => Err(not_given(error)),
    }
}

/// Why a forwarder has given no ticket.
fn not_given(error: HandshakeError) -> io::Error {
    match error {
        HandshakeError::Refused(Refusal::Busy) => io::Error::new(BUSY, error.to_string()),
        HandshakeError::Refused(Refusal::Groups) => too_many_groups(
            " here, in too many on the forwarder's node",
            "be in fewer there, or use a mount of root's on this node",
        ),
        HandshakeError::Refused(_) => io::Error::other(error),
        _ => io::Error::other("it could not read the credential of munge"),
    }
}

/// A stream from which is read until a time.
struct Until {
    stream: TcpStream,
    until: Instant,
}

impl Read for Until {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ErrorKind::TimedOut.into());
        }
        self.stream.set_read_timeout(Some(left))?;
        self.stream.read(into)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    fn munge() -> Munge {
        Munge::new(0, Some("/nonexistent/munged".into()))
    }

    fn said(addresses: &[Address]) -> String {
        let error = munge()
            .ticket(addresses, Duration::ZERO)
            .err()
            .expect("no ticket");
        error.to_string()
    }

    fn refused(refusal: Refusal) -> io::Error {
        not_given(HandshakeError::Refused(refusal))
    }

    #[test]
    fn a_forwarder_without_time_is_asked_again() {
        let busy = || refused(Refusal::Busy);
        let answers = [
            Err(busy()),
            Err(io::ErrorKind::ConnectionRefused.into()),
            Ok(7),
        ];
        let mut answers = answers.into_iter();
        let mut pauses = 0;
        let asked = persist(
            || answers.next().expect("no more"),
            |_| {
                pauses += 1;
                true
            },
        );
        assert_eq!((asked.expect("it has time at last"), pauses), (7, 2));
        let asked = persist(|| Err::<(), _>(busy()), |_| false);
        let said = asked.expect_err("no ticket").to_string();
        assert!(said.contains("too many ask it"), "{said}");
    }

    #[test]
    fn what_does_not_pass_ends_the_asking() {
        for (refusal, why) in [
            (Refusal::Munged, "its munged does not answer"),
            (Refusal::Database, "start it again"),
            (Refusal::NoTicket, "its log says why"),
            (Refusal::Stranger, "does not know this user"),
            (Refusal::Groups, "too many on the forwarder's node"),
        ] {
            let asked = persist(
                || Err::<(), _>(refused(refusal)),
                |_| panic!("it will not change its mind"),
            );
            let said = asked.expect_err("no ticket").to_string();
            assert!(said.contains(why), "{said}");
        }
    }

    #[test]
    fn who_has_no_time_is_asked_for_longer_than_that_takes_to_hear() {
        let seconds = Duration::from_secs;
        let away = io::Error::from(ErrorKind::ConnectionRefused);
        let busy = refused(Refusal::Busy);
        for (limit, while_away, while_busy) in [(0, 0, 10), (3, 3, 10), (60, 60, 60)] {
            assert_eq!(patience(seconds(limit), &away), seconds(while_away));
            assert_eq!(patience(seconds(limit), &busy), seconds(while_busy));
        }
        assert_eq!(patience(Duration::MAX, &busy), LIMIT_MAX);
    }

    #[test]
    fn who_gives_a_ticket_later_is_heard_before_those_who_give_none() {
        let addresses = ["a:1", "b:1", "c:1"].map(|at| Address::tcp(at.to_string()));
        let answers = [
            (Heard::Nothing, ErrorKind::ConnectionRefused.into()),
            (Heard::No, refused(Refusal::NoMunge)),
            (Heard::Busy, refused(Refusal::Busy)),
        ];
        for order in [[0, 1, 2], [2, 1, 0], [1, 2, 0]] {
            let mut next = order.into_iter();
            let asked = ask_each(&addresses, |_| {
                let (heard, error): &(Heard, io::Error) = &answers[next.next().expect("three")];
                Err::<(), _>((*heard, io::Error::new(error.kind(), error.to_string())))
            });
            let error = asked.expect_err("no ticket");
            assert_eq!(error.kind(), BUSY, "{order:?}: {error}");
        }
    }

    #[test]
    fn pauses_grow_and_differ() {
        let drawn = |_| {
            let mut pauses = Pauses(PAUSE);
            (0..8).map(|_| pauses.next()).collect::<Vec<_>>()
        };
        let all: Vec<Vec<Duration>> = (0..4).map(drawn).collect();
        for pauses in &all {
            let mut most = PAUSE;
            for pause in pauses {
                assert!((most / 2..=most).contains(pause), "{pauses:?}");
                most = (2 * most).min(PAUSE_MAX);
            }
        }
        assert_ne!(all[0], all[1]);
    }

    #[test]
    fn why_there_is_no_ticket_is_said() {
        let unix = Address::unix("/run/a.sock");
        assert!(said(&[]).contains("at addresses of TCP"));
        assert!(said(std::slice::from_ref(&unix)).contains("at addresses of TCP"));
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let at = listener.local_addr().expect("it has one");
        drop(listener);
        let nobody = Address::tcp(at.to_string());
        let heard = said(&[unix.clone(), nobody.clone()]);
        assert!(
            heard.starts_with(&format!("tcp:{at}: ")) && heard.contains("refused"),
            "{heard}"
        );
        // One that is there says more than one that is not.
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let here = listener.local_addr().expect("it has one");
        for list in [
            [Address::tcp(here.to_string()), nobody.clone()],
            [nobody, Address::tcp(here.to_string())],
        ] {
            let heard = said(&list);
            assert!(heard.starts_with(&format!("tcp:{here}: ")), "{heard}");
            assert!(heard.contains("munge"), "{heard}");
        }
    }
}

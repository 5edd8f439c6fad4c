//! As much of HTTP/1.1 as takes to answer who asks for a page: GET and HEAD, one request a
//! connection. Whoever sends slowly or much, or takes nothing, ends at a bound.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Connections that are answered at once.
const AT_ONCE_MAX: usize = 16;

/// How long a request may take to arrive, and how long its answer may take to leave.
const PATIENCE: Duration = Duration::from_secs(5);

/// How long the rest of what is sent is taken after the answer.
const REST: Duration = Duration::from_secs(1);

/// Bytes of a request, up to its empty line.
const REQUEST_MAX: usize = 8 << 10;

/// Lines of a request.
const HEADERS_MAX: usize = 64;

/// Pause after the system had no room for a connection or a thread.
const AGAIN: Duration = Duration::from_millis(100);

/// An answer.
pub struct Answer {
    status: u16,
    kind: &'static str,
    body: String,
}

impl Answer {
    /// Words for people.
    pub fn text(status: u16, body: &str) -> Answer {
        Answer {
            status,
            kind: "text/plain; charset=utf-8",
            body: body.to_string(),
        }
    }

    /// A page of OpenMetrics.
    pub fn open_metrics(body: String) -> Answer {
        Answer {
            status: 200,
            kind: "application/openmetrics-text; version=1.0.0; charset=utf-8",
            body,
        }
    }

    /// The bytes that are sent; without the body for HEAD.
    fn bytes(&self, with_body: bool) -> Vec<u8> {
        let reason = match self.status {
            200 => "OK",
            400 => "Bad Request",
            403 => "Forbidden",
            404 => "Not Found",
            405 => "Method Not Allowed",
            408 => "Request Timeout",
            431 => "Request Header Fields Too Large",
            _ => "Service Unavailable",
        };
        let allow = if self.status == 405 {
            "Allow: GET, HEAD\r\n"
        } else {
            ""
        };
        let head = format!(
            "HTTP/1.1 {} {reason}\r\nContent-Type: {}\r\nContent-Length: {}\r\n{allow}\
             Cache-Control: no-store\r\nConnection: close\r\n\r\n",
            self.status,
            self.kind,
            self.body.len()
        );
        let mut bytes = head.into_bytes();
        if with_body {
            bytes.extend_from_slice(self.body.as_bytes());
        }
        bytes
    }
}

/// Answers each connection in a thread of its own, a bounded number at once, as long as the process
/// lives. Where there are so many, the one that has kept its request back for longest ends.
pub fn serve<F>(listener: &TcpListener, answer: &Arc<F>)
where
    F: Fn(&str) -> Answer + Send + Sync + 'static,
{
    let is_local = listener.local_addr().is_ok_and(|it| it.ip().is_loopback());
    let places = Arc::new(Places::default());
    loop {
        let Ok((stream, _)) = listener.accept() else {
            // None has come, or there is no descriptor for it.
            thread::sleep(AGAIN);
            continue;
        };
        let Some(place) = places.take(&stream) else {
            continue;
        };
        let answer = Arc::clone(answer);
        let spawned = thread::Builder::new().spawn(move || {
            // Who has gone away needs no answer.
            let _ = converse(stream, is_local, &place, &*answer);
        });
        if spawned.is_err() {
            thread::sleep(AGAIN);
        }
    }
}

/// The connections that are answered at once.
#[derive(Default)]
struct Places {
    inner: Mutex<Taken>,
    left: Condvar,
}

#[derive(Default)]
struct Taken {
    count: usize,
    number: u64,
    /// Those whose request is not there yet, the oldest first.
    asking: VecDeque<(u64, TcpStream)>,
}

/// One of them.
struct Place {
    number: u64,
    places: Arc<Places>,
}

impl Places {
    fn taken(&self) -> MutexGuard<'_, Taken> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place for a connection; None if all others are being answered, for as long as that may
    /// take.
    fn take(self: &Arc<Places>, stream: &TcpStream) -> Option<Place> {
        let stream = stream.try_clone().ok()?;
        let mut taken = self.taken();
        if taken.count >= AT_ONCE_MAX {
            if let Some((_, oldest)) = taken.asking.pop_front() {
                // Its thread sees that it has ended.
                let _ = oldest.shutdown(Shutdown::Both);
            }
            let full = |taken: &mut Taken| taken.count >= AT_ONCE_MAX;
            let waited = self.left.wait_timeout_while(taken, PATIENCE, full);
            taken = waited.unwrap_or_else(PoisonError::into_inner).0;
            if taken.count >= AT_ONCE_MAX {
                return None;
            }
        }
        taken.count += 1;
        taken.number += 1;
        let number = taken.number;
        taken.asking.push_back((number, stream));
        Some(Place {
            number,
            places: Arc::clone(self),
        })
    }
}

impl Place {
    /// The request is there.
    fn has_asked(&self) {
        let mut taken = self.places.taken();
        taken.asking.retain(|(number, _)| *number != self.number);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.has_asked();
        self.places.taken().count -= 1;
        self.places.left.notify_all();
    }
}

fn converse(
    mut stream: TcpStream,
    is_local: bool,
    place: &Place,
    answer: &impl Fn(&str) -> Answer,
) -> io::Result<()> {
    let request = request(&mut stream);
    place.has_asked();
    let (answer, with_body) = match request? {
        // A page of the web that a browser of this node shows must not read this one under a name
        // of its own.
        Ok(asked) if is_local && !asked.is_for_this_node() => (
            Answer::text(403, "ask for localhost, or for an address\n"),
            true,
        ),
        Ok(asked) if ["GET", "HEAD"].contains(&asked.method.as_str()) => {
            (answer(&asked.path), asked.method == "GET")
        }
        Ok(_) => (Answer::text(405, "only GET and HEAD are answered\n"), true),
        Err(refusal) => (refusal, true),
    };
    send(&mut stream, &answer.bytes(with_body))?;
    hear_out(&mut stream)
}

/// Sends all of it within [`PATIENCE`].
fn send(stream: &mut TcpStream, mut bytes: &[u8]) -> io::Result<()> {
    let until = Instant::now() + PATIENCE;
    while !bytes.is_empty() {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_write_timeout(Some(left))?;
        match stream.write(bytes) {
            Ok(sent) => bytes = &bytes[sent..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Takes what else is sent, for a moment: a connection that ends with bytes unread takes its answer
/// from the reader.
fn hear_out(stream: &mut TcpStream) -> io::Result<()> {
    stream.shutdown(Shutdown::Write)?;
    let until = Instant::now() + REST;
    let mut piece = [0; 1024];
    let mut left = REQUEST_MAX;
    while left > 0 {
        let wait = until.saturating_duration_since(Instant::now());
        if wait.is_zero() {
            break;
        }
        stream.set_read_timeout(Some(wait))?;
        match stream.read(&mut piece)? {
            0 => break,
            read => left = left.saturating_sub(read),
        }
    }
    Ok(())
}

/// What is asked for.
#[derive(Debug, PartialEq, Eq)]
struct Asked {
    method: String,
    path: String,
    /// The name under which this program was asked, without the port; empty if it is not said.
    host: String,
}

impl Asked {
    /// Whether it is asked by an address, or by the name that every node has for itself.
    fn is_for_this_node(&self) -> bool {
        let host = self.host.trim_start_matches('[').trim_end_matches(']');
        host.is_empty() || host == "localhost" || host.parse::<IpAddr>().is_ok()
    }
}

/// Reads a request; its refusal if it is none. An error if the connection ends.
fn request(stream: &mut TcpStream) -> io::Result<Result<Asked, Answer>> {
    let until = Instant::now() + PATIENCE;
    let mut bytes = Vec::new();
    let mut piece = [0; 1024];
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(Err(Answer::text(
                408,
                "the request did not arrive in time\n",
            )));
        }
        stream.set_read_timeout(Some(left))?;
        let read = match stream.read(&mut piece) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            // The time is over: the next turn says so.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
            Err(error) => return Err(error),
        };
        bytes.extend_from_slice(&piece[..read]);
        match parse(&bytes) {
            Ok(None) if bytes.len() >= REQUEST_MAX => {
                return Ok(Err(Answer::text(431, "the request is too long\n")));
            }
            Ok(None) => {}
            Ok(Some(asked)) => return Ok(Ok(asked)),
            Err(refusal) => return Ok(Err(refusal)),
        }
    }
}

/// What is asked for, once the whole request is there.
fn parse(bytes: &[u8]) -> Result<Option<Asked>, Answer> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut request = httparse::Request::new(&mut headers);
    match request.parse(bytes) {
        Ok(httparse::Status::Partial) => Ok(None),
        Ok(httparse::Status::Complete(_)) => {
            let target = request.path.unwrap_or_default();
            let path = target.split_once('?').map_or(target, |(path, _)| path);
            let mut headers = request.headers.iter();
            let host = headers.find(|header| header.name.eq_ignore_ascii_case("host"));
            let host = host.map_or("", |host| std::str::from_utf8(host.value).unwrap_or("?"));
            let is_port = |port: &str| port.bytes().all(|byte| byte.is_ascii_digit());
            let name = host.rsplit_once(':').filter(|(_, port)| is_port(port));
            Ok(Some(Asked {
                method: request.method.unwrap_or_default().to_string(),
                path: path.to_string(),
                host: name.map_or(host, |(name, _)| name).to_string(),
            }))
        }
        Err(httparse::Error::TooManyHeaders) => {
            Err(Answer::text(431, "the request has too many lines\n"))
        }
        Err(error) => Err(Answer::text(400, &format!("no request of HTTP: {error}\n"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_read_when_it_is_whole() {
        let text = b"GET /metrics?x=1 HTTP/1.1\r\nHost: a\r\nAccept: text/plain\r\n\r\n";
        for end in 0..text.len() {
            assert_eq!(parse(&text[..end]).ok(), Some(None), "{end}");
        }
        let asked = Asked {
            method: "GET".to_string(),
            path: "/metrics".to_string(),
            host: "a".to_string(),
        };
        assert_eq!(parse(text).ok(), Some(Some(asked)));
    }

    #[test]
    fn names_of_others_are_not_this_node() {
        let is_ours = |host: &str| {
            let text = format!("GET / HTTP/1.1\r\nhost: {host}\r\n\r\n");
            let asked = parse(text.as_bytes())
                .ok()
                .flatten()
                .expect("it is a request");
            asked.is_for_this_node()
        };
        for host in [
            "127.0.0.1:9469",
            "127.0.0.1",
            "localhost:9469",
            "[::1]:9469",
            "[::1]",
            "",
        ] {
            assert!(is_ours(host), "{host}");
        }
        for host in [
            "evil.example:9469",
            "evil.example",
            "localhost.evil.example",
            "\u{e9}",
        ] {
            assert!(!is_ours(host), "{host}");
        }
    }

    #[test]
    fn what_is_no_request_is_refused() {
        let status = |text: &[u8]| parse(text).err().map(|answer| answer.status);
        assert_eq!(status(b"\x16\x03\x01\x02\x00"), Some(400));
        let many = format!(
            "GET / HTTP/1.1\r\n{}\r\n",
            "A: b\r\n".repeat(HEADERS_MAX + 1)
        );
        assert_eq!(status(many.as_bytes()), Some(431));
    }

    #[test]
    fn who_asks_for_the_head_gets_no_body() {
        let answer = Answer::text(405, "no\n");
        let head = String::from_utf8(answer.bytes(false)).expect("it is text");
        assert!(
            head.starts_with("HTTP/1.1 405 Method Not Allowed\r\n"),
            "{head}"
        );
        assert!(
            head.contains("Content-Length: 3\r\nAllow: GET, HEAD\r\n"),
            "{head}"
        );
        assert!(head.ends_with("\r\n\r\n"), "{head}");
        assert!(answer.bytes(true).ends_with(b"\r\n\r\nno\n"));
    }
}

//! How a client without a secret gets a ticket of its user's: it shows a forwarder a credential in
//! which the munged of its node vouches for its user, and the forwarder gives a ticket.
//!
//! The credential carries a random key, which only the forwarder's user can have munged take out,
//! and the address of the forwarder that it is for. With that key both ends do the handshake
//! `NNpsk0`, whose second message is the ticket. So who has seen the credential, and whoever passes
//! it on to another forwarder, gets nothing for it.

use super::{ASKS_TICKET, GIVES_TICKET, Greeting, HandshakeError, MAGIC, Refusal, VERSION};
use super::{GREETING_HEAD, GREETING_MAX};
use crate::secret::{KEY_LEN, Key, Secret};
use ring::rand::{SecureRandom, SystemRandom};
use snow::{Builder, HandshakeState};
use std::io::{self, Read};
use std::net::SocketAddr;
use std::time::Duration;

/// The handshake's name.
const PATTERN: &str = "Noise_NNpsk0_25519_AESGCM_SHA256";
/// What a credential for a forwarder carries begins with it.
const LABEL: &[u8] = b"tidegate munge 1\0";
/// What every credential begins with.
const CREDENTIAL: &[u8] = b"MUNGE:";
/// Longest credential, bytes.
const CREDENTIAL_MAX: usize = 2048;
/// Bytes of the handshake's first message: a key, and the tag of an empty text.
const FIRST_LEN: usize = KEY_LEN + 16;
/// Bytes that the second message has beside its text: a key, and a tag.
const SECOND_MORE: usize = KEY_LEN + 16;
/// Bytes of a ticket's life, which is before its text.
const LIFE_LEN: usize = 8;

/// What a credential for a forwarder carries.
#[derive(Clone, PartialEq, Eq)]
pub struct Carried {
    key: Key,
    /// The forwarder's address.
    to: SocketAddr,
}

impl Carried {
    /// A new key, for the forwarder at this address. Fails if the system has no random bytes.
    pub fn new(to: SocketAddr) -> io::Result<Carried> {
        let mut key = Key::default();
        let filled = SystemRandom::new().fill(&mut key);
        filled.map_err(|_| io::Error::other("the system has no random bytes"))?;
        Ok(Carried { key, to: plain(to) })
    }

    /// What the credential has to carry.
    pub fn to_bytes(&self) -> Vec<u8> {
        [LABEL, &self.key, self.to.to_string().as_bytes()].concat()
    }

    /// Reads what a credential carries; None if it was not made for a forwarder.
    pub fn of_bytes(bytes: &[u8]) -> Option<Carried> {
        let (key, to) = bytes.strip_prefix(LABEL)?.split_first_chunk()?;
        let to = str::from_utf8(to).ok()?.parse().ok()?;
        Some(Carried { key: *key, to })
    }

    /// Whether it is for the forwarder that the client reaches at this address.
    pub fn is_for(&self, address: SocketAddr) -> bool {
        self.to == plain(address)
    }
}

/// An address as both ends of a connection know it: one of IPv4 as such, and none with the zone or
/// flow of one end.
fn plain(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// A client that has shown a credential and waits for its ticket.
pub struct Asking(HandshakeState);

impl Asking {
    /// Begins: the greeting is to be sent first. `carried` is what the credential carries. None if
    /// the credential is none, or longer than forwarders take.
    pub fn begin(credential: &str, carried: &Carried) -> Option<(Asking, Greeting)> {
        is_credential(credential.as_bytes()).then_some(())?;
        let prologue = prologue_of(credential.as_bytes());
        let builder = noise(&prologue, &carried.key);
        let state = builder.and_then(Builder::build_initiator);
        let mut state = state.expect("pattern and key fit together");
        let mut first = [0; FIRST_LEN];
        let wrote = state.write_message(&[], &mut first);
        assert_eq!(wrote, Ok(FIRST_LEN), "the first message of the pattern");
        let greeting = Greeting {
            kind: ASKS_TICKET,
            version: VERSION,
            content: [credential.as_bytes(), &first].concat(),
        };
        Some((Asking(state), greeting))
    }

    /// Takes the forwarder's answer: the ticket, and how long it is good.
    pub fn finish(mut self, answer: &Greeting) -> Result<(Secret, Duration), HandshakeError> {
        if let Some(refusal) = answer.refused() {
            return Err(HandshakeError::Refused(refusal));
        }
        if (answer.version, answer.kind) != (VERSION, GIVES_TICKET) {
            return Err(HandshakeError::Unproved);
        }
        let mut given = vec![0; answer.content.len()];
        let read = self.0.read_message(&answer.content, &mut given);
        let read = read.map_err(|_| HandshakeError::Unproved)?;
        let (life, text) = given[..read]
            .split_first_chunk::<LIFE_LEN>()
            .ok_or(HandshakeError::Unproved)?;
        let ticket = Secret::of_text(text).map_err(|_| HandshakeError::Unproved)?;
        Ok((ticket, Duration::from_millis(u64::from_le_bytes(*life))))
    }
}

impl Greeting {
    /// The credential in it, if it asks for a ticket.
    pub fn credential(&self) -> Option<&str> {
        if (self.version, self.kind) != (VERSION, ASKS_TICKET) {
            return None;
        }
        let (credential, _) = self.content.split_last_chunk::<FIRST_LEN>()?;
        is_credential(credential).then_some(())?;
        str::from_utf8(credential).ok()
    }

    /// Reads the greeting that comes first from a stream, and nothing behind it.
    pub fn read(stream: &mut impl Read) -> io::Result<Greeting> {
        let mut bytes = vec![0; GREETING_HEAD];
        stream.read_exact(&mut bytes)?;
        let len = usize::from(u16::from_le_bytes([bytes[6], bytes[7]]));
        if !bytes.starts_with(&MAGIC) || len > GREETING_MAX {
            return Err(io::Error::other("it is no forwarder"));
        }
        bytes.resize(GREETING_HEAD + len, 0);
        stream.read_exact(&mut bytes[GREETING_HEAD..])?;
        Ok(Greeting::of_bytes(&bytes))
    }
}

/// Answers a greeting that asks for a ticket. `carried` is what its credential carries, and `life`
/// how long the ticket is good.
pub fn give_ticket(
    greeting: &Greeting,
    carried: &Carried,
    ticket: &Secret,
    life: Duration,
) -> Result<Greeting, Refusal> {
    let split = greeting.content.split_last_chunk::<FIRST_LEN>();
    let (credential, first) = split.ok_or(Refusal::Version)?;
    let prologue = prologue_of(credential);
    let builder = noise(&prologue, &carried.key);
    let state = builder.and_then(Builder::build_responder);
    let mut state = state.expect("pattern and key fit together");
    let read = state.read_message(first, &mut []);
    read.map_err(|_| Refusal::Credential)?;
    let life = u64::try_from(life.as_millis()).unwrap_or(u64::MAX);
    let given = [
        &life.to_le_bytes(),
        ticket.to_text().trim_ascii_end().as_bytes(),
    ]
    .concat();
    let mut content = vec![0; given.len() + SECOND_MORE];
    if content.len() > GREETING_MAX {
        return Err(Refusal::Groups);
    }
    let wrote = state.write_message(&given, &mut content);
    assert_eq!(
        wrote,
        Ok(content.len()),
        "the second message of the pattern"
    );
    Ok(Greeting {
        kind: GIVES_TICKET,
        version: VERSION,
        content,
    })
}

/// Whether this can be a credential: they are text without spaces.
fn is_credential(text: &[u8]) -> bool {
    text.len() <= CREDENTIAL_MAX
        && text.starts_with(CREDENTIAL)
        && text.iter().all(u8::is_ascii_graphic)
}

/// What both ends know of the first message's own words.
fn prologue_of(credential: &[u8]) -> Vec<u8> {
    [&MAGIC[..], &[VERSION, ASKS_TICKET], credential].concat()
}

fn noise<'a>(prologue: &'a [u8], key: &'a Key) -> Result<Builder<'a>, snow::Error> {
    Builder::new(PATTERN.parse()?)
        .psk(0, key)?
        .prologue(prologue)
}

#[cfg(test)]
mod tests;

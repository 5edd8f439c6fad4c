//! How two ends of a connection between nodes prove to each other who they are, and agree on the
//! keys of a [`Channel`].
//!
//! The client sends a greeting, the forwarder answers with one, and the channel is there: the
//! handshake `NKpsk0` of the Noise protocol framework. The client knows the forwarders' public key
//! and proves its grant by the grant's key; nobody who lacks the site's secret can answer. What
//! both ends say about the channel (its version, grant, how frames are protected) is
//! part of what they prove, so nobody between them can change it.
//!
//! A client that has no secret may get a ticket before, in a connection of its own (`asking`).

mod asking;

pub use asking::{Asking, Carried, give_ticket};

use crate::channel::{Channel, Encryption};
use crate::secret::{KEY_LEN, Key, Secret, SiteId, SiteSecret};
use ring::hmac;
use snow::{Builder, HandshakeState};
use tidegate_wire::frame::FrameError;
use tidegate_wire::{GRANT_MAX, Grant};

/// The handshake's name.
const PATTERN: &str = "Noise_NKpsk0_25519_AESGCM_SHA256";
/// The first bytes of a greeting.
const MAGIC: [u8; 4] = *b"TGC1";
/// The version of greetings and channels that this code speaks.
const VERSION: u8 = 1;
/// Bytes before what a greeting carries: magic, version, kind, length.
const GREETING_HEAD: usize = 8;
/// Most bytes that a greeting carries.
const GREETING_MAX: usize = GRANT_MAX + 256;

/// Kinds of greetings.
const ASKS: u8 = 1;
const ANSWERS: u8 = 2;
const REFUSES: u8 = 3;
const CONFIRMS: u8 = 4;
const ASKS_TICKET: u8 = 5;
const GIVES_TICKET: u8 = 6;

/// What a client that goes on without a channel confirms.
const CONFIRMED: &[u8] = b"tidegate confirms 1";

/// Bytes of the handshake's first message: a key, and the tag of an empty text.
const FIRST_LEN: usize = KEY_LEN + 16;
/// Bytes of its second one: a key, and the way of encryption with its tag.
const SECOND_LEN: usize = KEY_LEN + 1 + 16;
/// What one end sends to begin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Greeting {
    kind: u8,
    version: u8,
    content: Vec<u8>,
}

/// Why a forwarder does not take a client, as the client is told. Nothing proves that the forwarder
/// has said it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The client has greeted with no secret.
    #[error("it asks for the shared secret; name a file that holds it (secret_file)")]
    Missing,
    /// The client's secret is not of this site, or is damaged.
    #[error("wrong secret")]
    Secret,
    /// The client's secret has expired.
    #[error("the secret has expired")]
    Expired,
    /// The client's secret, or that of the mount which gave its ticket, was taken back.
    #[error("the secret was revoked")]
    Revoked,
    /// The forwarder has no secret, so it cannot prove who it is.
    #[error("it has no secret (insecure = true); leave the secret out, or give it the same one")]
    Insecure,
    /// One end is of another release.
    #[error("another version of the handshake")]
    Version,
    /// The client shows a credential, and the forwarder takes none.
    #[error("it takes no credentials of munge (munge = \"off\")")]
    NoMunge,
    /// The forwarder has no time to have the credential read, or no room. It will have later.
    #[error("too many ask it for tickets at once")]
    Busy,
    /// The forwarder cannot have the credential read.
    #[error("its munged does not answer")]
    Munged,
    /// The forwarder cannot read the database of users any more.
    #[error("its files of users were replaced since its start; start it again")]
    Database,
    /// The forwarder can make no ticket of what it knows of the user.
    #[error("it cannot make a ticket for this user; its log says why")]
    NoTicket,
    /// The credential was made with another key, or is damaged, or others could have read it.
    #[error("its munged does not take the credential; have both nodes the same key?")]
    Credential,
    /// The credential is too old.
    #[error("the credential of munge has expired; do the clocks of the nodes agree?")]
    Stale,
    /// The credential was made later than now.
    #[error("the credential of munge comes from the future; do the clocks of the nodes agree?")]
    Rewound,
    /// The credential was read before.
    #[error("the credential of munge was shown before")]
    Replayed,
    /// The credential is for another user than the forwarder's to read.
    #[error("it runs as another user than the credential of munge is for (munge_uid)")]
    Reader,
    /// The credential is for another forwarder.
    #[error("the credential of munge is for another address; is there address translation?")]
    Elsewhere,
    /// The credential is root's.
    #[error("munge vouches for ordinary users, and not for root; root needs a secret")]
    Root,
    /// The forwarder's node does not know the user.
    #[error("its node does not know this user")]
    Stranger,
    /// A ticket has no room for the user's groups.
    #[error("this user is in too many groups")]
    Groups,
}

/// Every refusal with its code.
const REFUSALS: [(Refusal, u8); 20] = [
    (Refusal::Secret, 1),
    (Refusal::Expired, 2),
    (Refusal::Insecure, 3),
    (Refusal::Version, 4),
    (Refusal::Missing, 5),
    (Refusal::Revoked, 6),
    (Refusal::NoMunge, 7),
    (Refusal::Busy, 8),
    (Refusal::Credential, 9),
    (Refusal::Stale, 10),
    (Refusal::Rewound, 11),
    (Refusal::Replayed, 12),
    (Refusal::Reader, 13),
    (Refusal::Elsewhere, 14),
    (Refusal::Root, 15),
    (Refusal::Stranger, 16),
    (Refusal::Groups, 17),
    (Refusal::Munged, 18),
    (Refusal::Database, 19),
    (Refusal::NoTicket, 20),
];

/// Why a client does not trust who answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HandshakeError {
    /// The forwarder refused the client.
    #[error("{0}")]
    Refused(Refusal),
    /// The answer does not prove that its sender is a forwarder of this site.
    #[error("it does not prove that it is a forwarder of this site")]
    Unproved,
    /// The forwarder protects frames less than the client wants.
    #[error("it protects frames less than this client asks")]
    Weak,
}

impl Greeting {
    /// The greeting in these bytes, which begin with its head; its length is checked already.
    fn of_bytes(bytes: &[u8]) -> Greeting {
        Greeting {
            version: bytes[4],
            kind: bytes[5],
            content: bytes[GREETING_HEAD..].to_vec(),
        }
    }

    /// Its bytes on the wire.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(GREETING_HEAD + self.content.len());
        bytes.extend_from_slice(&MAGIC);
        bytes.extend_from_slice(&[self.version, self.kind]);
        bytes.extend_from_slice(&(self.content.len() as u16).to_le_bytes());
        bytes.extend_from_slice(&self.content);
        bytes
    }

    /// The answer to a client that is not taken.
    pub fn refusal(why: Refusal) -> Greeting {
        let known = REFUSALS.iter().find(|(refusal, _)| *refusal == why);
        let (_, code) = known.expect("the table has all of them");
        Greeting {
            kind: REFUSES,
            version: VERSION,
            content: vec![*code],
        }
    }

    /// Whether bytes may follow it at once: the peer knows how they are protected.
    fn is_last(&self) -> bool {
        self.kind == CONFIRMS
    }

    /// Why the forwarder refuses the client, if it does.
    pub fn refused(&self) -> Option<Refusal> {
        (self.kind == REFUSES).then(|| {
            let known = REFUSALS.iter().find(|(_, code)| self.content == [*code]);
            known.map_or(Refusal::Version, |(refusal, _)| *refusal)
        })
    }
}

/// Whether a stream begins with a greeting.
pub(crate) enum Greets {
    /// Too few bytes have arrived.
    Unknown,
    /// It begins with a frame.
    Not,
    /// It does, and the greeting has so many bytes.
    With(Greeting, usize),
}

/// What the bytes say that have arrived at the beginning of a stream.
pub(crate) fn greeting(arrived: &[u8]) -> Result<Greets, FrameError> {
    let magic = &arrived[..arrived.len().min(MAGIC.len())];
    if !MAGIC.starts_with(magic) {
        return Ok(Greets::Not);
    }
    let Some(head) = arrived.first_chunk::<GREETING_HEAD>() else {
        return Ok(Greets::Unknown);
    };
    let len = usize::from(u16::from_le_bytes([head[6], head[7]]));
    if len > GREETING_MAX {
        return Err(FrameError::BodyLength(len as u32));
    }
    let len = GREETING_HEAD + len;
    if arrived.len() < len {
        return Ok(Greets::Unknown);
    }
    let greeting = Greeting::of_bytes(&arrived[..len]);
    match arrived.len() == len || greeting.is_last() {
        true => Ok(Greets::With(greeting, len)),
        // The peer cannot know yet how what comes next is to be protected.
        false => Err(FrameError::Trailing),
    }
}

/// A client that has greeted and waits for the answer.
pub struct Initiator {
    state: HandshakeState,
    least: Encryption,
}

impl Initiator {
    /// Begins: the greeting is to be sent first. `least` is the least protection that the client
    /// accepts.
    pub fn begin(secret: &Secret, least: Encryption) -> (Initiator, Greeting) {
        let grant = secret.grant.to_string();
        let mut content = SiteId::of(&secret.forwarders).0.to_vec();
        content.push(least.code());
        content.extend_from_slice(grant.as_bytes());
        let prologue = prologue_of(&content);
        let builder = noise()
            .and_then(|it| it.prologue(&prologue))
            .and_then(|it| it.psk(0, &secret.key))
            .and_then(|it| it.remote_public_key(&secret.forwarders));
        let state = builder.and_then(Builder::build_initiator);
        let mut state = state.expect("pattern and keys fit together");
        let mut first = [0; FIRST_LEN];
        let wrote = state.write_message(&[], &mut first);
        assert_eq!(wrote, Ok(FIRST_LEN), "the first message of the pattern");
        content.extend_from_slice(&first);
        let greeting = Greeting {
            kind: ASKS,
            version: VERSION,
            content,
        };
        (Initiator { state, least }, greeting)
    }

    /// Takes the forwarder's answer.
    pub fn finish(mut self, answer: &Greeting) -> Result<Finished, HandshakeError> {
        if let Some(refusal) = answer.refused() {
            return Err(HandshakeError::Refused(refusal));
        }
        let mut way = [0];
        let read = match answer.kind {
            ANSWERS if answer.version == VERSION => {
                self.state.read_message(&answer.content, &mut way)
            }
            _ => return Err(HandshakeError::Unproved),
        };
        let encryption = match (read, Encryption::from_code(way[0])) {
            (Ok(1), Some(encryption)) if self.state.is_handshake_finished() => encryption,
            _ => return Err(HandshakeError::Unproved),
        };
        if encryption < self.least {
            return Err(HandshakeError::Weak);
        }
        let (ours, theirs) = self.state.dangerously_get_raw_split();
        Ok(match Channel::new(encryption, &ours, &theirs) {
            Some(channel) => Finished::Protected(Box::new(channel)),
            None => Finished::Plain(Greeting {
                kind: CONFIRMS,
                version: VERSION,
                content: confirm(&ours).to_vec(),
            }),
        })
    }
}

/// How a client goes on that has the forwarder's answer.
pub enum Finished {
    /// Everything goes through this channel.
    Protected(Box<Channel>),
    /// Both ends want no protection. This greeting goes before the first frame: it confirms that
    /// the client has the grant's key, and has not only heard somebody else's first greeting.
    Plain(Greeting),
}

/// What a forwarder waits for of a client that goes on without a channel.
pub struct Confirmation(Key);

impl Confirmation {
    /// Whether this greeting confirms that its sender has the grant's key.
    pub fn is_in(&self, greeting: &Greeting) -> bool {
        let is_of_kind = (greeting.version, greeting.kind) == (VERSION, CONFIRMS);
        let key = hmac::Key::new(hmac::HMAC_SHA256, &self.0);
        is_of_kind && hmac::verify(&key, CONFIRMED, &greeting.content).is_ok()
    }
}

fn confirm(key: &Key) -> Key {
    let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key), CONFIRMED);
    Key::try_from(tag.as_ref()).expect("HMAC-SHA-256 makes 32 bytes")
}

/// A client that a forwarder takes.
pub struct Accepted {
    /// The forwarder's answer, to be sent before anything else.
    pub answer: Greeting,
    /// What protects the frames, and proves the grant with the first of them; or what has to be
    /// confirmed before, where both ends want frames sent as they are.
    pub channel: Result<Channel, Confirmation>,
    /// The secret of the site by which the client has proved it.
    pub site: SiteId,
    /// What the client has proved that it may do.
    pub grant: Grant,
}

/// Answers a client's greeting. `sites` are the secrets that are valid now, `least` is the least
/// protection that the forwarder accepts, and `now_s` the second since 1970.
pub fn accept(
    sites: &[SiteSecret],
    least: Encryption,
    now_s: u64,
    greeting: &Greeting,
) -> Result<Accepted, Refusal> {
    if (greeting.version, greeting.kind) != (VERSION, ASKS) {
        return Err(Refusal::Version);
    }
    let split = greeting.content.split_last_chunk::<FIRST_LEN>();
    let (prologue, first) = split.ok_or(Refusal::Version)?;
    let split = prologue.split_first_chunk();
    let (known, asked) = split.ok_or(Refusal::Version)?;
    let (&asks, text) = asked.split_first().ok_or(Refusal::Version)?;
    let asks = Encryption::from_code(asks).ok_or(Refusal::Version)?;
    let mut sites = sites.iter();
    let site = sites.find(|site| site.id() == SiteId(*known));
    let site = site.ok_or(Refusal::Secret)?;
    let grant = Grant::parse(text).map_err(|_| Refusal::Secret)?;
    let key = site.key_of(&grant);
    let mut state =
        responder(&site.private, &key, &prologue_of(prologue)).map_err(|_| Refusal::Secret)?;
    let read = state.read_message(first, &mut []);
    read.map_err(|_| Refusal::Secret)?;
    // Said only to who has the grant's key.
    if grant.is_void(now_s) {
        return Err(Refusal::Expired);
    }
    let encryption = least.max(asks);
    let mut content = vec![0; SECOND_LEN];
    let wrote = state.write_message(&[encryption.code()], &mut content);
    assert_eq!(wrote, Ok(SECOND_LEN), "the second message of the pattern");
    let (theirs, ours) = state.dangerously_get_raw_split();
    Ok(Accepted {
        answer: Greeting {
            kind: ANSWERS,
            version: VERSION,
            content,
        },
        channel: Channel::new(encryption, &ours, &theirs).ok_or(Confirmation(theirs)),
        site: site.id(),
        grant,
    })
}

fn responder(private: &Key, key: &Key, prologue: &[u8]) -> Result<HandshakeState, snow::Error> {
    noise()?
        .prologue(prologue)?
        .psk(0, key)?
        .local_private_key(private)?
        .build_responder()
}

/// What both ends have said before the first message of the handshake, with the version of it.
fn prologue_of(content: &[u8]) -> Vec<u8> {
    [&MAGIC[..], &[VERSION], content].concat()
}

fn noise<'a>() -> Result<Builder<'a>, snow::Error> {
    Ok(Builder::new(PATTERN.parse()?))
}

#[cfg(test)]
mod tests;

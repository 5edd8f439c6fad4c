//! Lists of forwarders in DNS: reads the SRV records of a name (RFC 2782) as addresses.
//!
//! The parser trusts nothing in the answer: it stays within the message, and follows a pointer of a
//! compressed name (RFC 1035, 4.1.4) only backwards.

use super::resolver::Silence;
use crate::options::ConnectError;
use std::fmt::Write;

/// Lengths of RFC 1035, 2.3.4: of a name on the wire with its root, and of a label.
const NAME_MAX: usize = 255;
const LABEL_MAX: usize = 63;

const INTERNET: u16 = 1;
const SRV: u16 = 33;

/// Flags of a message: it is an answer, it was cut short, and how it went.
const ANSWER: u16 = 0x8000;
const CUT_SHORT: u16 = 0x0200;
const CODE: u16 = 0x000f;

/// The DNS name in a part of a list, if it is one: `@`, then a name that begins with `_`. A path
/// that begins so needs a `/`.
pub(super) fn name(part: &str) -> Option<&str> {
    let name = part.strip_prefix('@')?;
    (name.starts_with('_') && !name.contains('/')).then_some(name)
}

/// What to do where DNS has no list.
const PUBLISH: &str = "publish an SRV record for each forwarder, or correct the name";

/// What to do where DNS gives nothing that can be read.
const INSTEAD: &str =
    "see the servers in /etc/resolv.conf, or name the forwarders' addresses instead";

/// The addresses that DNS gives for a name: the lowest priority first, within one priority the
/// greatest weight first, then by name.
pub(super) fn addresses(
    name: &str,
    ask: impl Fn(&str) -> Result<Vec<u8>, Silence>,
) -> Result<Vec<String>, ConnectError> {
    let wrong = |what: String| ConnectError::List(format!("@{name}: {what}"));
    let lookup = |what: String| ConnectError::Lookup(format!("@{name}: {what}; {INSTEAD}"));
    if !is_name(name) {
        let example = "no name of DNS, which is like @_tidegate._tcp.example.org";
        return Err(wrong(format!(
            "{example}; a file of this name is @./{name}"
        )));
    }
    let none = || wrong(format!("the name has no SRV record in DNS; {PUBLISH}"));
    let answer = ask(name).map_err(|silence| match silence {
        Silence::NoName => wrong(format!(
            "DNS has no such name; {PUBLISH} (a file of this name is @./{name})"
        )),
        Silence::NoRecord => none(),
        Silence::NoAnswer(error) => lookup(format!("no name server gives an answer ({error})")),
        Silence::Failed(error) => lookup(format!("DNS could not be asked ({error})")),
    })?;
    let mut records =
        records(&answer).map_err(|damage| lookup(format!("the answer of DNS {damage}")))?;
    if records.is_empty() {
        return Err(none());
    }
    if records.iter().any(|record| record.target.is_empty()) {
        return Err(wrong(
            "an SRV record has the target \".\", which says that there is no forwarder; give it \
             the name of a node, or take it out"
                .to_string(),
        ));
    }
    if let Some(Record { target, .. }) = records.iter().find(|record| record.port == 0) {
        return Err(wrong(format!(
            "the SRV record of {target} has port 0; give it the port where the forwarder listens"
        )));
    }
    records.sort_by(|a, b| a.rank().cmp(&b.rank()));
    let address = |record: Record| format!("tcp:{}:{}", record.target, record.port);
    Ok(records.into_iter().map(address).collect())
}

/// Whether the text can be a DNS name. With a dot at its end, the resolver tries no search domain.
fn is_name(name: &str) -> bool {
    let name = name.strip_suffix('.').unwrap_or(name);
    let label = |label: &str| {
        (1..=LABEL_MAX).contains(&label.len()) && label.bytes().all(is_letter_of_names)
    };
    name.len() + 2 <= NAME_MAX && name.split('.').all(label)
}

fn is_letter_of_names(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_')
}

#[derive(Debug, PartialEq, Eq)]
struct Record {
    priority: u16,
    weight: u16,
    port: u16,
    /// In small letters, without the dot at the end; empty: the root.
    target: String,
}

impl Record {
    fn rank(&self) -> impl Ord {
        let Record {
            priority,
            weight,
            port,
            ref target,
        } = *self;
        (priority, u16::MAX - weight, target.as_str(), port)
    }
}

/// The SRV records of an answer. The error says what is wrong, in words that follow "the answer".
fn records(message: &[u8]) -> Result<Vec<Record>, String> {
    let mut message = Message {
        bytes: message,
        at: 0,
    };
    let _id = message.number()?;
    let flags = message.number()?;
    if flags & ANSWER == 0 {
        return Err("is a question".to_string());
    }
    if flags & CUT_SHORT != 0 {
        return Err("was cut short".to_string());
    }
    if flags & CODE != 0 {
        return Err(format!("has the error code {}", flags & CODE));
    }
    let questions = message.number()?;
    let answers = message.number()?;
    // Of authority and additional section, nothing is needed.
    message.take(4)?;
    for _ in 0..questions {
        message.name()?;
        message.take(4)?;
    }
    let mut records = Vec::new();
    for _ in 0..answers {
        // Whose records these are, the resolver has looked at.
        message.name()?;
        let (kind, class) = (message.number()?, message.number()?);
        message.take(4)?;
        let len = usize::from(message.number()?);
        let end = message.at + len;
        if (kind, class) != (SRV, INTERNET) {
            // Such as the CNAME that led here.
            message.take(len)?;
            continue;
        }
        let record = Record {
            priority: message.number()?,
            weight: message.number()?,
            port: message.number()?,
            target: message.target()?,
        };
        if message.at != end {
            return Err(message.damaged("a record that is longer or shorter than it says"));
        }
        records.push(record);
    }
    Ok(records)
}

/// A message of DNS, and up to where it is read.
struct Message<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Message<'a> {
    fn damaged(&self, what: &str) -> String {
        format!("is damaged: {what}, at byte {}", self.at)
    }

    fn take(&mut self, len: usize) -> Result<&'a [u8], String> {
        let taken = self.bytes.get(self.at..).and_then(|rest| rest.get(..len));
        let taken = taken.ok_or_else(|| self.damaged("an early end"))?;
        self.at += len;
        Ok(taken)
    }

    fn number(&mut self) -> Result<u16, String> {
        let bytes = self.take(2)?;
        Ok(u16::from_be_bytes([bytes[0], bytes[1]]))
    }

    /// The labels of a name. The next read goes on after the name, not after where its pointers
    /// lead.
    fn name(&mut self) -> Result<Vec<&'a [u8]>, String> {
        let mut labels = Vec::new();
        let mut room = NAME_MAX;
        // Where the part that is read begins: a pointer must lead before it, so there is an end.
        let mut part = self.at;
        let mut after = None;
        loop {
            let first = usize::from(self.take(1)?[0]);
            match first >> 6 {
                0b00 => {
                    let left = room.checked_sub(first + 1);
                    room = left.ok_or_else(|| self.damaged("a name of more than 255 bytes"))?;
                    if first == 0 {
                        self.at = after.unwrap_or(self.at);
                        return Ok(labels);
                    }
                    labels.push(self.take(first)?);
                }
                0b11 => {
                    let second = usize::from(self.take(1)?[0]);
                    after.get_or_insert(self.at);
                    let to = (first & 0x3f) << 8 | second;
                    if to >= part {
                        return Err(self.damaged("a name that does not end"));
                    }
                    (self.at, part) = (to, to);
                }
                _ => return Err(self.damaged("an unknown kind of label")),
            }
        }
    }

    /// A name that can be a node's, as text; empty for the root.
    fn target(&mut self) -> Result<String, String> {
        let mut text = String::new();
        for label in self.name()? {
            if !label.iter().copied().all(is_letter_of_names) {
                return Err(self.damaged("a target that can be no name of a node"));
            }
            let dot = if text.is_empty() { "" } else { "." };
            let label = String::from_utf8_lossy(label).to_ascii_lowercase();
            let _ = write!(text, "{dot}{label}");
        }
        Ok(text)
    }
}

#[cfg(test)]
mod tests;

//! Lists of forwarders. The client reads a list from options, files or DNS, checks it against the
//! forwarders' answers, brings it into the order of the layout, and completes it.
//!
//! The forwarders' answers arrive as `Candidate`s; `driver::start` asks them.

mod resolver;
mod srv;

use crate::core::Member;
use crate::options::ConnectError;
use crate::wire::frame::VERSION;
use crate::wire::{ExportId, HelloReply};
use resolver::Silence;
use std::collections::BTreeMap;
use std::path::Path;

/// Longest file of addresses.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// The error of a forwarder that takes no session for a while: it has too many, or is stopping.
const EUSERS: i32 = 87;

/// An address of a list, and the answer of the forwarder there.
#[derive(Clone, Debug)]
pub(crate) struct Candidate {
    pub(crate) address: String,
    pub(crate) member: Member,
    /// The client need not ask again: whoever is there has refused, has not proved to be a
    /// forwarder of this site, or is not of this release.
    pub(crate) refused: bool,
    /// Why there is no answer, in words.
    pub(crate) trouble: String,
}

/// A list that the forwarders' answers agree with: what its forwarders have in common, and which of
/// them is where.
#[derive(Debug)]
pub(crate) struct Checked {
    pub(crate) export: ExportId,
    /// Addresses by index in the layout.
    places: Vec<Option<String>>,
    /// Addresses that the forwarders give for each other.
    listed: BTreeMap<u16, Vec<String>>,
    /// Addresses of the list without an answer and without a place yet.
    left: Vec<Left>,
}

/// An address of the list without an answer, at which no forwarder says that another listens.
#[derive(Debug)]
struct Left {
    address: String,
    /// Why there is no answer, in words.
    trouble: String,
    /// The place that it has by the order of the list.
    place: Option<usize>,
}

/// A complete list.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Whole {
    /// Addresses by index in the layout.
    pub(crate) forwarders: Vec<String>,
    /// The addresses of the list that are left out, with the reason; one line each.
    pub(crate) left_out: Vec<String>,
}

/// Reads the addresses of a list. Each part is an address, or `@FILE`, a file with one address a
/// line. Instead of all of them, in the list or in the file, may stand `@_NAME`: a DNS name whose
/// SRV records give the addresses.
pub fn read(named: &[String]) -> Result<Vec<String>, ConnectError> {
    read_asking(named, resolver::srv)
}

fn read_asking(
    named: &[String],
    ask: impl Fn(&str) -> Result<Vec<u8>, Silence>,
) -> Result<Vec<String>, ConnectError> {
    let mut addresses = Vec::new();
    for part in named {
        match part.strip_prefix('@') {
            Some(path) if srv::name(part).is_none() => {
                addresses.extend(read_file(Path::new(path))?);
            }
            _ => addresses.push(part.clone()),
        }
    }
    if let Some(name) = addresses.iter().find_map(|it| srv::name(it)) {
        if addresses.len() > 1 {
            return Err(ConnectError::List(format!(
                "@{name} stands beside others; name it alone, or addresses without it (a file of \
                 this name is @./{name})"
            )));
        }
        addresses = srv::addresses(name, ask)?;
    }
    for (at, address) in addresses.iter().enumerate() {
        if addresses[..at].contains(address) {
            return Err(ConnectError::List(format!(
                "{address} is named twice; name each forwarder once"
            )));
        }
    }
    match addresses.is_empty() {
        true => Err(ConnectError::NoAddress),
        false => Ok(addresses),
    }
}

fn read_file(path: &Path) -> Result<Vec<String>, ConnectError> {
    let wrong = |what: String| {
        let path = path.display();
        ConnectError::List(format!("list of forwarders {path}: {what}"))
    };
    let len = std::fs::metadata(path).map_err(|error| wrong(error.to_string()))?;
    if len.len() > FILE_BYTES_MAX {
        return Err(wrong("is longer than 1 MiB".to_string()));
    }
    let text = std::fs::read_to_string(path).map_err(|error| wrong(error.to_string()))?;
    addresses_of_text(&text).map_err(wrong)
}

/// The addresses in the text of a file, one a line. The error says what is wrong with it.
pub fn addresses_of_text(text: &str) -> Result<Vec<String>, String> {
    let mut addresses = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let line = line.split('#').next().unwrap_or_default().trim();
        if line.contains([' ', '\t', ',', ';']) {
            return Err(format!("line {}: one address a line", number + 1));
        }
        if !line.is_empty() {
            addresses.push(line.to_string());
        }
    }
    match addresses.is_empty() {
        true => Err("has no address; write one a line".to_string()),
        false => Ok(addresses),
    }
}

/// The addresses in what DNS answers where it is asked for the SRV records of `name`: the lowest
/// priority first, within one priority the greatest weight first, then by name.
pub fn addresses_of_answer(name: &str, answer: &[u8]) -> Result<Vec<String>, ConnectError> {
    srv::addresses(name, |_| Ok(answer.to_vec()))
}

/// Checks the answers and finds each forwarder's place. At least one forwarder has answered.
pub(crate) fn check(candidates: &[Candidate]) -> Result<Checked, ConnectError> {
    let wrong = |what: String| Err(ConnectError::List(what));
    let here: Vec<(&str, &HelloReply)> = candidates.iter().filter_map(here).collect();
    let Some(&(first, reference)) = here.first() else {
        return Err(nobody(candidates));
    };
    for candidate in candidates {
        // Only an answer to a hello, which a client with a secret sends to those alone that have
        // proved themselves. Anything else may come from whoever has taken the address of a
        // forwarder that is down.
        if let Member::Refused(errno) = candidate.member
            && errno.0 != EUSERS
        {
            let (address, trouble) = (&candidate.address, &candidate.trouble);
            return Err(ConnectError::Refused(address.clone(), trouble.clone()));
        }
    }
    let mut places: Vec<Option<String>> = vec![None; usize::from(reference.seats)];
    let mut by_index: BTreeMap<u16, (&str, &HelloReply)> = BTreeMap::new();
    let mut listed = BTreeMap::new();
    for (address, hello) in &here {
        if hello.version != VERSION {
            return wrong(format!(
                "{address} speaks version {} of the protocol, and this client version {VERSION}; \
                 use the same release on both",
                hello.version
            ));
        }
        if hello.export != reference.export {
            return wrong(format!(
                "{address} serves another export (forwarder {} of export {}) than {first} \
                 (export {}); name forwarders of one export",
                hello.forwarder, hello.export, reference.export
            ));
        }
        if (hello.seats, hello.stripe) != (reference.seats, reference.stripe) {
            return wrong(format!(
                "{address} has a layout of {} seats and stripes of {} bytes, {first} one of {} \
                 seats and stripes of {} bytes; give all the same `seats` and `stripe`, and \
                 start them again",
                hello.seats, hello.stripe, reference.seats, reference.stripe
            ));
        }
        if let Some((other, known)) = by_index.insert(hello.forwarder, (address, hello)) {
            return wrong(twice(other, known, address, hello));
        }
        places[usize::from(hello.forwarder)] = Some(address.to_string());
        for one in &hello.forwarders {
            let addresses = one.addresses.iter().map(|it| it.to_string());
            listed.entry(one.index).or_insert(addresses.collect());
        }
    }
    let mut checked = Checked {
        export: reference.export,
        places,
        listed,
        left: Vec::new(),
    };
    checked.place_silent(candidates)?;
    Ok(checked)
}

fn here(candidate: &Candidate) -> Option<(&str, &HelloReply)> {
    match &candidate.member {
        Member::Known(hello) => Some((&candidate.address, hello)),
        _ => None,
    }
}

/// The error where forwarders at two addresses give the same index.
fn twice(other: &str, known: &HelloReply, address: &str, hello: &HelloReply) -> String {
    let index = hello.forwarder;
    match known.process == hello.process {
        true => format!(
            "{other} and {address} are one forwarder, {index} of {}; name each forwarder once",
            hello.seats
        ),
        false => format!(
            "{other} and {address} are two forwarders that both say `forwarder = {index}`; \
             correct the configuration of one and start it again"
        ),
    }
}

/// The error where no forwarder has answered.
pub(crate) fn nobody(candidates: &[Candidate]) -> ConnectError {
    if let Some(refused) = candidates.iter().find(|candidate| candidate.refused) {
        return ConnectError::Refused(refused.address.clone(), refused.trouble.clone());
    }
    let trouble =
        |candidate: &Candidate| format!("{}: {}", candidate.address, trouble_of(candidate));
    let each: Vec<String> = candidates.iter().map(trouble).collect();
    ConnectError::Unreachable(each.join(", "))
}

/// Why a forwarder has not answered, in words.
pub(crate) fn trouble_of(candidate: &Candidate) -> &str {
    match candidate.trouble.is_empty() {
        true => "no answer",
        false => &candidate.trouble,
    }
}

impl Checked {
    /// Gives forwarders without an answer their places: as other forwarders say, or in the order of
    /// the list.
    fn place_silent(&mut self, candidates: &[Candidate]) -> Result<(), ConnectError> {
        let silent = || {
            candidates
                .iter()
                .filter(|candidate| here(candidate).is_none())
        };
        let in_order = candidates.len() == self.places.len()
            && candidates.iter().enumerate().all(|(place, candidate)| {
                here(candidate).is_none_or(|(_, hello)| usize::from(hello.forwarder) == place)
            });
        for (place, candidate) in candidates.iter().enumerate() {
            if here(candidate).is_some() {
                continue;
            }
            let address = &candidate.address;
            let listed_at = self
                .listed
                .iter()
                .find(|(_, listed)| listed.contains(address));
            let listed_at = listed_at.map(|(index, _)| usize::from(*index));
            let place = listed_at.or_else(|| in_order.then_some(place));
            // Where the others tell another address, that is asked first.
            let doubted = listed_at.is_none() && place.is_some_and(|place| self.is_listed(place));
            match place.and_then(|place| self.places.get_mut(place)) {
                Some(free @ None) if !doubted => *free = Some(address.clone()),
                _ => self.left.push(Left {
                    address: address.clone(),
                    trouble: trouble_of(candidate).to_owned(),
                    place: place.filter(|_| doubted),
                }),
            }
        }
        let seats = self.places.len();
        if candidates.len() <= seats {
            return Ok(());
        }
        let extra = match (self.left.first(), silent().next()) {
            (Some(left), _) => left.address.as_str(),
            (None, Some(silent)) => &silent.address,
            (None, None) => unreachable!("more addresses than seats, so one index came twice"),
        };
        Err(ConnectError::List(format!(
            "{} addresses are named, and the export has {seats} forwarders; take out those that \
             are no forwarder of it ({extra} does not answer)",
            candidates.len()
        )))
    }

    /// Whether other forwarders say where the forwarder of this place listens.
    fn is_listed(&self, place: usize) -> bool {
        let index = u16::try_from(place).ok();
        let listed = index.and_then(|index| self.listed.get(&index));
        listed.is_some_and(|addresses| !addresses.is_empty())
    }

    /// For each forwarder without a known address, the addresses at which to ask it: those of the
    /// same kind as in the list, then TCP. A path of another node means nothing on this one.
    pub(crate) fn missing(&self) -> Vec<(u16, Vec<String>)> {
        let left = self.left.iter().map(|left| &left.address);
        let named = self.places.iter().flatten().chain(left);
        let kinds: Vec<&str> = named.filter_map(|it| it.split(':').next()).collect();
        let rank = |address: &String| {
            let kind = address.split(':').next().unwrap_or_default();
            match (kinds.contains(&kind), kind) {
                (true, _) => Some(0),
                (false, "tcp") => Some(1),
                (false, _) => None,
            }
        };
        let free = (0..=u16::MAX)
            .zip(&self.places)
            .filter(|(_, place)| place.is_none());
        free.map(|(index, _)| {
            let listed = self.listed.get(&index).cloned().unwrap_or_default();
            let mut usable: Vec<String> =
                listed.into_iter().filter(|it| rank(it).is_some()).collect();
            usable.sort_by_key(rank);
            (index, usable)
        })
        .collect()
    }

    /// Takes in the answers of the forwarders that were missing, and returns the whole list, in
    /// order.
    pub(crate) fn complete(mut self, candidates: &[Candidate]) -> Result<Whole, ConnectError> {
        let mut learned = Vec::new();
        for (index, usable) in self.missing() {
            let proved = |address: &&String| {
                let found = candidates
                    .iter()
                    .find(|candidate| candidate.address == **address);
                found.and_then(here).is_some_and(|(_, hello)| {
                    (hello.export, hello.forwarder) == (self.export, index)
                })
            };
            let place = usize::from(index);
            let by_order = self.left.iter().position(|left| left.place == Some(place));
            let chosen = match (usable.iter().find(proved), by_order) {
                (Some(address), _) => Some(address.clone()),
                (None, Some(at)) => Some(self.left.remove(at).address),
                // A forwarder that is down is taken to be where it was last.
                (None, None) => usable.first().cloned(),
            };
            learned.extend(chosen.iter().map(|address| format!("{index} at {address}")));
            self.places[place] = chosen;
        }
        let mut left = std::mem::take(&mut self.left).into_iter();
        for free in self.places.iter_mut().filter(|place| place.is_none()) {
            *free = left.next().map(|left| left.address);
        }
        let seats = self.places.len();
        let unknown = (0..seats).filter(|index| self.places[*index].is_none());
        let unknown: Vec<String> = unknown.map(|index| index.to_string()).collect();
        if !unknown.is_empty() {
            return Err(ConnectError::Unknown(format!(
                "the export has {seats} forwarders, and where forwarder {} listens is neither \
                 named nor told by the others; start it once (with `advertise` in its \
                 configuration where this node reaches it by another address), or name all \
                 {seats} addresses in the order of their `forwarder`",
                unknown.join(", ")
            )));
        }
        Ok(Whole {
            forwarders: self.places.into_iter().flatten().collect(),
            left_out: left.map(|left| left.line(seats, &learned)).collect(),
        })
    }
}

impl Left {
    fn line(&self, seats: usize, learned: &[String]) -> String {
        let Left {
            address, trouble, ..
        } = self;
        let learned = learned.join(", ");
        format!(
            "{address} is named and left out ({trouble}): the export has {seats} forwarders, and \
             they tell of each other without it (forwarder {learned}); correct the list"
        )
    }
}

#[cfg(test)]
mod tests;

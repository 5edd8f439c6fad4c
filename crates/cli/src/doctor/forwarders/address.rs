//! One address of a forwarder: who answers there, in which version, where the export's record says
//! that he is, and by which clock.

use crate::doctor::bounded::within;
use crate::doctor::finding::Finding;
use crate::members;
use crate::processes::last_line;
use crate::state::{FORWARDERS_MAX, StateDir};
use crate::table;
use std::time::Duration;
use tidegate_client::wire::frame::VERSION;
use tidegate_client::{Client, ClockSeen, ConnectError, Options, Told};

const CHECK: &str = "forwarder";

/// How long an address may take, once its name is resolved; and with that.
const ANSWER_MAX: Duration = Duration::from_secs(3);
const NAMED_MAX: Duration = Duration::from_secs(10);

/// Two clocks that differ by more than this are told: a window of time, and the time by which
/// files of other nodes are compared.
const CLOCK_NS_MAX: u64 = 1_000_000_000;

/// Recorded addresses of one forwarder that are asked.
const RECORDED_MAX: usize = 4;

/// What was found at an address.
pub struct Asked {
    /// The address.
    pub address: String,
    /// Who answers, or why nobody does.
    pub told: Result<Told, Silence>,
    /// Of the addresses of the same kind that the export's record has for that forwarder: which
    /// lead to it; None if this one is recorded.
    recorded: Option<Vec<(String, bool)>>,
}

/// Why there is no forwarder for this client.
pub struct Silence {
    kind: Kind,
    why: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Nobody is there.
    Nobody,
    /// Somebody is there and refuses, or cannot prove what a forwarder proves.
    Refuses,
    /// Nobody could be asked: the address, its name or the secret is wrong.
    NotAsked,
}

impl Silence {
    fn of(address: &str, error: ConnectError) -> Silence {
        let (kind, why) = match error {
            ConnectError::Refused(_, why) => (Kind::Refuses, why),
            ConnectError::Unreachable(why) => {
                let rest = why
                    .strip_prefix(&format!("{address}: "))
                    .map(str::to_string);
                (Kind::Nobody, rest.unwrap_or(why))
            }
            error => (Kind::NotAsked, error.to_string()),
        };
        Silence { kind, why }
    }
}

impl Asked {
    /// Asks who is there.
    pub fn ask(options: &Options, address: &str) -> Asked {
        let options = Options {
            connect_timeout: ANSWER_MAX,
            ..options.clone()
        };
        let told = {
            let (options, address) = (options.clone(), address.to_string());
            within(NAMED_MAX, move || Client::ask(&options, &address))
        };
        let told = match told {
            Some(told) => told.map_err(|error| Silence::of(address, error)),
            None => Err(Silence {
                kind: Kind::NotAsked,
                why: format!("its name is not resolved within {} s", NAMED_MAX.as_secs()),
            }),
        };
        let recorded = match &told {
            Ok(told) => recorded(&options, address, told),
            Err(_) => None,
        };
        Asked {
            address: address.to_string(),
            told,
            recorded,
        }
    }
}

/// Asks at the addresses that the export's record has for a forwarder that was found at another.
fn recorded(options: &Options, address: &str, told: &Told) -> Option<Vec<(String, bool)>> {
    let own = told.hello.forwarder;
    let mut listed = told.hello.forwarders.iter();
    let listed = listed.find(|one| one.index == own)?;
    let kind = |address: &str| address.split(':').next().map(str::to_string);
    let alike = listed.addresses.iter().map(|it| it.to_string());
    let alike: Vec<String> = alike.filter(|it| kind(it) == kind(address)).collect();
    if alike.is_empty() || alike.iter().any(|it| it == address) {
        return None;
    }
    let leads = |other: String| {
        let there = Client::ask(options, &other);
        let is_it = there.is_ok_and(|there| there.hello.process == told.hello.process);
        (other, is_it)
    };
    Some(alike.into_iter().take(RECORDED_MAX).map(leads).collect())
}

/// What is to be said of all of them. `set`: the local set that they are of.
pub fn findings(asked: &[Asked], set: Option<&StateDir>) -> Vec<Finding> {
    let running = set.map(|set| members::running(set).1);
    let runs = |index: usize| {
        let mut running = running.iter().flatten();
        running.any(|(one, _)| *one == index)
    };
    let mut all = Vec::new();
    for one in asked {
        match &one.told {
            Ok(told) => all.extend(of_told(&one.address, told, one.recorded.as_deref())),
            Err(why) => {
                let index = set.and_then(|set| index_in(set, &one.address));
                let dead = index.filter(|index| !runs(*index)).zip(set);
                all.push(silent(&one.address, why, index, dead.map(|(_, set)| set)));
            }
        }
    }
    let told = asked.iter().filter_map(|one| one.told.as_ref().ok());
    let clocks: Vec<ClockSeen> = told.map(|told| told.clock).collect();
    all.extend(of_clocks(&clocks));
    all
}

/// The index of the forwarder of a local set that has this socket.
fn index_in(set: &StateDir, address: &str) -> Option<usize> {
    let path = address.strip_prefix("unix:")?;
    let mut all = 0..FORWARDERS_MAX;
    all.find(|index| set.forwarder(*index, "sock").to_str() == Some(path))
}

/// Nobody answers. `dead`: the local set of a forwarder of that index that has no process.
fn silent(
    address: &str,
    silence: &Silence,
    index: Option<usize>,
    dead: Option<&StateDir>,
) -> Finding {
    let name = index.map_or(String::new(), |index| format!("forwarder {index}, "));
    let Silence { kind, why } = silence;
    let said = match kind {
        Kind::Nobody => None,
        Kind::Refuses => Some((
            "who is there is no forwarder for this client",
            "use the secret of its site, or its munge, and the same release on all nodes; else \
             correct the address",
        )),
        Kind::NotAsked => Some((
            "cannot be asked",
            "correct the address, the name in DNS or the secret, as it says",
        )),
    };
    if let Some((what, advice)) = said {
        return Finding::fails(CHECK, format!("{name}{address}: {what}: {why}"), advice);
    }
    let text = format!("{name}{address}: nobody answers: {why}");
    let Some((set, index)) = dead.zip(index) else {
        return Finding::fails(
            CHECK,
            text,
            "see on its node whether it runs (its log says why it ended) and listens there; else \
             correct the address in the list; firewalls between may keep silent",
        );
    };
    let shown = |what: &str| set.forwarder(index, what).display().to_string();
    let log = shown("log");
    let last = last_line(&set.inside(&set.forwarder(index, "log")));
    let last = match last.as_str() {
        "" => String::new(),
        line => format!(", which ends with: {line}"),
    };
    Finding::fails(
        CHECK,
        format!("{text}; its process is gone"),
        format!(
            "`tidegate serve --config {}` starts it again; why it ended may stand in {log}{last}",
            shown("toml")
        ),
    )
}

fn of_told(address: &str, told: &Told, recorded: Option<&[(String, bool)]>) -> Vec<Finding> {
    let hello = &told.hello;
    let name = format!(
        "forwarder {} of {}, {address}",
        hello.forwarder, hello.seats
    );
    if hello.version != VERSION {
        return vec![Finding::fails(
            CHECK,
            format!(
                "{name}: speaks version {} of the protocol, and this program version {VERSION}",
                hello.version
            ),
            "use the same release on all nodes",
        )];
    }
    let trip = table::time(told.clock.trip_ns);
    let mut all = vec![Finding::ok(
        CHECK,
        format!("{name}: answers within {trip}, protocol {VERSION}"),
    )];
    all.extend(recorded.map(|recorded| of_record(&name, recorded)));
    all.push(of_clock(&name, told.clock));
    all
}

/// Whether others, whom the record tells where the forwarder is, find it there.
fn of_record(name: &str, recorded: &[(String, bool)]) -> Finding {
    let check = "recorded address";
    let all: Vec<&str> = recorded.iter().map(|(other, _)| other.as_str()).collect();
    let all = all.join(", ");
    match recorded.iter().any(|(_, leads)| *leads) {
        true => Finding::ok(
            check,
            format!("{name}: the export's record says {all} as well"),
        ),
        false => Finding::warning(
            check,
            format!(
                "{name}: the export's record says {all}, and it is not found there from this node"
            ),
            "set `advertise` in its configuration to the address by which nodes reach it, and \
             start it again; or name all forwarders in each list",
        ),
    }
}

/// Whether a forwarder's clock is that of this node.
fn of_clock(name: &str, clock: ClockSeen) -> Finding {
    let check = "clock";
    let ClockSeen { ahead_ns, trip_ns } = clock;
    let off = ahead_ns.unsigned_abs();
    let sure = off.saturating_sub(trip_ns / 2);
    let known = table::time(trip_ns / 2);
    if sure <= CLOCK_NS_MAX {
        let most = table::time(off.saturating_add(trip_ns / 2));
        let text = format!("{name}: this node's, but for {most} at most");
        return Finding::ok(check, text);
    }
    let way = match ahead_ns > 0 {
        true => "ahead of",
        false => "behind",
    };
    Finding::warning(
        check,
        format!(
            "{name}: its clock is {} {way} this node's, known to {known}: ages of files that \
             programs here compute by their own clock (make, rsync) are wrong by that",
            table::time(off)
        ),
        "set the clocks of both nodes by NTP (chronyc tracking)",
    )
}

/// Whether the forwarders' clocks agree, if more than one was seen.
fn of_clocks(clocks: &[ClockSeen]) -> Option<Finding> {
    let error = |clock: &ClockSeen| i128::from(clock.trip_ns / 2);
    let least = clocks
        .iter()
        .map(|one| i128::from(one.ahead_ns) + error(one));
    let most = clocks
        .iter()
        .map(|one| i128::from(one.ahead_ns) - error(one));
    // What is sure: the last clock is at least so far ahead, and the first at most.
    let apart = most.max()? - least.min()?;
    (apart > i128::from(CLOCK_NS_MAX)).then(|| {
        let apart = table::time(u64::try_from(apart).unwrap_or(u64::MAX));
        Finding::warning(
            "clocks of forwarders",
            format!(
                "they differ by {apart} at least: `window` cuts the stamps of some and orders the \
                 parts of an operation differently, and a ticket is good for so much less or more \
                 at one of them than at another"
            ),
            "set the clocks of all I/O nodes by NTP (chronyc tracking)",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::finding::Verdict;

    #[test]
    fn a_clock_is_judged_by_what_is_sure() {
        let verdict = |ahead_ns, trip_ns| {
            let found = of_clock("forwarder 0", ClockSeen { ahead_ns, trip_ns });
            (found.verdict, found.text)
        };
        let second = 1_000_000_000;
        assert_eq!(verdict(second / 2, 1000).0, Verdict::Ok);
        assert_eq!(verdict(-second, 1000).0, Verdict::Ok);
        // The answer took so long that nothing is known.
        assert_eq!(verdict(2 * second, 2 * second as u64).0, Verdict::Ok);
        let (found, text) = verdict(3 * second, 1000);
        assert_eq!(found, Verdict::Warning);
        assert!(text.contains("3.0s ahead of this node's"), "{text}");
        let (found, text) = verdict(-3 * second, 1000);
        assert_eq!(found, Verdict::Warning);
        assert!(text.contains("behind this node's"), "{text}");
        assert_eq!(verdict(i64::MIN, 0).0, Verdict::Warning);
        assert_eq!(verdict(i64::MAX, u64::MAX).0, Verdict::Ok);
    }

    #[test]
    fn clocks_of_forwarders_are_compared_by_what_is_sure() {
        let seen = |ahead_ms: i64, trip_ms: u64| ClockSeen {
            ahead_ns: ahead_ms * 1_000_000,
            trip_ns: trip_ms * 1_000_000,
        };
        assert_eq!(of_clocks(&[]), None);
        assert_eq!(of_clocks(&[seen(9000, 1)]), None);
        assert_eq!(of_clocks(&[seen(9000, 1), seen(8500, 1)]), None);
        assert_eq!(of_clocks(&[seen(1500, 600), seen(-1, 600)]), None);
        let apart = of_clocks(&[seen(700, 2), seen(100, 2), seen(-700, 2)]);
        let apart = apart.expect("they differ");
        assert!(apart.text.contains("by 1.4s at least"), "{apart:?}");
        assert!(apart.text.contains("`window`"), "{apart:?}");
    }

    #[test]
    fn an_address_that_the_record_does_not_have_is_asked_about() {
        let record = |leads: bool| of_record("it", &[("tcp:io1:4600".to_string(), leads)]);
        assert_eq!(record(true).verdict, Verdict::Ok);
        let other = record(false);
        assert_eq!(other.verdict, Verdict::Warning);
        assert!(other.advice.expect("it is told").contains("`advertise`"));
    }

    #[test]
    fn who_does_not_answer_is_named_with_what_to_do() {
        let address = "tcp:io1:4600";
        let text = format!("{address}: Connection refused");
        let silence = Silence::of(address, ConnectError::Unreachable(text));
        let far = silent(address, &silence, None, None);
        assert_eq!(far.verdict, Verdict::Fails);
        let wanted = "tcp:io1:4600: nobody answers: Connection refused";
        assert_eq!(far.text, wanted);
        let refused = ConnectError::Refused(address.to_string(), "another secret".to_string());
        let refused = silent(address, &Silence::of(address, refused), None, None);
        assert!(refused.text.ends_with("another secret"), "{refused:?}");
        assert!(refused.advice.expect("it is told").contains("the secret"));
        let set = StateDir::choose(Some(std::path::Path::new("/nowhere/run")));
        assert_eq!(
            index_in(&set, "unix:/nowhere/run/forwarder.3.sock"),
            Some(3)
        );
        assert_eq!(index_in(&set, "unix:/elsewhere/forwarder.3.sock"), None);
        let dead = silent("unix:x", &silence, Some(3), Some(&set));
        assert!(dead.text.starts_with("forwarder 3, unix:x"), "{dead:?}");
        let advice = dead.advice.expect("it is told");
        let starts = "`tidegate serve --config /nowhere/run/forwarder.3.toml`";
        assert!(advice.contains(starts), "{advice}");
    }
}

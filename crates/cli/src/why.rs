//! `tidegate why`: why an application's I/O is slow, and who is held by what.

mod found;

use crate::fail::Fail;
use crate::out;
use crate::stat;
use crate::table;
use crate::target::Target;
use crate::waits::{Waits, percent};
use found::Found;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::process::ExitCode;
use std::time::Duration;
use tidegate_sched::Cause;

/// The longest time between the two looks of `--since`, in seconds: a day.
const SINCE_MAX: i64 = 86_400;

/// Say what the requests of an application wait for, and which neighbour or rule is why.
///
/// It counts the time from when a forwarder has a request until it has the answer. What network and
/// client take is not in it. docs/why.md says what each cause means, and what to do about it.
#[derive(clap::Args)]
pub struct Why {
    /// An application's name or id, as `tidegate stat` shows it, or a job: all its applications
    #[arg(value_name = "APP")]
    application: String,
    /// Look twice, so many seconds apart, and tell what came between; without it all since the
    /// forwarders' start
    #[arg(
        long,
        value_name = "SECONDS",
        value_parser = clap::value_parser!(u32).range(1..=SINCE_MAX)
    )]
    since: Option<u32>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: Target,
}

impl Why {
    /// Prints it.
    pub fn perform(self) -> Result<ExitCode, Fail> {
        let (found, client) = self.target.connect(Some(stat::ANSWER_MAX))?;
        let names = self
            .target
            .names_file()
            .map(|file| crate::names::read(&file));
        let look = || -> Vec<Value> {
            let mut states = stat::states(&client, &found.forwarders);
            if let Some(names) = &names {
                stat::name_applications(&mut states, names);
            }
            states
        };
        let mut states = look();
        let mut report = Report::of(&states, None, &self.application)?;
        if let Some(seconds) = self.since {
            std::thread::sleep(Duration::from_secs(seconds.into()));
            let before = std::mem::replace(&mut states, look());
            report = Report::of(&states, Some(&before), &self.application)?;
        }
        match self.json {
            true => out!("{}\n", report.json(self.since)),
            false => out!("{}", crate::plain::page(&report.text(self.since))),
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// What is told of an application.
struct Report {
    found: Found,
    waits: Waits,
    /// Forwarders that had requests of it, and those that do not answer, or did not at the first
    /// look.
    forwarders: usize,
    silent: Vec<String>,
    /// Forwarders that have more applications than they tell the waits of.
    untold: Vec<String>,
}

impl Report {
    fn of(states: &[Value], before: Option<&[Value]>, asked: &str) -> Result<Report, Fail> {
        let is_silent = |state: &Value| state["error"].is_string();
        if states.iter().all(is_silent) {
            return Err(Fail::runtime(
                "no forwarder answers; `tidegate stat` says what is wrong with each",
            ));
        }
        let found = Found::look(states, asked)?;
        let (mut waits, mut forwarders) = (Waits::default(), 0);
        let (mut silent, mut untold) = (Vec::new(), Vec::new());
        for (at, state) in states.iter().enumerate() {
            let then = before.and_then(|before| before.get(at));
            // Without one of the looks nobody knows what came between.
            let looks = || then.into_iter().chain([state]);
            if looks().any(is_silent) {
                silent.push(state["forwarder"].to_string());
                continue;
            }
            let without: BTreeSet<&str> = looks().flat_map(|state| found.untold(state)).collect();
            if !without.is_empty() {
                untold.push(state["forwarder"].to_string());
            }
            let mut here = found.waits(state, &without);
            if let Some(then) = then {
                here = here.since(&found.waits(then, &without));
            }
            forwarders += usize::from(here.all_ns() > 0);
            waits.add(&here);
        }
        Ok(Report {
            found,
            waits,
            forwarders,
            silent,
            untold,
        })
    }

    fn json(&self, since: Option<u32>) -> Value {
        let waits = &self.waits;
        let causes = Cause::ALL
            .into_iter()
            .filter(|it| waits.ns[*it as usize] > 0);
        let causes = causes.map(|cause| {
            let neighbours = waits.of_cause(cause).into_iter().map(|(neighbour, ns)| {
                let mut one = neighbour.json();
                one["ns"] = ns.into();
                one
            });
            let neighbours: Vec<Value> = neighbours.collect();
            let ns = waits.ns[cause as usize];
            json!({ "cause": cause.name(), "ns": ns, "neighbours": neighbours })
        });
        json!({
            "application": self.found.name,
            "uid": self.found.uid,
            "rules": self.found.rules,
            "since_s": since,
            "forwarders": self.forwarders,
            "silent": self.silent,
            "untold": self.untold,
            "requests": waits.requests,
            "all_ns": waits.all_ns(),
            "lost_ns": waits.lost_ns(),
            "cause": self.cause().map(|(cause, _)| cause.name()),
            "causes": causes.collect::<Vec<Value>>(),
        })
    }

    /// Two sentences, and a table.
    fn text(&self, since: Option<u32>) -> String {
        let waits = &self.waits;
        let span = match since {
            Some(seconds) => format!("in the last {seconds} s"),
            None => "since the forwarders began".to_string(),
        };
        let name = format!("`{}`", self.found.name);
        let mut text = match waits.all_ns() {
            0 if self.knows_all() => {
                format!("{name} has had no reads or writes {span}. It has waited for nothing.\n")
            }
            0 => format!("No forwarder tells what {name} has waited for {span}.\n"),
            all_ns => {
                let forwarders = match self.forwarders {
                    1 => "1 forwarder".to_string(),
                    count => format!("{count} forwarders"),
                };
                let (lost, all) = (table::time(waits.lost_ns()), table::time(all_ns));
                let reason = self.reason();
                format!(
                    "The requests of {name} have waited {lost} of {all} at {forwarders} \
                     {span}. {reason}.\n\n{}",
                    self.table()
                )
            }
        };
        if !self.silent.is_empty() {
            let silent = self.silent.join(", ");
            text.push_str(&format!(
                "without what it did at forwarders that do not answer: {silent}\n"
            ));
        }
        if !self.untold.is_empty() {
            let untold = self.untold.join(", ");
            text.push_str(&format!(
                "without what it waited for at forwarders that tell of those alone which have lost \
                 most: {untold}\n"
            ));
        }
        text
    }

    /// Whether all forwarders tell of it.
    fn knows_all(&self) -> bool {
        self.silent.is_empty() && self.untold.is_empty()
    }

    /// What most of its time went to, and how much: `service`, or what it lost most to.
    fn cause(&self) -> Option<(Cause, u64)> {
        let service_ns = self.waits.ns[Cause::Service as usize];
        let lost = self.waits.most();
        let lost = lost.filter(|_| self.waits.lost_ns() >= service_ns);
        lost.or((service_ns > 0).then_some((Cause::Service, service_ns)))
    }

    /// The second sentence, without its end.
    fn reason(&self) -> String {
        let waits = &self.waits;
        let (cause, ns) = self.cause().unwrap_or((Cause::Service, 0));
        if cause == Cause::Service {
            let part = percent(ns, waits.all_ns());
            return format!("For {part} % of that time the back end worked for them (service)");
        }
        let part = percent(ns, waits.lost_ns());
        let by = waits.of_cause(cause).into_iter().next();
        // Half of it, or it would be wrong to name one alone.
        let by = by.filter(|(_, its_ns)| *its_ns >= ns / 2);
        let who = by.map(|(neighbour, _)| neighbour.words());
        let who = who.unwrap_or_else(|| "several applications".to_string());
        let why = match cause {
            Cause::Memory => "for memory: the forwarder's pool for payload was full".to_string(),
            Cause::Checks => "for the forwarder's own checks".to_string(),
            Cause::Overlap => format!("for overlapping requests before them, of {who} (overlap)"),
            Cause::Window => format!("for their window: that of {who} was before it"),
            Cause::Share => format!("for their share: {who} had the turn"),
            Cause::Limit => {
                let rules = self.found.rules.join(", ");
                format!("for their limit: the maximum of {rules} held them back")
            }
            Cause::Prediction => {
                "by prediction: the policy waited for more of them on purpose".to_string()
            }
            Cause::Device => format!("for the device, which {who} had"),
            Cause::Service => "for the back end".to_string(),
        };
        format!("{part} % of the wait was {why}")
    }

    fn table(&self) -> String {
        let waits = &self.waits;
        let mut causes: Vec<(Cause, u64)> = Cause::ALL.into_iter().zip(waits.ns).collect();
        causes.retain(|(_, ns)| *ns > 0);
        causes.sort_by_key(|(_, ns)| u64::MAX - ns);
        let rows = causes.into_iter().map(|(cause, ns)| {
            let by = waits.of_cause(cause).into_iter();
            let by = by.map(|(one, its_ns)| format!("{} {} %", one.words(), percent(its_ns, ns)));
            let by: Vec<String> = by.collect();
            let seconds = format!("{}.{:03}", ns / 1_000_000_000, ns / 1_000_000 % 1000);
            let part = format!("{} %", percent(ns, waits.all_ns()));
            vec![cause.name().to_string(), seconds, part, by.join(", ")]
        });
        let rows: Vec<_> = rows.collect();
        table::lay_out(&["cause", "seconds", "share", "neighbours"], &rows)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;

    fn state(forwarder: u64, device_s: u64) -> Value {
        json!({ "forwarder": forwarder, "applications": [
            { "app": "0a", "name": "checkpoint", "uid": 7, "job": "17", "rule": "check*", "waits": {
                "requests": 5, "ns": { "device": device_s * S, "limit": S, "service": 2 * S },
                "neighbours": [{ "app": "0b", "name": "big", "uid": 7,
                                 "ns": { "device": device_s * S } }] } },
            { "app": "0b", "name": "big", "uid": 7, "job": "", "charged_ns": 1 },
            { "app": "0c", "name": "big", "uid": 8, "job": "" },
            { "others": true },
        ]})
    }

    fn report(states: &[Value], before: Option<&[Value]>, asked: &str) -> Report {
        Report::of(states, before, asked).unwrap_or_else(|fail| panic!("{}", fail.message))
    }

    #[test]
    fn two_sentences_say_why() {
        let states = [
            state(0, 10),
            state(1, 9),
            json!({ "forwarder": 2, "error": "x" }),
        ];
        for asked in ["checkpoint", "0a", "000000000000000a", "17"] {
            let text = report(&states, None, asked).text(None);
            let wanted = "The requests of `checkpoint` have waited 21s of 25s at 2 \
                          forwarders since the forwarders began. 90 % of the wait was for the \
                          device, which `big` had.\n\ncause    seconds  share   neighbours\n\
                          device    19.000   76 %  `big` 100 %\n\
                          service    4.000   16 %\n\
                          limit      2.000    8 %\n\
                          without what it did at forwarders that do not answer: 2\n";
            assert_eq!(text, wanted, "{asked}");
        }
    }

    #[test]
    fn an_interval_and_no_requests_are_told_of() {
        let (before, now) = ([state(0, 10)], [state(0, 15)]);
        let report = report(&now, Some(&before), "checkpoint");
        let told = report.json(Some(9));
        assert_eq!(
            (&told["lost_ns"], &told["cause"]),
            (&json!(5 * S), &json!("device"))
        );
        let causes = json!([{ "cause": "device", "ns": 5 * S, "neighbours": [
            { "name": "big", "uid": 7, "ns": 5 * S }] }]);
        assert_eq!(told["causes"], causes);
        assert_eq!(told["rules"], json!(["rule `check*`"]));
        let same = super::tests::report(&now, Some(&now), "checkpoint").text(Some(9));
        assert_eq!(
            same,
            "`checkpoint` has had no reads or writes in the last 9 s. It has waited for nothing.\n"
        );
    }

    #[test]
    fn the_sentence_and_the_cause_are_of_what_took_more() {
        for (service, cause) in [(4, "device"), (5, "device"), (6, "service")] {
            let waits = json!({ "ns": {
                "device": 3 * S, "limit": 2 * S, "service": service * S } });
            let state = json!({ "forwarder": 0, "applications": [
                { "app": "0a", "name": "a", "waits": waits }] });
            let report = report(&[state], None, "a");
            assert_eq!(report.json(None)["cause"], cause, "{service}");
            let (text, wanted) = (
                report.text(None),
                match cause {
                    "device" => "60 % of the wait was for the device",
                    _ => "For 55 % of that time the back end worked",
                },
            );
            assert!(text.contains(wanted), "{text}");
        }
    }

    #[test]
    fn what_is_not_told_is_not_nothing() {
        let state = json!({ "forwarder": 3, "applications": [
            { "app": "0a", "name": "a", "read_requests": 9 }] });
        let text = report(&[state], None, "a").text(None);
        let wanted = "No forwarder tells what `a` has waited for since the forwarders began.\n";
        assert!(text.starts_with(wanted), "{text}");
    }

    #[test]
    fn what_one_of_two_looks_does_not_tell_is_not_of_the_interval() {
        let silent = json!({ "forwarder": 1, "error": "x" });
        let mut untold = state(2, 7);
        let its = &mut untold["applications"][0];
        its["waits"] = Value::Null;
        its["read_requests"] = 4.into();
        let before = [state(0, 10), silent, untold];
        let now = [state(0, 15), state(1, 90), state(2, 90)];
        let told = report(&now, Some(&before), "checkpoint").json(Some(9));
        assert_eq!(told["lost_ns"], json!(5 * S));
        let left_out = (&told["silent"], &told["untold"]);
        assert_eq!(left_out, (&json!(["1"]), &json!(["2"])));
    }

    #[test]
    fn a_mistake_says_what_there_is() {
        let fails = |asked: &str| match Report::of(&[state(0, 1)], None, asked) {
            Ok(_) => panic!("{asked} is found"),
            Err(fail) => (fail.code, fail.message),
        };
        let (code, text) = fails("none");
        assert_eq!(code, 2);
        assert!(text.contains("there are `big`, `checkpoint`"), "{text}");
        let (_, text) = fails("big");
        assert!(text.contains("0b of user 7, 0c of user 8"), "{text}");
        let silent = [json!({ "forwarder": 0, "error": "no answer" })];
        assert!(Report::of(&silent, None, "a").is_err());
    }

    #[test]
    fn the_page_of_causes_has_each_of_them() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/why.md");
        let page = std::fs::read_to_string(path).expect("docs/why.md is there");
        let rows = page.lines().filter_map(|line| line.strip_prefix("| `"));
        let names: Vec<&str> = rows.filter_map(|row| row.split('`').next()).collect();
        let causes = Cause::ALL.map(Cause::name);
        assert_eq!(names, causes);
    }
}

//! Finds what is wrong with a set of forwarders, from their states.

use super::{SILENT, Value, number};
use serde_json::json;

/// Calls to the back end that take longer are reported, ms. A disk that spins up or a server that
/// fails over takes a while, but the user should soon see what hangs for ever.
const CALL_MS_MAX: u64 = 10_000;

/// A finding.
pub struct Wrong {
    /// A word for programs.
    kind: &'static str,
    /// Of which forwarder; None: of a seat.
    forwarder: Option<u64>,
    seat: Option<u64>,
    /// A line for people.
    pub text: String,
}

impl Wrong {
    /// A finding about all forwarders together.
    pub fn of_all(kind: &'static str, text: String) -> Wrong {
        Wrong {
            kind,
            forwarder: None,
            seat: None,
            text,
        }
    }

    /// The word for programs.
    pub fn kind(&self) -> &'static str {
        self.kind
    }

    /// For `--json`.
    pub fn json(&self) -> Value {
        json!({
            "kind": self.kind, "forwarder": self.forwarder, "seat": self.seat, "text": self.text,
        })
    }
}

/// The address of another process that claims the index of this forwarder, if there is one.
pub fn double(state: &Value) -> Option<String> {
    let (index, there) = (&state["forwarder"], state["doubled"].as_str()?);
    Some(format!(
        "another process says that it is forwarder {index} too, at {there}: correct `forwarder` in \
         the configuration of one of them and start it again"
    ))
}

/// The name of a forwarder in a line.
pub fn name(state: &Value) -> String {
    let address = state["address"].as_str().unwrap_or("");
    format!("forwarder {} ({address})", state["forwarder"])
}

/// Whether the forwarder serves a seat of its state: it may still wait for the seat, or be giving
/// it to another.
pub fn is_served(seat: &Value) -> bool {
    seat["state"].as_str().is_some_and(serves)
}

fn serves(word: &str) -> bool {
    ["serving", "grace"].contains(&word)
}

/// Findings about single forwarders: each that does not answer, is drained, or has trouble with its
/// back end.
pub fn of_forwarders(states: &[Value]) -> Vec<Wrong> {
    let mut all = Vec::new();
    for state in states {
        let name = name(state);
        let mut add = |kind, text: String| {
            all.push(Wrong {
                kind,
                forwarder: state["forwarder"].as_u64(),
                seat: None,
                text,
            });
        };
        if let Some(error) = state["error"].as_str() {
            let after = match error.strip_prefix(SILENT) {
                Some(rest) => rest.to_string(),
                None => format!(": {error}"),
            };
            add("silent", format!("{name} does not answer{after}"));
            continue;
        }
        if let Some(trouble) = state["trouble"].as_str() {
            add("back-end", format!("{name}: back end: {trouble}"));
        }
        let call_ms = number(&state["oldest_job_ms"]);
        if call_ms >= CALL_MS_MAX {
            let seconds = call_ms / 1000;
            let what = format!("{name}: back end: a call has not returned for {seconds} s");
            add("slow", what);
        }
        if let Some(double) = double(state) {
            add("double", format!("{name}: {double}"));
        }
        if state["draining"] == Value::Bool(true) {
            let index = &state["forwarder"];
            let undo = format!("`tidegate drain {index} --undo` ends that, if it does not stop");
            add("draining", format!("{name} is draining ({undo})"));
        }
    }
    all
}

/// A finding if the number of forwarders asked is not the export's.
pub fn of_number(states: &[Value]) -> Option<Wrong> {
    let asked = states.len() as u64;
    let mut has = states
        .iter()
        .filter_map(|state| state["forwarders"].as_u64());
    let other = has.find(|has| *has != asked)?;
    Some(Wrong::of_all(
        "number",
        format!(
            "the list has {asked} forwarders, and the export {other}: name all of them, or one, \
             and leave `export` out of client.toml"
        ),
    ))
}

/// Each seat that its owner does not serve.
pub fn of_seats(states: &[Value]) -> Vec<Wrong> {
    let seats = states.len() as u64;
    (0..seats)
        .filter_map(|seat| of_seat(states, seat))
        .collect()
}

fn of_seat(states: &[Value], seat: u64) -> Option<Wrong> {
    let of = |state: &Value| {
        let mut seats = state["seats"].as_array().into_iter().flatten();
        let found = seats.find(|one| one["seat"].as_u64() == Some(seat))?;
        Some(found["state"].as_str()?.to_string())
    };
    let held = states.iter().filter_map(|state| Some((state, of(state)?)));
    let held: Vec<(&Value, String)> = held.collect();
    let server = held.iter().find(|(_, word)| serves(word));
    let (kind, text) = match server {
        Some((state, _)) if state["forwarder"].as_u64() == Some(seat) => return None,
        Some((state, _)) => {
            let by = name(state);
            (
                "stand-in",
                format!("seat {seat} is served by {by}, a stand-in"),
            )
        }
        None => {
            let words = held.iter().map(|(state, word)| {
                let forwarder = &state["forwarder"];
                format!("; forwarder {forwarder}: {word}")
            });
            let words: String = words.collect();
            ("nobody", format!("seat {seat} is served by nobody{words}"))
        }
    };
    Some(Wrong {
        kind,
        forwarder: None,
        seat: Some(seat),
        text,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(forwarder: u64, seats: &[(u64, &str)]) -> Value {
        let seats = seats
            .iter()
            .map(|(seat, word)| json!({"seat": seat, "state": word}));
        let seats: Vec<Value> = seats.collect();
        let address = format!("unix:{forwarder}");
        json!({"forwarder": forwarder, "address": address, "draining": false, "seats": seats})
    }

    fn texts(all: Vec<Wrong>) -> Vec<String> {
        all.into_iter().map(|wrong| wrong.text).collect()
    }

    #[test]
    fn all_in_order_is_nothing_to_tell() {
        let states = [state(0, &[(0, "serving")]), state(1, &[(1, "grace")])];
        assert!(of_forwarders(&states).is_empty());
        assert!(of_seats(&states).is_empty());
    }

    #[test]
    fn another_number_of_forwarders_than_the_export_has_is_told() {
        let mut states = [state(0, &[]), state(1, &[])];
        assert!(of_number(&states).is_none());
        for state in &mut states {
            state["forwarders"] = 2.into();
        }
        assert!(of_number(&states).is_none());
        states[1]["forwarders"] = 3.into();
        let told = of_number(&states).expect("one says 3").text;
        assert!(
            told.starts_with("the list has 2 forwarders, and the export 3"),
            "{told}"
        );
    }

    #[test]
    fn each_thing_that_is_wrong_is_a_line() {
        let mut ill = state(0, &[(0, "serving"), (1, "serving")]);
        ill["trouble"] = "Input/output error".into();
        ill["oldest_job_ms"] = 12_345.into();
        ill["doubled"] = "unix:b".into();
        let mut aside = state(1, &[]);
        aside["draining"] = true.into();
        let away = json!({"forwarder": 2, "address": "unix:2", "error": "no answer within 2 s"});
        let down = json!({"forwarder": 3, "address": "unix:3", "error": "Connection refused"});
        let waits = state(4, &[(4, "taking")]);
        let states = [ill, aside, away, down, waits];
        assert_eq!(
            texts(of_forwarders(&states)),
            [
                "forwarder 0 (unix:0): back end: Input/output error",
                "forwarder 0 (unix:0): back end: a call has not returned for 12 s",
                "forwarder 0 (unix:0): another process says that it is forwarder 0 too, at unix:b: \
                 correct `forwarder` in the configuration of one of them and start it again",
                "forwarder 1 (unix:1) is draining (`tidegate drain 1 --undo` ends that, if it \
                 does not stop)",
                "forwarder 2 (unix:2) does not answer within 2 s",
                "forwarder 3 (unix:3) does not answer: Connection refused",
            ]
        );
        assert_eq!(
            texts(of_seats(&states)),
            [
                "seat 1 is served by forwarder 0 (unix:0), a stand-in",
                "seat 2 is served by nobody",
                "seat 3 is served by nobody",
                "seat 4 is served by nobody; forwarder 4: taking",
            ]
        );
        let kinds: Vec<Value> = of_seats(&states).iter().map(Wrong::json).collect();
        assert_eq!(kinds[0]["kind"], "stand-in");
        assert_eq!(
            (&kinds[0]["seat"], &kinds[0]["forwarder"]),
            (&json!(1), &Value::Null)
        );
    }
}

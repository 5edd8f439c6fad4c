//! What forwarders say of themselves to `tidegate stat`, `policy` and `share`: whatever it is, the
//! pages are made, and move no cursor.

use crate::Draw;
use serde_json::{Value, json};
use tidegate_cli::pages::{complaints, page, policies, shares, state};
use tidegate_server::config::rules;

pub(super) fn run(data: &[u8]) {
    let mut draw = Draw::new(data);
    let count = 1 + draw.below(3);
    let mut states = Vec::new();
    for index in 0..count {
        let told = match draw.one_in(4) {
            true => String::from_utf8_lossy(draw.some_bytes()).into_owned(),
            false => told(&mut draw).to_string(),
        };
        let mut state = state(&told);
        assert!(state.is_object(), "no state: {state}");
        state["forwarder"] = json!(index);
        state["address"] = json!("unix:/a");
        states.push(state);
    }
    let mut all = [page(&states), complaints(&states), policies(&states)].concat();
    if let Ok(shown) = shares(&states) {
        all += &shown.page;
        let read: Value = serde_json::from_str(&shown.json.to_string()).expect("it is JSON");
        assert!(read.is_object());
        for line in shown.warnings {
            assert!(!line.contains('\n'), "{line:?}");
            all += &line;
        }
    }
    for line in all.lines() {
        let obeyed = |c: char| {
            let turns = matches!(
                c,
                '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2066}'..='\u{2069}'
            );
            turns || c.is_control() || matches!(c, '\u{2028}'..='\u{202e}')
        };
        assert!(!line.chars().any(obeyed), "it moves the cursor: {line:?}");
    }
}

/// The state of a forwarder, with any values in places.
fn told(draw: &mut Draw<'_>) -> Value {
    let applications = (0..draw.u8() % 4).map(|_| {
        let mut application = json!({
            "app": word(draw), "name": word(draw), "uid": number(draw),
            "rule": word(draw), "group": word(draw), "others": draw.one_in(8),
        });
        let counts = [
            "read_requests",
            "read_bytes",
            "write_requests",
            "charged_ns",
        ];
        for count in counts {
            application[count] = number(draw);
        }
        application
    });
    let applications: Vec<_> = applications.collect();
    let seats = (0..draw.u8() % 4).map(|_| {
        let state = draw.of(&["serving", "grace", "taking", "\u{1b}"]);
        json!({ "seat": number(draw), "state": state })
    });
    let seats: Vec<_> = seats.collect();
    let shares = match draw.u8() % 4 {
        0 => word(draw),
        _ => json!(rules_text(draw)),
    };
    let mut told = json!({
        "applications": applications, "seats": seats, "shares": shares,
        "policy": word(draw), "asked_policy": word(draw), "options": { "depth": number(draw) },
        "shares_set_ns": number(draw), "lease_ms": number(draw), "forwarders": number(draw),
        "oldest_job_ms": number(draw), "draining": draw.yes(), "batches": number(draw),
        "trace": { "recorded": number(draw), "buffered": number(draw), "dropped": number(draw) },
        "requests": { "answered": number(draw), "errors": number(draw) },
        "capacity": {
            "bytes_per_s": number(draw), "operations_per_s": number(draw), "measured": draw.yes(),
        },
        "ownership": {
            "keeper": word(draw), "durability": word(draw), "one_node": word(draw),
            "ttl_ms": number(draw),
        },
    });
    for key in ["error", "trouble", "doubled"] {
        if draw.one_in(8) {
            told[key] = word(draw);
        }
    }
    told
}

/// Rules as a forwarder keeps them, if they can be rules.
fn rules_text(draw: &mut Draw<'_>) -> String {
    let mut text = String::new();
    for _ in 0..draw.u8() % 4 {
        let name = draw.of(&["a", "b*", "?", "\\u001b[2J", "\\u202e"]);
        let (kind, share) = (draw.of(&["app", "group"]), draw.of(&SHARES));
        text += &format!("[[{kind}]]\nname = \"{name}\"\n{share}\n");
    }
    rules(&text, "fuzz").map_or(text, |rules| rules.to_string())
}

const SHARES: [&str; 6] = [
    "weight = 3",
    "min = \"50 %\"",
    "min = \"18446744073709551615 B/s\"",
    "max = \"1 op/s\"",
    "latency = \"5 ms\"",
    "weight = 1\nmin = \"100 %\"\nmax = \"1 GB/s\"",
];

fn word(draw: &mut Draw<'_>) -> Value {
    match draw.u8() % 8 {
        0 => json!(String::from_utf8_lossy(draw.some_bytes())),
        1 => json!("two\n\tlines"),
        2 => json!("\u{1b}[2J\u{9b}\u{202e}\u{2066}"),
        3 => number(draw),
        4 => Value::Null,
        _ => json!(draw.of(&["a", "b", "edf", "dsfq", "no answer"])),
    }
}

fn number(draw: &mut Draw<'_>) -> Value {
    match draw.u8() % 8 {
        0 => json!(draw.size() as i64),
        1 => json!(draw.size() as f64),
        2 => json!([[]]),
        3 => json!(u64::MAX),
        4 => json!(draw.size()),
        _ => json!(draw.u8()),
    }
}

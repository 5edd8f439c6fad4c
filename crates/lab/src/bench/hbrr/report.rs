//! The table, as text and as JSON.

use super::turn::Turn;
use super::{Access, Hbrr, Part, Row, SIDES};
use crate::bench::statistics::{largest, smallest};
use serde_json::{Value, json};
use tidegate_cli::table::lay_out;

/// The table and what the paper has.
pub fn text(hbrr: &Hbrr, rows: &[Row]) -> String {
    let heading = [
        "",
        "forwarders",
        "",
        "fifo, MB/s",
        "round-robin",
        "ratio",
        "of turns",
        "ns a byte",
        "",
        "calls",
        "",
    ];
    let mut last = (Part::Records, String::new());
    let mut cells = Vec::new();
    for row in rows {
        let title = (row.part, row.load.title.clone());
        let shown = match title == last {
            true => String::new(),
            false => title.1.clone(),
        };
        last = title;
        let ratios = ratios(row);
        cells.push(vec![
            shown,
            row.forwarders.to_string(),
            row.access.name().to_string(),
            format!("{:.2}", row.rate(0)),
            format!("{:.2}", row.rate(1)),
            format!("{:.3}", row.ratio()),
            format!("{:.2} to {:.2}", smallest(&ratios), largest(&ratios)),
            format!("{:.1}", row.processor(0)),
            format!("{:.1}", row.processor(1)),
            format!("{:.0}", row.calls(0)),
            format!("{:.0}", row.calls(1)),
        ]);
    }
    format!(
        "One shared file on emulated disks; medians of {} turns; processor time of clients and \
         forwarders, ns a byte,\nand calls to the back end, are fifo's and then round-robin's\n{}\
         The paper: HBRR over FIFO +48.6 % (writes) and +40.0 % (reads) at 32 KB, and behind it in \
         the largest messages;\nits BTIO (class C) +14.2 to +38.3 %, FIFO over direct access. \
         Direct access by all processes is fifo here.\n",
        hbrr.repetitions,
        lay_out(&heading, &cells)
    )
}

/// The table as JSON.
pub fn json(hbrr: &Hbrr, rows: &[Row]) -> Value {
    let row = |row: &Row| {
        let side = |side: usize| {
            let turn = |turn: &Turn| {
                json!({
                    "seconds": turn.seconds,
                    "calls": turn.calls,
                    "identical": turn.identical,
                })
            };
            json!({
                "mb_per_second": row.rate(side),
                "processor_ns_per_byte": row.processor(side),
                "calls": row.calls(side),
                "turns": row.turns[side].iter().map(turn).collect::<Vec<_>>(),
            })
        };
        json!({
            "load": row.load.title,
            "bytes": row.load.bytes(),
            "processes": row.load.calls.len(),
            "forwarders": row.forwarders,
            "write": row.access == Access::Write,
            SIDES[0].0: side(0),
            SIDES[1].0: side(1),
            "ratio": row.ratio(),
        })
    };
    json!({
        "bench": "hbrr",
        "repetitions": hbrr.repetitions,
        "rows": rows.iter().map(row).collect::<Vec<_>>(),
    })
}

/// Round robin's speed in units of fifo's, turn by turn.
fn ratios(row: &Row) -> Vec<f64> {
    let pairs = row.turns[0].iter().zip(&row.turns[1]);
    pairs
        .map(|(fifo, robin)| fifo.seconds / robin.seconds)
        .collect()
}

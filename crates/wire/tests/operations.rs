//! The list of operations in `docs/protocol.md` is the table in `src/message/operations.rs`.
//! `TIDEGATE_BLESS=1` writes it.

use std::collections::BTreeSet;
use std::fmt::Write;
use tidegate_wire::{AskedSeat, OpKind};

const DOCUMENT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/protocol.md");
const HEADING: &str = "| code | operation | class | seat | reply | changes files |\n";

fn table() -> String {
    let mut text = format!("{HEADING}|---|---|---|---|---|---|\n");
    for kind in OpKind::ALL {
        let spec = kind.spec();
        let seat = match spec.seat {
            AskedSeat::Any => "any forwarder",
            AskedSeat::Named => "named by the request",
            AskedSeat::Parent => "of the directory",
            AskedSeat::File => "of the file",
            AskedSeat::Root => "of the root",
            AskedSeat::Byte => "of the byte",
        };
        let changes = if spec.changes { "yes" } else { "" };
        let (code, name, class, reply) = (spec.code, spec.name, spec.class, spec.reply);
        let _ = writeln!(
            text,
            "| {code} | {name} | {class} | {seat} | {reply:?} | {changes} |"
        );
    }
    text
}

#[test]
fn the_document_lists_the_operations_of_the_table() {
    let document = std::fs::read_to_string(DOCUMENT).expect("the document is there");
    let from = document.find(HEADING).expect("it has the list");
    let len = document[from..]
        .find("\n\n")
        .map_or(document.len() - from, |len| len + 1);
    if std::env::var_os("TIDEGATE_BLESS").is_some() {
        let blessed = [&document[..from], &table(), &document[from + len..]].concat();
        return std::fs::write(DOCUMENT, blessed).expect("the document can be written");
    }
    let listed = &document[from..from + len];
    assert_eq!(listed, table(), "TIDEGATE_BLESS=1 writes the list anew");
}

#[test]
fn each_code_is_one_operation() {
    let codes: BTreeSet<u8> = OpKind::ALL.iter().map(|kind| kind.spec().code).collect();
    assert_eq!(codes.len(), OpKind::ALL.len());
    for code in 0..=u8::MAX {
        let kind = OpKind::of_code(code);
        assert_eq!(kind.map(|kind| kind as u8), codes.get(&code).copied());
    }
}

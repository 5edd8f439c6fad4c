//! What came of a scenario, for people: tables of the metrics, and the claims beside the paper.

use crate::table::lay_out;
use tidegate_sim::findings::Findings;
use tidegate_sim::page::Table;

/// The whole page.
pub fn page(findings: &Findings) -> String {
    let mut page = format!("{}: {}\n", findings.scenario, findings.title);
    for fact in findings.facts() {
        page.push_str(&format!("{fact}\n"));
    }
    for table in findings.tables().iter().chain(&findings.claims_table()) {
        page.push('\n');
        page.push_str(&lay(table));
    }
    for reason in findings.reasons() {
        page.push_str(&format!("{reason}\n"));
    }
    for paragraph in findings.notes() {
        page.push_str(&format!("\n{paragraph}\n"));
    }
    page
}

/// A table below its caption.
pub fn lay(table: &Table) -> String {
    let heading: Vec<&str> = table.columns.iter().map(String::as_str).collect();
    let rows = lay_out(&heading, &table.rows);
    match table.caption.as_str() {
        "" => rows,
        caption => format!("{caption}\n{rows}"),
    }
}

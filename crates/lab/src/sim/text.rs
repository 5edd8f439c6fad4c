//! The results of a scenario as text: tables of the metrics, and the claims beside the paper.

use crate::findings::Findings;

/// The whole page.
pub fn page(findings: &Findings) -> String {
    let mut page = format!("{}: {}\n", findings.scenario, findings.title);
    for fact in findings.facts() {
        page.push_str(&format!("{fact}\n"));
    }
    for table in findings.tables().iter().chain(&findings.claims_table()) {
        page.push('\n');
        page.push_str(&table.text());
    }
    for reason in findings.reasons() {
        page.push_str(&format!("{reason}\n"));
    }
    for paragraph in findings.notes() {
        page.push_str(&format!("\n{paragraph}\n"));
    }
    page
}

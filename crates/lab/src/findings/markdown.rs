//! The results of a scenario as Markdown.

use super::{Findings, Table};
use std::fmt::Write as _;

impl Findings {
    /// A section under a heading of the second level.
    pub fn markdown(&self) -> String {
        let mut out = format!("## {}: {}\n\n", self.scenario, plain(&self.title));
        list(&mut out, &self.facts());
        for table in self.tables() {
            out += &self::table(&table);
        }
        for table in self.timeline_tables() {
            out += &self::table(&table);
        }
        if let Some(table) = self.claims_table() {
            out += &self::table(&table);
        }
        list(&mut out, &self.reasons());
        for paragraph in self.notes() {
            let _ = writeln!(out, "{}\n", plain(&paragraph));
        }
        out
    }
}

/// Items of a list.
pub fn list(out: &mut String, items: &[String]) {
    for item in items {
        let _ = writeln!(out, "- {}", plain(item));
    }
    if !items.is_empty() {
        out.push('\n');
    }
}

/// A table as Markdown, its caption above it; the first column to the left, the others to
/// the right.
pub fn table(table: &Table) -> String {
    let mut out = String::new();
    if !table.caption.is_empty() {
        let _ = writeln!(out, "**{}**\n", plain(&table.caption));
    }
    let mut line = |cells: &[String]| {
        out.push('|');
        for column in 0..table.columns.len() {
            let cell = cells.get(column).map_or("", String::as_str);
            let _ = write!(out, " {} |", plain(cell));
        }
        out.push('\n');
    };
    line(&table.columns);
    let rule = |column: usize| if column == 0 { "---" } else { "---:" };
    let rules: Vec<_> = (0..table.columns.len())
        .map(rule)
        .map(str::to_string)
        .collect();
    line(&rules);
    table.rows.iter().for_each(|row| line(row));
    out.push('\n');
    out
}

/// Text without what Markdown or HTML would take for its own.
fn plain(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '\n' => out.push(' '),
            '|' | '*' | '_' | '`' | '[' | '\\' | '<' => out.extend(['\\', character]),
            _ => out.push(character),
        }
    }
    out
}

//! Measures what the protection of frames between nodes costs, and keeps its section of the page of
//! documentation.

use super::column::{self, Column, Way};
use super::sections::{ENCRYPTION as TITLE, with_section};
use super::workload::{LARGE, SMALL, Workload};
use super::{Effort, FULL, QUICK, Table, machine, measure, one_forwarder, page, rows_json};
use crate::bench::cluster::at;
use crate::bench::workplace::Workplace;
use crate::bench::{Claim, Common};
use serde_json::json;
use std::path::PathBuf;
use std::process::ExitCode;
use tidegate_cli::fail::Fail;

/// The columns; the first is what the others are compared with.
const OFF: &str = "off";
const ON: &str = "on";
const WAYS: [&str; 3] = [OFF, "integrity", ON];
/// The least share of `off` that `on` is claimed to make, by the size of an access.
const LEAST: [(usize, f64); 2] = [(SMALL, 0.85), (LARGE, 0.6)];

/// What `encryption = "on"` and `"integrity"` cost over TCP, beside `"off"`.
///
/// 1 and 8 clients read and write 4 KiB and 1 MiB of their own files through one forwarder, over
/// TCP of this machine, waiting for each access, and one client with 32 (4 KiB) or 8 (1 MiB) in
/// flight. The three take turns in one run, each in a process of its own; the medians of the turns
/// are reported. Client and forwarder share the processors, so both ends' ciphers count.
#[derive(clap::Args, Clone, Debug)]
pub struct Encryption {
    /// Also write its section of this page of documentation, in the place of the one that is there
    #[arg(long, value_name = "FILE")]
    write: Option<PathBuf>,
    #[command(flatten)]
    common: Common,
}

impl Encryption {
    /// Measures, prints the tables and writes the section.
    pub fn perform(self) -> Result<ExitCode, Fail> {
        let effort = self.common.choose(FULL, QUICK);
        let place = Workplace::make(&self.common.dir, "bench")?;
        let table = self.table(&place, &effort)?;
        let machine = machine::words(place.dir());
        let claims: Vec<Claim> = self.common.claims(|| claims(&table));
        let json =
            || json!({ "bench": "encryption", "machine": machine, "rows": rows_json(&table) });
        let text = || page::encryption_tables(&machine, &table);
        let code = self.common.conclude(&claims, json, text);
        if let Some(file) = &self.write {
            let text = std::fs::read_to_string(file).map_err(at(file))?;
            let section = page::encryption_section(TITLE, &machine, &table, &claims, &effort);
            std::fs::write(file, with_section(&text, TITLE, &section)).map_err(at(file))?;
        }
        Ok(code)
    }

    fn table(&self, place: &Workplace, effort: &Effort) -> Result<Table, Fail> {
        let cluster = one_forwarder(place, "encryption", "encryption = \"off\"\n")?;
        column::fill_together(cluster.export(), effort.files_bytes)?;
        let start = |name| {
            let way = Way::Client(format!("{};encryption={name}", cluster.tcp_text()));
            Column::start(place, name, &way, Some(&cluster))
        };
        let columns: Result<Vec<_>, Fail> = WAYS.into_iter().map(start).collect();
        let workloads = [SMALL, LARGE].into_iter().flat_map(Workload::of_size);
        measure(&self.common, &columns?, workloads.collect(), effort)
    }
}

fn claims(table: &Table) -> Vec<Claim> {
    let of_size = |(len, least): (usize, f64)| {
        let alone = Workload::waiting(len).into_iter();
        alone
            .filter(|it| it.clients == 1)
            .filter_map(move |workload| {
                let share = page::share(table.at(&workload, OFF)?, table.at(&workload, ON)?);
                let words = workload.words();
                let text = format!("{words}: on makes {share:.2} of off, at least {least}");
                Some(Claim::new(text, share >= least))
            })
    };
    LEAST.into_iter().flat_map(of_size).collect()
}

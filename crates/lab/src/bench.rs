//! `tidegate bench`: workloads of the papers and a table of costs, measured on real forwarders.
//!
//! A benchmark starts its own forwarders in a directory of its own, and removes everything when it
//! ends. It measures the things that it compares in one run, in turns, so that other load on the
//! machine hits them all alike.

mod agios;
pub mod cluster;
mod direct;
mod hbrr;
mod liu;
mod memory;
mod models;
mod names;
mod nodes;
mod overlap;
mod performance;
mod pipelining;
mod processor;
mod shares;
mod song;
pub mod statistics;
mod tracing;
pub mod workplace;

use rustix::stdio::stderr;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use tidegate_cli::fail::Fail;
use tidegate_cli::installed;
use tidegate_cli::{err, out, outln};

const EXAMPLES: &str = "\
Examples:
  tidegate bench song-2011-fig5                        ten readers, in arrival order and in windows
  tidegate bench song-2011-fig5 --ssd --repetitions 5 --json
  tidegate bench song-2011-fig5 --simulate             live and in virtual time, side by side
  tidegate bench agios-2013-fig6 --read                strided calls in pieces, and prediction
  tidegate bench hbrr --clients 16                     how many calls merging saves
  tidegate bench liu-2013-fig4                         MPI jobs with collective reads, and hio
  tidegate bench overlap                               what it costs to know which ranges overlap
  tidegate bench performance --dir /fast --quick       what forwarding costs; a first look
  tidegate bench encryption --check                    what protection of frames over TCP costs
  tidegate bench names --check                         what names cost, beside a pass-through
  tidegate bench direct --check                        direct I/O against a plain directory
  tidegate bench pipelining --check                    long reads and writes in chunks, three ways
  tidegate bench memory --check                        256 clients with 64 MiB each in flight
  tidegate bench models --check                        live and virtual time on emulated devices
  tidegate bench performance --check                   whether the data path is as fast as claimed
  tidegate bench shares --forwarders 4                 two jobs with shares and latency targets
  tidegate bench tracing --check                       what recording costs: at most 2 %
  tidegate bench cluster --node 'ssh cn1' --bare /ceph/data --tide /tide --client c.toml
                                                       a cluster that runs, with and without us
`tidegate bench COMMAND --help` tells what is measured and how.";

/// Drive real forwarders with a paper's workload, and compare policies in one run.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Bench {
    #[command(subcommand)]
    workload: Workload,
}

#[derive(clap::Subcommand)]
enum Workload {
    #[command(name = "song-2011-fig5", visible_alias = "song-2011-fig3")]
    Song(song::Song),
    #[command(name = "agios-2013-fig6", visible_alias = "agios-2013-fig5")]
    Agios(agios::Agios),
    Cluster(Box<nodes::Nodes>),
    Direct(direct::Direct),
    Encryption(performance::encryption::Encryption),
    Hbrr(hbrr::Hbrr),
    #[command(name = "liu-2013-fig4")]
    Liu(liu::Liu),
    Overlap(overlap::Overlap),
    Memory(memory::Memory),
    Models(models::Models),
    Names(names::Names),
    Performance(performance::Performance),
    Pipelining(pipelining::Pipelines),
    #[command(hide = true)]
    Load(performance::load::Load),
    #[command(hide = true)]
    Program(nodes::Process),
    #[command(visible_alias = "vpfs-2013-fig5")]
    Shares(shares::Shares),
    Tracing(tracing::Tracing),
}

impl Bench {
    /// Runs one benchmark.
    pub fn perform(self) -> Result<ExitCode, Fail> {
        match self.workload {
            Workload::Song(song) => song.perform(),
            Workload::Agios(agios) => agios.perform(),
            Workload::Cluster(nodes) => nodes.perform(),
            Workload::Direct(direct) => direct.perform(),
            Workload::Encryption(encryption) => encryption.perform(),
            Workload::Hbrr(hbrr) => hbrr.perform(),
            Workload::Liu(liu) => liu.perform(),
            Workload::Overlap(overlap) => overlap.perform(),
            Workload::Memory(memory) => memory.perform(),
            Workload::Models(models) => models.perform(),
            Workload::Names(names) => names.perform(),
            Workload::Performance(performance) => performance.perform(),
            Workload::Pipelining(pipelines) => pipelines.perform(),
            Workload::Load(load) => load.perform(),
            Workload::Program(process) => process.perform(),
            Workload::Shares(shares) => shares.perform(),
            Workload::Tracing(tracing) => tracing.perform(),
        }
    }
}

/// The program to measure.
fn tidegate() -> Result<PathBuf, Fail> {
    installed::program("tidegate", "this benchmark")
}

/// The flags that every benchmark has.
#[derive(clap::Args, Clone, Debug)]
pub struct Common {
    /// Where its files go; a directory of its own is made there, and removed
    #[arg(long, value_name = "DIR", default_value_os_t = std::env::temp_dir())]
    dir: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// A shorter run that shows that everything works; its figures mean nothing
    #[arg(long)]
    quick: bool,
    /// Exit with 1 if a claim does not hold
    #[arg(long)]
    check: bool,
}

impl Common {
    /// `full`, or `quick` with --quick.
    fn choose<T>(&self, full: T, quick: T) -> T {
        if self.quick { quick } else { full }
    }

    /// The claims on figures: a quick run has none, because its figures mean nothing.
    fn claims(&self, claims: impl FnOnce() -> Vec<Claim>) -> Vec<Claim> {
        if self.quick { Vec::new() } else { claims() }
    }

    /// Tells a terminal how far the benchmark is: one line, which the next one replaces.
    fn progress(&self, line: &str) {
        if !self.json && rustix::termios::isatty(stderr()) {
            err!("\r{line}\x1b[K\r");
            // A terminal that is gone sees no progress.
            let _ = std::io::stderr().flush();
        }
    }

    /// Prints the results, and which claims hold. The exit code is that of the command.
    fn conclude(
        &self,
        claims: &[Claim],
        json: impl FnOnce() -> Value,
        text: impl FnOnce() -> String,
    ) -> ExitCode {
        if self.json {
            let mut found = json();
            found["claims"] = claims_json(claims);
            outln!("{found}");
        } else {
            out!("{}", text());
        }
        self.judge(claims)
    }

    /// Prints which claims hold. With --check the exit code tells whether all do.
    fn judge(&self, claims: &[Claim]) -> ExitCode {
        for claim in claims.iter().filter(|_| !self.json) {
            outln!("{:<13}  {}", claim.verdict(), claim.text);
        }
        match self.check && claims.iter().any(|claim| !claim.holds) {
            true => ExitCode::FAILURE,
            false => ExitCode::SUCCESS,
        }
    }
}

/// Read or write.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Access {
    Read,
    Write,
}

impl Access {
    /// As in a forwarder's status.
    pub fn name(self) -> &'static str {
        match self {
            Access::Read => "read",
            Access::Write => "write",
        }
    }
}

/// A table as Markdown: the first column to the left, the others to the right.
fn markdown(heading: &[&str], rows: &[Vec<String>]) -> String {
    let mut text = format!("| {} |\n|---|", heading.join(" | "));
    text += &"--:|".repeat(heading.len() - 1);
    text.push('\n');
    for row in rows {
        text += &format!("| {} |\n", row.join(" | "));
    }
    text
}

/// A claim about what was measured.
struct Claim {
    /// In words, with the measured value.
    text: String,
    holds: bool,
}

impl Claim {
    fn new(text: String, holds: bool) -> Claim {
        Claim { text, holds }
    }

    fn verdict(&self) -> &'static str {
        if self.holds { "holds" } else { "DOES NOT HOLD" }
    }
}

/// Claims for `--json`.
fn claims_json(claims: &[Claim]) -> Value {
    let one = |claim: &Claim| json!({ "claim": claim.text, "holds": claim.holds });
    claims.iter().map(one).collect()
}

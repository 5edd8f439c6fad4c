//! `tidegate-lab` performs `tidegate bench`, `sim`, `report` and `demo`: it measures Tidegate on
//! real forwarders and in virtual time, and draws the results. It also writes manual pages and what
//! shells complete, for it alone has the definitions of all commands.

// They panic where nobody reads: [`tidegate_cli::output`] does not.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

mod bench;
mod chart;
mod demo;
mod findings;
mod manual;
mod page;
mod report;
mod sim;

use clap::Parser;
use std::process::ExitCode;
use tidegate_cli::fail::Fail;

/// Measurements of Tidegate: benchmarks, scenarios in virtual time, reports.
#[derive(Parser)]
#[command(
    name = "tidegate-lab",
    bin_name = "tidegate",
    version,
    max_term_width = 100
)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    Sim(sim::Sim),
    Report(report::Report),
    Bench(bench::Bench),
    Demo(demo::Demo),
    Completions(manual::Completions),
    Man(manual::Man),
}

fn main() -> ExitCode {
    tidegate_cli::main(perform)
}

fn perform(arguments: Arguments) -> Result<ExitCode, Fail> {
    match arguments.command {
        Command::Sim(sim) => sim.perform(),
        Command::Report(report) => report.perform(),
        Command::Bench(bench) => bench.perform(),
        Command::Demo(demo) => demo.perform(),
        Command::Completions(completions) => completions.perform(),
        Command::Man(man) => man.perform(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_arguments_are_consistent() {
        Arguments::command().debug_assert();
    }
}

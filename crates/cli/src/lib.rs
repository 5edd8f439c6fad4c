//! The `tidegate` command: starts forwarders and mounts, runs programs through them, and shows what
//! they do. It is a library for `tidegate-lab`, which shares its tables, its messages and the way
//! it finds forwarders.

// They panic where nobody reads: [`output`] does not.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

mod calibrate;
mod check;
mod copies;
mod dead_mount;
mod doctor;
mod down;
mod drain;
pub mod fail;
mod holders;
pub mod installed;
mod keys;
mod lab;
mod lock;
mod members;
mod metrics;
mod mount;
pub mod mount_helper;
mod names;
mod not_set;
pub mod output;
mod plain;
mod policy;
pub mod processes;
mod restarts;
mod run;
mod secret;
mod serve;
mod set_mounts;
mod share;
pub mod stat;
pub mod state;
pub mod table;
pub mod target;
pub mod trace;
mod up;
mod view;
mod waits;
mod why;

/// What people are shown of the states of forwarders, for programs that hand in any.
pub mod pages {
    pub use crate::policy::lines as policies;
    pub use crate::share::{Shown, shown as shares};
    pub use crate::stat::{complaints, page, state};
}

use clap::Parser;
use clap::error::ErrorKind;
use fail::Fail;
use std::process::ExitCode;

/// File I/O of unmodified programs through coordinated forwarders.
#[derive(Parser)]
#[command(name = "tidegate", version, max_term_width = 100)]
pub struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    Up(up::Up),
    Down(down::Down),
    Serve(serve::Serve),
    Mount(mount::Mount),
    Umount(mount::Umount),
    Run(run::Run),
    Stat(stat::Stat),
    Why(why::Why),
    Doctor(doctor::Doctor),
    Metrics(metrics::Metrics),
    Drain(drain::Drain),
    Policy(policy::Policy),
    Share(share::Share),
    Secret(secret::Secrets),
    View(view::View),
    Calibrate(calibrate::Calibrate),
    Check(check::Check),
    Trace(trace::Trace),
    /// Run a scenario in virtual time and compare policies (tidegate-lab)
    Sim(lab::Lab),
    /// Write a page of figures and tables: scenarios beside their papers, or what traces hold
    /// (tidegate-lab)
    Report(lab::Lab),
    /// Drive real forwarders with a paper's workload, and compare policies in one run
    /// (tidegate-lab)
    Bench(lab::Lab),
    /// Show two competing jobs, in the order of arrival and then coordinated (tidegate-lab)
    Demo(lab::Lab),
    /// Print what a shell needs to complete the words of `tidegate` (tidegate-lab)
    Completions(lab::Lab),
    /// Write the manual pages of all commands (tidegate-lab)
    Man(lab::Lab),
}

/// Reads the command line and performs it. Prints a failure as one line on standard error.
pub fn main<A: Parser>(perform: impl FnOnce(A) -> Result<ExitCode, Fail>) -> ExitCode {
    let result = match A::try_parse() {
        Ok(arguments) => match perform(arguments) {
            Ok(code) => output::finish().map(|()| code),
            failed => failed,
        },
        Err(error) => match error.kind() {
            ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
                // A closed pipe is the reader's choice.
                let _ = error.print();
                return ExitCode::SUCCESS;
            }
            _ => Err(Fail::usage(one_line(&error))),
        },
    };
    match result {
        Ok(code) => code,
        Err(fail) => {
            errln!("tidegate: {}", fail.message.trim_end().replace('\n', " "));
            ExitCode::from(fail.code)
        }
    }
}

/// Does what the command line says.
pub fn perform(arguments: Arguments) -> Result<ExitCode, Fail> {
    match arguments.command {
        Command::Up(up) => up.perform(),
        Command::Down(down) => down.perform(),
        Command::Serve(serve) => serve.perform(),
        Command::Mount(mount) => mount.perform(),
        Command::Umount(umount) => umount.perform(),
        Command::Run(run) => run.perform(),
        Command::Stat(stat) => stat.perform(),
        Command::Why(why) => why.perform(),
        Command::Doctor(doctor) => doctor.perform(),
        Command::Metrics(metrics) => metrics.perform(),
        Command::Drain(drain) => drain.perform(),
        Command::Policy(policy) => policy.perform(),
        Command::Share(share) => share.perform(),
        Command::Secret(secret) => secret.perform(),
        Command::View(view) => view.perform(),
        Command::Sim(lab) => lab.perform("sim"),
        Command::Report(lab) => lab.perform("report"),
        Command::Calibrate(calibrate) => calibrate.perform(),
        Command::Check(check) => check.perform(),
        Command::Trace(trace) => trace.perform(),
        Command::Bench(lab) => lab.perform("bench"),
        Command::Demo(lab) => lab.perform("demo"),
        Command::Completions(lab) => lab.perform("completions"),
        Command::Man(lab) => lab.perform("man"),
    }
}

/// Clap's message, without its page of usage.
fn one_line(error: &clap::Error) -> String {
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        return "say what to do; `tidegate --help` lists the commands".to_string();
    }
    let text = error.render().to_string();
    let said = text.split("\n\nUsage:").next().unwrap_or_default();
    let said = said.split("\n\nFor more").next().unwrap_or_default();
    let said = said.strip_prefix("error: ").unwrap_or(said);
    let words: Vec<_> = said.split_whitespace().collect();
    // A tip is a sentence of its own.
    format!("{}; see --help", words.join(" ").replace(" tip: ", "; "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_arguments_are_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn wrong_usage_is_told_in_one_line() {
        for arguments in [&["tidegate", "no-such-command"][..], &["tidegate", "up"]] {
            let error = Arguments::try_parse_from(arguments)
                .err()
                .expect("it is wrong");
            let line = one_line(&error);
            assert!(!line.contains('\n') && line.len() < 200, "{line}");
        }
        let near = Arguments::try_parse_from(["tidegate", "stat", "--jsn"]);
        let line = one_line(&near.err().expect("it is wrong"));
        assert!(line.contains("found; a similar argument exists"), "{line}");
    }
}

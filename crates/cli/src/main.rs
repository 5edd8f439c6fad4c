//! The `tidegate` command: forwarders, mounts, programs run through them, and what they do now.

mod bench;
mod calibrate;
mod check;
mod demo;
mod down;
mod drain;
mod fail;
mod holders;
mod mount;
mod names;
mod policy;
mod processes;
mod report;
mod run;
mod serve;
mod share;
mod sim;
mod stat;
mod state;
mod table;
mod target;
mod trace;
mod up;
mod view;

use clap::Parser;
use clap::error::ErrorKind;
use fail::Fail;
use std::process::ExitCode;

/// File I/O of unmodified programs through coordinated forwarders.
#[derive(Parser)]
#[command(name = "tidegate", version, max_term_width = 100)]
struct Arguments {
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
    Drain(drain::Drain),
    Policy(policy::Policy),
    Share(share::Share),
    View(view::View),
    Sim(sim::Sim),
    Report(report::Report),
    Calibrate(calibrate::Calibrate),
    Check(check::Check),
    Trace(trace::Trace),
    Bench(bench::Bench),
    Demo(demo::Demo),
}

fn main() -> ExitCode {
    let result = match Arguments::try_parse() {
        Ok(arguments) => perform(arguments.command),
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
            eprintln!("tidegate: {}", fail.message.trim_end().replace('\n', " "));
            ExitCode::from(fail.code)
        }
    }
}

fn perform(command: Command) -> Result<ExitCode, Fail> {
    match command {
        Command::Up(up) => up.perform(),
        Command::Down(down) => down.perform(),
        Command::Serve(serve) => serve.perform(),
        Command::Mount(mount) => mount.perform(),
        Command::Umount(umount) => umount.perform(),
        Command::Run(run) => run.perform(),
        Command::Stat(stat) => stat.perform(),
        Command::Drain(drain) => drain.perform(),
        Command::Policy(policy) => policy.perform(),
        Command::Share(share) => share.perform(),
        Command::View(view) => view.perform(),
        Command::Sim(sim) => sim.perform(),
        Command::Report(report) => report.perform(),
        Command::Calibrate(calibrate) => calibrate.perform(),
        Command::Check(check) => check.perform(),
        Command::Trace(trace) => trace.perform(),
        Command::Bench(bench) => bench.perform(),
        Command::Demo(demo) => demo.perform(),
    }
}

/// What clap says, without its page of usage.
fn one_line(error: &clap::Error) -> String {
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        return "say what to do; `tidegate --help` lists the commands".to_string();
    }
    let text = error.render().to_string();
    let said = text.split("\n\nUsage:").next().unwrap_or_default();
    let said = said.split("\n\nFor more").next().unwrap_or_default();
    let said = said.strip_prefix("error: ").unwrap_or(said);
    let words: Vec<_> = said.split_whitespace().collect();
    format!("{}; see --help", words.join(" "))
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
    }
}

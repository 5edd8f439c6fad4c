//! `tidegate completions` and `tidegate man`: what shells and `man` are to know of all commands,
//! those of `tidegate` and those of this program, written from their definitions.

use clap::{Command, CommandFactory};
use clap_complete::{Shell, generate};
use clap_mangen::Man as Page;
use clap_mangen::roff::{Roff, bold, roman};
use std::fs::DirBuilder;
use std::io::{self, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use tidegate_cli::fail::Fail;
use tidegate_cli::out;

/// What every page ends with.
const EXIT_STATUS: &str = "0; 2 for wrong use or configuration, and where no forwarder answers; \
                           1 for everything else.";
const OF_RUN: &str = "As the program's, which is also ended by the same signal; 127 if it is not \
                      found, 126 if it cannot be run. Before it runs: 2 for wrong use or \
                      configuration, and where no forwarder answers; 1 for everything else.";
const OF_DOCTOR: &str = "0 if all is ok, 1 if something is a warning, 2 if something fails, and \
                         for wrong use.";

/// Print what a shell needs to complete the words of `tidegate`
///
/// For bash, `source <(tidegate completions bash)`. `make install` puts what is printed where
/// shells look for it.
#[derive(clap::Args)]
pub struct Completions {
    /// The shell
    #[arg(value_name = "SHELL", value_parser = ["bash", "zsh", "fish"])]
    shell: String,
}

/// Write the manual pages of all commands
///
/// `make install` puts them where `man` looks for them.
#[derive(clap::Args)]
pub struct Man {
    /// The folder for them, which is made if it is not there
    #[arg(long, value_name = "DIR")]
    to: PathBuf,
}

impl Completions {
    /// Prints them.
    pub fn perform(self) -> Result<ExitCode, Fail> {
        let shell = match self.shell.as_str() {
            "zsh" => Shell::Zsh,
            "fish" => Shell::Fish,
            _ => Shell::Bash,
        };
        let mut text = Vec::new();
        generate(shell, &mut whole(), "tidegate", &mut text);
        out!("{}", String::from_utf8_lossy(&text));
        Ok(ExitCode::SUCCESS)
    }
}

impl Man {
    /// Writes them.
    pub fn perform(self) -> Result<ExitCode, Fail> {
        let mut made = DirBuilder::new();
        let made = made.recursive(true).mode(0o755).create(&self.to);
        let written = made.and_then(|()| {
            let mut command = whole().disable_help_subcommand(true);
            command.build();
            write_all(&command, None, &self.to)
        });
        let wrong = |error| Fail::usage(format!("--to {}: {error}", self.to.display()));
        written.map(|()| ExitCode::SUCCESS).map_err(wrong)
    }
}

/// The definitions of all commands. `tidegate` itself does not know what this program takes.
fn whole() -> Command {
    let mut whole = tidegate_cli::Arguments::command();
    for own in crate::Arguments::command().get_subcommands() {
        whole = whole.mut_subcommand(own.get_name(), |handing_over| {
            own.clone().display_order(handing_over.get_display_order())
        });
    }
    whole
}

/// Writes the page of a command and those of its subcommands.
fn write_all(command: &Command, parent: Option<&str>, to: &Path) -> io::Result<()> {
    let name = name(command);
    for one in command.get_subcommands().filter(|it| !it.is_hide_set()) {
        write_all(one, Some(name), to)?;
    }
    let mut text = Vec::new();
    write_page(command, parent, &mut text)?;
    std::fs::write(to.join(format!("{name}.1")), text)
}

/// `tidegate-share-set`, where the words are `tidegate share set`.
fn name(command: &Command) -> &str {
    command.get_display_name().unwrap_or(command.get_name())
}

fn write_page(command: &Command, parent: Option<&str>, text: &mut Vec<u8>) -> io::Result<()> {
    let source = concat!("Tidegate ", env!("CARGO_PKG_VERSION"));
    let page = Page::new(command.clone()).source(source).manual("Tidegate");
    // An empty one is left out, and the next word taken for it.
    let page = page.date(" ");
    page.render_title(text)?;
    // Lines are filled, and not stretched to the margin.
    writeln!(text, ".ad l\n.nh")?;
    page.render_name_section(text)?;
    page.render_synopsis_section(text)?;
    page.render_description_section(text)?;
    page.render_options_section(text)?;
    if command.has_subcommands() {
        page.render_subcommands_section(text)?;
    }
    let mut end = Roff::default();
    end.control("SH", ["EXIT STATUS"]);
    end.text([roman(match name(command) {
        "tidegate-run" => OF_RUN,
        "tidegate-doctor" => OF_DOCTOR,
        _ => EXIT_STATUS,
    })]);
    if let Some(parent) = parent {
        end.control("SH", ["SEE ALSO"]);
        end.text([bold(parent), roman("(1)")]);
    }
    end.to_writer(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_of_this_program_has_its_own_arguments() {
        let whole = whole();
        whole.clone().debug_assert();
        let flags = |command: &str, flag: &str| {
            let command = whole.find_subcommand(command).expect("it is a command");
            command
                .get_arguments()
                .any(|it| it.get_long() == Some(flag))
        };
        assert!(flags("serve", "config") && flags("mount", "ticket-s"));
        assert!(flags("demo", "quick") && flags("report", "markdown") && flags("man", "to"));
        // None is left as what hands over.
        for command in whole.get_subcommands() {
            let hands_over = command.get_arguments().any(|it| it.get_id() == "arguments");
            assert!(!hands_over, "{}", command.get_name());
        }
    }

    #[test]
    fn a_page_names_its_flags() {
        let mut command = whole();
        command.build();
        let share = command.find_subcommand("share").expect("it is a command");
        let set = share.find_subcommand("set").expect("it is a command");
        let mut text = Vec::new();
        write_page(set, Some("tidegate-share"), &mut text).expect("memory takes it");
        let text = String::from_utf8(text).expect("it is text");
        assert!(text.contains(".TH tidegate-share-set 1 "), "{text}");
        assert!(text.contains("forwarders") && text.contains("SEE ALSO"));
        assert!(!text.contains("SUBCOMMANDS"), "{text}");
    }
}

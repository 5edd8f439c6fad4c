//! `mount.tidegate`, by which mount(8) and lines of /etc/fstab mount: this program under that name.
//! It turns the options of mount(8) into flags of `tidegate mount`, and becomes that command.

use crate::fail::Fail;
use crate::{Arguments, errln, installed, one_line, outln, output, target};
use clap::{Command, CommandFactory, Parser};
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::ExitCode;

/// The name under which this program is the helper.
const NAME: &str = "mount.tidegate";

const USAGE: &str = "say `mount -t tidegate FORWARDERS DIR [-o OPTION,...]`, or the same words \
                     without -t to mount.tidegate; FORWARDERS are addresses, such as \
                     tcp:io1:4600,tcp:io2:4600, or none beside the option client=FILE";

/// Options of mount(8) that a mount keeps to as it is, or that are for mount(8) and the init system
/// alone. `nosuid` and `nodev` always hold; times of access are the back end's affair.
const TAKEN: &str = "defaults rw exec async nosuid nodev auto noauto nofail _netdev user nouser \
                     users nousers owner noowner group nogroup atime noatime diratime nodiratime \
                     relatime norelatime strictatime nostrictatime lazytime nolazytime silent loud \
                     nomand";

/// How such options begin that may say anything.
const TAKEN_BEGINNINGS: [&str; 6] = ["x-", "X-", "comment=", "user=", "uhelper=", "helper="];

/// Options that promise what no mount keeps, and why not.
const REFUSED: [(&str, &str); 9] = [
    ("ro", "there are no read-only mounts"),
    (
        "noexec",
        "programs on a mount can be run; beside `user`, say `exec` too",
    ),
    (
        "suid",
        "a mount never lets programs have their owner's rights",
    ),
    ("dev", "a mount never has devices"),
    (
        "sync",
        "writes are as durable as the forwarders' `durability` says, and synced by fsync",
    ),
    (
        "dirsync",
        "names are as durable as the forwarders' `durability` says",
    ),
    (
        "remount",
        "a mount does not change; unmount it, and mount anew",
    ),
    ("iversion", "a mount counts no versions of files"),
    ("foreground", "mount(8) waits for the end of this"),
];

/// Whether this program was started as the helper.
pub fn is_meant() -> bool {
    let called = std::env::args_os().next().unwrap_or_default();
    Path::new(&called)
        .file_name()
        .is_some_and(|name| name == NAME)
}

/// Mounts as the words of mount(8) say. Prints a failure as one line on standard error, and ends
/// with 1 for a word that is wrong, else as `tidegate mount` does.
pub fn main() -> ExitCode {
    let words = std::env::args_os().skip(1);
    match Asked::of(words).and_then(Asked::perform) {
        Ok(code) => code,
        Err(fail) => {
            errln!("{NAME}: {}", fail.message.trim_end().replace('\n', " "));
            ExitCode::FAILURE
        }
    }
}

/// What mount(8) wants.
#[derive(Debug, Default, PartialEq, Eq)]
struct Asked {
    /// What is mounted, and where.
    places: Vec<OsString>,
    /// All options, in their order.
    options: Vec<String>,
    is_sloppy: bool,
    is_fake: bool,
    is_verbose: bool,
}

impl Asked {
    /// Reads the words: `SOURCE DIR [-sfnv] [-N NAMESPACE] [-o OPTION,...] [-t TYPE]`.
    fn of(words: impl Iterator<Item = OsString>) -> Result<Asked, Fail> {
        let mut asked = Asked::default();
        let mut words = words;
        while let Some(word) = words.next() {
            let letters = word.to_str().and_then(|it| it.strip_prefix('-'));
            match letters.filter(|it| !it.is_empty()) {
                Some(letters) => asked.take_letters(letters, &mut words)?,
                None => asked.places.push(word),
            }
        }
        match asked.places.len() {
            2 => Ok(asked),
            _ => Err(Fail::usage(USAGE)),
        }
    }

    fn take_letters(
        &mut self,
        letters: &str,
        words: &mut impl Iterator<Item = OsString>,
    ) -> Result<(), Fail> {
        for (at, letter) in letters.char_indices() {
            let rest = &letters[at + letter.len_utf8()..];
            let mut value = || match rest {
                "" => words.next().and_then(|it| it.into_string().ok()),
                rest => Some(rest.to_string()),
            };
            match letter {
                's' => self.is_sloppy = true,
                'f' => self.is_fake = true,
                'v' => self.is_verbose = true,
                // There is no /etc/mtab that is written.
                'n' => {}
                'o' => {
                    let text = value().ok_or_else(|| Fail::usage("-o needs options"))?;
                    self.options.extend(divided(&text));
                    return Ok(());
                }
                't' => {
                    value().ok_or_else(|| Fail::usage("-t needs a type"))?;
                    return Ok(());
                }
                'N' => {
                    return Err(Fail::usage(
                        "-N: enter the namespace first: nsenter --mount=NAMESPACE mount ...",
                    ));
                }
                _ => return Err(Fail::usage(format!("-{letters}: unknown; {USAGE}"))),
            }
        }
        Ok(())
    }

    /// Becomes `tidegate mount`; returns after a mere look, or if something is wrong.
    fn perform(self) -> Result<ExitCode, Fail> {
        let flags = self.flags()?;
        let words = ["tidegate", "mount"].map(OsString::from);
        Arguments::try_parse_from(words.iter().chain(&flags))
            .map_err(|error| Fail::usage(one_line(&error)))?;
        if self.is_verbose {
            let shown = flags.iter().map(|it| it.to_string_lossy());
            outln!(
                "{NAME}: tidegate mount {}",
                shown.collect::<Vec<_>>().join(" ")
            );
            output::finish()?;
        }
        if self.is_fake {
            return Ok(ExitCode::SUCCESS);
        }
        let own = installed::own()?;
        // What the line says counts, and not what the caller's shell says. And a copy of the
        // program with the helper's name is the program.
        let error = std::process::Command::new(&own)
            .arg0("tidegate")
            .env_remove(target::FORWARDERS)
            .env_remove(target::MUNGE)
            .arg("mount")
            .args(flags)
            .exec();
        Err(Fail::usage(format!("{}: {error}", own.display())))
    }

    /// The words behind `tidegate mount`.
    fn flags(&self) -> Result<Vec<OsString>, Fail> {
        let source = &self.places[0];
        let wrong = |what| Fail::usage(format!("{}: {what}", source.display()));
        let mut flags = vec![self.places[1].clone()];
        for option in &self.options {
            flags.extend(flag_of(option, self.is_sloppy)?.map(OsString::from));
        }
        let starts = |flag: &OsString, start| flag.to_str().is_some_and(|it| it.starts_with(start));
        let named = ["--forwarders=", "--client=", "--state-dir="];
        let by_option = flags
            .iter()
            .any(|it| named.iter().any(|start| starts(it, *start)));
        match (source == "none", by_option) {
            (true, false) => return Err(wrong("names no forwarders; say client=FILE too")),
            (false, true) => {
                return Err(wrong("options name forwarders too: say none in its place"));
            }
            (true, true) => {}
            (false, false) => flags.push(with_value("--forwarders=", source)),
        }
        // So `mount -a` finds what it has mounted before.
        flags.push(with_value("--source=", source));
        Ok(flags)
    }
}

fn with_value(flag: &str, value: &OsString) -> OsString {
    let mut word = OsString::from(flag);
    word.push(value);
    word
}

/// The options of a list. A comma between quotes, which mount(8) hands on, is no end of one.
fn divided(text: &str) -> Vec<String> {
    let mut is_quoted = false;
    let parts = text.split(|c| {
        is_quoted ^= c == '"';
        c == ',' && !is_quoted
    });
    let parts = parts.filter(|part| !part.is_empty());
    parts.map(|part| part.replace('"', "")).collect()
}

/// The flag of an option; None if it has no meaning for a mount.
fn flag_of(option: &str, is_sloppy: bool) -> Result<Option<String>, Fail> {
    let (name, value) = match option.split_once('=') {
        Some((name, value)) => (name, Some(value)),
        None => (option, None),
    };
    let is_taken = TAKEN.split(' ').any(|it| it == option);
    if is_taken || TAKEN_BEGINNINGS.iter().any(|it| option.starts_with(it)) {
        return Ok(None);
    }
    if let Some((_, why)) = REFUSED.iter().find(|(refused, _)| *refused == name) {
        return Err(Fail::usage(format!("{name}: {why}")));
    }
    let flag = name.replace('_', "-");
    match (takes_value(&flag), value) {
        (None, _) if is_sloppy => Ok(None),
        (None, _) => Err(Fail::usage(format!(
            "{name}: no option of mount(8) that a mount knows, and no flag of `tidegate mount`"
        ))),
        (Some(true), Some(value)) => Ok(Some(format!("--{flag}={value}"))),
        (Some(true), None) => Err(Fail::usage(format!("{name}: say {name}=VALUE"))),
        (Some(false), Some(_)) => Err(Fail::usage(format!("{name}: takes no value"))),
        (Some(false), None) => Ok(Some(format!("--{flag}"))),
    }
}

/// Whether a flag of `tidegate mount` takes a value; None if there is no such flag.
fn takes_value(flag: &str) -> Option<bool> {
    let commands: Command = Arguments::command();
    let mount = commands.find_subcommand("mount")?;
    let mut shown = mount.get_arguments().filter(|it| !it.is_hide_set());
    let found = shown.find(|it| it.get_long() == Some(flag))?;
    Some(found.get_action().takes_values())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flags(words: &[&str]) -> Result<Vec<String>, String> {
        let asked = Asked::of(words.iter().map(OsString::from));
        let flags = asked.and_then(|asked| asked.flags());
        let text = |word: OsString| word.into_string().expect("text");
        flags
            .map(|flags| flags.into_iter().map(text).collect())
            .map_err(|fail| fail.message)
    }

    #[test]
    fn options_become_flags() {
        let options = "rw,_netdev,nofail,x-systemd.automount,comment=a,user=joe,secret_file=/s,\
                       ticket-s=9,allow_other,checks=kernel";
        let words = [
            "tcp:a:1,tcp:b:2",
            "/mnt",
            "-n",
            "-o",
            options,
            "-t",
            "tidegate",
        ];
        let wanted = [
            "/mnt",
            "--secret-file=/s",
            "--ticket-s=9",
            "--allow-other",
            "--checks=kernel",
            "--forwarders=tcp:a:1,tcp:b:2",
            "--source=tcp:a:1,tcp:b:2",
        ];
        assert_eq!(flags(&words).expect("right"), wanted);
        let quoted = [
            "none",
            "/mnt",
            "-osandbox=off,forwarders=\"tcp:a:1,tcp:b:2\"",
        ];
        assert_eq!(
            flags(&quoted).expect("right")[2],
            "--forwarders=tcp:a:1,tcp:b:2"
        );
    }

    #[test]
    fn every_flag_that_is_shown_is_an_option() {
        let commands = Arguments::command();
        let mount = commands.find_subcommand("mount").expect("it is a command");
        let longs = mount.get_arguments().filter(|it| !it.is_hide_set());
        for long in longs.filter_map(|it| it.get_long()) {
            let option = match takes_value(long).expect("it is there") {
                true => format!("{}=1", long.replace('-', "_")),
                false => long.replace('-', "_"),
            };
            let flag = flag_of(&option, false);
            assert!(
                long == "foreground" || flag.is_ok_and(|it| it.is_some()),
                "{long}"
            );
        }
    }

    #[test]
    fn what_cannot_be_kept_is_refused_by_name() {
        for (option, said) in [
            ("ro", "ro: there are no read-only"),
            ("cheks=kernel", "cheks: no option"),
            ("checks", "checks: say checks=VALUE"),
            ("allow_other=1", "allow_other: takes no value"),
            ("log_file=/x", "log_file: no option"),
            ("client=/x", "tcp:a:1: options name forwarders too"),
        ] {
            let refused = flags(&["tcp:a:1", "/mnt", "-o", option]).expect_err("wrong");
            assert!(refused.starts_with(said), "{refused}");
        }
        let sloppy = ["tcp:a:1", "/mnt", "-sno", "cheks=kernel"];
        assert_eq!(flags(&sloppy).expect("sloppy").len(), 3);
        assert!(
            flags(&["none", "/mnt"])
                .expect_err("where?")
                .contains("client=FILE")
        );
        assert!(
            flags(&["tcp:a:1"])
                .expect_err("where?")
                .contains("mount -t tidegate")
        );
        let namespace = flags(&["tcp:a:1", "/mnt", "-N", "1"]);
        assert!(namespace.expect_err("not here").contains("nsenter"));
    }
}

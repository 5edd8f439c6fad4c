//! Slurm's commands. The tasks of `srun` are started by a daemon of root, which cannot enter the
//! mount of a user: so each task gets a `tidegate run` of its own, before its program.

use super::launcher::{found, is_slurms};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::process::Command;
use tidegate_client::opened::VARIABLE;

/// A command that starts programs elsewhere than as its own children.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Starter {
    /// Starts the tasks of a step, here or on other nodes.
    Srun,
    /// Hands in a script that is run later.
    Sbatch,
    /// Asks for nodes, and may start a shell on one of them.
    Salloc,
}

impl Starter {
    /// The one that a program is; None if it is none. A script of such a name runs as any other if
    /// the command `is_met` by the short-cut where the script calls it; else it is taken for the
    /// command.
    pub fn of(program: &str, is_met: bool) -> Option<Starter> {
        let starter = Starter::named(program)?;
        let is_script = is_met && found(program).is_some_and(|path| begins_otherwise(&path));
        (!is_script).then_some(starter)
    }

    fn named(program: &str) -> Option<Starter> {
        let name = Path::new(program).file_name()?.to_str()?;
        let all = [
            ("srun", Starter::Srun),
            ("sbatch", Starter::Sbatch),
            ("salloc", Starter::Salloc),
        ];
        let mut all = all.into_iter();
        all.find(|(known, _)| is_slurms(name, known)).map(|it| it.1)
    }
}

/// Whether a program of this name is one of Slurm's that start programs elsewhere.
pub fn is_command(name: &str) -> bool {
    Starter::named(name).is_some()
}

/// Whether a file that can be read is no ELF file.
fn begins_otherwise(path: &Path) -> bool {
    let mut head = [0; 4];
    let read = File::open(path).and_then(|mut file| file.read(&mut head));
    read.is_ok() && head != *b"\x7fELF"
}

/// What of its own Slurm's command must not have: it would look in the mount, load libraries that
/// are for the tasks, or tell tasks on other nodes of memory that is here.
pub fn strip(command: &mut Command, libraries: &[&str]) {
    for name in [
        "TIDEGATE_MOUNT",
        "TIDEGATE_ABOVE",
        "TIDEGATE_EXPORT",
        "TIDEGATE_AGAIN",
        VARIABLE,
    ] {
        command.env_remove(name);
    }
    let Some(loaded) = std::env::var_os("LD_PRELOAD") else {
        return;
    };
    let loaded = loaded.to_string_lossy().into_owned();
    let is_ours = |path: &&str| libraries.iter().any(|name| path.ends_with(name));
    let others: Vec<&str> = loaded
        .split([':', ' '])
        .filter(|path| !path.is_empty() && !is_ours(path))
        .collect();
    match others.is_empty() {
        true => command.env_remove("LD_PRELOAD"),
        false => command.env("LD_PRELOAD", others.join(":")),
    };
}

/// The arguments of `srun` with these words before the program; the same arguments where they start
/// no program. Fails with the reason if it is not clear where the program begins.
pub fn with_before_program(
    arguments: &[String],
    words: &[OsString],
) -> Result<Vec<OsString>, String> {
    let at = program_at(arguments)?;
    let (options, program) = arguments.split_at(at);
    let mut all: Vec<OsString> = options.iter().map(OsString::from).collect();
    if program.is_empty() {
        return Ok(all);
    }
    if program.iter().any(|it| it == ":") {
        return Err("a step of several components has several programs".to_string());
    }
    all.extend(words.iter().cloned());
    all.push(OsStr::new("--").into());
    all.extend(program.iter().map(OsString::from));
    Ok(all)
}

/// Options of `srun` that take a value, which may be the next argument (Slurm 20.02 to 24.11).
const WITH_VALUE: &str = "accel-bind account acctg-freq bb bbf bcast-exclude begin chdir \
    cluster-constraint clusters comment constraint container container-id core-spec \
    cores-per-socket cpu-bind cpu_bind cpu-freq cpus-per-gpu cpus-per-task deadline delay-boot \
    dependency distribution epilog error exclude export export-file extra extra-node-info gid \
    gpu-bind gpu-freq gpus gpus-per-node gpus-per-socket gpus-per-task gres gres-flags het-group \
    hint input job-name jobid licenses mail-type mail-user mcs-label mem mem-bind mem_bind \
    mem-per-cpu mem-per-gpu mincpus mpi msg-timeout network nodefile nodelist nodes ntasks \
    ntasks-per-core ntasks-per-gpu ntasks-per-node ntasks-per-socket ntasks-per-tres open-mode \
    output pack-group partition power prefer priority profile prolog qos relative reservation \
    segment signal slurmd-debug sockets-per-node switches task-epilog task-prolog \
    thread-spec threads-per-core threads time time-min tmp tree-width treewidth tres-bind \
    tres-per-task uid wait wckey";

/// Those that take none, or only after a `=`.
const WITHOUT_VALUE: &str = "compress contiguous disable-status exact exclusive external help hold \
    immediate interactive kill-on-bad-exit label nice no-allocate no-kill overcommit overlap \
    oversubscribe preserve-env propagate pty quiet quit-on-interrupt reboot resv-ports send-libs \
    share spread-job test-only unbuffered usage use-min-nodes verbose version wait-all-nodes whole \
    x11";

/// Letters of options that take a value.
const LETTERS_WITH_VALUE: &str = "ABCDFGJLMNSTWbcdeimnopqrtwx";
/// Letters of options that take none.
const LETTERS_WITHOUT_VALUE: &str = "EHOQVXZhlsuv";
/// Letters of options that may take one, within the same argument alone.
const LETTERS_THAT_MAY: &str = "IKk";

/// Where in the arguments of `srun` its program is; their number if there is none.
fn program_at(arguments: &[String]) -> Result<usize, String> {
    let mut at = 0;
    while let Some(argument) = arguments.get(at) {
        at += 1;
        if argument == "--" {
            break;
        }
        let takes_next = if let Some(long) = argument.strip_prefix("--") {
            takes_next(long)?
        } else if argument.len() > 1 && argument.starts_with('-') {
            letters_take_next(&argument[1..])?
        } else {
            at -= 1;
            break;
        };
        at += usize::from(takes_next);
    }
    Ok(at.min(arguments.len()))
}

fn takes_next(option: &str) -> Result<bool, String> {
    let (name, value) = option
        .split_once('=')
        .map_or((option, None), |(name, value)| (name, Some(value)));
    let is_in = |names: &str| names.split_whitespace().any(|known| known == name);
    match name {
        "multi-prog" => Err("the programs are in the file of --multi-prog".to_string()),
        "bcast" => Err("--bcast copies the program that srun is given".to_string()),
        _ if is_in(WITH_VALUE) => Ok(value.is_none()),
        _ if value.is_some() || is_in(WITHOUT_VALUE) => Ok(false),
        _ => Err(format!(
            "it is not known whether its option --{name} takes the argument after it"
        )),
    }
}

fn letters_take_next(letters: &str) -> Result<bool, String> {
    for (at, letter) in letters.char_indices() {
        if LETTERS_WITH_VALUE.contains(letter) {
            return Ok(at + letter.len_utf8() == letters.len());
        }
        if LETTERS_THAT_MAY.contains(letter) {
            return Ok(false);
        }
        if !LETTERS_WITHOUT_VALUE.contains(letter) {
            return Err(format!(
                "it is not known whether its option -{letter} takes the argument after it"
            ));
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rewritten(line: &str) -> Result<String, String> {
        let arguments: Vec<String> = line.split_whitespace().map(String::from).collect();
        let all = with_before_program(&arguments, &["T".into(), "run".into()])?;
        let all: Vec<String> = all
            .into_iter()
            .map(|it| it.into_string().expect("text"))
            .collect();
        Ok(all.join(" "))
    }

    #[test]
    fn each_task_gets_a_run_before_its_program() {
        let pairs = [
            ("./a -n 3", "T run -- ./a -n 3"),
            ("-n 2 ./a", "-n 2 T run -- ./a"),
            ("-n2 -lu ./a b", "-n2 -lu T run -- ./a b"),
            ("-un 2 ./a", "-un 2 T run -- ./a"),
            ("-I ./a", "-I T run -- ./a"),
            ("-K1 ./a", "-K1 T run -- ./a"),
            (
                "--ntasks 2 --mem=1G ./a",
                "--ntasks 2 --mem=1G T run -- ./a",
            ),
            ("--exclusive ./a", "--exclusive T run -- ./a"),
            ("--pty bash -i", "--pty T run -- bash -i"),
            ("-n 2 -- ./a", "-n 2 -- T run -- ./a"),
            ("--later=x ./a", "--later=x T run -- ./a"),
            ("--version", "--version"),
            ("-n", "-n"),
        ];
        for (given, wanted) in pairs {
            assert_eq!(rewritten(given).as_deref(), Ok(wanted), "{given}");
        }
    }

    #[test]
    fn what_is_not_clear_is_refused() {
        for line in [
            "--later x ./a",
            "-n 1 ./a : -n 2 ./b",
            "--multi-prog file",
            "--bcast=/tmp/a ./a",
            "-y ./a",
        ] {
            assert!(rewritten(line).is_err(), "{line}");
        }
    }

    #[test]
    fn commands_are_known_by_their_names() {
        assert_eq!(Starter::named("/usr/bin/srun-wlm"), Some(Starter::Srun));
        assert_eq!(Starter::named("sbatch"), Some(Starter::Sbatch));
        assert_eq!(Starter::named("salloc"), Some(Starter::Salloc));
        for name in ["srunner", "./srun_case.sh", "srun-all", "sbatch.sh", ""] {
            assert_eq!(Starter::named(name), None, "{name}");
        }
        let folder = format!("tidegate-slurm-{}", std::process::id());
        let folder = std::env::temp_dir().join(folder);
        std::fs::create_dir(&folder).expect("fresh");
        let file = folder.join("srun");
        let path = file.to_str().expect("a plain name");
        for (text, is) in [("#!/bin/sh\n", false), ("", false), ("\x7fELF", true)] {
            std::fs::write(&file, text).expect("room");
            assert_eq!(Starter::of(path, true).is_some(), is, "{text}");
            assert_eq!(Starter::of(path, false), Some(Starter::Srun), "{text}");
        }
        std::fs::remove_dir_all(&folder).expect("ours");
    }
}

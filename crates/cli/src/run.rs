//! `tidegate run`: runs an unmodified program on the forwarders' files.

mod app;
mod broken_pipe;
mod counts;
mod forked;
mod launcher;
mod notice;
mod own_mount;
mod slurm;
mod supervise;
mod watcher;
mod witness;

use crate::dead_mount;
use crate::errln;
use crate::fail::Fail;
use crate::holders;
use crate::installed::{self, SHORTCUT};
use crate::names;
use crate::plain;
use crate::processes;
use crate::state::ClientFile;
use crate::target::Target;
use crate::view;
use app::{APP, APP_MADE, App};
use counts::Counts;
pub use launcher::{Launcher, SHIM, found};
use notice::Place;
use own_mount::OwnMount;
use rustix::fs::FileType;
use slurm::Starter;
use std::ffi::{OsStr, OsString};
use std::io::ErrorKind;
use std::os::fd::BorrowedFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, ExitStatus};
use supervise::{NotRun, end_as, supervise};
use tidegate_client::opened::Program;
use tidegate_server::config::rule::View;
use watcher::Watcher;

/// Run a program through the forwarders.
///
/// The program finds the files under TIDEGATE_MOUNT. If the working directory lies in the exported
/// directory, the program runs in the same place of the mount. There TIDEGATE_APP names the
/// application: the one given, else the one set already, else the batch system's job, else a new
/// one. `tidegate stat` shows it by this name.
///
/// Data of the files goes from the program straight to the forwarders, past the kernel and the
/// mount (LD_PRELOAD of the short-cut; TIDEGATE_SHORTCUT=off in the environment switches it off).
/// Names of the exported directory itself lead to the mount.
///
/// `tidegate run -- srun ...` becomes `srun ... tidegate run -- ...`, since the tasks are no
/// children of this command.
///
/// MPI programs, started as `tidegate run -- mpirun ...`, also load the MPI shim: all ranks are one
/// application, and their collective I/O is known to be one operation.
#[derive(clap::Args)]
pub struct Run {
    #[command(flatten)]
    target: Target,
    /// Name of the application
    #[arg(long, value_name = "NAME", conflicts_with = "view")]
    app: Option<String>,
    /// View whose directory the program finds under TIDEGATE_MOUNT, and as whose application it
    /// counts; `tidegate view` creates one
    #[arg(long, value_name = "NAME")]
    view: Option<String>,
    /// Leave the short-cut out: all data goes through the kernel and the mount
    #[arg(long)]
    no_shortcut: bool,
    /// Leave the MPI shim out: ranks do their I/O as any other programs
    #[arg(long)]
    no_mpi: bool,
    /// Leave names of the exported directory as they are: they go past the forwarders
    #[arg(long)]
    no_redirect: bool,
    /// Say on standard error, at the end, how many files were opened through the forwarders and how
    /// many past them. Without this it is said only if files were written past them, by another
    /// name of the directory or without one that was opened through them
    #[arg(long)]
    summary: bool,
    /// Say on standard error which application the program is, and where it finds the files
    #[arg(long)]
    verbose: bool,
    /// The short-cut has met a command of Slurm's in a program that `run` started
    #[arg(long, hide = true)]
    inside: bool,
    /// The program and its arguments
    #[arg(required = true, value_name = "PROGRAM", trailing_var_arg = true,
          value_hint = clap::ValueHint::CommandWithArguments)]
    program: Vec<String>,
}

impl Run {
    /// Runs the program; its exit code is the command's.
    pub fn perform(self) -> Result<ExitCode, Fail> {
        let launcher = Launcher::of(&self.program[0]);
        if self.view.is_none()
            && let Some(point) = self.target.find()?.told_by
        {
            // Root's mount serves everything, whether forwarders take this user's programs or not.
            let app = App::choose(self.app.as_deref(), launcher)?;
            let files = Files {
                export: None,
                point,
                is_own: false,
            };
            return self.run_in(&files, &app);
        }
        let (found, client) = self.target.connect(None)?;
        if let Some(starter) = Starter::of(&self.program[0], self.is_met()) {
            client.shutdown();
            return Err(self.start_elsewhere(starter, &found));
        }
        let view = self.view.as_deref();
        let view = view.map(|name| view::find(client.clone(), &found, name));
        let view = view.transpose()?;
        let app = App::choose(self.view.as_deref().or(self.app.as_deref()), launcher)?;
        let export = found.export.clone();
        let mut files = Files {
            export: export.map(|export| inside(export, view.as_ref())),
            point: PathBuf::new(),
            is_own: true,
        };
        if let Some(file) = self.target.names_file() {
            names::remember(&file, &app.name);
        }
        let existing = found
            .mount
            .clone()
            .filter(|point| processes::is_mounted(point));
        if let Some(point) = existing {
            client.shutdown();
            drop(client);
            if dead_mount::is_dead(&point) {
                return Err(Fail::runtime(dead_mount::advice(&point)));
            }
            // As `getcwd` says it: programs and the short-cut compare names.
            files.point = inside(holders::spelled(&point), view.as_ref());
            files.is_own = found.told_by.is_none();
            if let Some(view) = &view
                && !files.point.is_dir()
            {
                return Err(Fail::runtime(format!(
                    "the directory {} of view {} is not there; `tidegate view create {1} {0}` \
                     makes it",
                    view.directory, view.name
                )));
            }
            return self.run_in(&files, &app);
        }
        let mount = OwnMount::make(&client, view.as_ref())?;
        files.point = holders::spelled(mount.point());
        let watched = self.watch(&files, &app);
        mount.end();
        client.shutdown();
        watched.map(end_as).map_err(|why| self.not_run(&why))
    }

    /// Runs the program in a mount that is there: nothing is left for us to do, so the program
    /// takes our place, with signals and all. Another process says at its end what of it went past
    /// the forwarders, unless that may be too late for who reads it.
    fn run_in(&self, files: &Files, app: &App) -> Result<ExitCode, Fail> {
        let is_counted = files.export.is_some() || self.summary;
        let is_read_at_end = self.summary || is_file(rustix::stdio::stderr());
        let is_watched = is_counted && (is_read_at_end || watcher::is_adopter());
        if is_watched {
            match self.watch(files, app) {
                Ok(status) => return Ok(end_as(status)),
                Err(why) if why.is_for_want_of_processes() => say_uncounted(why.error()),
                Err(why) => return Err(self.not_run(&why)),
            }
        }
        let mut command = self.command(files, app);
        let mut watcher = None;
        if is_counted && !is_watched {
            let counts = self.begin(files, &command);
            let started = counts.map(|counts| {
                let say = || self.say(&counts);
                let watcher = Watcher::start(Some(counts.memory()), say)?;
                counts.tell(&mut command, watcher.pid);
                Ok::<_, std::io::Error>(watcher)
            });
            watcher = started.transpose().unwrap_or_else(|error| {
                say_uncounted(&error);
                None
            });
        }
        let error = command.exec();
        if let Some(watcher) = watcher {
            watcher.dismiss();
        }
        Err(cannot_run(&self.program[0], &error))
    }

    /// Runs the program as a child, and says what of it went past the forwarders.
    fn watch(&self, files: &Files, app: &App) -> Result<ExitStatus, NotRun> {
        let mut command = self.command(files, app);
        let counts = self.begin(files, &command);
        if let Some(counts) = &counts {
            counts.tell(&mut command, rustix::process::getpid());
        }
        let status = supervise(&mut command)?;
        if let Some(counts) = counts {
            self.say(&counts);
        }
        Ok(status)
    }

    fn not_run(&self, why: &NotRun) -> Fail {
        match why {
            NotRun::Program(error) => cannot_run(&self.program[0], error),
            NotRun::Beside(error) => Fail::runtime(format!(
                "the process that watches over the program cannot be started: {error}"
            )),
        }
    }

    /// Says what can be seen already, and begins to count.
    fn begin(&self, files: &Files, command: &Command) -> Option<Counts> {
        let (export, point) = (files.export.as_deref(), files.point.as_path());
        if let Some(export) = export {
            let kind = notice::program(&self.program[0]);
            self.say_what_goes_past(export, point, kind, command);
        }
        let first = match self.no_shortcut {
            true => Program::Loads,
            false => notice::program(&self.program[0]),
        };
        Counts::make(point, export, (&self.program[0], first))
    }

    /// Says what was counted, if it is to be said.
    fn say(&self, counts: &Counts) {
        if let Some(line) = counts.line(self.summary) {
            errln!("tidegate: {line}");
        }
    }

    /// Whether the short-cut meets Slurm's commands where scripts call them.
    fn is_met(&self) -> bool {
        !self.no_shortcut && installed::shortcut().is_some()
    }

    /// Says what the short-cut will not lead to the mount, if that can be seen.
    fn say_what_goes_past(&self, export: &Path, point: &Path, kind: Program, command: &Command) {
        if let Some(set) =
            std::env::var_os(REDIRECT).filter(|set| !REDIRECTS.contains(&set.to_str()))
        {
            let set = plain::line(&set.to_string_lossy());
            errln!("tidegate: warning: {REDIRECT} is \"{set}\", neither on nor off; it is on");
        }
        let asked = self.no_redirect || std::env::var_os(REDIRECT).is_some_and(|it| it == "off");
        let why = match kind {
            _ if asked => Some("redirection is off".to_string()),
            _ if self.no_shortcut => Some("--no-shortcut leaves redirection out".to_string()),
            _ if installed::shortcut().is_none() => Some(format!("{SHORTCUT} is not there")),
            Program::Loads => None,
            kind => Some(format!("{} is {}", self.program[0], kind.text())),
        };
        let here = command.get_current_dir().map(Path::to_path_buf);
        let Some(here) = here.or_else(|| std::env::current_dir().ok()) else {
            return;
        };
        let place = Place {
            export,
            point,
            here: &here,
        };
        if let Some(line) = place.notice(&self.program, why.as_deref()) {
            errln!("tidegate: {line}");
        }
    }

    /// Says where the files are if the program begins in an exported directory and nobody knows
    /// whether it is that of these forwarders: it is not known where only addresses are named.
    fn say_if_elsewhere(&self, export: Option<&Path>, point: &Path) {
        let here = std::env::current_dir().unwrap_or_default();
        let is_exported = |folder: &Path| folder.join(HIDDEN).symlink_metadata().is_ok();
        if export.is_some() || here.starts_with(point) || !here.ancestors().any(is_exported) {
            return;
        }
        let (here, point) = (here.display(), point.display());
        errln!(
            "tidegate: which directory these forwarders export is not known here: {} works in \
             {here}, past the forwarders, whose files are in {point} ({MOUNT})",
            self.program[0]
        );
    }

    /// Replaces this command by one of Slurm's, whose tasks are no children of ours, in the
    /// exported directory. Returns why that is not possible.
    fn start_elsewhere(&self, starter: Starter, found: &ClientFile) -> Fail {
        let mut command = Command::new(&self.program[0]);
        broken_pipe::keep(&mut command);
        slurm::strip(&mut command, &[SHORTCUT, SHIM]);
        let arguments = &self.program[1..];
        match starter {
            Starter::Srun => match slurm::with_before_program(arguments, &self.again(true)) {
                Ok(all) => drop(command.args(all)),
                Err(reason) if self.inside => {
                    errln!(
                        "tidegate: the tasks of this srun go past the forwarders: {reason}; write \
                         `srun ... tidegate run -- PROGRAM`"
                    );
                    command.args(arguments);
                }
                Err(reason) => {
                    return Fail::usage(format!(
                        "tasks of srun are started by a daemon of root, which cannot enter a mount \
                         of yours, and {reason}; write `srun ... tidegate run -- PROGRAM`"
                    ));
                }
            },
            _ if self.inside => drop(command.args(arguments)),
            Starter::Sbatch => {
                return Fail::usage(
                    "sbatch hands in a job that starts when this run is over; write `tidegate run \
                     -- PROGRAM` in the job's script",
                );
            }
            Starter::Salloc => {
                return Fail::usage(
                    "salloc may start its program on another node; write `salloc ... tidegate run \
                     -- PROGRAM`",
                );
            }
        }
        if let Some(app) = self.app.as_ref().or(self.view.as_ref()) {
            command.env(APP, app).env_remove(APP_MADE);
        }
        let told = |name: &str| std::env::var_os(name).map(PathBuf::from);
        let mount = found.mount.as_deref().map(holders::spelled);
        // A mount that lasts as long as a run is known to the run's programs alone.
        let pairs = [(mount, found.export.clone()), (told(MOUNT), told(EXPORT))];
        let mut places = pairs
            .into_iter()
            .filter_map(|(mount, export)| same_place(Some(&mount?), &export?));
        if let Some(place) = places.next() {
            command.env("PWD", &place).current_dir(place);
        }
        cannot_run(&self.program[0], &command.exec())
    }

    /// The words of a `tidegate run` that does the same as this one, without the program. If it is
    /// for a task, it also counts for the application that the user has named.
    fn again(&self, for_task: bool) -> Vec<OsString> {
        let own = installed::own().map_or("tidegate".into(), OsString::from);
        let mut words = vec![own, "run".into()];
        words.extend(self.target.words());
        let set = std::env::var_os(APP).filter(|it| app::unfit(&it.to_string_lossy()).is_none());
        let set = set.filter(|_| for_task && std::env::var_os(APP_MADE).is_none());
        match (&self.view, self.app.as_ref().map(OsString::from).or(set)) {
            (Some(view), _) => words.extend(["--view".into(), view.into()]),
            (None, Some(app)) if for_task || self.app.is_some() => {
                words.extend(["--app".into(), app]);
            }
            _ => {}
        }
        let flags = [
            (self.no_shortcut, "--no-shortcut"),
            (self.no_mpi, "--no-mpi"),
            (self.no_redirect, "--no-redirect"),
            (self.summary, "--summary"),
            (self.verbose, "--verbose"),
        ];
        let flags = flags.into_iter().filter(|(is_set, _)| *is_set);
        words.extend(flags.map(|(_, flag)| flag.into()));
        words
    }

    fn command(&self, files: &Files, app: &App) -> Command {
        let (export, point) = (files.export.as_deref(), files.point.as_path());
        if self.verbose {
            let name = &app.name;
            errln!("tidegate: application {name}, files in {}", point.display());
        }
        if files.is_own && self.view.is_none() {
            self.say_if_elsewhere(export, point);
        }
        let mut command = Command::new(&self.program[0]);
        broken_pipe::keep(&mut command);
        command.env(MOUNT, point);
        command.env(APP, &app.name);
        match app.is_made {
            true => command.env(APP_MADE, "1"),
            false => command.env_remove(APP_MADE),
        };
        // The short-cut leads names of the directory to the mount, and puts the words before a
        // command of Slurm's, whose tasks could not enter a mount of this user's.
        match export {
            Some(export) => command.env(EXPORT, export),
            None => command.env_remove(EXPORT),
        };
        match files.is_own {
            true => command.env(AGAIN, self.again(false).join(OsStr::new(BETWEEN))),
            false => command.env_remove(AGAIN),
        };
        if self.no_redirect {
            command.env(REDIRECT, "off");
        }
        self.preload(&mut command);
        if let Some(launcher) = Launcher::of(&self.program[0]) {
            let more = launcher.prepare(&mut command, &self.program[1..]);
            command.args(more);
        }
        command.args(&self.program[1..]);
        let place = same_place(export, point);
        // Who begins in the mount himself means what is above it, but for a run within a run.
        let here = std::env::current_dir().ok();
        let is_inside = here.is_some_and(|here| here.starts_with(point));
        let is_within = std::env::var_os(MOUNT).is_some_and(|mount| mount == point.as_os_str());
        let above = match is_inside && is_within {
            true => std::env::var_os(ABOVE).map(PathBuf::from),
            false => export
                .filter(|_| !is_inside)
                .and_then(Path::parent)
                .map(PathBuf::from),
        };
        match above.filter(|_| self.view.is_none()) {
            Some(above) => command.env(ABOVE, above),
            None => command.env_remove(ABOVE),
        };
        let view = self.view.is_some().then(|| point.to_path_buf());
        if let Some(place) = place.or(view) {
            command.env("PWD", &place);
            command.current_dir(place);
        }
        command
    }

    /// Makes the program load short-cut and shim, before the libraries that the environment names
    /// already.
    fn preload(&self, command: &mut Command) {
        let libraries = [self.shortcut(), self.shim(command)];
        let mut libraries: Vec<OsString> = libraries.into_iter().flatten().collect();
        if libraries.is_empty() {
            return;
        }
        let others = std::env::var_os("LD_PRELOAD");
        libraries.extend(others.filter(|others| !others.is_empty()));
        command.env("LD_PRELOAD", libraries.join(OsStr::new(":")));
    }

    fn shortcut(&self) -> Option<OsString> {
        if self.no_shortcut {
            return None;
        }
        let Some(library) = installed::shortcut() else {
            errln!(
                "tidegate: {SHORTCUT} is neither beside this program nor in ../lib, or its path \
                 has a space or colon, which LD_PRELOAD cannot hold: all data goes through the \
                 mount; `make build` builds it, with --no-shortcut it is not looked for"
            );
            return None;
        };
        if self.verbose {
            errln!("tidegate: data past the mount by {}", library.display());
        }
        Some(library.into_os_string())
    }

    /// The shim. If it is missing, prints so where an MPI program is started.
    fn shim(&self, command: &mut Command) -> Option<OsString> {
        let launcher = Launcher::of(&self.program[0]);
        if self.no_mpi {
            return None;
        }
        let Some(library) = installed::library(SHIM) else {
            if launcher.is_some() {
                errln!(
                    "tidegate: {SHIM} is neither beside this program nor in ../lib, or its path \
                     has a space or colon, which LD_PRELOAD cannot hold: collective I/O carries \
                     no hints; `make build` builds it where there is an MPI, with --no-mpi it is \
                     not looked for"
                );
            }
            return None;
        };
        if let Some(launcher) = launcher.filter(|_| self.verbose) {
            errln!("tidegate: {}", launcher.text());
            errln!("tidegate: MPI ranks load {}", library.display());
        }
        if self.verbose {
            command.env("TIDEGATE_MPI_VERBOSE", "1");
        }
        Some(library.into_os_string())
    }
}

/// The exit code that shells use: 127 for a program that is not there, 126 for one that cannot be
/// run.
fn cannot_run(program: &str, error: &std::io::Error) -> Fail {
    let code = if error.kind() == ErrorKind::NotFound {
        127
    } else {
        126
    };
    Fail {
        code,
        message: format!("{program}: {error}"),
    }
}

/// Whether what is written there can be read without waiting for its end.
fn is_file(fd: BorrowedFd<'_>) -> bool {
    let found = rustix::fs::fstat(fd);
    found.is_ok_and(|found| FileType::from_raw_mode(found.st_mode) == FileType::RegularFile)
}

/// The directory of a view, if there is one.
fn inside(point: PathBuf, view: Option<&View>) -> PathBuf {
    match view {
        Some(view) => point.join(&view.directory),
        None => point,
    }
}

/// The directory in the mount that is the working directory in the export.
fn same_place(export: Option<&Path>, point: &Path) -> Option<PathBuf> {
    let here = std::env::current_dir().ok()?;
    let rest = here.strip_prefix(export?).ok()?;
    // Joining nothing would add a slash.
    Some(point.components().chain(rest.components()).collect())
}

fn say_uncounted(error: &std::io::Error) {
    errln!("tidegate: opened files are not counted: {error}");
}

/// The files that a program finds.
struct Files {
    /// The exported directory, or that of the view in it, if it is known.
    export: Option<PathBuf>,
    /// Where they are mounted.
    point: PathBuf,
    /// Whether the mount is this user's, which others cannot enter.
    is_own: bool,
}

/// Where the files are mounted.
const MOUNT: &str = "TIDEGATE_MOUNT";

/// The forwarders' own folder in an exported directory.
const HIDDEN: &str = ".tidegate";

/// The exported directory, if it is on this node.
const EXPORT: &str = "TIDEGATE_EXPORT";

/// What is above the directory in which the user began, in place of what is above the mount.
const ABOVE: &str = "TIDEGATE_ABOVE";

/// `off`: names of the exported directory are left as they are.
const REDIRECT: &str = "TIDEGATE_REDIRECT";

/// What it can be.
const REDIRECTS: [Option<&str>; 3] = [Some(""), Some("on"), Some("off")];

/// The words of a `tidegate run` that the short-cut puts before a command of Slurm's.
const AGAIN: &str = "TIDEGATE_AGAIN";

/// Between these words.
const BETWEEN: &str = "\x1f";

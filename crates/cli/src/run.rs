//! `tidegate run`: runs an unmodified program on the forwarders' files.

mod launcher;

use crate::dead_mount;
use crate::errln;
use crate::fail::Fail;
use crate::installed::{self, SHORTCUT};
use crate::mount;
use crate::names;
use crate::processes;
use crate::target::Target;
use crate::view;
use launcher::{Launcher, SHIM};
use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::{
    SIGCHLD, SIGCONT, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, SIGUSR1, SIGUSR2, SIGWINCH,
};
use signal_hook::iterator::Signals;
use std::ffi::{OsStr, OsString};
use std::io::ErrorKind;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, ExitStatus};
use std::time::{SystemTime, UNIX_EPOCH};
use tidegate_server::config::rule::View;

/// Run a program through the forwarders.
///
/// The program finds the files under TIDEGATE_MOUNT. If the working directory lies in the exported
/// directory, the program runs in the same place of the mount. There TIDEGATE_APP names the
/// application: the one given, else the one set already, else the batch system's job, else a new
/// one. `tidegate stat` shows it by this name.
///
/// Data of the files goes from the program straight to the forwarders, past the kernel and the
/// mount (LD_PRELOAD of the short-cut; TIDEGATE_SHORTCUT=off in the environment switches it off).
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
    /// Say on standard error which application the program is, and where it finds the files
    #[arg(long)]
    verbose: bool,
    /// The program and its arguments
    #[arg(required = true, value_name = "PROGRAM", trailing_var_arg = true)]
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
            let app = App::choose(self.app.as_deref(), launcher);
            let error = self.command(None, &point, &app).exec();
            return Err(cannot_run(&self.program[0], &error));
        }
        let (found, client) = self.target.connect(None)?;
        let view = self.view.as_deref();
        let view = view.map(|name| view::find(client.clone(), &found, name));
        let view = view.transpose()?;
        let app = App::choose(self.view.as_deref().or(self.app.as_deref()), launcher);
        let export = found.export.clone();
        let export = export.map(|export| inside(export, view.as_ref()));
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
            // Nothing is left for us to do: the program takes our place, with signals and all.
            let point = inside(point, view.as_ref());
            if let Some(view) = &view
                && !point.is_dir()
            {
                return Err(Fail::runtime(format!(
                    "the directory {} of view {} is not there; `tidegate view create {1} {0}` \
                     makes it",
                    view.directory, view.name
                )));
            }
            let error = self.command(export.as_deref(), &point, &app).exec();
            return Err(cannot_run(&self.program[0], &error));
        }
        let private = PrivateDir::make()?;
        let mounted = mount::mount(&client, &private.path, false, view.as_ref())?;
        let result = self.supervise(export.as_deref(), &private.path, &app);
        mounted.unmount();
        client.shutdown();
        result.map(exit_code)
    }

    fn command(&self, export: Option<&Path>, point: &Path, app: &App) -> Command {
        if self.verbose {
            let name = &app.name;
            errln!("tidegate: application {name}, files in {}", point.display());
        }
        let mut command = Command::new(&self.program[0]);
        command.env("TIDEGATE_MOUNT", point);
        command.env("TIDEGATE_APP", &app.name);
        match app.is_made {
            true => command.env(APP_MADE, "1"),
            false => command.env_remove(APP_MADE),
        };
        self.preload(&mut command);
        if let Some(launcher) = Launcher::of(&self.program[0]) {
            let more = launcher.prepare(&mut command, &self.program[1..]);
            command.args(more);
        }
        command.args(&self.program[1..]);
        let view = self.view.is_some().then(|| point.to_path_buf());
        if let Some(place) = same_place(export, point).or(view) {
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

    /// Runs the program as a child and passes signals on to it.
    fn supervise(
        &self,
        export: Option<&Path>,
        point: &Path,
        app: &App,
    ) -> Result<ExitStatus, Fail> {
        let passed = [
            SIGTERM, SIGHUP, SIGINT, SIGQUIT, SIGUSR1, SIGUSR2, SIGCONT, SIGTSTP, SIGWINCH, SIGCHLD,
        ];
        let mut signals = Signals::new(passed).map_err(Fail::runtime)?;
        let mut child = self
            .command(export, point, app)
            .spawn()
            .map_err(|error| cannot_run(&self.program[0], &error))?;
        // A terminal sends its signals to the child as well, which is in our process group.
        let terminal = rustix::termios::isatty(rustix::stdio::stdin());
        let pid = Pid::from_child(&child);
        for signal in signals.forever() {
            if let Some(status) = ended(&mut child)? {
                return Ok(status);
            }
            let from_terminal = [SIGINT, SIGQUIT, SIGTSTP, SIGWINCH].contains(&signal);
            if signal == SIGCHLD || (terminal && from_terminal) {
                continue;
            }
            if let Some(signal) = Signal::from_named_raw(signal) {
                // It may have ended meanwhile; SIGCHLD says so next.
                let _ = kill_process(pid, signal);
            }
        }
        child.wait().map_err(Fail::runtime)
    }
}

fn ended(child: &mut Child) -> Result<Option<ExitStatus>, Fail> {
    child.try_wait().map_err(Fail::runtime)
}

fn exit_code(status: ExitStatus) -> ExitCode {
    let code = status
        .code()
        .unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
    ExitCode::from(u8::try_from(code).unwrap_or(1))
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

/// Set beside TIDEGATE_APP where its name was not the user's choice, and the program may start
/// several MPI jobs: each is an application of its own then.
const APP_MADE: &str = "TIDEGATE_APP_MADE";

/// The application that the program is.
struct App {
    name: String,
    is_made: bool,
}

impl App {
    fn choose(given: Option<&str>, launcher: Option<Launcher>) -> App {
        let set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        let is_given = given.is_some() || (set("TIDEGATE_APP") && !set(APP_MADE));
        App {
            name: given.map_or_else(application, str::to_string),
            is_made: !is_given && (launcher.is_none() || set(APP_MADE)),
        }
    }
}

/// The application's name: the environment's or the batch system's, else one that nobody else has.
fn application() -> String {
    let variable = |name: &str| std::env::var(name).ok();
    tidegate_client::application_name_from_env(variable).unwrap_or_else(|| {
        let host = rustix::system::uname()
            .nodename()
            .to_string_lossy()
            .into_owned();
        let since = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        format!("run-{host}-{}-{}", std::process::id(), since.as_millis())
    })
}

/// A directory of our own to mount at, removed at the end.
struct PrivateDir {
    path: PathBuf,
}

impl PrivateDir {
    fn make() -> Result<PrivateDir, Fail> {
        let name = format!("tidegate-run-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path)
            .map_err(|error| Fail::runtime(format!("{}: {error}", path.display())))?;
        Ok(PrivateDir { path })
    }
}

impl Drop for PrivateDir {
    fn drop(&mut self) {
        // Busy while something is still mounted there, and then it has to stay.
        let _ = std::fs::remove_dir(&self.path);
    }
}

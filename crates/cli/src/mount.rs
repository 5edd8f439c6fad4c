//! `tidegate mount` and `tidegate umount`: the forwarders' files on this node.

use crate::dead_mount;
use crate::fail::Fail;
use crate::installed;
use crate::processes;
use crate::set_mounts::{SetMount, Told};
use crate::state::temporary_folder;
use crate::target::Target;
use crate::view;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::ffi::OsString;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitCode};
use std::sync::{Arc, mpsc};
use std::time::Duration;
use tidegate_client::{Client, Context, Errno};
use tidegate_mount::{Checks, MountError, MountOptions, Mounted};
use tidegate_server::config::rule::View;
use tidegate_server::config::{LogFormat, LogOptions};
use tidegate_server::{PidFile, confine_mount, log_to_stderr};

/// How long a mount may take to appear.
const PATIENCE: Duration = Duration::from_secs(30);

/// How long it may take, after that, until the mount's process has said where the mount is.
const TOLD_MAX: Duration = Duration::from_secs(2);

/// How long a ticket is good, in seconds, if nothing else is said: a user who has lost a group has
/// lost it everywhere after less than a minute.
const TICKET_S: u64 = 45;
/// The shortest leaves a client time to take the next one.
const TICKET_S_ALLOWED: RangeInclusive<u64> = 3..=3_600;

/// Mount the forwarders' files.
#[derive(clap::Args)]
pub struct Mount {
    /// Where: an existing empty directory
    #[arg(value_name = "MNT")]
    point: PathBuf,
    #[command(flatten)]
    target: Target,
    /// Mount the directory of this view only, and count everything on it as the view's application
    #[arg(long, value_name = "NAME")]
    view: Option<String>,
    /// Let other users in as well; a mount by root always does
    #[arg(long)]
    allow_other: bool,
    /// Who checks modes and owners: the kernel, or forwarders alone, which takes a third to a half
    /// fewer requests. The latter only on an ordinary user's own mount; there links, pipes and
    /// files that others put into sticky directories are then not refused
    #[arg(long, value_name = "WHO", default_value = "kernel",
          value_parser = ["kernel", "forwarders"])]
    checks: String,
    /// How long the tickets are good by which users of root's mount reach forwarders of other nodes
    /// past it, in seconds; 0: there are none
    #[arg(long, value_name = "N", default_value_t = TICKET_S, value_parser = ticket_s)]
    ticket_s: u64,
    /// Stay in the foreground until SIGTERM or SIGINT
    #[arg(long)]
    foreground: bool,
    /// Where to write the process id
    #[arg(long, value_name = "FILE")]
    pid_file: Option<PathBuf>,
    /// Whether the kernel keeps this process from starting programs and the like: on or off
    #[arg(long, value_name = "HOW", default_value = "on", value_parser = ["on", "off"])]
    sandbox: String,
    /// How a line of the log is written: text for people, json for programs
    #[arg(long, value_name = "FORMAT", default_value = "text", value_parser = ["text", "json"])]
    log_format: String,
    /// Where the output of a mount in the background goes; removed when that ends in order
    #[arg(long, value_name = "FILE", hide = true)]
    log_file: Option<PathBuf>,
    /// What `df` and `mount` show as what is mounted; mount(8) looks for it
    #[arg(long, value_name = "NAME", hide = true, default_value = processes::MOUNT_SOURCE)]
    source: String,
}

/// Take a mount away.
#[derive(clap::Args)]
pub struct Umount {
    /// Where
    #[arg(value_name = "MNT")]
    point: PathBuf,
}

impl Mount {
    /// Mounts; in the foreground until a signal or `umount`.
    pub fn perform(self) -> Result<ExitCode, Fail> {
        let used = self.used();
        if used.checks == Checks::Forwarders && used.others {
            return Err(Fail::usage(MountError::Checks.to_string()));
        }
        check_point(&self.point)?;
        if self.foreground {
            self.foreground()
        } else {
            self.background()
        }
    }

    /// Waits until the mount's process has said in the set's directory where the mount is, so that
    /// a `down` that comes now finds it. If the process cannot, it has said so in its log.
    fn wait_until_told(&self, point: &Path, child: &mut Child) {
        let Some(state) = self.target.set() else {
            return;
        };
        processes::wait_until(TOLD_MAX, || {
            let mut told = SetMount::all(&state).into_iter();
            let is_told = told.any(|(mount, process)| mount.point == point && process.is_some());
            is_told || child.try_wait().ok().flatten().is_some()
        });
    }

    fn used(&self) -> Use {
        Use {
            others: self.allow_other || is_root(),
            checks: match self.checks.as_str() {
                "forwarders" => Checks::Forwarders,
                _ => Checks::Kernel,
            },
            ticket_life: Duration::from_secs(self.ticket_s),
            source: self.source.clone(),
        }
    }

    fn foreground(&self) -> Result<ExitCode, Fail> {
        log_to_stderr(&LogOptions {
            format: match self.log_format.as_str() {
                "json" => LogFormat::Json,
                _ => LogFormat::Text,
            },
            ..LogOptions::default()
        });
        let signals = Signals::new([SIGTERM, SIGINT, SIGHUP]).map_err(Fail::runtime)?;
        let (found, client) = self.target.connect(None)?;
        check_role(&client)?;
        // Before anything is mounted there.
        let place = self.point.canonicalize().ok();
        let view = self.view.as_deref();
        let view = view.map(|name| view::find(client.clone(), &found, name));
        let view = view.transpose()?;
        let written = |path: &PathBuf| {
            let written = PidFile::write(path);
            written.map_err(|error| Fail::usage(format!("{}: {error}", path.display())))
        };
        // Before the mount can be seen: who waits for the mount then finds its process.
        let pid_file = self.pid_file.as_ref().map(written).transpose()?;
        let mounted = mount_with(&client, &self.point, view.as_ref(), self.used());
        let mounted = match mounted {
            Ok(mounted) => mounted,
            Err(fail) => {
                if let Some(pid_file) = pid_file {
                    pid_file.remove();
                }
                return Err(fail);
            }
        };
        if self.log_file.is_some() {
            // A Ctrl-C for the command that waits for the mount is none for the mount any more.
            let _ = rustix::process::setpgid(None, None);
        }
        confine_mount(self.sandbox == "on" && !mounted.needs_program());
        let told = self.target.set().zip(place);
        let told = told.and_then(|(state, place)| Told::tell(state, &place));
        wait(mounted, signals)?;
        client.shutdown();
        if let Some(told) = told {
            told.end();
        }
        if let Some(pid_file) = pid_file {
            pid_file.remove();
        }
        if let Some(path) = &self.log_file {
            let _ = std::fs::remove_file(path);
        }
        Ok(ExitCode::SUCCESS)
    }

    fn background(&self) -> Result<ExitCode, Fail> {
        // Wrong forwarders are told here, on the terminal.
        let (found, client) = self.target.connect(None)?;
        check_role(&client)?;
        if let Some(name) = &self.view {
            view::find(client, &found, name)?;
        }
        let log = temporary_folder().join(format!("tidegate-mount.{}.log", std::process::id()));
        let arguments = arguments_of_child(std::env::args_os().skip(1), &log);
        // In this group until it is mounted: while the kernel has somebody wait for an automount,
        // it lets only the group of mount(8) look at the place.
        let mut child = processes::start_beside(&installed::own()?, &arguments, &log)?;
        let point = self
            .point
            .canonicalize()
            .unwrap_or_else(|_| self.point.clone());
        let mut ended = None;
        let up = processes::wait_until(PATIENCE, || {
            ended = child.try_wait().ok().flatten();
            ended.is_some() || processes::is_mounted(&point)
        });
        if up && ended.is_none() {
            self.wait_until_told(&point, &mut child);
            return Ok(ExitCode::SUCCESS);
        }
        let line = processes::last_line(&log);
        if ended.is_some() {
            // All that it has to say is said now.
            let _ = std::fs::remove_file(&log);
        }
        Err(Fail::runtime(format!(
            "mounting {}: {line}",
            point.display()
        )))
    }
}

impl Umount {
    /// Unmounts.
    pub fn perform(self) -> Result<ExitCode, Fail> {
        let point = self.point.canonicalize().unwrap_or(self.point);
        if !processes::is_mounted(&point) {
            return Err(Fail::usage(format!(
                "no FUSE file system is mounted at {}",
                point.display()
            )));
        }
        processes::try_detach(&point).map_err(|why| {
            let point = point.display();
            Fail::runtime(format!("{point} cannot be unmounted: {why}"))
        })?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Checks that a mount point is an empty directory on which nothing is mounted. A mount would hide
/// what is there. A dead mount of this user is taken away first.
pub fn check_point(point: &Path) -> Result<(), Fail> {
    let wrong = |what: String| Fail::usage(format!("mount point {}: {what}", point.display()));
    // First, for a mount may hang or be dead, and then says nothing of its files.
    let absolute = point
        .canonicalize()
        .or_else(|_| std::path::absolute(point))
        .unwrap_or_else(|_| point.to_path_buf());
    dead_mount::mend(&absolute);
    if processes::is_mounted(&absolute) {
        let advice = format!("`tidegate umount {}` takes it away", point.display());
        return Err(wrong(format!("already mounted; {advice}")));
    }
    if !point.is_dir() {
        let what = match point.symlink_metadata() {
            Ok(_) => "it is no directory; name an empty one",
            Err(_) => "it does not exist; create the directory",
        };
        return Err(wrong(what.to_string()));
    }
    let mut entries = std::fs::read_dir(point).map_err(|error| wrong(error.to_string()))?;
    if entries.next().is_some() {
        let advice = "a mount would hide what is in it; name an empty directory";
        return Err(wrong(format!("not empty: {advice}")));
    }
    Ok(())
}

/// The arguments of the process in the background: those of this one, and where it logs. Behind
/// `--` there are no flags; before the mount point, `tidegate down` would not know the process.
fn arguments_of_child(own: impl Iterator<Item = OsString>, log: &Path) -> Vec<OsString> {
    let mut arguments: Vec<OsString> = own.collect();
    let dashes = arguments.iter().position(|word| word == "--");
    let end = dashes.unwrap_or(arguments.len());
    let more = ["--foreground".into(), "--log-file".into(), log.into()];
    arguments.splice(end..end, more);
    arguments
}

/// Refuses a secret that reaches no file: everything on its mount would be refused.
fn check_role(client: &Client) -> Result<(), Fail> {
    match client.statfs(&Context::default()) {
        Err(Errno::ACCES) => Err(Fail::usage(
            "this secret reaches no files; mount with one of the role mount or user",
        )),
        // Whatever else is wrong may pass while the mount is there.
        _ => Ok(()),
    }
}

/// Serves the mount until it is gone. A signal unmounts it; files that are still open on it are
/// served to their end. Where none is open, a second signal ends this although the mount is still
/// there: as a copy in another mount namespace, or as the working directory of a process.
fn wait(mounted: Mounted, mut signals: Signals) -> Result<(), Fail> {
    let mounted = Arc::new(mounted);
    let (ended, end) = mpsc::channel();
    let (waiting, gone) = (Arc::clone(&mounted), ended.clone());
    let thread = || std::thread::Builder::new();
    let waits = thread().spawn(move || {
        waiting.wait();
        let _ = gone.send(());
    });
    waits.map_err(Fail::runtime)?;
    let unmounts = thread().spawn(move || {
        let mut is_taken_off = false;
        for _ in signals.forever() {
            if is_taken_off && !mounted.has_open_files() {
                // The kernel ends the connection with the process.
                let _ = ended.send(());
            }
            is_taken_off = mounted.unmount();
        }
    });
    unmounts.map_err(Fail::runtime)?;
    // Either of the threads says it, and ends with the process if not before.
    end.recv().map_err(Fail::runtime)
}

fn ticket_s(text: &str) -> Result<u64, String> {
    let seconds = text.parse().ok();
    let allowed = seconds.filter(|it| *it == 0 || TICKET_S_ALLOWED.contains(it));
    let (least, most) = (TICKET_S_ALLOWED.start(), TICKET_S_ALLOWED.end());
    allowed.ok_or_else(|| format!("must be 0, or from {least} to {most}"))
}

/// Who may use a mount, and how.
struct Use {
    others: bool,
    checks: Checks,
    ticket_life: Duration,
    source: String,
}

/// Mounts a client's files, or those of a view, for this user; for everybody if that is root: the
/// forwarder acts as each caller.
pub fn mount(client: &Arc<Client>, point: &Path, view: Option<&View>) -> Result<Mounted, Fail> {
    let own = Use {
        others: is_root(),
        checks: Checks::Kernel,
        ticket_life: Duration::from_secs(TICKET_S),
        source: processes::MOUNT_SOURCE.to_string(),
    };
    mount_with(client, point, view, own)
}

fn mount_with(
    client: &Arc<Client>,
    point: &Path,
    view: Option<&View>,
    used: Use,
) -> Result<Mounted, Fail> {
    let options = MountOptions {
        path: point.to_path_buf(),
        allow_other: used.others,
        checks: used.checks,
        name: used.source,
        directory: view
            .map(|view| view.directory.clone().into())
            .unwrap_or_default(),
        application: view.map(|view| view.name.clone()),
        ticket_life: used.ticket_life,
    };
    tidegate_mount::mount(client.clone(), options).map_err(Fail::runtime)
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

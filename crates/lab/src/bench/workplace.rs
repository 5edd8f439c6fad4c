//! The directory of a benchmark, with its processes and mounts. All of them are gone when the
//! benchmark ends, also on Ctrl-C.

use rustix::process::{Pid, Signal, kill_process};
use serde::Serialize;
use serde::de::DeserializeOwned;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::{Handle, Signals};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitCode, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tidegate_cli::errln;
use tidegate_cli::fail::Fail;
use tidegate_cli::processes;

/// For processes to end by themselves: they have little to finish.
const PATIENCE: Duration = Duration::from_secs(5);

/// See the module.
pub struct Workplace {
    dir: PathBuf,
    held: Arc<Mutex<Held>>,
    signals: Handle,
}

#[derive(Default)]
struct Held {
    dir: PathBuf,
    children: Vec<Child>,
    mounts: Vec<PathBuf>,
}

impl Workplace {
    /// Makes a directory in `parent`. Signals end the program from now on, after cleaning up.
    pub fn make(parent: &Path, what: &str) -> Result<Workplace, Fail> {
        let parent = std::path::absolute(parent).unwrap_or_else(|_| parent.to_path_buf());
        let dir = parent.join(format!("tidegate-{what}-{}", std::process::id()));
        std::fs::DirBuilder::new()
            .mode(0o700)
            .create(&dir)
            .map_err(|error| {
                Fail::usage(format!(
                    "{}: {error}; choose another place with --dir",
                    dir.display()
                ))
            })?;
        let held = Held {
            dir: dir.clone(),
            ..Held::default()
        };
        let held = Arc::new(Mutex::new(held));
        let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).map_err(Fail::runtime)?;
        let place = Workplace {
            dir,
            held: held.clone(),
            signals: signals.handle(),
        };
        std::thread::spawn(move || {
            if let Some(signal) = signals.forever().next() {
                errln!("tidegate: stopped; cleaning up");
                lock(&held).clear();
                std::process::exit(128 + signal);
            }
        });
        Ok(place)
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Starts `program`, a `tidegate`, with these arguments, its output in `log`, at priority
    /// `nice`.
    pub fn start(
        &self,
        program: &Path,
        arguments: &[String],
        log: &Path,
        nice: i32,
    ) -> Result<Pid, Fail> {
        // Under the lock, so that a signal cannot come between start and note.
        let mut held = self.held();
        let child = processes::start(program, arguments, log)?;
        let pid = Pid::from_child(&child);
        held.children.push(child);
        drop(held);
        if nice != 0 {
            rustix::process::setpriority_process(Some(pid), nice).map_err(Fail::runtime)?;
        }
        Ok(pid)
    }

    /// Starts another program, without input and output.
    pub fn start_program(&self, command: &mut Command) -> Result<Pid, Fail> {
        let mut held = self.held();
        command.stdin(Stdio::null());
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let child = spawn(command)?;
        let pid = Pid::from_child(&child);
        held.children.push(child);
        Ok(pid)
    }

    /// Starts a program that answers each line of input with one of output.
    pub fn start_partner(&self, command: &mut Command) -> Result<Partner, Fail> {
        let mut held = self.held();
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = spawn(command)?;
        let pipes = (child.stdin.take(), child.stdout.take());
        held.children.push(child);
        let (Some(input), Some(output)) = pipes else {
            return Err(Fail::runtime("a process was started without its pipes"));
        };
        let output = BufReader::new(output);
        Ok(Partner { input, output })
    }

    /// Whether a process started here runs.
    pub fn runs(&self, pid: Pid) -> bool {
        let mut held = self.held();
        let child = held
            .children
            .iter_mut()
            .find(|child| Pid::from_child(child) == pid);
        child.is_some_and(|child| matches!(child.try_wait(), Ok(None)))
    }

    /// Records a mount point, to unmount it at the end.
    pub fn mounted(&self, point: &Path) {
        self.held().mounts.push(point.to_path_buf());
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        lock(&self.held)
    }
}

/// A process of the workplace that answers lines of input.
pub struct Partner {
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Partner {
    /// Its input and its output, for callers that read answers in another place than where they
    /// give tasks.
    pub fn split(self) -> (ChildStdin, BufReader<ChildStdout>) {
        (self.input, self.output)
    }

    /// Gives it a line and waits for its answer. Where there is none, the process itself has
    /// printed why.
    pub fn ask(&mut self, line: &str) -> Result<String, String> {
        let gone = |error: std::io::Error| format!("the process does not answer: {error}");
        writeln!(self.input, "{line}").map_err(gone)?;
        let mut answer = String::new();
        match self.output.read_line(&mut answer).map_err(gone)? {
            0 => Err("the process has ended; its message is above".to_string()),
            _ => Ok(answer),
        }
    }
}

/// What a [`Partner`] does: answers each line of standard input, a task as JSON, with one line.
pub fn answer_tasks<T: DeserializeOwned, D: Serialize>(
    mut perform: impl FnMut(T) -> Result<D, Fail>,
) -> Result<ExitCode, Fail> {
    let mut output = std::io::stdout().lock();
    for line in std::io::stdin().lock().lines() {
        let task = serde_json::from_str(&line.map_err(Fail::runtime)?).map_err(Fail::usage)?;
        let done = serde_json::to_string(&perform(task)?).map_err(Fail::runtime)?;
        writeln!(output, "{done}")
            .and_then(|()| output.flush())
            .map_err(Fail::runtime)?;
    }
    Ok(ExitCode::SUCCESS)
}

impl Drop for Workplace {
    fn drop(&mut self) {
        self.held().clear();
        self.signals.close();
    }
}

fn spawn(command: &mut Command) -> Result<Child, Fail> {
    command.spawn().map_err(|error| {
        let name = command.get_program().to_string_lossy();
        Fail::runtime(format!("{name}: {error}; is it installed?"))
    })
}

fn lock(held: &Mutex<Held>) -> MutexGuard<'_, Held> {
    held.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Held {
    fn clear(&mut self) {
        for point in self
            .mounts
            .drain(..)
            .filter(|point| processes::is_mounted(point))
        {
            processes::detach(&point);
        }
        for child in &self.children {
            // It may have ended already.
            let _ = kill_process(Pid::from_child(child), Signal::TERM);
        }
        let mut children = std::mem::take(&mut self.children);
        processes::wait_until(PATIENCE, || {
            children.retain_mut(|child| matches!(child.try_wait(), Ok(None)));
            children.is_empty()
        });
        for child in &mut children {
            let _ = child.kill();
            let _ = child.wait();
        }
        if let Err(error) = std::fs::remove_dir_all(&self.dir)
            && self.dir.exists()
        {
            errln!(
                "tidegate: {}: {error}; please remove it",
                self.dir.display()
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_left_behind() {
        let place = Workplace::make(&std::env::temp_dir(), "test").expect("a directory");
        let dir = place.dir().to_path_buf();
        std::fs::create_dir(dir.join("inside")).expect("a directory");
        std::fs::write(dir.join("inside/file"), "x").expect("a file");
        assert!(dir.is_dir());
        drop(place);
        assert!(!dir.exists());
    }

    #[test]
    fn a_place_that_cannot_be_had_is_told_with_advice() {
        let fail = Workplace::make(Path::new("/proc/none"), "test")
            .err()
            .expect("refused");
        assert!(
            fail.code == 2 && fail.message.contains("--dir"),
            "{}",
            fail.message
        );
    }
}

//! A job: several processes of dd, each with a fixed number of requests on a file of its own.

use crate::bench::Access;
use crate::bench::cluster::at;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Instant;
use tidegate_cli::fail::Fail;

/// See the module.
#[derive(Clone, Debug)]
pub struct Job {
    /// The application's name.
    pub name: &'static str,
    /// What its processes do.
    pub access: Access,
    /// How many.
    pub processes: usize,
    /// Size of a request.
    pub request_kib: u64,
    /// Requests of each process, one after the other.
    pub requests: u64,
    /// Where the files are seen.
    pub mount: PathBuf,
}

/// A job whose processes run.
pub struct Running {
    name: &'static str,
    started: Instant,
    processes: Vec<Child>,
}

impl Job {
    /// Makes the files directly on the back end, so that this costs no disk time.
    pub fn prepare(&self, export: &Path) -> Result<(), Fail> {
        for number in 0..self.processes {
            let path = export.join(self.file(number));
            let bytes = match self.access {
                Access::Read => self.requests * (self.request_kib << 10),
                Access::Write => 0,
            };
            let file = File::create(&path).map_err(at(&path))?;
            file.set_len(bytes).map_err(at(&path))?;
        }
        Ok(())
    }

    /// In words.
    pub fn words(&self) -> String {
        let Job {
            processes,
            request_kib,
            requests,
            ..
        } = self;
        let mib = *processes as u64 * requests * request_kib / 1024;
        let does = self.access.name();
        let of = match self.access {
            Access::Read => "from",
            Access::Write => "to",
        };
        format!(
            "{processes} processes {does} {mib} MiB {of} {processes} files, \
             {request_kib} KiB at a time"
        )
    }

    /// Starts the processes.
    pub fn start(&self) -> Result<Running, Fail> {
        self.start_at(Instant::now())
    }

    /// Starts the processes of a job whose time counts from `started`.
    pub fn start_at(&self, started: Instant) -> Result<Running, Fail> {
        let mut running = Running {
            name: self.name,
            started,
            processes: Vec::new(),
        };
        for number in 0..self.processes {
            let child = self.command(number).spawn();
            let child = child.map_err(|error| Fail::runtime(format!("dd: {error}")))?;
            running.processes.push(child);
        }
        Ok(running)
    }

    fn command(&self, number: usize) -> Command {
        let path = self.mount.join(self.file(number)).display().to_string();
        let (input, output) = match self.access {
            Access::Read => (path, "/dev/null".to_string()),
            Access::Write => ("/dev/zero".to_string(), path),
        };
        let mut command = Command::new("dd");
        command
            .arg(format!("if={input}"))
            .arg(format!("of={output}"))
            .arg(format!("bs={}K", self.request_kib))
            .arg(format!("count={}", self.requests))
            .args(["conv=notrunc", "status=none"])
            .env("TIDEGATE_APP", self.name)
            .stdin(Stdio::null())
            .stderr(Stdio::piped());
        command
    }

    fn file(&self, number: usize) -> String {
        format!("{}.{number}", self.name)
    }
}

impl Running {
    /// Waits until all have ended; seconds since the start of the job.
    pub fn wait(mut self) -> Result<f64, Fail> {
        let mut last = 0.0;
        for child in &mut self.processes {
            let status = child.wait().map_err(Fail::runtime)?;
            last = self.started.elapsed().as_secs_f64();
            if !status.success() {
                let mut said = String::new();
                if let Some(errors) = &mut child.stderr {
                    // The exit status is told in any case.
                    let _ = errors.read_to_string(&mut said);
                }
                let name = self.name;
                return Err(Fail::runtime(format!(
                    "{name}: dd: {status} {}",
                    said.trim()
                )));
            }
        }
        Ok(last)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        for child in &mut self.processes {
            if matches!(child.try_wait(), Ok(None)) {
                // It may end by itself at this moment.
                let _ = child.kill();
                let _ = child.wait();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(access: Access, mount: &Path) -> Job {
        let mount = mount.to_path_buf();
        Job {
            name: "test",
            access,
            processes: 2,
            request_kib: 4,
            requests: 3,
            mount,
        }
    }

    #[test]
    fn a_job_moves_its_bytes_and_takes_time() {
        let dir = std::env::temp_dir().join(format!("tidegate-job-{}", std::process::id()));
        std::fs::create_dir(&dir).unwrap();
        let writes = job(Access::Write, &dir);
        writes.prepare(&dir).unwrap();
        assert!(writes.start().unwrap().wait().unwrap() > 0.0);
        assert_eq!(
            std::fs::metadata(dir.join("test.1")).unwrap().len(),
            12 << 10
        );
        let reads = Job {
            mount: dir.join("missing"),
            ..job(Access::Read, &dir)
        };
        let error = reads.start().unwrap().wait().unwrap_err();
        assert!(error.message.contains("No such file"), "{}", error.message);
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn a_job_says_how_much_it_moves() {
        let job = Job {
            requests: 512,
            ..job(Access::Read, Path::new("/"))
        };
        assert_eq!(
            job.words(),
            "2 processes read 4 MiB from 2 files, 4 KiB at a time"
        );
    }
}

//! Runs the jobs as two `fio` processes on a mount, and reads from their logs what each got in each
//! second.

use super::super::cluster::Cluster;
use super::super::workplace::Workplace;
use super::jobs::{self, Job, Second};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use tidegate_cli::fail::Fail;

/// For `fio` to start its threads, and to end after its last answer.
const PATIENCE: Duration = Duration::from_secs(30);

/// Where and for how long jobs run.
pub struct Run<'a> {
    pub place: &'a Workplace,
    pub cluster: &'a Cluster<'a>,
    pub mount: &'a Path,
    /// Names the files of this run.
    pub name: &'a str,
    /// Bytes of a request.
    pub block: u64,
    pub length: Duration,
    /// How long a job that is on and off is on, and how long it is off.
    pub turn: Duration,
}

impl Run<'_> {
    /// Runs the jobs. Returns what each got by second, and the batches at once by second.
    pub fn perform(&self, jobs: &[Job; 2]) -> Result<([Vec<Second>; 2], Vec<u32>), Fail> {
        let control = self.cluster.client("bench", |_| {})?;
        let mut running = Vec::new();
        for job in jobs {
            running.push(self.place.start_program(&mut self.command(job))?);
        }
        let mut depth = Vec::new();
        for _ in 0..self.length.as_secs() {
            std::thread::sleep(Duration::from_secs(1));
            depth.push(jobs::depth_now(self.cluster, &control)?);
        }
        for pid in running {
            if !tidegate_cli::processes::wait_until(PATIENCE, || !self.place.runs(pid)) {
                return Err(Fail::runtime("fio does not end"));
            }
        }
        let logs = [&jobs[0], &jobs[1]].map(|job| self.answers(job));
        let [one, other] = logs;
        let (one, other) = (one?, other?);
        let starts_ms = one.iter().chain(&other).map(Answer::asked_ms).min();
        let starts_ms = starts_ms.ok_or_else(|| Fail::runtime("fio read nothing"))?;
        let seconds = |job: &Job, answers: &[Answer]| {
            let mut times = vec![Vec::new(); self.length.as_secs() as usize];
            for answer in answers {
                let second = answer.at_ms.saturating_sub(starts_ms) / 1000;
                if let Some(times) = times.get_mut(second as usize) {
                    times.push(answer.took_ns);
                }
            }
            jobs::seconds(job, times, self.block, self.turn)
        };
        Ok(([seconds(&jobs[0], &one), seconds(&jobs[1], &other)], depth))
    }

    fn command(&self, job: &Job) -> Command {
        let threads = u64::from(job.outstanding) * self.cluster.len() as u64;
        let mut fio = Command::new("fio");
        fio.env("TIDEGATE_APP", job.name)
            .current_dir(self.place.dir());
        fio.arg(format!("--output={}", self.file(job, "out").display()));
        let turns = match job.on_off {
            true => self.length.as_millis().div_ceil(2 * self.turn.as_millis()) as u64,
            false => 1,
        };
        for turn in 0..turns {
            let (starts, runs) = match job.on_off {
                true => (2 * turn * self.turn.as_secs(), self.turn.as_secs()),
                false => (0, self.length.as_secs()),
            };
            fio.arg(format!("--name={}.{turn}", job.name));
            fio.arg(format!(
                "--filename={}",
                self.mount.join(job.name).display()
            ));
            fio.args("--rw=randread --norandommap --randrepeat=0 --direct=1".split(' '));
            fio.args("--ioengine=psync --thread --time_based --per_job_logs=0".split(' '));
            fio.args("--log_unix_epoch=1 --disable_slat=1 --disable_clat=1".split(' '));
            fio.arg(format!(
                "--write_lat_log={}",
                self.file(job, "log").display()
            ));
            fio.arg(format!("--bs={}", self.block));
            fio.arg(format!("--blockalign={}", jobs::STRIPE));
            fio.arg(format!("--size={}", jobs::STRIPE * jobs::BLOCKS));
            fio.arg(format!("--numjobs={threads}"));
            fio.arg(format!("--startdelay={starts}"));
            fio.arg(format!("--runtime={runs}"));
            if let Some(rate) = job.rate_mb_s {
                fio.arg(format!("--rate={}", (rate * 1e6) as u64 / threads));
            }
        }
        fio
    }

    fn file(&self, job: &Job, what: &str) -> PathBuf {
        let name = format!("{}.{}.{what}", self.name, job.name);
        self.place.dir().join(name)
    }

    /// What `fio` logged of a job.
    fn answers(&self, job: &Job) -> Result<Vec<Answer>, Fail> {
        let log = PathBuf::from(format!("{}_lat.log", self.file(job, "log").display()));
        let text = std::fs::read_to_string(&log).map_err(|error| {
            let said = tidegate_cli::processes::last_line(&self.file(job, "out"));
            Fail::runtime(format!("{}: {error}; fio said: {said}", log.display()))
        })?;
        let answers = text.lines().map(|line| {
            let wrong = || Fail::runtime(format!("{}: {line:?} is no answer", log.display()));
            Answer::read(line).ok_or_else(wrong)
        });
        answers.collect()
    }
}

/// A request that was answered.
struct Answer {
    /// When, by the clock of the day.
    at_ms: u64,
    took_ns: u64,
}

impl Answer {
    /// A line of a latency log: time in ms, latency in ns, direction and so on.
    fn read(line: &str) -> Option<Answer> {
        let mut fields = line.split(',').map(|field| field.trim().parse().ok());
        Some(Answer {
            at_ms: fields.next()??,
            took_ns: fields.next()??,
        })
    }

    fn asked_ms(&self) -> u64 {
        self.at_ms.saturating_sub(self.took_ns / 1_000_000)
    }
}

//! MPI jobs, which make a query for each line of input.

use super::mpi::{Mpi, Programs};
use super::{COLUMNS, PATIENCE, PLANES};
use crate::bench::workplace::{Partner, Workplace};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Instant;
use tidegate_cli::fail::Fail;

/// Ranks of a job; each counts as a node.
pub const RANKS: u64 = 2;

/// What all jobs have in common.
pub struct Setting<'a> {
    /// The MPI.
    pub mpi: &'a Mpi,
    /// What was compiled with it.
    pub programs: &'a Programs,
    /// Names the forwarders.
    pub client_file: PathBuf,
    /// Where their files are mounted.
    pub mount: &'a Path,
    /// Rows of a plane.
    pub rows: u64,
    /// Speed of a node's port, MB/s; 0 for no emulated interconnect.
    pub interconnect_mbps: u32,
    /// Whether the shim aligns the ranks' parts to stripes.
    pub aligned: bool,
}

impl Setting<'_> {
    /// Makes a job's data set, in the exported directory itself.
    pub fn make_data(&self, export: &Path, number: u32) -> Result<(), Fail> {
        let mut words = self.shape(number);
        words.push("--create-only".to_string());
        self.mpi.run_alone(&self.programs.planes, &words, export)
    }

    fn shape(&self, number: u32) -> Vec<String> {
        let number = format!("set.{number}");
        let numbers = [
            ("--planes", PLANES),
            ("--rows", self.rows),
            ("--columns", COLUMNS),
        ];
        let pair = |(name, value): (&str, u64)| [name.to_string(), value.to_string()];
        let mut words: Vec<String> = numbers.into_iter().flat_map(pair).collect();
        words.push(number);
        words
    }

    /// `tidegate run ... -- mpiexec ... planes`, in the mounted directory.
    fn command(&self, number: u32) -> Result<Command, Fail> {
        let program = crate::bench::tidegate()?;
        let mut command = Command::new(program);
        command.arg("run").arg("--client").arg(&self.client_file);
        command.args(["--app", &format!("job-{number}"), "--"]);
        command.args(self.mpi.launch(RANKS));
        // Behind the libraries that `run` has loaded, and into the ranks alone.
        let behind = "LD_PRELOAD=$LD_PRELOAD:$0; export LD_PRELOAD; exec \"$@\"";
        command.args(["sh", "-c", behind]);
        command
            .arg(&self.programs.interconnect)
            .arg(&self.programs.planes);
        command.args(["--lead", "100", "--aggregators", &RANKS.to_string()]);
        command.args(["--queries", "1000000", "--pace"]);
        command.args(["--seed", &(number + 1).to_string()]);
        command.args(self.shape(number));
        command.envs(self.mpi.environment());
        command.env("TIDEGATE_MPI_NODES", RANKS.to_string());
        if self.interconnect_mbps > 0 {
            command.env(
                "TIDEGATE_MPI_INTER_MBPS",
                self.interconnect_mbps.to_string(),
            );
        }
        if !self.aligned {
            command.env("TIDEGATE_MPI_ALIGN", "off");
        }
        // Every file at once: the first query is like the others.
        command.env("TIDEGATE_SHORTCUT", "eager");
        let cache = self.client_file.with_file_name("cache");
        command.env("XDG_CACHE_HOME", cache);
        command.current_dir(self.mount);
        Ok(command)
    }
}

/// A running job. A thread of its own asks it, so that the benchmark need not wait for ever.
pub struct Job {
    go: Sender<()>,
    answers: Receiver<Result<String, String>>,
    number: u32,
}

impl Job {
    /// Starts it.
    pub fn start(place: &Workplace, setting: &Setting<'_>, number: u32) -> Result<Job, Fail> {
        let partner = place.start_partner(&mut setting.command(number)?)?;
        let (go, asked) = channel();
        let (answer, answers) = channel();
        std::thread::spawn(move || ask(partner, &asked, &answer));
        Ok(Job {
            go,
            answers,
            number,
        })
    }

    fn answer(&self, deadline: Instant) -> Result<f64, Fail> {
        let left = deadline.saturating_duration_since(Instant::now());
        let line = match self.answers.recv_timeout(left) {
            Ok(line) => line,
            Err(_) => Err(format!("no answer in {} s", PATIENCE.as_secs())),
        };
        line.and_then(|line| milliseconds(&line))
            .map_err(|error| Fail::runtime(format!("job {}: {error}", self.number)))
    }
}

fn ask(mut partner: Partner, asked: &Receiver<()>, answer: &Sender<Result<String, String>>) {
    while asked.recv().is_ok() {
        if answer.send(partner.ask("go")).is_err() {
            return;
        }
    }
}

/// Makes all jobs do a query at once; returns the time of each, ms.
pub fn query(jobs: &[Job]) -> Result<Vec<f64>, Fail> {
    let deadline = Instant::now() + PATIENCE;
    for job in jobs {
        // A job that has ended says so when it is asked for its answer.
        let _ = job.go.send(());
    }
    jobs.iter().map(|job| job.answer(deadline)).collect()
}

/// The time in a line of the program: `query 12.345 ms ...`.
fn milliseconds(line: &str) -> Result<f64, String> {
    let mut words = line.split_whitespace();
    let found = match (words.next(), words.next(), words.next()) {
        (Some("query"), Some(number), Some("ms")) => number.parse().ok(),
        _ => None,
    };
    found.ok_or_else(|| format!("it said {:?} instead of a time", line.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_the_program_is_a_time() {
        let line = "query            12.345 ms      104.0 MB/s\n";
        assert_eq!(milliseconds(line), Ok(12.345));
        assert!(milliseconds("verified").is_err());
        assert!(milliseconds("").is_err());
    }
}

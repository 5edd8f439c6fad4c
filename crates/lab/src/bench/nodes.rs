//! `tidegate bench cluster`: measures programs on the compute nodes of a running cluster, without
//! Tidegate and through it under two policies.

mod fleet;
mod page;
mod policies;
mod program;
mod report;

use super::statistics::median;
use super::workplace::Workplace;
use super::{Access, Claim, Common};
use fleet::Fleet;
use policies::{Policies, moved};
pub use program::Process;
use program::{ALIGNMENT, Part, Task};
use report::Report;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::time::Duration;
use tidegate_cli::fail::Fail;
use tidegate_cli::target::Target;
use tidegate_cli::{errln, out, outln};
use tidegate_sched::mix64;
use tidegate_server::config::parse_bytes;

/// Programs on the compute nodes of a running cluster: the back end without Tidegate, fifo, window.
///
/// Half of the programs have a small file each, half a large one, as a site's mix of short and long
/// jobs; with --equal also all of one size, as in Song et al. (SC'11, figures 5 and 6). All
/// start at one moment. Each reads (or writes) its file from the first to the last byte, one
/// request after another without a pause (a closed loop with one request outstanding), and is then
/// gone: a fixed amount of work, so that an order can shorten the mean completion, which it cannot
/// for loops without end (Little's law). Requests go past the page caches of the compute nodes.
/// Each byte that is read is compared with what was written before, between requests.
///
/// A completion is what passes from the common start until the program's last answer. In each run
/// every way has its turn, beginning with another one each time: the back end's own mount (none),
/// and Tidegate's mount under fifo and under window; the same files each time. The forwarders'
/// policy is changed at run time and put back at the end; an interrupted run leaves its last
/// policy, until the forwarders start again, and its folder. In each run a small and a large
/// program also have the back end to themselves: what the slowdowns are measured by. Fairness is
/// Jain's index of the programs' speeds (time alone by time here): 1 where all are slowed down
/// alike.
///
/// To cover all forwarders with each request, make it a multiple of stripe and forwarders. Depth:
/// requests that a forwarder has at the back end at once; the fewer, the more its policy decides,
/// and the less the back end can do by itself. Claimed is that the run was a valid one; which way
/// is the best is not judged.
#[derive(clap::Args, Clone, Debug)]
pub struct Nodes {
    /// What runs a command on a compute node, such as "ssh cn1"; once for each node; without it
    /// all programs run here. The program tidegate-lab must be at the same path there
    #[arg(long, value_name = "COMMAND")]
    node: Vec<String>,
    /// The exported directory as compute nodes mount it themselves: the same path on all of them
    #[arg(long, value_name = "DIR")]
    bare: PathBuf,
    /// Tidegate's mount on the compute nodes: the same path on all of them
    #[arg(long, value_name = "DIR")]
    tide: PathBuf,
    /// Programs, in turns on the nodes; an even number
    #[arg(long, value_name = "N", default_value_t = 10,
          value_parser = clap::value_parser!(u32).range(2..=1000))]
    programs: u32,
    /// Bytes of a small program's file
    #[arg(long, value_name = "BYTES", default_value = "4MiB", value_parser = size)]
    small: u64,
    /// Bytes of a large program's file
    #[arg(long, value_name = "BYTES", default_value = "16MiB", value_parser = size)]
    large: u64,
    /// Then the same once more, with files of so many bytes for all programs
    #[arg(long, value_name = "BYTES", value_parser = size)]
    equal: Option<u64>,
    /// Bytes of a request
    #[arg(long, value_name = "BYTES", default_value = "1MiB", value_parser = size)]
    request: u64,
    /// What the programs do
    #[arg(long, value_name = "WHAT", value_enum, default_value = "read")]
    access: Access,
    /// Turns of each way; medians are reported
    #[arg(long, value_name = "N", default_value_t = 5,
          value_parser = clap::value_parser!(u32).range(1..=1000))]
    runs: u32,
    /// Width of a window
    #[arg(long, value_name = "MS", default_value_t = 1000,
          value_parser = clap::value_parser!(u32).range(1..=3_600_000))]
    window_ms: u32,
    /// Requests that a forwarder has at the back end at once, under both policies
    #[arg(long, value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u32).range(1..=65536))]
    depth: u32,
    /// A command that runs here before each turn, to empty caches of the back end's servers
    #[arg(long, value_name = "COMMAND")]
    before: Option<String>,
    /// Longest time of one turn, seconds
    #[arg(long, value_name = "S", default_value_t = 600,
          value_parser = clap::value_parser!(u64).range(1..=86_400))]
    limit: u64,
    /// What a reader has to know of the cluster: versions, disks, what is emulated; may be given
    /// several times
    #[arg(long, value_name = "TEXT")]
    about: Vec<String>,
    /// Also write a page of documentation
    #[arg(long, value_name = "FILE")]
    write: Option<PathBuf>,
    #[command(flatten)]
    target: Target,
    #[command(flatten)]
    common: Common,
}

fn size(text: &str) -> Result<u64, String> {
    let bytes = parse_bytes(text).filter(|bytes| *bytes > 0 && bytes.is_multiple_of(ALIGNMENT));
    bytes.ok_or_else(|| format!("must be a multiple of {ALIGNMENT} bytes, such as 4MiB"))
}

/// A way to the files, in the order of the columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    None,
    Fifo,
    Window,
}

impl Way {
    /// All of them.
    pub const ALL: [Way; 3] = [Way::None, Way::Fifo, Way::Window];

    /// The policy's name, or that there is none.
    pub fn name(self) -> &'static str {
        match self {
            Way::None => "none",
            Way::Fifo => "fifo",
            Way::Window => "window",
        }
    }
}

/// One run of all programs at once, by one way.
pub struct Turn {
    pub way: Way,
    /// By program: from the common start to its end, seconds.
    pub completions: Vec<f64>,
    /// The longest time that passed outside of a program: in starting and in telling its end, s.
    pub lag: f64,
    /// Bytes that were not those expected.
    pub wrong: u64,
    /// Bytes that each program moved through each forwarder.
    pub moved: Vec<Vec<u64>>,
}

/// A turn of each way, and a small and a large program alone on the back end.
pub struct Run {
    pub turns: Vec<Turn>,
    pub alone: [f64; 2],
}

impl Nodes {
    /// Measures, and prints the tables.
    pub fn perform(mut self) -> Result<ExitCode, Fail> {
        if self.common.quick {
            (self.runs, self.small, self.large) = (1, self.request, 2 * self.request);
            self.equal = self.equal.map(|_| self.request);
        }
        self.check_sizes()?;
        if self.node.is_empty() {
            self.node.push(String::new());
        }
        let place = Workplace::make(&self.common.dir, "cluster")?;
        let policies = Policies::find(&self.target)?;
        let limit = Duration::from_secs(self.limit);
        let mut fleet = Fleet::start(&place, &self.node, self.programs as usize, limit)?;
        // Before anything is made: nodes that cannot be reached leave nothing behind.
        let all = 0..self.programs as usize;
        fleet.ask(&all.map(|one| (one, Task::Hello)).collect::<Vec<_>>())?;
        let mut loads = vec![self.clone()];
        loads.extend(self.equal.map(|bytes| Nodes {
            small: bytes,
            large: bytes,
            ..self.clone()
        }));
        let mut reports = Vec::new();
        for (number, load) in loads.into_iter().enumerate() {
            let folder = format!("tidegate-bench-{}-{number}", std::process::id());
            let runs = load.perform_in(&mut fleet, &policies, &folder)?;
            let places = (0..load.programs as usize).map(|one| fleet.node(one).to_string());
            reports.push(Report::of(
                load,
                runs,
                places.collect(),
                policies.forwarders(),
            ));
        }
        drop(policies);
        match self.common.json {
            true => outln!("{}", self.json(&reports)),
            false => out!("{}", self.text(&reports)),
        }
        if let Some(file) = &self.write {
            let wrote = std::fs::write(file, page::page(&self, file, &reports));
            wrote.map_err(super::cluster::at(file))?;
        }
        let claims: Vec<Claim> = reports.into_iter().flat_map(|one| one.claims).collect();
        Ok(self.common.judge(&claims))
    }

    fn text(&self, reports: &[Report]) -> String {
        let about = self.about.iter().map(|line| format!("{line}\n"));
        let mut text: String = about.collect();
        for report in reports {
            text += &format!("\n{}", report.text());
        }
        text
    }

    fn json(&self, reports: &[Report]) -> serde_json::Value {
        let loads: Vec<_> = reports.iter().map(Report::json).collect();
        serde_json::json!({
            "bench": "cluster", "about": self.about, "nodes": self.node, "loads": loads,
        })
    }

    /// Measures with files in a folder of their own, which is removed.
    fn perform_in(
        &self,
        fleet: &mut Fleet,
        policies: &Policies,
        folder: &str,
    ) -> Result<Vec<Run>, Fail> {
        let path = self.tide.join(folder);
        fleet.ask(&[(0, Task::Make(path.clone()))])?;
        let measured = self.measure(fleet, policies, folder);
        let removed = fleet.ask(&[(0, Task::Remove(path.clone()))]);
        let runs = measured.inspect_err(|_| {
            if removed.is_err() {
                errln!("tidegate: please remove {}", path.display());
            }
        })?;
        removed.map(|_| runs)
    }

    fn check_sizes(&self) -> Result<(), Fail> {
        let equal = self.equal.unwrap_or(self.request);
        let sizes = [self.small, self.large, equal];
        for (flag, bytes) in ["--small", "--large", "--equal"].into_iter().zip(sizes) {
            if !bytes.is_multiple_of(self.request) {
                return Err(Fail::usage(format!(
                    "{flag} {bytes} must be a multiple of --request {}",
                    self.request
                )));
            }
        }
        match self.programs.is_multiple_of(2) {
            true => Ok(()),
            false => Err(Fail::usage(
                "--programs must be even: half of them are small",
            )),
        }
    }

    fn measure(
        &self,
        fleet: &mut Fleet,
        policies: &Policies,
        folder: &str,
    ) -> Result<Vec<Run>, Fail> {
        self.fill(fleet, folder)?;
        let mut stage = Stage {
            nodes: self,
            fleet,
            policies,
            folder,
            written: 0,
        };
        let mut runs = Vec::new();
        for number in 0..self.runs as usize {
            let alone = [stage.alone(0)?, stage.alone(self.programs as usize - 1)?];
            let mut turns = Vec::new();
            for place in 0..Way::ALL.len() {
                turns.push(stage.turn(Way::ALL[(number + place) % Way::ALL.len()])?);
            }
            runs.push(Run { turns, alone });
            let done = number + 1;
            self.common
                .progress(&format!("{done} of {} runs", self.runs));
        }
        self.common.progress("");
        Ok(runs)
    }

    /// The files, written through the forwarders.
    fn fill(&self, fleet: &mut Fleet, folder: &str) -> Result<(), Fail> {
        let fill = |number| {
            let part = self.part(Way::Fifo, folder, number);
            let seed = seed(number, 0);
            (number, Task::Fill { part, seed })
        };
        let tasks: Vec<_> = (0..self.programs as usize).map(fill).collect();
        fleet.ask(&tasks).map(|_| ())
    }

    fn part(&self, way: Way, folder: &str, number: usize) -> Part {
        let root = match way {
            Way::None => &self.bare,
            Way::Fifo | Way::Window => &self.tide,
        };
        Part {
            path: root.join(folder).join(format!("file.{number}")),
            bytes: self.bytes(number),
            request: self.request,
        }
    }

    /// The first half of the programs is small.
    fn is_small(&self, number: usize) -> bool {
        number < self.programs as usize / 2
    }

    fn bytes(&self, number: usize) -> u64 {
        match self.is_small(number) {
            true => self.small,
            false => self.large,
        }
    }

    /// The files' sizes.
    fn load_words(&self) -> String {
        let sizes = [self.small, self.large].map(tidegate_cli::table::bytes);
        match self.small == self.large {
            true => format!("all {}", sizes[0]),
            false => format!("half {}, half {}", sizes[0], sizes[1]),
        }
    }

    fn scheduler(&self, way: Way) -> String {
        let (name, depth) = (way.name(), self.depth);
        let own = match way {
            Way::Window => format!("window_ms = {}\n", self.window_ms),
            Way::None | Way::Fifo => String::new(),
        };
        format!("policy = \"{name}\"\ndepth = {depth}\nmerge = false\n{own}")
    }

    /// The claims that make a run valid; which way is the fastest is no part of them.
    fn claims(&self, runs: &[Run]) -> Vec<Claim> {
        let turns = || runs.iter().flat_map(|run| &run.turns);
        let load = self.load_words();
        let wrong: u64 = turns().map(|turn| turn.wrong).sum();
        let whole = |turn: &Turn| {
            let programs = turn.moved.iter().enumerate();
            let mut right = programs.map(|(number, forwarders)| match turn.way {
                Way::None => forwarders.iter().all(|bytes| *bytes == 0),
                _ => {
                    forwarders.iter().all(|bytes| *bytes > 0)
                        && forwarders.iter().sum::<u64>() == self.bytes(number)
                }
            });
            right.all(|right| right)
        };
        let astray = turns().filter(|turn| !whole(turn)).count();
        vec![
            Claim::new(
                format!("{load}: every byte is the one that was written; wrong: {wrong}"),
                wrong == 0,
            ),
            Claim::new(
                format!(
                    "{load}: each program is an application of its own, with all its bytes through \
                     all forwarders, and with none through them in the turns without Tidegate; \
                     turns where that is not so: {astray}"
                ),
                astray == 0,
            ),
        ]
    }
}

/// The seed from which the bytes of a program's file follow. Each turn that writes has another one.
fn seed(number: usize, written: u64) -> u64 {
    mix64(((number as u64) << 32) | written)
}

/// Where turns take place.
struct Stage<'a> {
    nodes: &'a Nodes,
    fleet: &'a mut Fleet,
    policies: &'a Policies,
    folder: &'a str,
    /// How often the files have been written anew.
    written: u64,
}

impl Stage<'_> {
    /// Seconds of one program that has the back end to itself.
    fn alone(&mut self, number: usize) -> Result<f64, Fail> {
        self.prepare(Way::None, &[number])?;
        // It writes the bytes that are there, so that all files stay of one turn.
        let tasks = self.tasks(self.nodes.access, &[number]);
        let found = self.fleet.ask(&tasks)?;
        Ok(found[0].took.as_secs_f64())
    }

    fn turn(&mut self, way: Way) -> Result<Turn, Fail> {
        if way != Way::None {
            self.policies.set(way.name(), &self.nodes.scheduler(way))?;
        }
        let programs = self.nodes.programs as usize;
        let all: Vec<usize> = (0..programs).collect();
        self.prepare(way, &all)?;
        if self.nodes.access == Access::Write {
            self.written += 1;
        }
        let before = moved(&self.policies.states()?, programs);
        let tasks = self.tasks(self.nodes.access, &all);
        let found = self.fleet.ask(&tasks)?;
        let after = moved(&self.policies.states()?, programs);
        let mut wrong: u64 = found.iter().map(|one| one.done.wrong).sum();
        if self.nodes.access == Access::Write {
            // What was just written.
            let found = self.fleet.ask(&self.tasks(Access::Read, &all))?;
            wrong += found.iter().map(|one| one.done.wrong).sum::<u64>();
        }
        let grown = after.iter().zip(&before).map(|(after, before)| {
            let pairs = after.iter().zip(before);
            pairs
                .map(|(one, other)| one.saturating_sub(*other))
                .collect()
        });
        let lags = found.iter().map(|one| one.lag().as_secs_f64());
        Ok(Turn {
            way,
            completions: found.iter().map(|one| one.took.as_secs_f64()).collect(),
            lag: lags.fold(0.0, f64::max),
            wrong,
            moved: grown.collect(),
        })
    }

    fn prepare(&mut self, way: Way, programs: &[usize]) -> Result<(), Fail> {
        if let Some(command) = &self.nodes.before {
            let ran = Command::new("sh").args(["-c", command]).status();
            let ran = ran.map_err(|error| Fail::runtime(format!("sh: {error}")))?;
            if !ran.success() {
                return Err(Fail::runtime(format!("--before {command:?}: {ran}")));
            }
        }
        let open = |number: &usize| {
            let part = self.nodes.part(way, self.folder, *number);
            (*number, Task::Open(part))
        };
        let tasks: Vec<_> = programs.iter().map(open).collect();
        self.fleet.ask(&tasks).map(|_| ())
    }

    fn tasks(&self, access: Access, programs: &[usize]) -> Vec<(usize, Task)> {
        let one = |number: &usize| {
            let seed = seed(*number, self.written);
            let task = match access {
                Access::Read => Task::Read { seed },
                Access::Write => Task::Write { seed },
            };
            (*number, task)
        };
        programs.iter().map(one).collect()
    }
}

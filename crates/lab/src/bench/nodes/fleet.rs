//! The programs on all nodes. The benchmark starts them with each node's command, gives them tasks
//! at one moment, and times them by the one clock of this process.

use super::program::{Done, Task};
use crate::bench::workplace::Workplace;
use std::io::{BufRead, BufReader, Write};
use std::process::{ChildStdin, ChildStdout, Command};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};
use tidegate_cli::fail::Fail;
use tidegate_cli::installed;

/// What is said of a program that is gone.
const ENDED: &str = "has ended; its message is above. Does the node's command run, and is this \
                     program tidegate-lab at the same path there?";

/// All programs.
pub struct Fleet {
    programs: Vec<Program>,
    heard: Receiver<Heard>,
    limit: Duration,
}

struct Program {
    input: ChildStdin,
    name: String,
    node: String,
}

/// A line of a program, or None when it has ended.
struct Heard {
    program: usize,
    at: Instant,
    line: Option<String>,
}

/// The result of one program's task.
pub struct Completed {
    pub done: Done,
    /// Time from the common start until its answer arrived here.
    pub took: Duration,
}

impl Completed {
    /// The part of this time that did not pass in the program: its start, and the transfer of task
    /// and answer.
    pub fn lag(&self) -> Duration {
        self.took.saturating_sub(Duration::from_nanos(self.done.ns))
    }
}

impl Fleet {
    /// Starts `count` programs, the nodes in turns. A node is the command that runs another one
    /// there, or no words at all for this node. No task may take longer than `limit`.
    pub fn start(
        place: &Workplace,
        nodes: &[String],
        count: usize,
        limit: Duration,
    ) -> Result<Fleet, Fail> {
        let own = installed::own()?;
        let (tell, heard) = channel();
        let mut programs = Vec::new();
        for number in 0..count {
            let node = nodes[number % nodes.len()].clone();
            let name = format!("program-{number}");
            let mut words = node.split_whitespace();
            let mut command = match words.next() {
                Some(first) => Command::new(first),
                None => Command::new("env"),
            };
            command.args(words);
            if !node.trim().is_empty() {
                command.arg("env");
            }
            // The mount takes the name of the application from the environment of the process that
            // opens a file.
            command.arg(format!("TIDEGATE_APP={}", application(number)));
            command.arg(&own).args(["bench", "program"]);
            let (input, output) = place.start_partner(&mut command)?.split();
            let tell = tell.clone();
            std::thread::spawn(move || listen(number, output, &tell));
            programs.push(Program { input, name, node });
        }
        Ok(Fleet {
            programs,
            heard,
            limit,
        })
    }

    /// The command of the node on which a program runs.
    pub fn node(&self, program: usize) -> &str {
        &self.programs[program].node
    }

    /// Gives these programs their tasks at once and waits for all answers, in the order of `tasks`.
    /// A task that a program could not do is an error.
    pub fn ask(&mut self, tasks: &[(usize, Task)]) -> Result<Vec<Completed>, Fail> {
        let texts: Result<Vec<String>, _> = tasks
            .iter()
            .map(|(_, task)| serde_json::to_string(task))
            .collect();
        let texts = texts.map_err(Fail::runtime)?;
        let begun = Instant::now();
        for ((program, _), text) in tasks.iter().zip(texts) {
            let program = &mut self.programs[*program];
            let told = writeln!(program.input, "{text}");
            told.map_err(|error| program.fail(&format!("{ENDED} ({error})")))?;
        }
        let mut found: Vec<Option<Completed>> = tasks.iter().map(|_| None).collect();
        while found.iter().any(Option::is_none) {
            let heard = self.hear(begun, tasks, &found)?;
            let program = &self.programs[heard.program];
            let Some(line) = heard.line else {
                return Err(program.fail(ENDED));
            };
            let done: Done = serde_json::from_str(&line)
                .map_err(|error| program.fail(&format!("answers {line:?}: {error}")))?;
            if let Some(error) = &done.error {
                return Err(program.fail(error));
            }
            let took = heard.at.duration_since(begun);
            let place = tasks
                .iter()
                .position(|(number, _)| *number == heard.program);
            let place = place.ok_or_else(|| program.fail("answers what it was not asked"))?;
            found[place] = Some(Completed { done, took });
        }
        Ok(found.into_iter().flatten().collect())
    }

    fn hear(
        &self,
        begun: Instant,
        tasks: &[(usize, Task)],
        found: &[Option<Completed>],
    ) -> Result<Heard, Fail> {
        let left = self.limit.saturating_sub(begun.elapsed());
        self.heard.recv_timeout(left).map_err(|error| match error {
            RecvTimeoutError::Timeout => {
                let silent = tasks.iter().zip(found).filter(|(_, found)| found.is_none());
                let names = silent.map(|((number, _), _)| self.programs[*number].name.as_str());
                let names: Vec<&str> = names.collect();
                Fail::runtime(format!(
                    "{} had no end within {} s: is the file system that slow (--limit), or does \
                     it hang?",
                    names.join(", "),
                    self.limit.as_secs()
                ))
            }
            RecvTimeoutError::Disconnected => Fail::runtime("all programs have ended"),
        })
    }
}

impl Program {
    fn fail(&self, why: &str) -> Fail {
        match self.node.trim() {
            "" => Fail::runtime(format!("{}: {why}", self.name)),
            node => Fail::runtime(format!("{} under `{node}`: {why}", self.name)),
        }
    }
}

/// What the forwarders call a program.
pub fn application(number: usize) -> String {
    format!("bench-cluster-{number}")
}

fn listen(program: usize, mut output: BufReader<ChildStdout>, tell: &Sender<Heard>) {
    loop {
        let mut line = String::new();
        let read = output.read_line(&mut line);
        let heard = Heard {
            program,
            at: Instant::now(),
            line: matches!(read, Ok(1..)).then_some(line),
        };
        let over = heard.line.is_none();
        // Nobody listens any more when the benchmark ends early.
        if tell.send(heard).is_err() || over {
            return;
        }
    }
}

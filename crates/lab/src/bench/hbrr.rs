//! Measures the round robin of the I/O forwarding layer (Ohta et al. 2010, figures 6 to 8): many
//! processes access one shared file through real forwarders with emulated disks, in arrival order
//! and with handle-based round robin.

mod load;
mod report;
mod turn;

use super::cluster::{Cluster, Shape};
use super::statistics::median;
use super::workplace::Workplace;
use super::{Access, Claim, Common};
use load::{Content, Load, RECORD};
use std::process::ExitCode;
use tidegate_cli::fail::Fail;
use turn::{Processes, Turn};

/// The sides: a name, and the `[scheduler]` table.
const SIDES: [(&str, &str); 2] = [
    ("fifo", "policy = \"fifo\"\nmerge = false\ndepth = 1\n"),
    ("round-robin", "policy = \"round-robin\"\ndepth = 1\n"),
];
const FORWARDERS: [usize; 2] = [1, 4];
/// Processes of BTIO.
const BTIO_PROCESSES: u64 = 64;
/// Priority of clients and forwarders, where it may be raised.
const NICE: i32 = -12;
/// Calls of round-robin, in percent of fifo's.
const CALLS_PERCENT_MAX: f64 = 25.0;

/// 128 processes and one shared file: handle-based round robin against arrival order (Ohta et al.
/// 2010).
///
/// All processes are one application. Every process has a session of its own with each forwarder,
/// and begins its next call when the last has returned. Every forwarder has an emulated disk of
/// 7200 rpm without a write cache, which serves one access at a time. `fifo` makes one call to the
/// back end for each request, in order of arrival. `round-robin` takes up to a quantum of the
/// file's ranges in one turn, merges adjacent requests, and makes one list call of them.
///
/// records: with P processes, call n of process p is record n P + p, of 32 KiB. messages: the same
/// with records of 8 MiB and 64 MiB. btio: the collective outputs of NAS BTIO class A. An output of
/// 10.5 MB is cut into one piece for each aggregator; all aggregators write at once, and the next
/// output begins when the last piece is written. All 64 processes are aggregators; a run with one
/// aggregator for each 16 processes is shown beside it, without a claim. The exchange of data
/// between processes costs nothing here.
///
/// `fifo` stands for access by all processes without forwarding: each call reaches the disk by
/// itself, in order of arrival. The way to the forwarder is part of both. Each load is written and
/// then read, with one forwarder and with four. The two policies alternate, and the table shows
/// medians. Every byte that is read is compared with what was written.
#[derive(clap::Args, Clone, Debug)]
pub struct Hbrr {
    /// Processes in `records`, each with a session of its own
    #[arg(long, value_name = "N", default_value_t = 128,
          value_parser = clap::value_parser!(u32).range(1..=240))]
    clients: u32,
    /// Records of each process
    #[arg(long, value_name = "N", default_value_t = 8,
          value_parser = clap::value_parser!(u32).range(1..=10_000))]
    records: u32,
    /// Only this load; may be given several times
    #[arg(long, value_name = "PART")]
    part: Vec<Part>,
    /// Turns of each side; medians are reported
    #[arg(long, value_name = "N", default_value_t = 5,
          value_parser = clap::value_parser!(u32).range(1..=1000))]
    repetitions: u32,
    #[command(flatten)]
    common: Common,
}

/// A family of loads.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Records,
    Messages,
    Btio,
}

/// A load at a number of forwarders, and its results.
struct Row {
    part: Part,
    forwarders: usize,
    load: Load,
    access: Access,
    /// By side, in order of turns.
    turns: [Vec<Turn>; 2],
}

impl Row {
    /// Megabytes a second of a side.
    fn rate(&self, side: usize) -> f64 {
        let turns = self.turns[side].iter();
        median(turns.map(|turn| self.load.bytes() as f64 / 1e6 / turn.seconds))
    }

    /// Round robin's rate in units of fifo's.
    fn ratio(&self) -> f64 {
        self.rate(1) / self.rate(0)
    }

    /// Processor time of a side, nanoseconds for each byte.
    fn processor(&self, side: usize) -> f64 {
        let turns = self.turns[side].iter();
        median(turns.map(|turn| turn.processor_ns as f64 / self.load.bytes() as f64))
    }

    fn calls(&self, side: usize) -> f64 {
        median(self.turns[side].iter().map(|turn| turn.calls as f64))
    }

    /// The smallest ratio that is claimed, if there is a claim.
    fn ratio_min(&self) -> Option<f64> {
        match (self.part, self.access) {
            (Part::Records, Access::Write) => Some(1.486),
            (Part::Records, Access::Read) => Some(1.40),
            (Part::Messages, _) => Some(0.99),
            // Few aggregators send a disk two or three requests at a time: for comparison.
            (Part::Btio, _) if (self.load.calls.len() as u64) < BTIO_PROCESSES => None,
            (Part::Btio, _) => Some(1.14),
        }
    }
}

impl Hbrr {
    /// Measures, and prints the table.
    pub fn perform(mut self) -> Result<ExitCode, Fail> {
        if self.common.quick {
            (self.clients, self.records) = (self.clients.min(64), self.records.min(4));
            self.repetitions = 1;
        }
        // The disks are emulated, so other load on the machine should not count. Forwarders inherit
        // the priority. Without the right to raise it the benchmark goes on.
        if !self.common.quick {
            let _ = rustix::process::setpriority_process(None, NICE);
        }
        let place = Workplace::make(&self.common.dir, "bench")?;
        // Slow enough that all processes wait again before the next call, on a busy machine too.
        let (disk, quick) = (
            "model = \"hdd-7200\"",
            "model = \"ideal\"\nservice_us = 4000",
        );
        let device = self.common.choose(disk, quick);
        let sections = |_| format!("[device]\n{device}\ndepth = 1\n");
        let mut rows = Vec::new();
        for forwarders in FORWARDERS {
            let name = format!("hbrr{forwarders}");
            let shape = Shape::new(&name, forwarders, 1 << 20, &sections);
            let loads = self.loads(forwarders as u64);
            let cluster = Cluster::start(&place, &shape)?;
            let count = loads.iter().map(|(_, load)| load.calls.len()).max();
            let mut processes = Processes::new(&cluster, count.unwrap_or(1))?;
            for (part, load) in loads {
                rows.extend(self.rows(&mut processes, forwarders, part, load)?);
            }
        }
        self.common.progress("");
        let claims = self.claims(&rows);
        Ok(self.common.conclude(
            &claims,
            || report::json(&self, &rows),
            || report::text(&self, &rows),
        ))
    }

    /// The loads for this number of forwarders. Each disk gets the same amount, whatever the number
    /// of forwarders, except for the records.
    fn loads(&self, forwarders: u64) -> Vec<(Part, Load)> {
        let (records, messages, btio) = (Part::Records, Part::Messages, Part::Btio);
        let small = Load::interleaved(self.clients.into(), self.records.into(), RECORD);
        let loads = match self.common.quick {
            true => vec![
                (records, small),
                (messages, Load::interleaved(2, 2, 8 << 20)),
                (btio, Load::btio(16, 2)),
            ],
            false => vec![
                (records, small),
                (messages, Load::interleaved(32 * forwarders, 1, 8 << 20)),
                (messages, Load::interleaved(8 * forwarders, 4, 8 << 20)),
                (messages, Load::interleaved(4 * forwarders, 1, 64 << 20)),
                (btio, Load::btio(BTIO_PROCESSES, 10)),
                (btio, Load::btio(4, 10)),
            ],
        };
        let wanted = |part: &Part| self.part.is_empty() || self.part.contains(part);
        loads.into_iter().filter(|(part, _)| wanted(part)).collect()
    }

    /// Writes and reads of one load, in turns.
    fn rows(
        &self,
        processes: &mut Processes<'_>,
        forwarders: usize,
        part: Part,
        load: Load,
    ) -> Result<[Row; 2], Fail> {
        let content = Content::for_load(&load);
        let mut turns = [[Vec::new(), Vec::new()], [Vec::new(), Vec::new()]];
        // The same file for all, so that it lies at the same place of the disk.
        processes.share(&load.title);
        for turn in 0..self.repetitions {
            let (turns_done, title) = (turn + 1, &load.title);
            self.common.progress(&format!(
                "turn {turns_done} of {}: {forwarders} forwarders, {title}",
                self.repetitions
            ));
            // Neither is always the first.
            let first = (turn % 2) as usize;
            for side in [first, 1 - first] {
                processes.set_policy(SIDES[side].1)?;
                let version = u64::from(turn) * 2 + side as u64;
                for (access, turns) in [Access::Write, Access::Read].into_iter().zip(&mut turns) {
                    turns[side].push(processes.turn(&load, access, &content, version)?);
                }
            }
        }
        processes.remove()?;
        let [writes, reads] = turns;
        let row = |load, access, turns| Row {
            part,
            forwarders,
            load,
            access,
            turns,
        };
        Ok([
            row(load.clone(), Access::Write, writes),
            row(load, Access::Read, reads),
        ])
    }

    fn claims(&self, rows: &[Row]) -> Vec<Claim> {
        let mut turns = rows.iter().flat_map(|row| row.turns.iter().flatten());
        let identical = turns.all(|turn| turn.identical);
        let identical = Claim::new("every byte is what was written".to_string(), identical);
        let calls = rows.iter().filter(|row| row.part == Part::Records);
        let calls = calls.filter(|row| row.forwarders == 1 && row.access == Access::Write);
        let calls = calls.map(|row| {
            let percent = row.calls(1) / row.calls(0) * 100.0;
            let text = format!(
                "calls under round-robin {percent:.1} % of fifo's, at most {CALLS_PERCENT_MAX} %"
            );
            Claim::new(text, percent <= CALLS_PERCENT_MAX)
        });
        let mut claims: Vec<Claim> = calls.chain([identical]).collect();
        if !self.common.quick {
            claims.extend(rows.iter().filter_map(ratio_claim));
        }
        claims
    }
}

fn ratio_claim(row: &Row) -> Option<Claim> {
    let (ratio, least) = (row.ratio(), row.ratio_min()?);
    let text = format!(
        "{}, {} at {}: {ratio:.3} of fifo, at least {least}",
        row.load.title,
        row.access.name(),
        match row.forwarders {
            1 => "1 forwarder".to_string(),
            forwarders => format!("{forwarders} forwarders"),
        },
    );
    Some(Claim::new(text, ratio >= least))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(part: Part, access: Access, seconds: [f64; 2], calls: [u64; 2]) -> Row {
        let turn = |side: usize| Turn {
            seconds: seconds[side],
            processor_ns: 1,
            calls: calls[side],
            identical: true,
        };
        Row {
            part,
            forwarders: 1,
            load: Load::interleaved(2, 1, RECORD),
            access,
            turns: [vec![turn(0)], vec![turn(1)]],
        }
    }

    fn hbrr(quick: bool) -> Hbrr {
        Hbrr {
            clients: 64,
            records: 1,
            part: Vec::new(),
            repetitions: 1,
            common: Common {
                check: true,
                dir: std::env::temp_dir(),
                json: false,
                quick,
            },
        }
    }

    #[test]
    fn a_quarter_of_the_calls_is_enough_and_a_wrong_byte_too_many() {
        let holds = |calls, identical| {
            let mut row = row(Part::Records, Access::Write, [1.0, 9.0], [512, calls]);
            row.turns[1][0].identical = identical;
            let claims = hbrr(true).claims(&[row]);
            claims.len() == 2 && claims.iter().all(|claim| claim.holds)
        };
        assert!(holds(128, true));
        assert!(!holds(129, true));
        assert!(!holds(64, false));
    }

    #[test]
    fn rates_are_claimed_of_whole_runs() {
        let last = |part, access, seconds| {
            let mut row = row(part, access, seconds, [4, 1]);
            if part == Part::Btio {
                row.load = Load::btio(BTIO_PROCESSES, 1);
            }
            let claims = hbrr(false).claims(&[row]);
            claims.last().expect("there are some").holds
        };
        assert!(last(Part::Records, Access::Write, [1.5, 1.0]));
        assert!(!last(Part::Records, Access::Write, [1.45, 1.0]));
        assert!(last(Part::Records, Access::Read, [1.45, 1.0]));
        assert!(last(Part::Messages, Access::Read, [0.995, 1.0]));
        assert!(!last(Part::Messages, Access::Write, [0.98, 1.0]));
        assert!(last(Part::Btio, Access::Write, [1.15, 1.0]));
        assert!(!last(Part::Btio, Access::Read, [1.13, 1.0]));
    }
}

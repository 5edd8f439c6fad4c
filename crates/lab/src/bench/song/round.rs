//! One round: all applications read at once, and the round records when each forwarder has served
//! each of them.

use super::{READ, STRIPE};
use crate::bench::statistics::{largest, mean, smallest, spread};
use std::sync::{Arc, Barrier, OnceLock};
use std::time::{Duration, Instant};
use tidegate_cli::fail::Fail;
use tidegate_client::fs::File;
use tidegate_client::wire::{Extent, Extents, Op};
use tidegate_client::{Bytes, Client, Context};

/// Between the meeting of all threads and their start: for the last of them to be awake.
const LEAD: Duration = Duration::from_millis(2);

/// One application: a client and its open file.
pub struct Application {
    /// Its client.
    pub client: Arc<Client>,
    /// The files that it reads, another one in each round, because the place of a file on the disk
    /// is chance.
    pub files: Vec<File>,
}

/// What one round took, in milliseconds since its common start.
pub struct Round {
    /// By application: when each forwarder had served its part.
    finishes_ms: Vec<Vec<f64>>,
    /// Between the first and the last application's start.
    pub starts_ms: f64,
}

impl Round {
    /// Reads a byte of each forwarder's part, so that all forwarders have the file open. Else the
    /// policy that comes first would bear the cost of the first access.
    pub fn prepare(applications: &[Application], file: usize) -> Result<(), Fail> {
        std::thread::scope(|scope| {
            let threads: Vec<_> = applications
                .iter()
                .map(|one| scope.spawn(move || one.transfer(file)))
                .collect();
            threads
                .into_iter()
                .try_for_each(|thread| thread.join().expect("a reader panicked"))
        })
    }

    /// Lets all applications read their file of this number at once.
    pub fn run(applications: &[Application], file: usize) -> Result<Round, Fail> {
        let gate = Gate {
            met: Barrier::new(applications.len()),
            open_at: OnceLock::new(),
        };
        let results: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = applications
                .iter()
                .map(|application| scope.spawn(|| application.read(&gate, file)))
                .collect();
            threads
                .into_iter()
                .map(|thread| thread.join().expect("a reader panicked"))
                .collect()
        });
        let results = results.into_iter().collect::<Result<Vec<_>, Fail>>()?;
        let start = results.iter().map(|(start, _)| *start).min();
        let start = start.expect("there are some");
        let since = |at: Instant| at.duration_since(start).as_secs_f64() * 1000.0;
        let starts = results.iter().map(|(start, _)| since(*start));
        let finishes = |(begun, served): &(Instant, Vec<u64>)| {
            let served = served.iter();
            served.map(|ns| since(*begun) + *ns as f64 / 1e6).collect()
        };
        Ok(Round {
            finishes_ms: results.iter().map(finishes).collect(),
            starts_ms: starts.fold(0.0, f64::max),
        })
    }

    /// Last over first forwarder, on the mean of the applications.
    pub fn ratio(&self) -> f64 {
        mean(self.finishes_ms.iter().map(|finishes| spread(finishes)))
    }

    /// When an application's last forwarder is done, on the mean.
    pub fn completion_ms(&self) -> f64 {
        mean(self.finishes_ms.iter().map(|finishes| largest(finishes)))
    }

    /// When an application's first forwarder is done, on the mean.
    pub fn first_ms(&self) -> f64 {
        mean(self.finishes_ms.iter().map(|finishes| smallest(finishes)))
    }

    /// When everything is done.
    pub fn makespan_ms(&self) -> f64 {
        self.finishes_ms
            .iter()
            .map(|finishes| largest(finishes))
            .fold(0.0, f64::max)
    }
}

/// Lets threads go at one time. They spin at the end, because threads that wake each other up start
/// one after the other.
struct Gate {
    met: Barrier,
    open_at: OnceLock<Instant>,
}

impl Gate {
    fn pass(&self) {
        if self.met.wait().is_leader() {
            self.open_at.get_or_init(|| Instant::now() + LEAD);
        }
        while self.open_at.get().is_none_or(|at| Instant::now() < *at) {
            std::thread::yield_now();
        }
    }
}

impl Application {
    fn transfer(&self, file: usize) -> Result<(), Fail> {
        let mut extents = (0..self.client.forwarders() as u64).map(|stripe| Extent {
            offset: stripe * STRIPE,
            len: 1,
        });
        let first = extents.next().expect("there is a forwarder");
        let extents = Extents {
            first,
            rest: extents.collect(),
        };
        let op = Op::Read {
            handle: self.files[file].handle(),
            extents,
        };
        let called = self.client.call(&Context::default(), op, Bytes::new());
        called
            .map(|_| ())
            .map_err(|errno| Fail::runtime(format!("reading: {errno}")))
    }

    /// Reads a file with one call; returns when the call began, and ns until each forwarder had
    /// served its part.
    fn read(&self, gate: &Gate, file: usize) -> Result<(Instant, Vec<u64>), Fail> {
        let extent = Extent {
            offset: 0,
            len: READ,
        };
        let op = Op::Read {
            handle: self.files[file].handle(),
            extents: extent.into(),
        };
        gate.pass();
        let begun = Instant::now();
        let called = self
            .client
            .call_served(&Context::default(), op, Bytes::new());
        let (answer, served) =
            called.map_err(|errno| Fail::runtime(format!("reading: {errno}")))?;
        if answer.data.len as u64 != READ {
            return Err(Fail::runtime(format!(
                "read {} of {READ} bytes",
                answer.data.len
            )));
        }
        if served.len() != self.client.forwarders() {
            return Err(Fail::runtime(format!(
                "{} forwarders took part",
                served.len()
            )));
        }
        Ok((begun, served.into_iter().map(|(_, ns)| ns).collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_is_summed_up_as_in_the_paper() {
        let round = Round {
            finishes_ms: vec![vec![1.0, 2.0], vec![4.0, 4.0]],
            starts_ms: 0.0,
        };
        assert_eq!(round.ratio(), 1.5);
        assert_eq!(round.completion_ms(), 3.0);
        assert_eq!(round.first_ms(), 2.5);
        assert_eq!(round.makespan_ms(), 4.0);
    }
}

//! Jobs that ask for a rate or for all they can get, with a bounded number of requests outstanding,
//! and what they got.

use crate::bench::cluster::{Cluster, open};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tidegate_cli::fail::Fail;
use tidegate_client::Context;
use tidegate_client::fs::{File, OpenHow};
use tidegate_sched::mix64;

/// Bytes of a stripe; a request lies at the begin of one, so that it goes to one forwarder.
pub const STRIPE: u64 = 2 << 20;

/// Stripes of a job's file. It has holes, so it takes no room.
pub const BLOCKS: u64 = 1 << 14;

/// A job and what it is promised.
pub struct Job {
    /// The application's name.
    pub name: &'static str,
    /// Bandwidth that it is promised, MB/s.
    pub min_mb_s: f64,
    /// Bound of the 95th percentile of its latencies, ms.
    pub latency_ms: f64,
    /// Bytes it asks for, MB/s, as `fio --rate` does; None: all it can get.
    pub rate_mb_s: Option<f64>,
    /// Requests outstanding at each forwarder; the largest number, if it asks for a rate.
    pub outstanding: u32,
    /// Whether it is on and off in turns.
    pub on_off: bool,
}

/// What a job got in a second.
#[derive(Clone, Debug)]
pub struct Second {
    /// Whether it was on for all of it.
    pub on: bool,
    /// What it got, MB/s.
    pub mb_s: f64,
    /// The 95th percentile of its requests' times, ms; 0 without any.
    pub p95_ms: f64,
}

impl Job {
    /// Whether its promise was kept in a second.
    pub fn keeps(&self, second: &Second) -> bool {
        second.mb_s >= 0.95 * self.min_mb_s && second.p95_ms <= self.latency_ms
    }

    /// Whether it is on at a time, and until when that stays so.
    fn is_on(&self, at: Duration, turn: Duration) -> bool {
        !self.on_off || (at.as_millis() / turn.as_millis()).is_multiple_of(2)
    }
}

/// Requests by the second in which they were answered: their times, ns.
type Answers = Mutex<Vec<Vec<u64>>>;

/// Runs jobs for a time. Returns what each got by second, and the batches at once by second.
pub fn run(
    cluster: &Cluster<'_>,
    jobs: &[Job; 2],
    block: u64,
    length: Duration,
    turn: Duration,
) -> Result<([Vec<Second>; 2], Vec<u32>), Fail> {
    let count = length.as_secs() as usize;
    let answers: [Answers; 2] = [0, 1].map(|_| Mutex::new(vec![Vec::new(); count]));
    let mut files = Vec::new();
    for job in jobs {
        let client = cluster.client(job.name, |_| {})?;
        files.push(open(&client, job.name, &OpenHow::read())?);
    }
    let control = cluster.client("bench", |_| {})?;
    let drawn = AtomicU64::new(1);
    let begin = Instant::now();
    let mut depth = Vec::new();
    let result = std::thread::scope(|scope| {
        let mut threads = Vec::new();
        for ((job, file), answers) in jobs.iter().zip(&files).zip(&answers) {
            let every = job.rate_mb_s.map(|rate| block as f64 / 1e6 / rate);
            let pace = Arc::new(Mutex::new(Pace {
                every: every.map(Duration::from_secs_f64),
                due: Duration::ZERO,
            }));
            for _ in 0..job.outstanding as usize * cluster.len() {
                let drawn = &drawn;
                let pace = Arc::clone(&pace);
                let times = (begin, length, turn);
                let requests = move || asks(job, file, block, times, (drawn, &pace), answers);
                threads.push(scope.spawn(requests));
            }
        }
        for second in 1..=count {
            let at = begin + Duration::from_secs(second as u64) - Duration::from_millis(500);
            std::thread::sleep(at.saturating_duration_since(Instant::now()));
            depth.push(depth_now(cluster, &control)?);
        }
        let joined = threads
            .into_iter()
            .map(|thread| thread.join().expect("a job panicked"));
        joined.collect::<Result<Vec<()>, Fail>>()
    });
    result?;
    let [one, other] = answers.map(|answers| answers.into_inner().expect("no thread panicked"));
    let seconds = [
        seconds(&jobs[0], one, block, turn),
        seconds(&jobs[1], other, block, turn),
    ];
    Ok((seconds, depth))
}

/// What a job got in each second, from the times of the requests that were answered in it.
pub fn seconds(job: &Job, answers: Vec<Vec<u64>>, block: u64, turn: Duration) -> Vec<Second> {
    let second = |(number, mut times): (usize, Vec<u64>)| {
        times.sort_unstable();
        let at = (times.len() * 95).div_ceil(100).max(1) - 1;
        let whole = Duration::from_secs(number as u64);
        let last = whole + Duration::from_millis(999);
        Second {
            on: job.is_on(whole, turn) && job.is_on(last, turn),
            mb_s: times.len() as f64 * block as f64 / 1e6,
            p95_ms: times.get(at).map_or(0.0, |ns| *ns as f64 / 1e6),
        }
    };
    answers.into_iter().enumerate().map(second).collect()
}

/// When a job asks next.
struct Pace {
    /// Time from one request to the next; None: none.
    every: Option<Duration>,
    due: Duration,
}

/// Who is late by more than this does not make up for it.
const LATE: Duration = Duration::from_millis(500);

impl Pace {
    /// How long to wait at a time before the next request, in a turn that began at `since`.
    fn next(&mut self, now: Duration, since: Duration) -> Duration {
        let Some(every) = self.every else {
            return Duration::ZERO;
        };
        let at = self.due.max(now.saturating_sub(LATE)).max(since);
        self.due = at + every;
        at.saturating_sub(now)
    }
}

/// Makes one request of a job after the other.
fn asks(
    job: &Job,
    file: &File,
    block: u64,
    (begin, length, turn): (Instant, Duration, Duration),
    (drawn, pace): (&AtomicU64, &Mutex<Pace>),
    answers: &Answers,
) -> Result<(), Fail> {
    loop {
        let asked = begin.elapsed();
        if asked >= length {
            return Ok(());
        }
        if !job.is_on(asked, turn) {
            let next = turn.as_nanos() as u64 * (1 + (asked.as_nanos() / turn.as_nanos()) as u64);
            let next = Duration::from_nanos(next).min(length);
            std::thread::sleep(next - asked);
            continue;
        }
        let turns = asked.as_nanos() / turn.as_nanos();
        let since = Duration::from_nanos(turn.as_nanos() as u64 * turns as u64);
        let pause = pace.lock().expect("no thread panicked").next(asked, since);
        std::thread::sleep(pause);
        let asked = begin.elapsed();
        let place = mix64(drawn.fetch_add(1, Ordering::Relaxed)) % BLOCKS * STRIPE;
        let read = file.pread(&Context::default(), place, block as usize);
        read.map_err(|errno| Fail::runtime(format!("{}: {errno}", job.name)))?;
        let answered = begin.elapsed();
        let mut answers = answers.lock().expect("no thread panicked");
        if let Some(second) = answers.get_mut(answered.as_secs() as usize) {
            second.push((answered - asked).as_nanos() as u64);
        }
    }
}

/// Batches that may run at once, over all forwarders.
pub fn depth_now(cluster: &Cluster<'_>, control: &tidegate_client::Client) -> Result<u32, Fail> {
    let mut sum = 0;
    for index in 0..cluster.len() {
        let status = cluster.status(control, index)?;
        sum += status["scheduler"]["depth"].as_u64().unwrap_or(0) as u32;
    }
    Ok(sum)
}

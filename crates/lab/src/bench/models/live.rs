//! The live side: a thread for each process, and files of holes, because the time is the device's.

use super::loads::{EmulatedDevice, Load};
use crate::bench::cluster::{Cluster, Shape, at, open};
use crate::bench::statistics::{largest, mean};
use crate::bench::workplace::Workplace;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, RwLock};
use std::thread::Builder;
use std::time::{Duration, Instant};
use tidegate_cli::fail::Fail;
use tidegate_client::fs::{File, OpenHow};
use tidegate_client::wire::{Extent, Extents, Op};
use tidegate_client::{Bytes, Client, Context};

/// On a machine of few cores the forwarders would take them for the first messages, before the last
/// programs have started.
const FORWARDERS_NICE: i32 = 5;

/// Room for what still moves on a machine after a round.
const PAUSE: Duration = Duration::from_millis(50);

/// What a round took, from its common start on.
pub struct Round {
    /// When a program was done, on the mean.
    pub completion_ms: f64,
    /// When all were.
    pub makespan_ms: f64,
}

/// How long each sleep is that shows how late this machine wakes a thread.
const NAP: Duration = Duration::from_millis(1);

/// Runs `work`. Meanwhile a thread sleeps again and again; also returns how late it woke, in ms, in
/// ascending order.
pub fn with_naps<T>(work: impl FnOnce() -> T) -> (T, Vec<f64>) {
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // Also where the work panics: the scope waits for the thread.
        let ends = Ends(&ended);
        let naps = scope.spawn(|| {
            let mut late_ms = Vec::new();
            while !ended.load(Ordering::Relaxed) {
                let began = Instant::now();
                std::thread::sleep(NAP);
                late_ms.push((began.elapsed() - NAP).as_secs_f64() * 1000.0);
            }
            late_ms.sort_by(f64::total_cmp);
            late_ms
        });
        let result = work();
        drop(ends);
        (result, naps.join().expect("it only sleeps"))
    })
}

/// Says at its end that the work has ended.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Runs the load under each of its policies in turns. Returns the rounds by policy.
pub fn run(
    place: &Workplace,
    load: &Load,
    device: &EmulatedDevice,
    repetitions: u32,
) -> Result<Vec<Vec<Round>>, Fail> {
    let sections = |index: usize| load.sections(device, index);
    let name = format!("{}.{}", load.word, device.name.replace(' ', "-"));
    let shape = Shape {
        nice: FORWARDERS_NICE,
        ..Shape::new(&name, load.forwarders, load.stripe, &sections)
    };
    let cluster = Cluster::start(place, &shape)?;
    let clients = clients(&cluster, load)?;
    let mut rounds: Vec<Vec<Round>> = load.policies.iter().map(|_| Vec::new()).collect();
    for number in 0..repetitions {
        for (policy, into) in load.policies.iter().zip(&mut rounds) {
            let rules = match policy.label {
                "two-level" => load.rules(),
                _ => String::new(),
            };
            cluster.set_shares(&clients[0][0], &rules)?;
            cluster.set_policy(&clients[0][0], &Load::scheduler(policy))?;
            let prefix = format!("{}.{number}", policy.label);
            into.push(round(&cluster, load, &clients, &prefix, number)?);
            std::thread::sleep(PAUSE);
        }
    }
    Ok(rounds)
}

/// By program, by process.
fn clients(cluster: &Cluster<'_>, load: &Load) -> Result<Vec<Vec<Arc<Client>>>, Fail> {
    let client = |program: usize| {
        cluster.client(&load.program(program), |options| {
            options.payload_max = load.payload_max;
            options.pipeline_bytes = options.pipeline_bytes.min(load.payload_max);
            options.merge_blocks = load.merge_blocks;
        })
    };
    let program = |program: usize| match load.client_each {
        true => (0..load.processes).map(|_| client(program)).collect(),
        false => Ok(vec![client(program)?; load.processes]),
    };
    (0..load.programs).map(program).collect()
}

fn round(
    cluster: &Cluster<'_>,
    load: &Load,
    clients: &[Vec<Arc<Client>>],
    prefix: &str,
    number: u32,
) -> Result<Round, Fail> {
    let mut processes = Vec::new();
    for (program, clients) in clients.iter().enumerate() {
        let name = format!("{prefix}.{program}");
        let path = cluster.export().join(&name);
        let made = std::fs::File::create(&path);
        made.and_then(|file| file.set_len(load.file_bytes()))
            .map_err(at(&path))?;
        for (process, client) in clients.iter().enumerate() {
            let file = open(client, &name, &OpenHow::read())?;
            let seed = u64::from(number) << 32 | program as u64;
            processes.push((program, client, file, load.offsets(process, seed)));
        }
    }
    let calls = |number: usize| {
        let (_, client, file, offsets) = &processes[number];
        process(load, client, file, offsets)
    };
    let ends = at_once(processes.len(), |_| Builder::new(), calls);
    let ends = ends.map_err(|error| Fail::runtime(format!("starting a thread: {error}")))?;
    let ends = ends.into_iter().collect::<Result<Vec<_>, Fail>>()?;
    let start = ends.iter().map(|(began, _)| *began).min();
    let start = start.expect("there are processes");
    let mut done = vec![0.0; load.programs];
    for ((program, ..), (_, ended)) in processes.iter().zip(ends) {
        let ms = ended.duration_since(start).as_secs_f64() * 1000.0;
        done[*program] = f64::max(done[*program], ms);
    }
    Ok(Round {
        completion_ms: mean(done.iter().copied()),
        makespan_ms: largest(&done),
    })
}

/// Does the work in so many threads, none before all are started. Where one cannot be started, none
/// does it.
fn at_once<T: Send>(
    count: usize,
    thread: impl Fn(usize) -> Builder,
    work: impl Fn(usize) -> T + Sync,
) -> io::Result<Vec<T>> {
    let all_started = RwLock::new(false);
    let mut opening = all_started.write().expect("nobody else has it yet");
    let wait_and_work = |number| {
        let starts = *all_started.read().expect("who opens it does not panic");
        starts.then(|| work(number))
    };
    let wait_and_work = &wait_and_work;
    std::thread::scope(|scope| {
        let start = |number| thread(number).spawn_scoped(scope, move || wait_and_work(number));
        let threads: io::Result<Vec<_>> = (0..count).map(start).collect();
        *opening = threads.is_ok();
        drop(opening);
        let joined = threads?.into_iter();
        let done = joined.map(|thread| thread.join().expect("a process panicked"));
        Ok(done.map(|it| it.expect("all were started")).collect())
    })
}

/// Makes the calls of a process, one after the other; returns when it began and ended.
fn process(
    load: &Load,
    client: &Client,
    file: &File,
    offsets: &[u64],
) -> Result<(Instant, Instant), Fail> {
    let began = Instant::now();
    for offset in offsets {
        let first = Extent {
            offset: *offset,
            len: load.call,
        };
        // As programs in virtual time call it: `pread` would cut a long call into pieces, of which
        // a few are under way at a time.
        let op = Op::Read {
            handle: file.handle(),
            extents: Extents {
                first,
                rest: Vec::new(),
            },
        };
        let read = client.call(&Context::default(), op, Bytes::new());
        let answer = read.map_err(|errno| Fail::runtime(format!("reading: {errno}")))?;
        let (len, call) = (answer.data.len, load.call);
        if len as u64 != call {
            let short = format!("reading: {len} bytes of {call} at {offset}");
            return Err(Fail::runtime(short));
        }
    }
    Ok((began, Instant::now()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::atomic::AtomicUsize;

    #[test]
    fn naps_end_where_the_work_panics() {
        let panics = || with_naps(|| panic!("as a bug would"));
        assert!(catch_unwind(AssertUnwindSafe(panics)).is_err());
        let ((), naps) = with_naps(|| ());
        assert!(naps.is_sorted());
    }

    #[test]
    fn all_threads_begin_or_none_does() {
        let begun = AtomicUsize::new(0);
        let work = |number| {
            begun.fetch_add(1, Ordering::SeqCst);
            number
        };
        let done = at_once(4, |_| Builder::new(), work).expect("a few can be started");
        assert_eq!((done, begun.load(Ordering::SeqCst)), (vec![0, 1, 2, 3], 4));
        let thread = |number| match number {
            2 => Builder::new().stack_size(usize::MAX / 4),
            _ => Builder::new(),
        };
        at_once(4, thread, work).expect_err("no stack is so large");
        assert_eq!(begun.load(Ordering::SeqCst), 4);
    }
}

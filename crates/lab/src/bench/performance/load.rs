//! The process whose accesses are measured: `tidegate bench load`. A benchmark starts it once for
//! each way to the files, and gives it tasks line by line. So the ways differ in nothing else.

use super::workload::Workload;
use crate::bench::cluster::open;
use crate::bench::workplace::answer_tasks;
use crate::bench::{Access, processor};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Barrier;
use std::time::{Duration, Instant};
use tidegate_cli::fail::Fail;
use tidegate_client::fs::{File as RemoteFile, OpenHow};
use tidegate_client::{Client, Context, Data, Errno, Options, Payload, Pending};

/// Reads and writes files as told on standard input: the other end of `bench performance`
#[derive(clap::Args, Clone, Debug)]
pub struct Load {
    /// Directory of the files
    #[arg(long, value_name = "DIR", required_unless_present = "client")]
    dir: Option<PathBuf>,
    /// Through the client library instead: addresses and settings, as C programs give them
    #[arg(long, value_name = "TEXT")]
    client: Option<String>,
    /// Bytes stay where the client library has them
    #[arg(long, requires = "client")]
    in_place: bool,
    /// The files
    #[arg(required = true, value_name = "NAME")]
    files: Vec<String>,
}

/// One line of input.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Task {
    /// What to do.
    pub workload: Workload,
    /// For how long, ms.
    pub time_ms: u64,
    /// Largest number of accesses of each client.
    pub accesses_max: Option<u64>,
    /// Each file's bytes: no access reaches further.
    pub file_bytes: u64,
    /// Whether to truncate the files to length 0 first.
    pub truncate: bool,
}

/// One line of output.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Done {
    /// How many accesses there were.
    pub count: u64,
    /// Accesses per second of all clients together.
    pub per_second: f64,
    /// Processor time of this process, client library included.
    pub processor_ns: u64,
    /// Wall-clock time of the whole task.
    pub wall_ns: u64,
    /// Time that half of the accesses took at most.
    pub p50_ns: u64,
    /// Time that 99 of 100 accesses took at most.
    pub p99_ns: u64,
}

enum Opened {
    Local(File),
    Remote(Box<Remote>),
}

/// A file of the client library.
struct Remote {
    file: RemoteFile,
    /// Bytes that were read are not copied, and those to be written are made in its room.
    in_place: bool,
}

/// What one thread did.
struct Share {
    began: Instant,
    ended: Instant,
    /// Of each access, ns.
    times: Vec<u64>,
}

impl Load {
    /// Works until the input ends.
    pub fn perform(self) -> Result<ExitCode, Fail> {
        let files: Vec<Opened> = self
            .files
            .iter()
            .map(|name| self.open(name))
            .collect::<Result<_, Fail>>()?;
        answer_tasks(|task| work(&files, &task))
    }

    fn open(&self, name: &str) -> Result<Opened, Fail> {
        let Some(text) = &self.client else {
            let path = self.dir.iter().collect::<PathBuf>().join(name);
            let file = File::options().read(true).write(true).open(&path);
            let file = file.map_err(|error| Fail::runtime(format!("{}: {error}", path.display())));
            return file.map(Opened::Local);
        };
        // Each file has a client of its own, as if each were a process.
        let client = Client::connect(Options::from_text(text)?)?;
        let how = OpenHow {
            read: true,
            write: true,
            ..OpenHow::default()
        };
        let file = open(&client, name, &how)?;
        let in_place = self.in_place;
        Ok(Opened::Remote(Box::new(Remote { file, in_place })))
    }
}

/// Does one task.
fn work(files: &[Opened], task: &Task) -> Result<Done, Fail> {
    let Workload {
        clients, in_flight, ..
    } = task.workload;
    let wrong = |error| Fail::runtime(format!("{}: {error}", task.workload.words()));
    let Some(files) = files.get(..clients) else {
        return Err(Fail::usage(format!("{clients} clients need as many files")));
    };
    if task.truncate {
        files.iter().try_for_each(truncate).map_err(wrong)?;
    }
    // The library keeps several in flight by itself; programs need a thread for each.
    let threads_each = match files {
        [Opened::Local(_), ..] => in_flight,
        _ => 1,
    };
    let barrier = Barrier::new(clients * threads_each);
    let (started, processor) = (Instant::now(), processor::own_ns());
    let shares: Vec<_> = std::thread::scope(|scope| {
        let all = files.iter().enumerate();
        let threads =
            all.flat_map(|(client, file)| (0..threads_each).map(move |t| (client, t, file)));
        let spawned = threads.map(|(client, thread, file)| {
            let barrier = &barrier;
            let places = Places::new(task, client as u64, thread as u64, threads_each as u64);
            scope.spawn(move || {
                barrier.wait();
                match file {
                    Opened::Local(file) => local(file, task, places),
                    Opened::Remote(file) if in_flight == 1 => remote(file, task, places),
                    Opened::Remote(file) => remote_in_flight(file, task, places),
                }
            })
        });
        let spawned: Vec<_> = spawned.collect();
        let joined = spawned.into_iter().map(std::thread::ScopedJoinHandle::join);
        joined
            .map(|share| share.expect("a client panicked"))
            .collect()
    });
    let (mut began, mut ended, mut times) = (None, started, Vec::new());
    for share in shares {
        let share: Share = share.map_err(wrong)?;
        began = began.min(Some(share.began)).or(Some(share.began));
        ended = ended.max(share.ended);
        times.extend(share.times);
    }
    // From the first start to the last end: a thread that had to wait for a core counts.
    let took = ended.duration_since(began.unwrap_or(started));
    let per_second = times.len() as f64 / took.as_secs_f64();
    times.sort_unstable();
    // Of the least value that is not exceeded by this part of all.
    let at = |part: f64| times[((times.len() - 1) as f64 * part) as usize];
    Ok(Done {
        count: times.len() as u64,
        per_second,
        processor_ns: processor::own_ns() - processor,
        wall_ns: started.elapsed().as_nanos() as u64,
        p50_ns: at(0.5),
        p99_ns: at(0.99),
    })
}

fn truncate(file: &Opened) -> std::io::Result<()> {
    match file {
        Opened::Local(file) => file.set_len(0),
        Opened::Remote(remote) => remote
            .file
            .truncate(&Context::default(), 0)
            .map(|_| ())
            .map_err(io),
    }
}

fn io(errno: Errno) -> std::io::Error {
    std::io::Error::from_raw_os_error(errno.0)
}

/// Where a thread's accesses go, and when it stops.
struct Places {
    len: u64,
    count: u64,
    random: bool,
    seed: u64,
    first: u64,
    step: u64,
    made: u64,
    made_max: u64,
    time: Duration,
    started: Instant,
}

impl Places {
    /// Of thread `thread` of `threads` on one file.
    fn new(task: &Task, client: u64, thread: u64, threads: u64) -> Places {
        let len = task.workload.len as u64;
        Places {
            len,
            count: (task.file_bytes / len).max(1),
            random: task.workload.is_small() && task.accesses_max.is_none(),
            seed: (client * threads + thread) << 32,
            first: thread,
            step: threads,
            made: 0,
            made_max: task.accesses_max.map_or(u64::MAX, |max| max / threads),
            time: Duration::from_millis(task.time_ms),
            started: Instant::now(),
        }
    }

    fn start(&mut self) {
        self.started = Instant::now();
    }

    /// The offset of the next access at a time; None when it is over. There is one in any case.
    fn next(&mut self, now: Instant) -> Option<u64> {
        let over = self.made >= self.made_max || now.duration_since(self.started) >= self.time;
        if over && self.made > 0 {
            return None;
        }
        let number = match self.random {
            true => tidegate_sched::mix64(self.seed | self.made),
            false => self.first + self.made * self.step,
        };
        self.made += 1;
        Some(number % self.count * self.len)
    }

    fn share(&self, now: Instant, times: Vec<u64>) -> Share {
        Share {
            began: self.started,
            ended: now,
            times,
        }
    }
}

/// As programs do it.
fn local(file: &File, task: &Task, places: Places) -> std::io::Result<Share> {
    let mut buffer = vec![7; task.workload.len];
    one_by_one(places, |offset| match task.workload.access {
        Access::Read => file.read_exact_at(&mut buffer, offset),
        Access::Write => file.write_all_at(&buffer, offset),
    })
}

fn remote(remote: &Remote, task: &Task, places: Places) -> std::io::Result<Share> {
    let (context, len) = (Context::default(), task.workload.len);
    let mut own = Own::new(len);
    let file = &remote.file;
    one_by_one(places, |offset| match task.workload.access {
        Access::Read if remote.in_place => {
            let data = file.pread(&context, offset, len).map_err(io)?;
            own.take(remote, data)
        }
        Access::Write if remote.in_place => {
            let bytes = own.bytes(remote);
            file.pwrite(&context, offset, bytes).map_err(io).map(|_| ())
        }
        Access::Read => {
            let read = file.pread_into(&context, offset, &mut own.buffer);
            whole(read.map_err(io)?, len)
        }
        Access::Write => {
            let written = file.pwrite_from(&context, offset, &own.buffer);
            whole(written.map_err(io)?, len)
        }
    })
}

/// The memory of a program that has its bytes in a buffer of its own.
struct Own {
    buffer: Vec<u8>,
    bytes: Payload,
}

impl Own {
    fn new(len: usize) -> Own {
        let buffer = vec![7; len];
        let bytes = Payload::from(buffer.clone());
        Own { buffer, bytes }
    }

    /// Copies the bytes to the program's buffer, unless the program uses them in place.
    fn take(&mut self, remote: &Remote, data: Data) -> std::io::Result<()> {
        let len = match remote.in_place {
            true => data.len,
            false => data.copy_to(&mut self.buffer),
        };
        whole(len, self.buffer.len())
    }

    /// The bytes to write. Making them takes no time, whether they are in a buffer or in the
    /// library's memory.
    fn bytes(&self, remote: &Remote) -> Payload {
        let room = || remote.file.client().room(self.buffer.len());
        let room = remote.in_place.then(room).flatten();
        room.map_or_else(|| self.bytes.clone(), Payload::from)
    }
}

fn whole(moved: usize, len: usize) -> std::io::Result<()> {
    match moved == len {
        true => Ok(()),
        false => Err(std::io::ErrorKind::UnexpectedEof.into()),
    }
}

fn one_by_one(
    mut places: Places,
    mut access: impl FnMut(u64) -> std::io::Result<()>,
) -> std::io::Result<Share> {
    places.start();
    let (mut times, mut now) = (Vec::with_capacity(1 << 16), places.started);
    while let Some(offset) = places.next(now) {
        access(offset)?;
        let then = Instant::now();
        times.push(then.duration_since(now).as_nanos() as u64);
        now = then;
    }
    Ok(places.share(now, times))
}

/// An access that goes on.
enum Flight<'c> {
    Read(Pending<'c, Data>),
    Write(Pending<'c, usize>),
}

/// Keeps several accesses of one thread in flight, and always waits for the oldest.
fn remote_in_flight(remote: &Remote, task: &Task, mut places: Places) -> std::io::Result<Share> {
    let Workload { len, in_flight, .. } = task.workload;
    let (client, handle) = (remote.file.client(), remote.file.handle());
    let context = Context::default();
    let mut own = Own::new(len);
    let mut flights = VecDeque::with_capacity(in_flight);
    let mut times = Vec::with_capacity(1 << 16);
    places.start();
    let mut now = places.started;
    loop {
        while flights.len() < in_flight
            && let Some(offset) = places.next(now)
        {
            let flight = match task.workload.access {
                Access::Read => client
                    .start_read(&context, handle, offset, len)
                    .map(Flight::Read),
                Access::Write => client
                    .start_write(&context, handle, offset, own.bytes(remote))
                    .map(Flight::Write),
            };
            flights.push_back((now, flight.map_err(io)?));
        }
        let Some((since, flight)) = flights.pop_front() else {
            return Ok(places.share(now, times));
        };
        match flight {
            Flight::Read(started) => own.take(remote, started.wait().map_err(io)?)?,
            Flight::Write(started) => {
                started.wait().map_err(io)?;
            }
        }
        now = Instant::now();
        times.push(now.duration_since(since).as_nanos() as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::super::workload::{LARGE, SMALL};
    use super::*;

    #[test]
    fn a_plain_directory_can_be_measured() {
        let dir = std::env::temp_dir().join(format!("tidegate-load-{}", std::process::id()));
        std::fs::create_dir(&dir).unwrap();
        let open = |number| {
            let path = dir.join(format!("file.{number}"));
            std::fs::write(&path, vec![7; 1 << 20]).unwrap();
            Opened::Local(File::options().read(true).write(true).open(path).unwrap())
        };
        let files: Vec<Opened> = (0..8).map(open).collect();
        for workload in [SMALL, LARGE].into_iter().flat_map(Workload::of_size) {
            let mut task = Task {
                workload,
                time_ms: 2,
                accesses_max: None,
                file_bytes: 1 << 20,
                truncate: false,
            };
            let found = work(&files, &task).unwrap();
            assert!(found.per_second > 0.0 && found.p50_ns <= found.p99_ns);
            (task.time_ms, task.accesses_max) = (60_000, Some(64));
            let count = 64 * workload.clients as u64;
            assert_eq!(work(&files, &task).unwrap().count, count);
        }
        std::fs::remove_dir_all(&dir).unwrap();
    }
}

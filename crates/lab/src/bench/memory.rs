//! Measures the memory of a forwarder while many clients have more in flight than it may hold.

use super::cluster::{Cluster, Shape, open};
use super::workplace::Workplace;
use super::{Claim, Common};
use serde_json::json;
use std::process::ExitCode;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tidegate_cli::fail::Fail;
use tidegate_cli::table::lay_out;
use tidegate_client::fs::{File, OpenHow};
use tidegate_client::{Bytes, Context};

const MIB: u64 = 1 << 20;
/// What a forwarder may have besides its pool: its code, sessions, queues, threads and the seat's
/// table.
const BESIDES: u64 = 64 * MIB;
/// Files that the clients share, so that the disk holds less than is in flight.
const FILES: usize = 16;
/// Bytes of one read. A client keeps what it reads, and all clients are in this process.
const READ: u64 = 2 * MIB;
/// Time between two looks at the forwarder's memory.
const LOOK: Duration = Duration::from_millis(20);

/// 256 clients write 64 MiB each at once, then read, through one forwarder: its memory stays within
/// its pool and 64 MiB.
///
/// The clients, each with a session of its own, write from one buffer, so what is in flight exists
/// once; it is far more than the forwarder's pool of 64 MiB has room for. Looked at are the
/// forwarder's resident memory at its peak (VmHWM), which has its code and the mapped table of its
/// seat in it, and the anonymous part, every 20 ms. The peak counts.
#[derive(clap::Args, Clone, Debug)]
pub struct Memory {
    /// Clients
    #[arg(long, value_name = "N", default_value_t = 256,
          value_parser = clap::value_parser!(u32).range(1..=1000))]
    clients: u32,
    /// MiB that each writes in one call
    #[arg(long, value_name = "N", default_value_t = 64,
          value_parser = clap::value_parser!(u32).range(1..=1024))]
    mib: u32,
    /// MiB of the forwarder's pool
    #[arg(long, value_name = "N", default_value_t = 64,
          value_parser = clap::value_parser!(u32).range(1..=65536))]
    pool_mib: u32,
    #[command(flatten)]
    common: Common,
}

/// The forwarder's memory at its highest, in bytes.
#[derive(Clone, Copy, Debug, Default)]
struct Peak {
    resident: u64,
    anonymous: u64,
    /// Of the pool, as the forwarder counts.
    pool: u64,
}

impl Memory {
    /// Measures, and prints the table.
    pub fn perform(mut self) -> Result<ExitCode, Fail> {
        if self.common.quick {
            (self.clients, self.mib, self.pool_mib) = (32, 8, 16);
        }
        let place = Workplace::make(&self.common.dir, "bench")?;
        let pool = u64::from(self.pool_mib) * MIB;
        let sections = |_| format!("pool_bytes = {pool}\n");
        let cluster = Cluster::start(&place, &Shape::one("memory", &sections))?;
        let files = (0..self.clients as usize)
            .map(|number| file(&cluster, number))
            .collect::<Result<Vec<_>, Fail>>()?;
        let content = Bytes::from(vec![0x5a; self.mib as usize * MIB as usize]);
        let written = at_once(&cluster, &files, |file| {
            file.pwrite(&context(), 0, content.clone())
                .map(|len| len as u64)
        })?;
        let read = at_once(&cluster, &files, |file| {
            let data = file.pread(&context(), 0, READ as usize);
            data.map(|data| data.len as u64)
        })?;
        let clients = u64::from(self.clients);
        if written.1 != clients * content.len() as u64 || read.1 != clients * READ {
            return Err(Fail::runtime("not all bytes were moved"));
        }
        let peaks = [written.0, read.0];
        let claims = self.claims(&peaks);
        Ok(self
            .common
            .conclude(&claims, || self.json(&peaks), || self.text(&peaks)))
    }

    fn claims(&self, peaks: &[Peak; 2]) -> Vec<Claim> {
        let pool = u64::from(self.pool_mib) * MIB;
        let most = |of: fn(&Peak) -> u64| peaks.iter().map(of).max().unwrap_or(0);
        let (resident, used) = (most(|peak| peak.resident), most(|peak| peak.pool));
        vec![
            Claim::new(
                format!(
                    "memory at most {:.1} MiB, below {} MiB",
                    mib(resident),
                    (pool + BESIDES) / MIB
                ),
                resident > 0 && resident < pool + BESIDES,
            ),
            Claim::new(
                format!(
                    "one application had its part of the pool, {:.1} of {} MiB",
                    mib(used),
                    self.pool_mib
                ),
                // Up to 8 times as much as is free, with what came next, which had no room.
                used <= pool && used + MIB > 8 * (pool - used).saturating_sub(MIB),
            ),
        ]
    }

    fn in_flight(&self) -> [u64; 2] {
        [u64::from(self.mib) * MIB, READ].map(|bytes| bytes * u64::from(self.clients))
    }

    fn text(&self, peaks: &[Peak; 2]) -> String {
        let rows = ["write", "read"].into_iter().zip(peaks);
        let rows = rows.zip(self.in_flight()).map(|((access, peak), bytes)| {
            let shown = |bytes: u64| format!("{:.1}", mib(bytes));
            vec![
                access.to_string(),
                shown(bytes),
                shown(peak.pool),
                shown(peak.anonymous),
                shown(peak.resident),
            ]
        });
        let rows: Vec<Vec<String>> = rows.collect();
        format!(
            "{} clients at once, one forwarder with a pool of {} MiB; MiB at the peak\n{}",
            self.clients,
            self.pool_mib,
            lay_out(&["", "asked for", "pool", "anonymous", "resident"], &rows)
        )
    }

    fn json(&self, peaks: &[Peak; 2]) -> serde_json::Value {
        let one = |peak: &Peak, bytes: u64| {
            json!({
                "asked_for_bytes": bytes,
                "pool_bytes": peak.pool,
                "anonymous_bytes": peak.anonymous,
                "resident_bytes": peak.resident,
            })
        };
        let [written, read] = self.in_flight();
        json!({
            "bench": "memory",
            "clients": self.clients,
            "pool_bytes_max": u64::from(self.pool_mib) * MIB,
            "write": one(&peaks[0], written),
            "read": one(&peaks[1], read),
        })
    }
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / MIB as f64
}

/// A context without a timeout, so that no call ends early on a slow machine.
fn context() -> Context {
    Context {
        timeout: Some(Duration::ZERO),
        ..Context::default()
    }
}

/// Opens a client's file, with a client of its own that may have a whole call in flight.
fn file(cluster: &Cluster<'_>, number: usize) -> Result<File, Fail> {
    // Memory that clients share is theirs, and no payload is in the pool.
    let client = cluster.client("memory", |options| options.shared_memory_bytes = 0)?;
    let name = format!("file.{}", number % FILES);
    open(&client, &name, &OpenHow::create())
}

/// Makes one call of every client, all at the same time. Returns the forwarder's memory meanwhile,
/// and the bytes that were moved.
fn at_once(
    cluster: &Cluster<'_>,
    files: &[File],
    call: impl Fn(&File) -> Result<u64, tidegate_client::Errno> + Sync,
) -> Result<(Peak, u64), Fail> {
    let barrier = Barrier::new(files.len());
    let left = AtomicU64::new(files.len() as u64);
    let mut peak = Peak::default();
    let moved = std::thread::scope(|scope| {
        let one = |file| {
            let (barrier, left, call) = (&barrier, &left, &call);
            scope.spawn(move || {
                barrier.wait();
                let result = call(file);
                left.fetch_sub(1, Ordering::Relaxed);
                result
            })
        };
        let threads: Vec<_> = files.iter().map(one).collect();
        while left.load(Ordering::Relaxed) > 0 {
            std::thread::sleep(LOOK);
            peak.anonymous = peak.anonymous.max(cluster.memory(0, "RssAnon")?);
        }
        let results = threads.into_iter().map(|thread| thread.join());
        let results = results.map(|result| result.expect("a client's thread panicked"));
        let moved = results.sum::<Result<u64, _>>();
        moved.map_err(|errno| Fail::runtime(format!("moving bytes: {errno}")))
    })?;
    peak.resident = cluster.memory(0, "VmHWM")?;
    let status = cluster.status(files[0].client(), 0)?;
    peak.pool = status["pool"]["bytes_peak"].as_u64().unwrap_or(0);
    Ok((peak, moved))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_pool_within_its_bound_is_what_is_claimed() {
        let memory = Memory {
            clients: 4,
            mib: 64,
            pool_mib: 64,
            common: Common {
                check: true,
                dir: "/tmp".into(),
                json: false,
                quick: false,
            },
        };
        let holds = |resident: u64, pool: u64| {
            let peak = Peak {
                resident: resident * MIB,
                anonymous: 0,
                pool: pool * MIB,
            };
            let claims = memory.claims(&[peak, Peak::default()]);
            claims.iter().map(|claim| claim.holds).collect::<Vec<_>>()
        };
        assert_eq!(holds(100, 64), [true, true]);
        assert_eq!(holds(128, 64), [false, true]);
        assert_eq!(holds(100, 65), [true, false]);
        assert_eq!(holds(100, 20), [true, false], "nothing was tested");
    }
}

//! Measures the two-level scheduler on real forwarders: two jobs with promises, of which one comes
//! and goes, with shares and without (after vPFS, figures 3 to 5, with promises that fit the
//! capacity).

mod fio;
mod jobs;
mod timeline;

use super::cluster::{Cluster, Shape, at};
use super::workplace::Workplace;
use super::{Claim, Common};
use jobs::{Job, Second};
use serde_json::json;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;
use tidegate_cli::fail::Fail;

/// The jobs. Each keeps a fixed number of requests outstanding, and makes the next when one is
/// answered.
const JOBS: [Job; 2] = [
    Job {
        name: "app1",
        min_mb_s: 25.0,
        latency_ms: 100.0,
        rate_mb_s: Some(26.0),
        outstanding: 2,
        on_off: true,
    },
    Job {
        name: "app2",
        min_mb_s: 15.0,
        latency_ms: 300.0,
        rate_mb_s: None,
        outstanding: 2,
        on_off: false,
    },
];

/// The first seconds of a phase in which counts are not judged: costs are learned, queues fill.
const WARM_UP: usize = 2;

/// Two jobs with a reservation and a latency target each, on emulated disks that give about 50 MB/s
/// together, first under `fifo` and then with shares.
///
/// app1 is promised at least 25 MB/s and a 95th percentile of its response times within 100 ms. It
/// runs for some seconds and pauses for as many. app2 is promised at least 15 MB/s and 300 ms, and
/// always runs. app1 sends 26 MB/s, as `fio --rate` does: with requests of half a megabyte a rate
/// of just 25 MB/s would miss the reservation in some seconds. app2 sends as much as it can. Each
/// job has at most 2 requests outstanding at each forwarder, at random offsets of its own file,
/// which is striped over all forwarders.
///
/// For each second the table shows the rate of a job and the 95th percentile of its response times.
/// A promise is kept in a second in which both are as promised; 5 % less than the reservation still
/// counts. Both policies run on the same forwarders.
#[derive(clap::Args, Clone, Debug)]
pub struct Shares {
    /// Forwarders
    #[arg(long, value_name = "N", default_value_t = 2,
          value_parser = clap::value_parser!(u16).range(1..=16))]
    forwarders: u16,
    /// Seconds under each policy
    #[arg(long, value_name = "S", default_value_t = 40,
          value_parser = clap::value_parser!(u32).range(4..=3600))]
    seconds: u32,
    /// Seconds for which app1 is on, and off
    #[arg(long, value_name = "S", default_value_t = 10,
          value_parser = clap::value_parser!(u32).range(1..=600))]
    turn: u32,
    /// The jobs are two `fio` processes on a mount (FUSE), instead of threads of this one
    #[arg(long)]
    fio: bool,
    #[command(flatten)]
    common: Common,
}

/// What the jobs got under one policy.
struct Phase {
    policy: &'static str,
    /// By job, by second.
    seconds: [Vec<Second>; 2],
    /// By second: batches at once over all forwarders.
    depth: Vec<u32>,
}

impl Shares {
    /// Measures, and prints the timelines.
    pub fn perform(mut self) -> Result<ExitCode, Fail> {
        if self.common.quick {
            // The shortest in which app1 is on again after the first seconds.
            (self.seconds, self.turn) = (self.seconds.min(6), self.turn.min(2));
        }
        let place = Workplace::make(&self.common.dir, "bench")?;
        let sections = |_| "[device]\nmodel = \"hdd-7200\"\ndepth = 1\n".to_string();
        let shape = Shape::new("shares", self.forwarders.into(), jobs::STRIPE, &sections);
        let mut cluster = Cluster::start(&place, &shape)?;
        for job in &JOBS {
            let path = cluster.export().join(job.name);
            let file = std::fs::File::create(&path).map_err(at(&path))?;
            file.set_len(jobs::BLOCKS * jobs::STRIPE)
                .map_err(at(&path))?;
        }
        let mount = self.fio.then(|| cluster.mount()).transpose()?;
        let control = cluster.client("bench", |_| {})?;
        cluster.set_policy(&control, "policy = \"fifo\"\ndepth = 1\n")?;
        let mount = mount.as_deref();
        let fifo = self.phase(&place, &cluster, mount, "fifo")?;
        cluster.set_shares(&control, &rules())?;
        let shared = self.phase(&place, &cluster, mount, "two-level")?;
        let phases = [fifo, shared];
        let claims = self.common.claims(|| claims(&phases));
        Ok(self
            .common
            .conclude(&claims, || self.json(&phases), || self.text(&phases)))
    }

    /// Bytes of a request, such that all disks together give about 50 MB/s: a random access takes
    /// about 16 ms, and 1 ms more for each 150 kB.
    fn block(&self) -> u64 {
        match self.forwarders {
            1 => 1280 << 10,
            2 => 512 << 10,
            3 => 312 << 10,
            4 => 224 << 10,
            many => (850 << 10) / u64::from(many),
        }
    }

    /// Requests that a job has outstanding.
    fn outstanding(&self, job: &Job) -> u32 {
        job.outstanding * u32::from(self.forwarders)
    }

    fn phase(
        &self,
        place: &Workplace,
        cluster: &Cluster<'_>,
        mount: Option<&Path>,
        policy: &'static str,
    ) -> Result<Phase, Fail> {
        let length = Duration::from_secs(self.seconds.into());
        let turn = Duration::from_secs(self.turn.into());
        let block = self.block();
        let (seconds, depth) = match mount {
            None => jobs::run(cluster, &JOBS, block, length, turn)?,
            Some(mount) => {
                let run = fio::Run {
                    place,
                    cluster,
                    mount,
                    name: policy,
                    block,
                    length,
                    turn,
                };
                run.perform(&JOBS)?
            }
        };
        Ok(Phase {
            policy,
            seconds,
            depth,
        })
    }

    fn text(&self, phases: &[Phase; 2]) -> String {
        let mut text = format!(
            "{} forwarders on emulated disks, requests of {} KiB to random places; app1 (25 MB/s, \
             at most {} at once) is on and off for {} s, app2 ({} at once) always on\n",
            self.forwarders,
            self.block() >> 10,
            self.outstanding(&JOBS[0]),
            self.turn,
            self.outstanding(&JOBS[1])
        );
        for phase in phases {
            text += &timeline::draw(phase, &JOBS);
        }
        text + "The paper (constantly overloaded): app2's p95 within 300 ms in 90 % of the first \
                200 s; app1's within 100 ms is not met.\n"
    }

    fn json(&self, phases: &[Phase; 2]) -> serde_json::Value {
        let phase = |phase: &Phase| {
            let jobs = JOBS.iter().zip(&phase.seconds).map(|(job, seconds)| {
                let second = |it: &Second| {
                    let kept = job.keeps(it);
                    json!({"on": it.on, "mb_s": it.mb_s, "p95_ms": it.p95_ms, "kept": kept})
                };
                json!({
                    "name": job.name, "min_mb_s": job.min_mb_s, "latency_ms": job.latency_ms,
                    "kept_percent": kept(job, seconds),
                    "seconds": seconds.iter().map(second).collect::<Vec<_>>(),
                })
            });
            json!({"policy": phase.policy, "jobs": jobs.collect::<Vec<_>>(), "depth": phase.depth})
        };
        json!({
            "bench": "shares",
            "jobs": if self.fio { "fio" } else { "threads" },
            "forwarders": self.forwarders,
            "request_bytes": self.block(),
            "phases": phases.iter().map(phase).collect::<Vec<_>>(),
        })
    }
}

/// The promises as rules.
fn rules() -> String {
    let rule = |job: &Job| {
        format!(
            "[[app]]\nname = \"{}\"\nmin = \"{} MB/s\"\nlatency = \"{} ms\"\n",
            job.name, job.min_mb_s, job.latency_ms
        )
    };
    JOBS.iter().map(rule).collect()
}

/// Percent of the seconds, among those in which a job is on all the time, in which its promise was
/// kept; None if there is no such second after the first ones.
fn kept(job: &Job, seconds: &[Second]) -> Option<f64> {
    let on = seconds.iter().skip(WARM_UP).filter(|second| second.on);
    let (kept, all) = on.fold((0, 0), |(kept, all), second| {
        (kept + u32::from(job.keeps(second)), all + 1)
    });
    (all > 0).then(|| 100.0 * f64::from(kept) / f64::from(all))
}

/// A part in words.
fn percent(kept: Option<f64>) -> String {
    match kept {
        Some(kept) => format!("{kept:.0} %"),
        None => "(too short to say)".to_string(),
    }
}

/// All bytes of a phase, MB/s.
fn total(phase: &Phase) -> f64 {
    let seconds = phase.seconds.iter().flatten();
    let sum: f64 = seconds.map(|second| second.mb_s).sum();
    sum / phase.seconds[0].len().max(1) as f64
}

fn claims(phases: &[Phase; 2]) -> Vec<Claim> {
    let [fifo, shared] = phases;
    let mut claims = Vec::new();
    for (number, job) in JOBS.iter().enumerate() {
        let (with, without) = (
            kept(job, &shared.seconds[number]),
            kept(job, &fifo.seconds[number]),
        );
        claims.push(Claim::new(
            format!(
                "{} keeps {} MB/s and {} ms in {} of its seconds with shares, at least 90 % (fifo: \
                 {})",
                job.name,
                job.min_mb_s,
                job.latency_ms,
                percent(with),
                percent(without)
            ),
            with.is_some_and(|with| with >= 90.0),
        ));
    }
    let moved = 100.0 * total(shared) / total(fifo);
    claims.push(Claim::new(
        format!("shares move {moved:.1} % of what fifo moves, at least 95 %"),
        moved >= 95.0,
    ));
    claims
}

//! `tidegate demo`: shows two jobs of unmodified programs that compete for emulated disks, first in
//! the order of arrival, then coordinated.

mod job;

use crate::bench::Access;
use crate::bench::cluster::{Cluster, Shape, no_fuse};
use crate::bench::statistics::median;
use crate::bench::workplace::Workplace;
use job::Job;
use serde_json::json;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tidegate_cli::fail::Fail;
use tidegate_cli::output;
use tidegate_cli::table::lay_out;
use tidegate_cli::{out, outln};
use tidegate_client::Client;

const FORWARDERS: usize = 4;
const STRIPE: u64 = 256 << 10;
const WINDOW_MS: u64 = 500;
/// For the disks to finish what nobody waits for.
const PAUSE: Duration = Duration::from_millis(200);

/// Show two competing jobs, in the order of arrival and then coordinated (about a minute)
///
/// Four forwarders with emulated 7200 rpm disks serve a temporary directory, which is mounted. A
/// large job writes checkpoints (8 processes of dd, 1 MiB each time), a small one reads its input
/// (8 processes of dd, 64 KiB each time). Each has a fixed number of bytes. Their run times are
/// measured alone, together under `fifo`, and together under `window`.
#[derive(clap::Args, Clone, Debug)]
pub struct Demo {
    /// Where its files go; a directory of its own is made there, and removed
    #[arg(long, value_name = "DIR", default_value_os_t = std::env::temp_dir())]
    dir: PathBuf,
    /// How often everything is measured; medians are shown
    #[arg(long, value_name = "N", default_value_t = 3,
          value_parser = clap::value_parser!(u32).range(1..=100))]
    repetitions: u32,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Jobs of a few requests, to see that everything works; the figures mean nothing
    #[arg(long)]
    quick: bool,
}

/// Seconds that both jobs took, in each of the settings.
#[derive(Default)]
struct Times {
    small_alone: Vec<f64>,
    large_alone: Vec<f64>,
    /// Small and large, under fifo and under window.
    together: [(Vec<f64>, Vec<f64>); 2],
}

const POLICIES: [&str; 2] = ["fifo", "window"];

impl Demo {
    /// Runs both jobs in every setting, and prints the table.
    pub fn perform(self) -> Result<ExitCode, Fail> {
        if let Some(why) = no_fuse() {
            return Err(Fail::usage(format!("the demo needs a FUSE mount: {why}")));
        }
        let place = Workplace::make(&self.dir, "demo")?;
        let model = if self.quick { "ideal" } else { "hdd-7200" };
        let sections = |_| {
            let policy = scheduler("fifo");
            format!("[device]\nmodel = \"{model}\"\n[scheduler]\n{policy}")
        };
        let shape = Shape::new("demo", FORWARDERS, STRIPE, &sections);
        let mut cluster = Cluster::start(&place, &shape)?;
        let point = cluster.mount()?;
        let client = cluster.client("demo", |_| {})?;
        let (small, large) = self.jobs(&cluster, point)?;
        self.say(&format!(
            "{FORWARDERS} forwarders with emulated 7200 rpm disks, mounted.\n\
             large: {}\nsmall: {}",
            large.words(),
            small.words()
        ));
        let mut times = Times::default();
        for turn in 1..=self.repetitions {
            let of = self.repetitions;
            self.say(&format!("turn {turn} of {of}"));
            self.turn(&cluster, &client, (&small, &large), &mut times)?;
        }
        match self.json {
            true => outln!("{}", times.json()),
            false => out!("\n{}", times.text()),
        }
        Ok(ExitCode::SUCCESS)
    }

    fn jobs(&self, cluster: &Cluster<'_>, point: PathBuf) -> Result<(Job, Job), Fail> {
        let counts = if self.quick { (2, 2) } else { (48, 48) };
        let small = Job {
            name: "small",
            access: Access::Read,
            processes: 8,
            request_kib: 64,
            requests: counts.0,
            mount: point,
        };
        let large = Job {
            name: "large",
            access: Access::Write,
            request_kib: 1024,
            requests: counts.1,
            ..small.clone()
        };
        small.prepare(cluster.export())?;
        large.prepare(cluster.export())?;
        Ok((small, large))
    }

    /// Runs the jobs once in every setting.
    fn turn(
        &self,
        cluster: &Cluster<'_>,
        client: &Arc<Client>,
        (small, large): (&Job, &Job),
        times: &mut Times,
    ) -> Result<(), Fail> {
        cluster.set_policy(client, &scheduler("fifo"))?;
        for (job, into) in [
            (small, &mut times.small_alone),
            (large, &mut times.large_alone),
        ] {
            let seconds = job.start()?.wait()?;
            self.say(&format!("  {:<14}{} {seconds:.1} s", "alone", job.name));
            into.push(seconds);
            std::thread::sleep(PAUSE);
        }
        for (policy, (of_small, of_large)) in POLICIES.iter().zip(&mut times.together) {
            cluster.set_policy(client, &scheduler(policy))?;
            let started = Instant::now();
            let (writes, reads) = (large.start_at(started)?, small.start_at(started)?);
            let (reads, writes) = (reads.wait()?, writes.wait()?);
            let setting = format!("under {policy}");
            self.say(&format!(
                "  {setting:<14}small {reads:.1} s, large {writes:.1} s"
            ));
            of_small.push(reads);
            of_large.push(writes);
            std::thread::sleep(PAUSE);
        }
        Ok(())
    }

    fn say(&self, line: &str) {
        if !self.json {
            outln!("{line}");
            output::flush();
        }
    }
}

/// Text of a `[scheduler]` table.
fn scheduler(policy: &str) -> String {
    let own = match policy {
        "window" => format!("window_ms = {WINDOW_MS}\n"),
        _ => String::new(),
    };
    format!("policy = \"{policy}\"\ndepth = 1\n{own}")
}

impl Times {
    fn json(&self) -> serde_json::Value {
        let together = |at: usize| {
            let (small, large) = &self.together[at];
            json!({ "small_s": small, "large_s": large })
        };
        json!({
            "alone": { "small_s": self.small_alone, "large_s": self.large_alone },
            "fifo": together(0),
            "window": together(1),
        })
    }

    fn text(&self) -> String {
        let middle = |times: &[f64]| median(times.iter().copied());
        let row = |name: &str, alone: &[f64], fifo: &[f64], window: &[f64]| {
            let alone = middle(alone);
            let cell = |times: &[f64]| {
                let seconds = middle(times);
                format!("{seconds:.1} s ({:.1}x)", seconds / alone)
            };
            vec![
                name.to_string(),
                format!("{alone:.1} s"),
                cell(fifo),
                cell(window),
            ]
        };
        let [fifo, window] = &self.together;
        let rows = [
            row(
                "small job, 8 readers",
                &self.small_alone,
                &fifo.0,
                &window.0,
            ),
            row(
                "large job, 8 writers",
                &self.large_alone,
                &fifo.1,
                &window.1,
            ),
        ];
        let heading = ["done after (median)", "alone", "fifo", "window"];
        format!("{}\n{}", lay_out(&heading, &rows), expect())
    }
}

fn expect() -> String {
    format!(
        "\
What to expect, and why. Under `fifo` every disk serves requests as they come: each 64 KiB read of
the small job waits behind the parts of eight 1 MiB writes, so the small job gets a small part of
the disks however little it asks for. Under `window` all four forwarders agree, without talking, on
who goes first: time is cut into windows of {WINDOW_MS} ms, and within a window all requests of one
job go before the other's. Each job is first in about half of the windows, by a hash that all
forwarders compute alike. So the small job has the disks almost to itself in about half of the time
until it is done; the large job waits for it meanwhile, and gets that time back afterwards.

What it cannot do: the disks do not get faster, so when both are done is about the same. If both
jobs went on for ever, the mean time of a request would be the same under every policy; what is
gained is that a job with a fixed amount of work is done and leaves. An order is no share: which job
is first in a window is chance, so the times under `window` vary from run to run. And a window must
be longer than the queue at a disk, here about 130 ms of large writes: requests of an earlier window
go first, so windows of 100 ms give the same times as `fifo`.
"
    )
}

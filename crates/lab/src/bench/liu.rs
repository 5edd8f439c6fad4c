//! Figure 4 of Liu, Chen and Zhuang, live: MPI jobs read planes collectively, under policies that
//! know nothing of the shuffle after a read, and under one that does.

mod jobs;
mod mpi;
mod report;

use super::Common;
use super::cluster::{Cluster, Shape, no_fuse};
use super::workplace::Workplace;
use jobs::{Job, Setting};
use mpi::Mpi;
use report::Report;
use serde_json::json;
use std::process::ExitCode;
use std::time::Duration;
use tidegate_cli::fail::Fail;
use tidegate_client::Client;

/// Bytes of a stripe; a rank's half of a plane is one stripe on each forwarder.
const STRIPE: u64 = 1 << 20;
/// Words of 8 bytes in a row of a plane.
const COLUMNS: u64 = 16 << 10;
/// Planes of each job's data set; queries choose among them.
const PLANES: u64 = 16;
/// On a machine of few cores the forwarders would take them from the ranks as they start a query.
const FORWARDERS_NICE: i32 = 10;
/// Most by which one message overtakes another: a local socket has none of a network's jitter.
const JITTER_US: u64 = 2000;
/// For a query of all jobs, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// The policies that are compared, as far as this program has them, with the text of their
/// `[scheduler]` tables.
const POLICIES: [(&str, &str); 3] = [
    ("fifo", "policy = \"fifo\"\nmerge = false\ndepth = 1\n"),
    (
        "window",
        "policy = \"window\"\nmerge = false\ndepth = 1\nwindow_ms = 1000\n",
    ),
    (
        "hio",
        "policy = \"hio\"\nmerge = false\ndepth = 1\nwindow_ms = 1000\n",
    ),
];

/// MPI jobs that read 2-D planes with collective calls, at once (Liu, Chen and Zhuang, figure 4).
///
/// Each job has its own data set, a file of planes, and two ranks which both read for both of them
/// (two-phase): half of a plane each, a stripe from every forwarder. Then rank 0 gets the whole
/// plane, so the second rank sends its half to the first while the first has nothing to send: their
/// shuffles differ. All jobs ask at once; a query ends when the slowest rank has its data.
///
/// The forwarders have emulated disks. Ranks count as different nodes (TIDEGATE_MPI_NODES), and
/// since they are on one machine a library between program and MPI holds messages between them back
/// as a network of the given speed would; that time is the shuffle. The same library has ranks
/// sleep while they wait, where MPI would poll. The program and the library are compiled by mpicc
/// when the benchmark starts; they lie in examples/mpi of the source code.
///
/// Policies take turns, query by query, in one run.
#[derive(clap::Args, Clone, Debug)]
pub struct Liu {
    /// Jobs that ask at once
    #[arg(long, value_name = "N", default_value_t = 2,
          value_parser = clap::value_parser!(u32).range(1..=16))]
    jobs: u32,
    /// Forwarders
    #[arg(long, value_name = "N", default_value_t = 4,
          value_parser = clap::value_parser!(u64).range(1..=16))]
    forwarders: u64,
    /// Turns of each policy; medians are reported
    #[arg(long, value_name = "N", default_value_t = 5,
          value_parser = clap::value_parser!(u32).range(1..=1000))]
    repetitions: u32,
    /// Queries of each job in a turn
    #[arg(long, value_name = "N", default_value_t = 4,
          value_parser = clap::value_parser!(u32).range(1..=1000))]
    queries: u32,
    /// Speed of a node's port, MB/s; 125 is gigabit Ethernet. 0: as fast as the memory, no shuffles
    #[arg(long, value_name = "MBPS", default_value_t = 125)]
    interconnect: u32,
    /// Leave the MPI shim's alignment of collective reads to stripes out
    #[arg(long)]
    unaligned: bool,
    /// The MPI to compile and run with: mpich or openmpi; without it, the first that is there
    #[arg(long, value_name = "NAME", value_parser = ["mpich", "openmpi"])]
    mpi: Option<String>,
    #[command(flatten)]
    common: Common,
}

impl Liu {
    /// Measures, and prints the table.
    pub fn perform(self) -> Result<ExitCode, Fail> {
        let mpi = Mpi::find(self.mpi.as_deref())?;
        if let Some(why) = no_fuse() {
            return Err(Fail::runtime(why));
        }
        let place = Workplace::make(&self.common.dir, "bench")?;
        let programs = mpi.build(&place)?;
        let sections = |index: usize| self.sections(index);
        let shape = Shape {
            nice: FORWARDERS_NICE,
            ..Shape::new("liu", self.forwarders as usize, STRIPE, &sections)
        };
        let mut cluster = Cluster::start(&place, &shape)?;
        let point = cluster.mount()?;
        let client = cluster.client("bench", |_| {})?;
        let setting = Setting {
            mpi: &mpi,
            programs: &programs,
            client_file: cluster.client_file(),
            mount: &point,
            rows: self.rows(),
            interconnect_mbps: self.interconnect,
            aligned: !self.unaligned,
        };
        for number in 0..self.jobs {
            setting.make_data(cluster.export(), number)?;
        }
        let start = |number| Job::start(&place, &setting, number);
        let jobs: Vec<Job> = (0..self.jobs).map(start).collect::<Result<_, Fail>>()?;
        let full = (self.repetitions, self.queries);
        let turns = self.common.choose(full, (1, 1));
        let report = measure(&cluster, &client, &jobs, turns)?;
        self.conclude(&mpi, turns, &report)
    }

    /// Judges the claims, and prints the results.
    fn conclude(&self, mpi: &Mpi, turns: (u32, u32), report: &Report) -> Result<ExitCode, Fail> {
        let (repetitions, queries) = turns;
        let claims = self.common.claims(|| report.claims());
        let json = || {
            json!({
                "bench": "liu-2013-fig4",
                "mpi": mpi.name(),
                "jobs": self.jobs,
                "ranks": jobs::RANKS,
                "forwarders": self.forwarders,
                "repetitions": repetitions,
                "queries": queries,
                "interconnect_mbps": self.interconnect,
                "shuffle_ms": self.shuffle_ms(),
                "aligned": !self.unaligned,
                "measured": report.json(),
            })
        };
        let text = || self.heading(mpi, repetitions, queries) + &report.text();
        Ok(self.common.conclude(&claims, json, text))
    }

    /// Sections of the configuration of forwarder `index`.
    fn sections(&self, index: usize) -> String {
        let device = self.common.choose("hdd-7200", "ideal");
        format!(
            "[device]\nmodel = \"{device}\"\ndepth = 1\nunit_bytes = {STRIPE}\n[emulation]\n\
             message_jitter_us = {JITTER_US}\nmessage_jitter_seed = {}\n",
            index + 1
        )
    }

    fn rows(&self) -> u64 {
        jobs::RANKS * self.forwarders * STRIPE / (COLUMNS * 8)
    }

    /// The time that the second rank's data takes through the port, ms.
    fn shuffle_ms(&self) -> f64 {
        let bytes = (self.forwarders * STRIPE) as f64;
        match self.interconnect {
            0 => 0.0,
            mbps => bytes / f64::from(mbps) / 1e3,
        }
    }

    fn heading(&self, mpi: &Mpi, repetitions: u32, queries: u32) -> String {
        let shuffle = match self.interconnect {
            0 => "no shuffles: messages go through memory".to_string(),
            mbps => format!(
                "the second rank's shuffle is {} MiB at {mbps} MB/s: {:.1} ms, the first has none",
                (self.forwarders * STRIPE) >> 20,
                self.shuffle_ms()
            ),
        };
        format!(
            "{} MPI jobs ({}) of {} ranks on {} emulated nodes read planes of {} MiB at once; {} \
             forwarders on emulated 7200 rpm disks; {shuffle}; medians of {repetitions} turns of \
             {queries} queries\n",
            self.jobs,
            mpi.name(),
            jobs::RANKS,
            jobs::RANKS,
            (jobs::RANKS * self.forwarders * STRIPE) >> 20,
            self.forwarders,
        )
    }
}

/// Makes all jobs do `turns.1` queries under each policy, `turns.0` times.
fn measure(
    cluster: &Cluster<'_>,
    client: &Client,
    jobs: &[Job],
    turns: (u32, u32),
) -> Result<Report, Fail> {
    let policies = known_policies();
    // Files are opened, and the shim has measured what it measures once.
    jobs::query(jobs)?;
    let mut report = Report::new(&policies);
    for _ in 0..turns.0 {
        for (index, (_, text)) in policies.iter().enumerate() {
            cluster.set_policy(client, text)?;
            let turn = (0..turns.1).map(|_| jobs::query(jobs));
            report.turn(index, &turn.collect::<Result<Vec<_>, Fail>>()?);
        }
    }
    Ok(report)
}

/// Those of the policies that this program has.
fn known_policies() -> Vec<(&'static str, &'static str)> {
    let known = |name: &str| tidegate_sched::policies::NAMES.contains(&name);
    POLICIES
        .into_iter()
        .filter(|(name, _)| known(name))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn configurations_are_understood() {
        for (name, text) in known_policies() {
            let options = tidegate_sched::Options::default();
            tidegate_server::config::scheduler_options(text, &options, None).expect(name);
        }
    }
}

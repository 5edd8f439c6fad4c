//! Measures the same load on diod, a 9P forwarder without scheduling, in turns with Tidegate on its
//! files.

use super::column::{Column, Way, file_name, fill};
use super::load::Task;
use super::workload::{SMALL, Workload};
use super::{Effort, Performance, one_forwarder};
use crate::bench::cluster::at;
use crate::bench::statistics::median;
use crate::bench::workplace::Workplace;
use crate::bench::{Access, Claim, processor};
use rustix::process::Pid;
use serde_json::json;
use std::fs::File;
use std::io::Read;
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::Duration;
use tidegate_cli::fail::Fail;
use tidegate_cli::processes;

/// Each client's accesses at once, and how many clients: what suits diod best.
const IN_FLIGHT: usize = 16;
const CLIENTS: usize = 2;
/// For diod to come up.
const PATIENCE: Duration = Duration::from_secs(10);

const COLUMNS: [&str; 3] = ["diod", "client", "TCP"];

/// One way's figures for one workload, of each turn.
#[derive(Clone, Default)]
struct Samples {
    per_second: Vec<f64>,
    /// Processor time of the server, us for each access.
    server_us: Vec<f64>,
    /// Time that 99 of 100 accesses took at most, us, if the driver reports it.
    p99_us: Vec<f64>,
}

struct Row {
    workload: Workload,
    /// At least this multiple of diod's rate.
    least: f64,
    columns: [Samples; 3],
}

impl Row {
    fn rate(&self, column: usize) -> f64 {
        median(self.columns[column].per_second.iter().copied())
    }

    fn p99_us(&self, column: usize) -> Option<f64> {
        let told = &self.columns[column].p99_us;
        (!told.is_empty()).then(|| median(told.iter().copied()))
    }

    fn server_us(&self, column: usize) -> f64 {
        median(self.columns[column].server_us.iter().copied())
    }
}

/// A running diod.
struct Diod<'a> {
    pid: Pid,
    port: u16,
    export: &'a Path,
    driver: &'a Path,
}

impl Performance {
    /// Measures beside diod; `driver` makes the load on it.
    pub(super) fn beside_diod(&self, driver: &Path, effort: &Effort) -> Result<ExitCode, Fail> {
        let place = Workplace::make(&self.common.dir, "bench")?;
        let cluster = one_forwarder(&place, "diod", "")?;
        let bytes = effort.files_bytes / 4;
        fill(cluster.export(), bytes)?;
        let diod = Diod::start(&place, cluster.export(), driver)?;
        let ways = [("client", cluster.text()), ("TCP", cluster.tcp_text())];
        let [shared, tcp] = ways
            .map(|(name, text)| Column::start(&place, name, &Way::Client(text), Some(&cluster)));
        let ours = [shared?, tcp?];
        let mut rows = rows();
        for _ in 0..effort.turns {
            for row in &mut rows {
                if row.workload.access == Access::Read {
                    read_all(cluster.export())?;
                }
                // Ours last: diod's largest messages leave a file a little shorter.
                diod.measure(&row.workload, bytes, &mut row.columns[0])?;
                for (column, into) in ours.iter().zip(&mut row.columns[1..]) {
                    measure(column, &row.workload, bytes, into)?;
                }
            }
        }
        let claims = self.common.claims(|| rows.iter().map(claim).collect());
        Ok(self
            .common
            .conclude(&claims, || json_of(&rows), || text(&rows)))
    }
}

/// Reads the files twice. The first and second reading of fresh data costs the kernel more than
/// later ones, because it then marks the pages as used.
fn read_all(export: &Path) -> Result<(), Fail> {
    let mut piece = vec![0; 1 << 20];
    for client in (0..CLIENTS).chain(0..CLIENTS) {
        let path = export.join(file_name(client));
        let mut file = File::open(&path).map_err(at(&path))?;
        while file.read(&mut piece).map_err(at(&path))? > 0 {}
    }
    Ok(())
}

impl<'a> Diod<'a> {
    fn start(place: &Workplace, export: &'a Path, driver: &'a Path) -> Result<Diod<'a>, Fail> {
        let free = TcpListener::bind(("127.0.0.1", 0)).and_then(|it| it.local_addr());
        let port = free.map_err(Fail::runtime)?.port();
        let mut command = Command::new("diod");
        command.args(["--foreground", "--no-auth", "--no-userdb", "--listen"]);
        command.arg(format!("127.0.0.1:{port}"));
        command.arg("--export").arg(export);
        let pid = place.start_program(&mut command)?;
        let up = || TcpStream::connect(("127.0.0.1", port)).is_ok() || !place.runs(pid);
        if !processes::wait_until(PATIENCE, up) || !place.runs(pid) {
            let why = "diod did not start; `diod --foreground --no-auth` says why";
            return Err(Fail::runtime(why));
        }
        Ok(Diod {
            pid,
            port,
            export,
            driver,
        })
    }

    fn measure(&self, workload: &Workload, bytes: u64, into: &mut Samples) -> Result<(), Fail> {
        let before = processor::of_process_ns(self.pid);
        let mut command = Command::new(self.driver);
        command.arg(self.port.to_string()).arg(self.export);
        command.arg("file").arg(match workload.access {
            Access::Read => "r",
            Access::Write => "w",
        });
        let (len, mib) = (workload.len as u64, bytes >> 20);
        let numbers = [len, mib, IN_FLIGHT as u64, CLIENTS as u64];
        command.args(numbers.map(|number| number.to_string()));
        let output = command
            .output()
            .map_err(|error| Fail::usage(format!("{}: {error}", self.driver.display())))?;
        let text = String::from_utf8_lossy(&output.stdout);
        let rate = text.trim_end().strip_suffix(" op/s");
        let rate = rate.and_then(|text| text.rsplit(' ').next()?.parse::<f64>().ok());
        let Some(rate) = rate.filter(|_| output.status.success()) else {
            let errors = String::from_utf8_lossy(&output.stderr);
            let driver = self.driver.display();
            return Err(Fail::runtime(format!(
                "{driver}: {}: {text}{errors}; its last words must be a rate and \"op/s\"",
                output.status
            )));
        };
        let count = bytes / workload.len as u64 * CLIENTS as u64;
        let used = processor::of_process_ns(self.pid).saturating_sub(before);
        into.per_second.push(rate);
        into.server_us.push(used as f64 / 1000.0 / count as f64);
        let mut words = text.split_whitespace();
        let p99 = words
            .by_ref()
            .any(|word| word == "p99")
            .then(|| words.next());
        into.p99_us
            .extend(p99.flatten().and_then(|us| us.parse::<f64>().ok()));
        Ok(())
    }
}

fn measure(
    column: &Column<'_>,
    workload: &Workload,
    bytes: u64,
    into: &mut Samples,
) -> Result<(), Fail> {
    let found = column.perform(&Task {
        workload: *workload,
        time_ms: 60_000,
        accesses_max: Some(bytes / workload.len as u64),
        file_bytes: bytes,
        truncate: workload.access == Access::Write,
    })?;
    into.per_second.push(found.per_second);
    into.p99_us.push(found.p99_us);
    into.server_us
        .push(found.forwarder_cores * 1e6 / found.per_second);
    Ok(())
}

fn rows() -> Vec<Row> {
    let row = |access, len, least| Row {
        workload: Workload {
            access,
            len,
            clients: CLIENTS,
            in_flight: IN_FLIGHT,
        },
        least,
        columns: Default::default(),
    };
    vec![
        row(Access::Read, SMALL, 1.3),
        row(Access::Write, SMALL, 1.1),
        row(Access::Read, 64 << 10, 1.1),
        row(Access::Write, 64 << 10, 1.1),
    ]
}

fn claim(row: &Row) -> Claim {
    let times = |column| row.rate(column) / row.rate(0);
    let text = format!(
        "{}: client makes {:.2} times what diod does, at least {} (over TCP {:.2})",
        row.workload.words(),
        times(1),
        row.least,
        times(2)
    );
    Claim::new(text, times(1) >= row.least)
}

fn text(rows: &[Row]) -> String {
    let text = String::from(
        "thousand accesses per second; in brackets processor time of the server, us per access, \
         and time that 99 of 100 accesses took at most, us\n\n",
    );
    let heading = [&["" as &str], &COLUMNS[..]].concat();
    let cell = |row: &Row, column| {
        let (rate, us) = (row.rate(column) / 1000.0, row.server_us(column));
        let p99 = row
            .p99_us(column)
            .map_or("-".to_string(), |us| format!("{us:.0}"));
        format!("{rate:.1} ({us:.1}, {p99})")
    };
    let line = |row: &Row| {
        let cells = (0..COLUMNS.len()).map(|column| cell(row, column));
        std::iter::once(row.workload.words()).chain(cells).collect()
    };
    let lines: Vec<Vec<String>> = rows.iter().map(line).collect();
    text + &tidegate_cli::table::lay_out(&heading, &lines) + "\n"
}

fn json_of(rows: &[Row]) -> serde_json::Value {
    let row = |row: &Row| {
        let column = |column: usize| {
            json!({
                "operations_per_second": row.rate(column),
                "server_us_per_operation": row.server_us(column),
                "p99_us": row.p99_us(column),
            })
        };
        let columns = COLUMNS.iter().enumerate();
        let columns: serde_json::Map<_, _> = columns
            .map(|(at, name)| (name.to_string(), column(at)))
            .collect();
        json!({ "workload": row.workload.words(), "measured": columns })
    };
    json!({
        "bench": "performance beside diod",
        "rows": rows.iter().map(row).collect::<Vec<_>>(),
    })
}

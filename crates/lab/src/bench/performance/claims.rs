//! The claims about the data path, as far as one run can show them.

use super::workload::{LARGE, Measured, SMALL, Workload};
use super::{DEVICE_BYTES_PER_SECOND, Results, Table};
use crate::bench::Claim;

/// All of them.
pub fn of(results: &Results) -> Vec<Claim> {
    let mut claims = of_paths(&results.paths);
    for mut claim in large_alone(&results.single) {
        claim.text.insert_str(0, "pages of 4 KiB, ");
        claims.push(claim);
    }
    claims.extend(of_device(&results.device));
    claims
}

/// The claims on forwarding beside the plain directory.
fn of_paths(table: &Table) -> Vec<Claim> {
    let mut claims = large_alone(table);
    let [reads, writes] = Workload::in_flight(SMALL);
    for (column, least) in [("client", 100_000.0), ("TCP", 60_000.0)] {
        claims.extend(per_core(table, &reads, column, least));
    }
    claims.extend(share(table, &writes, "client", "direct", 0.85));
    for workload in Workload::waiting(SMALL).iter().filter(|it| it.clients == 1) {
        claims.extend(share(table, workload, "short-cut", "mount", 3.0));
    }
    claims
}

fn large_alone(table: &Table) -> Vec<Claim> {
    let mut claims = Vec::new();
    for (column, part) in [("client", 0.60), ("TCP", 0.35)] {
        for workload in Workload::waiting(LARGE).iter().filter(|it| it.clients == 1) {
            claims.extend(share(table, workload, column, "direct", part));
        }
    }
    claims
}

/// The claims on a device that allows no more than [`DEVICE_BYTES_PER_SECOND`].
fn of_device(table: &Table) -> Vec<Claim> {
    let many = |row: &&super::Row| row.workload.clients * row.workload.in_flight > 1;
    let claim = |row: &super::Row| {
        let measured = table.at(&row.workload, "client")?;
        let percent = percent_of_device(&row.workload, measured);
        Some(Claim::new(
            format!(
                "emulated device, {}: {percent:.1} % of what the device allows, at least 97 %",
                row.workload.words()
            ),
            percent >= 97.0,
        ))
    };
    table.rows.iter().filter(many).filter_map(claim).collect()
}

/// Percent of the device's bandwidth that the load reached.
pub fn percent_of_device(workload: &Workload, measured: &Measured) -> f64 {
    100.0 * measured.per_second * workload.len as f64 / DEVICE_BYTES_PER_SECOND
}

/// One column reaches at least this part of another.
fn share(table: &Table, workload: &Workload, column: &str, of: &str, least: f64) -> Option<Claim> {
    let rate = |column| table.at(workload, column).map(|found| found.per_second);
    let found = rate(column)? / rate(of)?;
    let (found_text, least_text) = match least {
        times if times > 1.0 => (format!("{found:.2} times"), format!("{times:.1} times")),
        part => (
            format!("{:.0} %", found * 100.0),
            format!("{:.0} %", part * 100.0),
        ),
    };
    let words = workload.words();
    let text = format!("{words}: {column} makes {found_text} of {of}, at least {least_text}");
    Some(Claim::new(text, found >= least))
}

/// At least `least` accesses for each second of the forwarder's processor time.
fn per_core(table: &Table, workload: &Workload, column: &str, least: f64) -> Option<Claim> {
    let measured = table.at(workload, column)?;
    // Its one reactor cannot use more than one core.
    let cores = measured.forwarder_cores.clamp(0.01, f64::MAX);
    let found = measured.per_second / cores;
    let verb = workload.access.name();
    Some(Claim::new(
        format!(
            "{}: {column} makes {:.1} thousand {verb}s/s with {cores:.2} cores of the forwarder, \
             {:.1} thousand for each core, at least {:.0} thousand",
            workload.words(),
            measured.per_second / 1000.0,
            found / 1000.0,
            least / 1000.0
        ),
        found >= least,
    ))
}

#[cfg(test)]
mod tests {
    use super::super::Row;
    use super::*;

    fn table(columns: Vec<&'static str>, row: impl Fn(&str) -> Measured) -> Table {
        let of = |workload| Row {
            workload,
            columns: columns.iter().map(|name| Some(row(name))).collect(),
        };
        let rows = [SMALL, LARGE].into_iter().flat_map(Workload::of_size);
        let rows = rows.map(of).collect();
        Table { columns, rows }
    }

    fn measured(per_second: f64) -> Measured {
        Measured {
            per_second,
            forwarder_cores: 0.5,
            ..Measured::default()
        }
    }

    #[test]
    fn claims_are_judged_at_their_borders() {
        let columns = vec!["direct", "client", "TCP", "short-cut", "mount"];
        let row = |name: &str| match name {
            "direct" => measured(100_000.0),
            "client" => measured(60_000.0),
            "TCP" => measured(30_000.0),
            "short-cut" => measured(3000.0),
            _ => measured(1000.0),
        };
        let held: Vec<bool> = of_paths(&table(columns, row))
            .iter()
            .map(|it| it.holds)
            .collect();
        // 1 MiB 60 % and 30 %; 4 KiB 120,000 and 60,000 a core; writes 60 %; three times.
        let expected = [true, true, false, false, true, true, false, true, true];
        assert_eq!(held, expected);
    }

    #[test]
    fn what_was_not_measured_is_not_judged() {
        let claims = of_paths(&table(vec!["direct"], |_| measured(1.0)));
        assert!(claims.is_empty());
    }

    #[test]
    fn a_device_is_judged_where_it_is_kept_busy() {
        let full = DEVICE_BYTES_PER_SECOND / LARGE as f64;
        let mut of_large = table(vec!["client"], |_| measured(0.98 * full));
        of_large.rows.retain(|row| row.workload.len == LARGE);
        let claims = of_device(&of_large);
        assert_eq!(claims.len(), 4);
        assert!(claims.iter().all(|claim| claim.holds));
    }
}

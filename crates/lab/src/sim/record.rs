//! `tidegate sim --record`: a trace of each series, point and policy.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use tidegate_cli::fail::Fail;
use tidegate_sim::runner::Recorded;
use tidegate_sim::scenario::Scenario;
use tidegate_trace::Writer;

/// Makes the folder.
pub fn folder(folder: &Path) -> Result<(), Fail> {
    let wrong = |error| Fail::usage(format!("{}: {error}", folder.display()));
    std::fs::create_dir_all(folder).map_err(wrong)
}

/// Writes the requests of one run into a file of the folder.
pub fn write(folder: &Path, scenario: &Scenario, run: &Recorded<'_>) -> Result<(), String> {
    let path = folder.join(name(scenario, run));
    record(&path, run).map_err(|error| {
        // A part of a trace is of no use; it may be gone already.
        let _ = std::fs::remove_file(&path);
        format!("{}: {error}", path.display())
    })
}

fn record(path: &PathBuf, run: &Recorded<'_>) -> io::Result<()> {
    let mut writer = Writer::new(File::create(path)?, run.header)?;
    for name in run.names {
        writer.application(name)?;
    }
    for record in run.records {
        writer.record(record)?;
    }
    writer.finish()?;
    Ok(())
}

/// SCENARIO-SERIES-POINT-POLICY.trace, without the parts of which there is only one. Runs that
/// would have the same name get their numbers in it.
fn name(scenario: &Scenario, run: &Recorded<'_>) -> String {
    let series = &scenario.series[run.series];
    let mut parts = vec![scenario.name.clone()];
    if !series.name.is_empty() {
        parts.push(series.name.clone());
    }
    if series.points.len() > 1 {
        parts.push(series.points[run.point].x.to_string());
    }
    parts.push(scenario.policies[run.policy].label.clone());
    let parts: Vec<String> = parts.iter().map(|part| safe(part)).collect();
    let alike = |one: &str, all: &mut dyn Iterator<Item = String>| {
        all.filter(|other| safe(other) == one).count() > 1
    };
    let mut name = parts.join("-");
    let mut names = scenario.series.iter().map(|series| series.name.clone());
    if alike(&safe(&series.name), &mut names) {
        name = format!("{name}-{}", run.series);
    }
    let mut points = series.points.iter().map(|point| point.x.to_string());
    if alike(&safe(&series.points[run.point].x.to_string()), &mut points) {
        name = format!("{name}-{}", run.point);
    }
    let label = safe(&scenario.policies[run.policy].label);
    let mut labels = scenario.policies.iter().map(|policy| policy.label.clone());
    if alike(&label, &mut labels) {
        name = format!("{name}-{}", run.policy);
    }
    format!("{name}.trace")
}

/// A part of a file's name: letters, digits, dots and underscores; a run of anything else is one
/// hyphen.
pub fn safe(text: &str) -> String {
    let kept = |character: char| character.is_ascii_alphanumeric() || "._".contains(character);
    let words = text.split(|character: char| !kept(character));
    let words: Vec<&str> = words.filter(|word| !word.is_empty()).collect();
    words.join("-")
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_trace::Header;

    #[test]
    fn names_are_safe_and_no_two_are_the_same() {
        let text = "title = \"t\"\nprotocol = \"p\"\npolicies = [\"fifo\"]\n\
            network = { preset = \"ideal\" }\nforwarders = { count = 1 }\n\
            device = { model = \"ideal\" }\n\
            application = [{ workload = \"ior\", request = 4096, requests = 1 }]\n\
            series = [{ name = \"a, b\" }, { name = \"a/b\" }, { name = \"../c\" }]\n\
            vary = { key = \"forwarders.count\", values = [1, 2] }\n\
            figure = { metric = \"makespan\" }\n";
        let scenario = Scenario::parse(text, "t.toml", "my t").expect("it is right");
        let header = Header::default();
        let name = |series, point| {
            name(
                &scenario,
                &Recorded {
                    series,
                    point,
                    policy: 0,
                    header: &header,
                    names: &[],
                    records: &[],
                },
            )
        };
        assert_eq!(name(0, 0), "my-t-a-b-1-fifo-0.trace");
        assert_eq!(name(1, 1), "my-t-a-b-2-fifo-1.trace");
        assert_eq!(name(2, 0), "my-t-..-c-1-fifo.trace");
    }
}

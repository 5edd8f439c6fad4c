//! What traces of earlier runs foretell, for `prediction = "recorded"`.

use std::path::{Path, PathBuf};
use tidegate_sched::{CostModel, Observed, Prediction};
use tidegate_trace::{Ending, Origin, Reader};

/// Requests of all traces together. They take some 130 bytes each while they are averaged.
const REQUESTS_MAX: usize = 1 << 22;

/// The prediction made of the traces of so many runs, each in a file of its own; None if there are
/// none. Of each file what this forwarder recorded counts, and files without any count as no run,
/// so that all of a set can name the same: each its own file, of each run.
pub(super) fn of_files(
    files: &[PathBuf],
    forwarder: Option<u16>,
    cost: &CostModel,
) -> Result<Option<Prediction>, String> {
    if files.is_empty() {
        return Ok(None);
    }
    let Some(forwarder) = forwarder else {
        return Err(
            "trace_files are read when a forwarder starts: name them in [scheduler] of its \
             configuration"
                .to_string(),
        );
    };
    let mut traces = Vec::new();
    let mut left = REQUESTS_MAX;
    for file in files {
        let run = run(file, forwarder, left);
        let run = run.map_err(|what| format!("trace_files: {}: {what}", file.display()))?;
        left -= run.len();
        traces.extend(Some(run).filter(|run| !run.is_empty()));
    }
    if traces.is_empty() {
        tracing::warn!(
            "trace_files: none of them has a request of forwarder {forwarder}: nothing is foretold"
        );
    }
    Ok(Some(Prediction::new(&traces, cost)))
}

/// The requests, `most` at most, that a forwarder served in one run, with their times since the
/// first of them.
fn run(file: &Path, forwarder: u16, most: usize) -> Result<Vec<Observed>, String> {
    // Looked at before it is opened: a pipe would be waited for.
    match std::fs::metadata(file) {
        Ok(found) if found.is_file() => {}
        Ok(_) => return Err("cannot be read: is not a file".to_string()),
        Err(error) => return Err(format!("cannot be read: {error}")),
    }
    let without_name = |text: String| match text.split_once(": ") {
        Some((_, what)) => what.to_string(),
        None => text,
    };
    let mut reader = Reader::open(file).map_err(|error| without_name(error.to_string()))?;
    if reader.header().origin == Origin::Darshan {
        return Err(
            "was imported from a Darshan log, whose files have other numbers: a trace must be \
             recorded by forwarders ([trace])"
                .to_string(),
        );
    }
    let mut requests = Vec::new();
    for record in reader.by_ref() {
        let record = record.map_err(|error| without_name(error.to_string()))?;
        if record.forwarder != Some(forwarder) || record.errno != 0 {
            continue;
        }
        if requests.len() == most {
            return Err(format!(
                "with this there are more than {REQUESTS_MAX} requests of forwarder {forwarder}: \
                 name fewer runs, or shorter ones"
            ));
        }
        requests.push(Observed {
            file: record.file,
            direction: record.direction,
            offset: record.offset,
            len: record.len,
            at_ns: record.arrival_ns,
        });
    }
    // What a killed forwarder left is whole up to its end.
    if let Ending::Damaged { .. } = reader.ending() {
        return Err(reader.ending().warning().unwrap_or_default());
    }
    let first_ns = requests.iter().map(|one| one.at_ns).min().unwrap_or(0);
    for request in &mut requests {
        request.at_ns -= first_ns;
    }
    Ok(requests)
}

//! Hands the requests that were served to the recorder of the trace.

use std::path::PathBuf;
use std::time::Duration;
use tidegate_forward::{Recorded, Served};
use tidegate_sched::{AppId, FileId, mix64};
use tidegate_trace::{Counts, Event, Header, Record, Recorder, Shuffle};
use tracing::{info, warn};

/// How long writing the rest of a trace may take when the forwarder ends.
const END_MAX: Duration = Duration::from_secs(2);

/// The trace of a forwarder.
pub struct Recording {
    recorder: Recorder,
    file: PathBuf,
    forwarder: u16,
    zero_wall_ns: u64,
}

impl Recording {
    /// Begins to record into a file. Fails if the file cannot be created.
    pub fn begin(
        file: PathBuf,
        buffer_records: u32,
        forwarder: u16,
        header: &Header,
    ) -> std::io::Result<Recording> {
        let name = file.display().to_string();
        let tell = move |event| match event {
            Event::Failed(error) => warn!(
                file = name,
                %error,
                "the trace cannot be written; requests are served, and counted as dropped once \
                 the buffer is full"
            ),
            Event::WentOn => info!(file = name, "the trace can be written again"),
        };
        Ok(Recording {
            recorder: Recorder::create(&file, header, buffer_records, tell)?,
            file,
            forwarder,
            zero_wall_ns: header.zero_wall_ns,
        })
    }

    /// Records one request that was served.
    pub fn record(&mut self, served: &Served) {
        let record = record(served, self.forwarder, self.zero_wall_ns);
        self.recorder.record(&record);
    }

    /// How many requests were recorded, and how many were dropped.
    pub fn counts(&self) -> Recorded {
        let Counts {
            recorded,
            buffered,
            dropped,
        } = self.recorder.counts();
        Recorded {
            recorded,
            buffered,
            dropped,
        }
    }

    /// Ends the trace. Records that cannot be written within two seconds are lost.
    pub fn end(self) {
        let Counts {
            recorded,
            buffered,
            dropped,
        } = self.recorder.finish(END_MAX);
        let file = self.file.display();
        match buffered + dropped {
            0 => info!(%file, recorded, "trace ended"),
            lost => warn!(%file, recorded, lost, "trace ended; requests are missing in it"),
        }
    }
}

fn record(served: &Served, forwarder: u16, zero_wall_ns: u64) -> Record {
    let dispatched = served.dispatched;
    let wait_ns = dispatched.map(|at| at.since(served.arrived));
    let service_ns = served.finished.zip(dispatched);
    let stamp = Some(served.stamp_ns).filter(|stamp| *stamp != 0);
    let (us, max_us, rank) = served.shuffle;
    Record {
        arrival_ns: served.arrived.0,
        // Right for any two clocks less than 292 years apart.
        issue_ns: stamp.map(|stamp| stamp.wrapping_sub(zero_wall_ns) as i64),
        app: AppId(served.app),
        shuffle: Shuffle::told(us, max_us, rank),
        operation: served.operation,
        file: FileId(served.file),
        // A client's id lets its user resume its session, so it does not go into a file.
        client: mix64(served.client) as u32,
        forwarder: Some(forwarder),
        direction: served.direction,
        append: served.append,
        listed: served.listed,
        offset: served.offset,
        len: served.len,
        done: served.done,
        errno: served.errno,
        wait_ns,
        service_ns: service_ns.map(|(finished, dispatched)| finished.since(dispatched)),
    }
}

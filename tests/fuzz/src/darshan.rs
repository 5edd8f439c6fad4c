//! A Darshan log from anywhere: importing must not panic, and what is imported must be a trace.

use tidegate_trace::Reader;
use tidegate_trace::darshan::{Options, import_from};

pub(super) fn run(data: &[u8]) {
    if let Ok(log) = import_from(data, "fuzz", "fuzz", &Options::default()) {
        let mut bytes = Vec::new();
        log.write(&mut bytes).expect("memory takes it");
        let reader = Reader::new(&bytes[..], "fuzz").expect("it was just written");
        assert_eq!(reader.count(), log.records.len());
    }
}

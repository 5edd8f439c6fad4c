//! Trials in which two mounts write to one file, at once or in turns.

use super::{Done, PAGE, Side, Trial, op, stat, why, write};
use crate::backend::op::Verb;

/// The number of records that each side appends.
const RECORDS: u64 = 1000;
const RECORD_BYTES: u64 = 64;
/// The number of turns of each side.
const TURNS: u64 = 3;
/// The threshold for slow turns, in ms. A write waits for something of the other side's to expire
/// if it always takes at least this long, and at least [`TURN_SLOWER`] times as long as a write
/// after one of its own side.
const TURN_SLOW_MS: u64 = 100;
const TURN_SLOWER: u64 = 4;

impl Trial<'_> {
    pub(super) fn appends(&mut self, writer: &mut dyn Side, observer: &mut dyn Side) -> Done {
        let name = self.name("append");
        let property = "appends from two nodes";
        if !self.set_up(property, writer, &[op(Verb::Make).name(&name)])? {
            return Ok(());
        }
        let append = op(Verb::Append).name(&name).at(RECORDS).len(RECORD_BYTES);
        writer.begin(&append.clone().fill(1))?;
        let second = observer.run(&append.fill(2));
        let first = writer.finish()?;
        let second = second?;
        let found = writer.run(&stat(&name))?;
        let records = found.number / RECORD_BYTES;
        let written = first.number + second.number;
        let good = first.ok() && second.ok() && records == written;
        self.findings
            .tell(property, good, || match first.ok() && second.ok() {
                true => format!("{records} of {written} records are there"),
                false => why(if first.ok() { &second } else { &first }),
            });
        writer.run(&op(Verb::Unlink).name(&name))?;
        Ok(())
    }

    /// Both sides write one file in turns, as forwarders do when a file is striped over them.
    pub(super) fn turns(&mut self, writer: &mut dyn Side, observer: &mut dyn Side) -> Done {
        let (name, property) = (self.name("turns"), "writes by turns");
        if !self.both_open(property, &name, PAGE, (&mut *writer, &mut *observer))? {
            return Ok(());
        }
        // Of each side: its fastest write after the other's, and after its own.
        let mut fastest = [[u64::MAX; 2]; 2];
        for turn in 0..2 * TURNS {
            let (side, fastest): (&mut dyn Side, _) = match turn % 2 {
                0 => (&mut *observer, &mut fastest[0]),
                _ => (&mut *writer, &mut fastest[1]),
            };
            for least in fastest {
                let answer = side.run(&write(1, 0, PAGE, 2))?;
                if !answer.ok() {
                    self.tell(property, false, || why(&answer));
                    return self.close((writer, observer), &name);
                }
                *least = (*least).min(answer.number);
            }
        }
        let waits = |[other, own]: &[u64; 2]| *other >= TURN_SLOW_MS.max(TURN_SLOWER * own);
        let slow = fastest.into_iter().find(waits);
        self.tell(property, slow.is_none(), || {
            let ms = slow.map_or(0, |[other, _]| other);
            format!("a write takes {ms} ms or longer where the other side wrote before")
        });
        self.close((writer, observer), &name)
    }
}

//! What a job needs before a thread may execute it.

use crate::storage::PosixFiles;
use tidegate_forward::Job;
use tidegate_sched::Direction;
use tidegate_wire::{AskedSeat, Op};

/// The seat whose holder may execute the job. Each part of a data job has a seat of its own, which
/// is checked when the part is moved.
pub(super) fn seat_of(files: &PosixFiles, work: &Job) -> Option<u16> {
    match work {
        Job::Op { reply_slot, .. } => reply_slot.as_ref().map(|its| its.seat),
        Job::Resolve { reply_slot } => Some(reply_slot.seat),
        Job::Closed { handle } => Some(files.seat_of(*handle)),
        Job::Io { .. } | Job::Persist { .. } | Job::Refused(_) => None,
    }
}

/// Whether the job writes data, for whose writer the thread is prepared right before the call.
pub(super) fn writes_data(work: &Job) -> bool {
    let Job::Io { direction, .. } = work else {
        return false;
    };
    *direction == Direction::Write
}

/// Whether the operation takes room on the back end through a descriptor of the forwarder. Others
/// run with the caller's own rights.
pub(super) fn takes_room(op: &Op) -> bool {
    matches!(
        op,
        Op::Append { .. } | Op::Fallocate { .. } | Op::CopyRange { .. }
    )
}

/// Whether the job may run only while its seat is held here. A sync may follow after the seat was
/// lost, and resolving a path changes nothing: a forwarder that holds no seat executes both.
pub(super) fn needs_seat(work: &Job) -> bool {
    let Job::Op { op, .. } = work else {
        return true;
    };
    op.kind().spec().seat != AskedSeat::Any
}

//! What a host does with a forwarder's jobs, over the model file system.

use crate::model::ModelFiles;
use crate::{Access, Errno, Files, IoPart, Job, JobResult, SlotId, effect};
use std::collections::BTreeMap;
use std::vec::Vec;
use tidegate_sched::Direction;
use tidegate_wire::{Handle, Outcome};

/// The memory of a host's payload.
pub type Slots = BTreeMap<SlotId, Vec<u8>>;

/// Carries a job out, and returns its result; data reports `device_ns` of device time. Panics where
/// no forwarder may ask for that: where a slot is not in use, or parts do not ascend.
pub fn carry_out(
    files: &mut ModelFiles,
    slots: &mut Slots,
    work: Job,
    device_ns: u64,
) -> JobResult {
    match work {
        Job::Io {
            handle,
            direction,
            parts,
            ..
        } => {
            let mut end = 0;
            let parts = parts.iter().map(|part| {
                assert!(part.offset >= end, "parts ascend and are disjoint");
                end = part.offset + u64::from(part.len);
                move_part(files, slots, (handle, direction), part)
            });
            JobResult::Io {
                parts: parts.collect(),
                device_ns,
            }
        }
        Job::Op {
            caller,
            op,
            reply_slot,
            payload,
            directory,
        } => {
            let bytes = payload.map(|(slot, len)| slots[&slot][..len as usize].to_vec());
            let bytes = bytes.unwrap_or_default();
            let (caller, reply_slot) = (caller.as_ref(), reply_slot.as_ref());
            let result = effect::perform(files, caller, &op, reply_slot, &bytes);
            effect::job_result(files, result, directory)
        }
        Job::Resolve { reply_slot } => {
            effect::resolve(files, &reply_slot);
            JobResult::Done
        }
        Job::Closed { handle } => {
            let _ = files.closed(handle);
            JobResult::Done
        }
        Job::Persist { table } => {
            let done = table.persist_holders().map(|()| Outcome::Done);
            JobResult::Op(done.map_err(Access::Errno))
        }
        Job::Refused(refused) => refused.result(Errno::EIO),
    }
}

/// Moves the bytes of a part, and returns their number.
fn move_part(
    files: &mut ModelFiles,
    slots: &mut Slots,
    (handle, direction): (Handle, Direction),
    part: &IoPart,
) -> Result<u32, Access> {
    let slot = slots.get_mut(&part.slot).expect("its slot is in use");
    let bytes = &mut slot[part.slot_offset as usize..][..part.len as usize];
    match direction {
        Direction::Read => {
            let read = files.read_at(handle, part.offset, part.len.into())?;
            bytes[..read.len()].copy_from_slice(&read);
            Ok(read.len() as u32)
        }
        Direction::Write => {
            let written = files.write_at(handle, part.offset, bytes)?;
            Ok(written as u32)
        }
    }
}

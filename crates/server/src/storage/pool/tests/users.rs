//! Users whose jobs hang in the back end keep others waiting no longer than is bounded.

use super::*;
use std::collections::VecDeque;

/// One user's jobs, thousands of them, hang in the back end.
#[test]
fn jobs_of_others_run_while_those_of_one_user_hang() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped, only root's forwarder acts for others");
        return;
    }
    let scratch = Scratch::new("pool");
    let mut rig = rig(scratch.path(), 2, 20_000, Faults::default());
    let handle = rig.create(b"data");
    let job = |uid, payload| Job::Op {
        directory: None,
        caller: Some(Caller::alone(uid, uid)),
        op: Op::Getattr { handle },
        reply_slot: None,
        payload,
    };
    rig.slots.open(SlotId(1), 16);
    let buffer = rig.slots.buffer(SlotId(1)).expect("open");
    let busy = lock_buffer(&buffer);
    for number in 0..10_000 {
        let hangs = job(7, Some((SlotId(1), 16)));
        rig.pool.submit(JobId(number), hangs);
    }
    rig.slots.open(SlotId(2), 4096);
    let write = rig.io(handle, Direction::Write, 0, 2, 4096);
    rig.pool.submit(JobId(20_000), write);
    rig.pool.submit(JobId(20_001), job(8, None));
    let done = rig.wait(2);
    let done: Vec<JobId> = done.iter().map(|done| done.job).collect();
    assert_eq!(done, [JobId(20_000), JobId(20_001)]);
    drop(busy);
    assert_eq!(rig.wait(10_000).len(), 10_000);
}

/// A user's `getattr`, which waits for a buffer if it has one.
fn job_of(uid: u32, handle: Handle, payload: Option<(SlotId, u32)>) -> Job {
    Job::Op {
        directory: None,
        caller: Some(Caller::alone(uid, uid)),
        op: Op::Getattr { handle },
        reply_slot: None,
        payload,
    }
}

/// One of a user's jobs hangs in the back end, where he has one thread at first.
#[test]
fn a_users_own_jobs_go_on_while_one_of_them_hangs() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped, only root's forwarder acts for others");
        return;
    }
    let scratch = Scratch::new("pool");
    let mut rig = rig(scratch.path(), 4, 64, Faults::default());
    let handle = rig.create(b"data");
    rig.slots.open(SlotId(1), 16);
    let buffer = rig.slots.buffer(SlotId(1)).expect("open");
    let hanging = lock_buffer(&buffer);
    let hangs = job_of(7, handle, Some((SlotId(1), 16)));
    rig.pool.submit(JobId(0), hangs);
    for number in 1..20 {
        rig.pool.submit(JobId(number), job_of(7, handle, None));
    }
    let done = rig.wait(19);
    assert!(done.iter().all(|done| done.job != JobId(0)));
    drop(hanging);
    assert_eq!(rig.wait(1)[0].job, JobId(0));
}

/// The same where the other threads never have nothing to do: when a read ends, the next one waits
/// already.
#[test]
fn a_users_own_jobs_go_on_beside_threads_that_are_never_idle() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped, only root's forwarder acts for others");
        return;
    }
    let scratch = Scratch::new("pool");
    // Faults keep reads of the page cache with the threads.
    let mut rig = rig(scratch.path(), 3, 64, Faults::panic_at(u64::MAX));
    let handle = rig.create(b"data");
    let buffers: Vec<_> = (0..9)
        .map(|slot| rig.slots.open(SlotId(slot), 4096))
        .collect();
    let mut hanging = VecDeque::from_iter(buffers.iter().map(lock_buffer));
    let hangs = job_of(7, handle, Some((SlotId(8), 16)));
    rig.pool.submit(JobId(8), hangs);
    for slot in 0..8 {
        let read = rig.io(handle, Direction::Read, 0, slot, 4096);
        rig.pool.submit(JobId(slot.into()), read);
    }
    rig.pool.submit(JobId(100), job_of(7, handle, None));
    let mut done = Vec::new();
    for _ in 0..6 {
        std::thread::sleep(2 * STUCK);
        drop(hanging.pop_front());
        done.extend(rig.wait(1));
    }
    let done = done.iter().any(|done| done.job == JobId(100));
    assert!(done, "it waited for a thread without work");
    drop(hanging);
    rig.wait(1);
}

/// All threads that do other work hang with it, and one moves data.
#[test]
fn data_is_moved_while_all_other_jobs_hang() {
    let scratch = Scratch::new("pool");
    let mut rig = rig(scratch.path(), 4, 64, Faults::default());
    let handle = rig.create(b"data");
    rig.slots.open(SlotId(1), 16);
    let buffer = rig.slots.buffer(SlotId(1)).expect("open");
    let hanging = lock_buffer(&buffer);
    for number in 0..8 {
        let hangs = Job::Op {
            directory: None,
            caller: None,
            op: Op::Getattr { handle },
            reply_slot: None,
            payload: Some((SlotId(1), 16)),
        };
        rig.pool.submit(JobId(number), hangs);
    }
    for slot in 2..12 {
        rig.slots.open(SlotId(slot), 4096);
        let write = rig.io(handle, Direction::Write, 0, slot, 4096);
        rig.pool.submit(JobId(100), write);
        assert_eq!(rig.wait(1)[0].job, JobId(100));
    }
    drop(hanging);
    assert_eq!(rig.wait(8).len(), 8);
}

/// The thread that looks is counted on for a user's job, and the one for data alone for the data
/// that comes right after it; whichever takes which.
#[test]
fn a_job_is_done_though_data_comes_with_it_that_hangs() {
    let scratch = Scratch::new("pool");
    let mut rig = rig(scratch.path(), 4, 64, Faults::default());
    let handle = rig.create(b"data");
    let look = || Job::Op {
        directory: None,
        caller: None,
        op: Op::Getattr { handle },
        reply_slot: None,
        payload: None,
    };
    let buffer = rig.slots.open(SlotId(1), 4096);
    for _ in 0..5000 {
        // Its thread looks for more afterwards.
        rig.pool.submit(JobId(0), look());
        assert_eq!(rig.wait(1)[0].job, JobId(0));
        let hanging = lock_buffer(&buffer);
        let write = rig.io(handle, Direction::Write, 0, 1, 4096);
        rig.pool.submit(JobId(1), look());
        rig.pool.submit(JobId(2), write);
        assert_eq!(rig.wait(1)[0].job, JobId(1));
        drop(hanging);
        assert_eq!(rig.wait(1)[0].job, JobId(2));
    }
}

//! Users whose jobs hang in the back end keep others waiting no longer than is bounded.

use super::*;

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
    let job = |payload| Job::Op {
        caller: Some(Caller::alone(7, 7)),
        op: Op::Getattr { handle },
        reply_slot: None,
        payload,
    };
    rig.slots.open(SlotId(1), 16);
    let buffer = rig.slots.buffer(SlotId(1)).expect("open");
    let busy = lock_buffer(&buffer);
    rig.pool.submit(JobId(0), job(Some((SlotId(1), 16))));
    for number in 1..20 {
        rig.pool.submit(JobId(number), job(None));
    }
    let done = rig.wait(19);
    assert!(done.iter().all(|done| done.job != JobId(0)));
    drop(busy);
    assert_eq!(rig.wait(1)[0].job, JobId(0));
}

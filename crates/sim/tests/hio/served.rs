//! The order in which a policy serves an instance: the policy itself orders it, with one scheduler
//! for each server.

use std::cmp::Reverse;
use tidegate_sched::{
    AccessCost, AppId, Direction, FileId, Input, Options, OptionsError, Output, Request, RequestId,
    Scheduler, Time,
};
use tidegate_sim::bounds::{Instance, Needs};

/// The order in which each server serves the operations under a policy, when all their parts
/// are there from the beginning and the server serves one at a time. Releases do not count. The
/// policy gets the true costs of parts and the shuffles that follow, in microseconds, rounded
/// up; these replace costs and estimates in `options`.
pub(crate) fn served_by(
    instance: &Instance,
    options: &Options,
) -> Result<Vec<Vec<usize>>, OptionsError> {
    let mut options = options.clone();
    // A byte takes a nanosecond, wherever it lies.
    for direction in [Direction::Read, Direction::Write] {
        for sequential in [false, true] {
            *options.cost.access_mut(direction, sequential) = AccessCost {
                base_ns: 0,
                ns_per_mib: 1 << 20,
            };
        }
    }
    (options.estimate, options.depth) = (false, 1);
    let ranks = shuffle_ranks(instance);
    let servers = 0..instance.servers();
    servers
        .map(|server| served_at(instance, server, &options, &ranks))
        .collect()
}

/// By operation and server: how many of the operation's parts have a longer shuffle; of equal
/// ones the first server counts as longer.
fn shuffle_ranks(instance: &Instance) -> Vec<Vec<u16>> {
    let ranks = instance.operations().iter().map(|needs| {
        let mut servers: Vec<usize> = (0..instance.servers()).collect();
        servers.sort_by_key(|server| Reverse(shuffle_ns(needs, *server)));
        let mut ranks = vec![0; instance.servers()];
        for (rank, server) in servers.into_iter().enumerate() {
            ranks[server] = rank as u16;
        }
        ranks
    });
    ranks.collect()
}

fn served_at(
    instance: &Instance,
    server: usize,
    options: &Options,
    ranks: &[Vec<u16>],
) -> Result<Vec<usize>, OptionsError> {
    let mut scheduler = Scheduler::new(options)?;
    let us = |ns: u64| u32::try_from(ns.div_ceil(1000)).unwrap_or(u32::MAX);
    for (index, needs) in instance.operations().iter().enumerate() {
        let work_ns = needs.work_ns[server];
        if work_ns == 0 {
            continue;
        }
        let shuffles = (0..instance.servers()).map(|server| shuffle_ns(needs, server));
        let (id, app) = (RequestId(index as u64), AppId(needs.app));
        // Every operation in a file of its own, so that nothing merges or conflicts.
        let file = FileId(index as u64);
        let request = Request {
            stamp_ns: options.wall_offset_ns.saturating_add(index as u64),
            shuffle_us: us(shuffle_ns(needs, server)),
            shuffle_max_us: us(shuffles.max().unwrap_or(0)),
            shuffle_rank: ranks[index][server],
            ..Request::new(id, app, file, Direction::Read, 0, work_ns)
        };
        let taken = scheduler.handle(Time(0), Input::Arrived(request));
        taken.expect("fewer operations than a queue holds");
    }
    let (mut order, mut batch) = (Vec::new(), Vec::new());
    while scheduler.poll(Time(0), &mut batch) == Output::Dispatch {
        for request in &batch {
            order.push(request.id.0 as usize);
            let finished = scheduler.handle(Time(0), Input::Finished(request.id));
            finished.expect("it runs");
        }
    }
    Ok(order)
}
/// The shuffle after an operation's part on a server; 0 where it has no part.
fn shuffle_ns(needs: &Needs, server: usize) -> u64 {
    match needs.work_ns[server] {
        0 => 0,
        _ => needs.shuffles_ns.get(server).copied().unwrap_or(0),
    }
}

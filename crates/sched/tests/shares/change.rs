//! What shares gave is known on after a change of policy, and time that goes back hurts nobody.

use crate::weight;
use crate::world::{BYTES, Client, MS, SECOND, World, options};
use tidegate_sched::{
    AppId, Direction, FileId, Input, Output, Rate, Request, RequestId, Scheduler, Share, Time,
};

/// Goes on for a while, and changes the policy every so often: to the other one that has shares.
fn run(world: &mut World, policies: [&str; 2], until: u64, every: u64) {
    let mut changes = 0;
    while world.now < until {
        world.run((world.now + every).min(until));
        changes += 1;
        for forwarder in &mut world.forwarders {
            let mut options = forwarder.options().clone();
            options.policy = policies[changes % 2].into();
            options.table = Default::default();
            let set = forwarder.set_policy(Time(world.now), &options);
            set.expect("it is a policy");
        }
    }
}

#[test]
fn a_change_of_policy_keeps_what_shares_gave() {
    let limited = Share {
        max: Some(Rate::Bytes(5 * BYTES)),
        ..Share::default()
    };
    let promised = Share {
        min: Some(Rate::Bytes(10 * BYTES)),
        ..Share::default()
    };
    for policies in [
        ["dsfq", "two-level"],
        ["two-level", "dsfq"],
        ["two-level", "two-level"],
    ] {
        let shares = [(1, limited), (2, promised), (3, weight(3)), (4, weight(1))];
        let options = options(policies[0], 1, &shares);
        let clients = [1, 2, 3, 4].map(|app| Client::new(app, 8, &[0]));
        let mut world = World::new(&options, &clients);
        run(&mut world, policies, 20 * SECOND, 50 * MS);
        let got = [1, 2, 3, 4].map(|app| world.share(app, 0, 20 * SECOND, None) / MS);
        // A tenth at most; a fifth at least; of the rest three quarters and one.
        assert!(got[0] <= 2100, "{policies:?}: {got:?}");
        assert!(got[1] >= 3800, "{policies:?}: {got:?}");
        let (three, one) = (got[2] * 10, got[3] * 30);
        assert!(three.abs_diff(one) <= one / 10, "{policies:?}: {got:?}");
    }
}

#[test]
fn time_that_goes_back_beside_a_maximum_stands_still() {
    for policy in ["dsfq", "two-level"] {
        let limited = Share {
            max: Some(Rate::Bytes(BYTES)),
            ..Share::default()
        };
        let options = options(policy, 1, &[(1, limited)]);
        let mut scheduler = Scheduler::new(&options).expect("they are options");
        let mut batch = Vec::new();
        for id in 0..8 {
            let request = Request::new(
                RequestId(id),
                AppId(1),
                FileId(1),
                Direction::Write,
                2 * id * BYTES,
                BYTES,
            );
            let arrived = scheduler.handle(Time(100 * SECOND), Input::Arrived(request));
            arrived.expect("there is room");
        }
        for back in [0, 1, 50, 100] {
            let now = Time((100 - back) * SECOND);
            let until = loop {
                match scheduler.poll(now, &mut batch) {
                    Output::Dispatch => {
                        let done = scheduler.handle(now, Input::Finished(batch[0].id));
                        done.expect("it ran");
                    }
                    Output::WaitUntil(time) => break time,
                    other => panic!("{policy}: {other:?}"),
                }
            };
            assert!(until > Time(100 * SECOND), "{policy}: {until:?}");
        }
        assert_eq!(
            scheduler.poll(Time(110 * SECOND), &mut batch),
            Output::Dispatch
        );
    }
}

//! Clients that make up what they were given here and how long they were away.

use crate::weight;
use crate::world::{Client, SECOND, World, options};

/// What is told of each of the three counters; None: the truth.
const TOLD_NS: [Option<u64>; 4] = [None, Some(0), Some(SECOND), Some(u64::MAX)];
const AWAY_MS: [Option<u16>; 4] = [None, Some(0), Some(1000), Some(u16::MAX)];

/// Every combination of lies, told by one that has as much as it can on its way.
fn liars(layout: &[usize]) -> Vec<Client> {
    let mut liars = Vec::new();
    for tells_ns in TOLD_NS {
        for tells_here_ns in TOLD_NS {
            for tells_away_ms in AWAY_MS {
                liars.push(Client {
                    tells_ns,
                    tells_here_ns,
                    tells_away_ms,
                    ..Client::new(2, 250, layout)
                });
            }
        }
    }
    liars
}

/// The part of a forwarder that the honest application gets beside the liar, in thousandths.
fn part(world: &World, forwarder: usize) -> u64 {
    let got = |app| world.share(app, 5 * SECOND, 15 * SECOND, Some(forwarder));
    got(1) * 1000 / (got(1) + got(2))
}

#[test]
fn who_has_one_forwarder_keeps_its_share_there_whatever_others_make_up() {
    for policy in ["dsfq", "two-level"] {
        for (weights, least) in [((1, 1), 475), ((3, 1), 712)] {
            let of = [(1, weight(weights.0)), (2, weight(weights.1))];
            let options = options(policy, 4, &of);
            for liar in liars(&[0, 1, 2, 3]) {
                let lies = (liar.tells_ns, liar.tells_here_ns, liar.tells_away_ms);
                let mut world = World::new(&options, &[Client::new(1, 8, &[0]), liar]);
                world.run(15 * SECOND);
                let part = part(&world, 0);
                assert!(part >= least, "{policy}, {lies:?}: {part} of 1000");
            }
        }
    }
}

#[test]
fn forwarders_that_tell_each_other_believe_no_lies() {
    for policy in ["dsfq", "two-level"] {
        let mut options = options(policy, 4, &[(1, weight(1)), (2, weight(1))]);
        options.table.set("report_ms", 200);
        for liar in liars(&[0, 1, 2, 3]) {
            let lies = (liar.tells_ns, liar.tells_here_ns, liar.tells_away_ms);
            let honest = Client::new(1, 8, &[0, 1, 2, 3]);
            let mut world = World::new(&options, &[honest, liar]);
            world.run(15 * SECOND);
            for forwarder in 0..4 {
                let part = part(&world, forwarder);
                assert!(
                    part >= 475,
                    "{policy}, {lies:?}: {part} of 1000 at {forwarder}"
                );
            }
        }
    }
}

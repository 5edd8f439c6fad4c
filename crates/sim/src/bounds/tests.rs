//! Tests of bounds and orders against each other and against enumeration.

use super::*;
use crate::rng::Rng;

fn needs(app: u64, work_ns: &[u64]) -> Needs {
    Needs {
        app,
        work_ns: work_ns.to_vec(),
        ..Needs::default()
    }
}

fn instance(operations: Vec<Needs>) -> Instance {
    let servers = operations[0].work_ns.len();
    Instance::new(servers, operations).expect("every operation names every server")
}

/// What random instances may have.
#[derive(Clone, Copy)]
struct Kind {
    shuffles: bool,
    releases: bool,
}

const PLAIN: Kind = Kind {
    shuffles: false,
    releases: false,
};
const KINDS: [Kind; 4] = [
    PLAIN,
    Kind {
        shuffles: true,
        releases: false,
    },
    Kind {
        shuffles: false,
        releases: true,
    },
    Kind {
        shuffles: true,
        releases: true,
    },
];

/// Works that span three powers of ten; one part in five is missing.
fn random(rng: &mut Rng, operations: u64, servers: u64, kind: Kind) -> Instance {
    let some = |rng: &mut Rng, wanted: bool| {
        let scale = [1, 10, 100, 1000][rng.below(4) as usize];
        if !wanted || rng.one_in(5) {
            return 0;
        }
        rng.between(1, scale)
    };
    let mut list = Vec::new();
    for _ in 0..operations {
        list.push(Needs {
            app: rng.below(100),
            released_ns: some(rng, kind.releases),
            work_ns: (0..servers).map(|_| some(rng, true)).collect(),
            shuffles_ns: (0..servers).map(|_| some(rng, kind.shuffles)).collect(),
        });
    }
    Instance::new(servers as usize, list).expect("every operation names every server")
}

/// All orders of so many operations.
fn orders(count: usize) -> Vec<Vec<usize>> {
    if count == 0 {
        return vec![Vec::new()];
    }
    let mut all = Vec::new();
    for shorter in orders(count - 1) {
        for place in 0..count {
            let mut order = shorter.clone();
            order.insert(place, count - 1);
            all.push(order);
        }
    }
    all
}

/// The smallest sum and the smallest maximum over every combination of orders.
fn by_enumeration(instance: &Instance) -> (u128, u64) {
    let choices = orders(instance.operations().len());
    let mut combined = vec![Vec::new()];
    for _ in 0..instance.servers() {
        let longer = combined.iter().flat_map(|chosen: &Vec<Vec<usize>>| {
            choices.iter().map(|order| {
                let mut longer = chosen.clone();
                longer.push(order.clone());
                longer
            })
        });
        combined = longer.collect();
    }
    let values = combined.iter().map(|o| instance.value_per_server(o));
    (
        values.clone().map(|value| value.sum_ns).min().expect("one"),
        values.map(|value| value.max_ns).min().expect("one"),
    )
}

#[test]
fn values_by_hand() {
    let instance = instance(vec![needs(7, &[4, 1]), needs(3, &[1, 2])]);
    // First 0: done at 4; then 1: at 5 and 3.
    let value = instance.value(&[0, 1]);
    assert_eq!((value.sum_ns, value.max_ns), (4 + 5, 5));
    let value = instance.value(&[1, 0]);
    assert_eq!((value.sum_ns, value.max_ns), (2 + 5, 5));
    let value = instance.value_per_server(&[vec![0, 1], vec![1, 0]]);
    assert_eq!((value.sum_ns, value.mean_ns(2)), (4 + 5, 4.5));
    let best = instance.best().expect("few");
    assert_eq!((best.order, best.optimal), (vec![1, 0], true));
    // Ranks: alone 2 and 4; server 0: 1 and 5; server 1: 1 and 3.
    assert_eq!(instance.sum_bound_ns(), 2 + 5);
    for order in [Order::AppId, Order::SmallestBottleneck, Order::PrimalDual] {
        assert_eq!(order.of(&instance), [1, 0], "{}", order.name());
    }
    assert_eq!(Order::Given.of(&instance), [0, 1]);
}

#[test]
fn shuffles_and_releases_by_hand() {
    let late = Needs {
        released_ns: 10,
        shuffles_ns: vec![5, 100],
        ..needs(1, &[2, 0])
    };
    let long_shuffle = Needs {
        shuffles_ns: vec![20, 0],
        ..needs(2, &[3, 1])
    };
    let instance = instance(vec![late, long_shuffle]);
    // The shuffle where there is no part does not count: 10 + 2 + 5.
    let value = instance.value(&[1, 0]);
    assert_eq!((value.sum_ns, value.max_ns), (23 + 17, 23));
    // In the other order the server waits for the release.
    assert_eq!(instance.value(&[0, 1]).sum_ns, 17 + (12 + 3 + 20));
    assert_eq!(instance.sum_bound_ns(), 40);
    assert!(!instance.best().expect("few").optimal);
}

#[test]
fn what_is_no_instance_is_refused() {
    let error = Instance::new(2, vec![needs(1, &[1, 2]), needs(1, &[1])]).expect_err("short");
    assert!(
        error
            .to_string()
            .starts_with("operation 1 names 1 times for 2 servers")
    );
    let shuffles = Needs {
        shuffles_ns: vec![1],
        ..needs(1, &[1, 2])
    };
    assert!(Instance::new(2, vec![shuffles]).is_err());
    let long = Instance::new(1, vec![needs(1, &[u64::MAX]), needs(1, &[1])]);
    assert_eq!(long, Err(InstanceError::TooLong));
    let nothing = Instance::new(0, Vec::new()).expect("nothing to do is an instance");
    assert_eq!(nothing.sum_bound_ns(), 0);
    assert_eq!(nothing.best().expect("few").value.sum_ns, 0);
    let many = vec![needs(1, &[1]); BEST_OPERATIONS_MAX + 1];
    assert_eq!(instance(many.clone()).best(), None);
    assert_eq!(instance(many).value(&[0, 99]).sum_ns, 1);
}

#[test]
fn bounds_hold_for_every_combination_of_orders() {
    for kind in KINDS {
        for seed in 0..150 {
            let mut rng = Rng::new(seed);
            let (operations, servers) = (rng.between(1, 3), rng.between(1, 3));
            let instance = random(&mut rng, operations, servers, kind);
            let (sum_ns, max_ns) = by_enumeration(&instance);
            assert!(instance.sum_bound_ns() <= sum_ns, "seed {seed}");
            let best = instance.best().expect("few");
            assert!(best.value.sum_ns >= sum_ns && best.value.max_ns >= max_ns);
            if best.optimal {
                assert_eq!(best.value.sum_ns, sum_ns, "seed {seed}");
            }
        }
    }
}

#[test]
fn bounds_optimum_and_orders_are_in_this_order() {
    for kind in KINDS {
        for seed in 0..40 {
            let mut rng = Rng::new(seed);
            let (operations, servers) = (rng.between(2, 7), rng.between(1, 6));
            let instance = random(&mut rng, operations, servers, kind);
            let best = instance.best().expect("few");
            assert!(instance.sum_bound_ns() <= best.value.sum_ns, "seed {seed}");
            for order in Order::ALL {
                let value = instance.value(&order.of(&instance));
                assert!(best.value.sum_ns <= value.sum_ns, "seed {seed} {order:?}");
            }
            let value = instance.value_per_server(&instance.random_per_server(&mut rng));
            assert!(instance.sum_bound_ns() <= value.sum_ns);
            if best.optimal {
                assert!(best.value.sum_ns <= value.sum_ns, "seed {seed}");
                let dual = instance.value(&Order::PrimalDual.of(&instance));
                assert!(dual.sum_ns <= 2 * best.value.sum_ns, "seed {seed}");
            }
        }
    }
}

#[test]
fn orders_name_each_operation_once_and_exchange_never_loses() {
    for kind in KINDS {
        for seed in 0..20 {
            let mut rng = Rng::new(seed);
            let instance = random(&mut rng, 40, 8, kind);
            for order in Order::ALL {
                let mut named = order.of(&instance);
                named.sort_unstable();
                assert_eq!(named, (0..40).collect::<Vec<_>>(), "{order:?}");
            }
            let value = |order: Order| instance.value(&order.of(&instance)).sum_ns;
            assert!(value(Order::Exchanged) <= value(Order::PrimalDual));
        }
    }
}

#[test]
fn known_sizes_beat_application_ids() {
    let (mut bound, mut exchanged, mut small, mut by_id) = (0.0, 0.0, 0.0, 0.0);
    for seed in 0..40 {
        let mut rng = Rng::new(seed);
        let instance = random(&mut rng, 16, 16, PLAIN);
        let value = |order: Order| instance.value(&order.of(&instance)).sum_ns as f64;
        bound += instance.sum_bound_ns() as f64;
        exchanged += value(Order::Exchanged);
        small += value(Order::SmallestBottleneck);
        by_id += value(Order::AppId);
    }
    assert!(exchanged <= small && small < by_id);
    // The bound is good enough to tell a good order from a bad one.
    assert!(exchanged < 1.6 * bound, "{}", exchanged / bound);
}

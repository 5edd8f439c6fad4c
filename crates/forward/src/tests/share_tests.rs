//! Names of applications, their rules, and the policy in force.

use super::*;
use crate::back_end_files::Errno;
use crate::share_rules::{AppRule, GroupRule, User};
use std::string::ToString;
use tidegate_sched::{AppId, Rate, Share};
use tidegate_wire::{Hints, Keep};

pub(super) fn named(name: &str) -> Op {
    Op::Application {
        app: AppId::from_name(name).0,
        name: name.as_bytes().into(),
        job: b"17"[..].into(),
        project: b"climate"[..].into(),
    }
}

pub(super) fn rules(name: &str, share: Share) -> Rules {
    let app = AppRule {
        name: name.to_string(),
        user: None,
        job: None,
        share,
        group: None,
    };
    Rules {
        apps: vec![app],
        ..Rules::default()
    }
}

/// A change of rules that were set at `after`.
fn change(after: u64, at: u64) -> Op {
    Op::SetShares {
        text: Box::from(&b"text"[..]),
        keep: Keep::Run,
        after,
        at,
    }
}

fn set(tester: &mut Tester, host: &mut Host, rules: Rules) -> Result<Outcome, Status> {
    let request = tester.send(host, change(u64::MAX, 9), &[]);
    let (policy, _) = host.policies.pop().expect("the host reads the text");
    host.tell(Input::SharesParsed {
        policy,
        rules: Ok(rules),
    });
    tester.take(host, &request).0
}

pub(super) fn status(host: &mut Host) -> String {
    String::from_utf8(host.forwarder_status()).expect("text")
}

/// Reads as an application; what the forwarder counts it as is in the status.
pub(super) fn read_as(tester: &mut Tester, host: &mut Host, name: &str) {
    let file = Handle { inode: 9, birth: 0 };
    let app = AppId::from_name(name).0;
    let hints = Some(Hints {
        app,
        ..Hints::default()
    });
    let request = Request {
        hints,
        ..tester.request(read(file, 0, 1), 0)
    };
    assert!(host.receive(tester.conn, request.clone(), &[]));
    let _ = tester.take(host, &request);
}

#[test]
fn a_name_must_be_its_hash_s_and_is_shown() {
    let mut world = World::new();
    let mut host = Host::serving(&mut world);
    let mut tester = Tester::new(&mut host, 7);
    let wrong = Op::Application {
        app: 5,
        name: b"climate"[..].into(),
        job: Box::default(),
        project: Box::default(),
    };
    assert_eq!(errno(tester.call(&mut host, wrong)), Errno::EINVAL.0);
    let garbage = Op::Application {
        app: 5,
        name: b"\xff\xfe"[..].into(),
        job: Box::default(),
        project: Box::default(),
    };
    assert_eq!(errno(tester.call(&mut host, garbage)), Errno::EINVAL.0);
    let broken = tester.call(&mut host, named("climate\nfake"));
    assert_eq!(errno(broken), Errno::EINVAL.0);
    assert_eq!(tester.call(&mut host, named("climate")), Ok(Outcome::Done));
    let text = status(&mut host);
    let expected = r#""name":"climate","uid":0,"job":"17","project":"climate""#;
    assert!(text.contains(expected), "{text}");
}

#[test]
fn another_user_s_application_of_the_same_name_is_another() {
    let mut world = World::new();
    let mut host = Host::serving(&mut world);
    let mut first = Tester::of(&mut host, 7, peer(1000));
    let mut second = Tester::of(&mut host, 8, peer(1001));
    first.call(&mut host, named("a")).expect("named");
    second.call(&mut host, named("a")).expect("named");
    read_as(&mut first, &mut host, "a");
    read_as(&mut second, &mut host, "a");
    let text = status(&mut host);
    for uid in [1000, 1001] {
        let expected = alloc::format!(r#""name":"a","uid":{uid}"#);
        assert!(text.contains(&expected), "{text}");
    }
}

#[test]
fn names_are_bounded_and_the_places_of_clients_that_left_are_free() {
    let mut world = World::new();
    let mut host = Host::serving(&mut world);
    for client in 0..4 {
        let mut tester = Tester::new(&mut host, 7 + client);
        for n in 0..1024 {
            let name = alloc::format!("{client}-{n}");
            assert_eq!(tester.call(&mut host, named(&name)), Ok(Outcome::Done));
        }
        let more = tester.call(&mut host, named("more"));
        assert_eq!(errno(more), Errno::ENOSPC.0);
    }
    let mut last = Tester::new(&mut host, 99);
    assert_eq!(errno(last.call(&mut host, named("last"))), Errno::ENOSPC.0);
    // Many names and sessions are not too much for a message.
    assert!(host.forwarder_status().len() < tidegate_wire::BODY_MAX);
    for client in 0..4 {
        let mut gone = Tester::new(&mut host, 20 + client);
        assert_eq!(errno(gone.call(&mut host, named("last"))), Errno::ENOSPC.0);
        assert!(gone.call(&mut host, Op::Bye).is_ok());
        host.tell(Input::Closed { conn: gone.conn });
    }
}

#[test]
fn with_rules_the_policy_keeps_shares_and_without_them_the_plain_one_is_back() {
    let mut world = World::new();
    let mut config = world.config(0, 1);
    config.scheduler = Options::for_policy("window");
    config.scheduler.table.set("window_ms", 250);
    let mut host = Host::new(&world, config);
    host.give_seat(&mut world, 0);
    let mut tester = Tester::new(&mut host, 7);
    tester.call(&mut host, named("a")).expect("named");
    let weight = |weight| Share {
        weight,
        ..Share::default()
    };
    assert!(status(&mut host).contains(r#""shares_set_ns":0,"#));
    assert!(set(&mut tester, &mut host, rules("a", weight(3))).is_ok());
    let text = status(&mut host);
    assert!(!text.contains(r#""shares_set_ns":0,"#), "{text}");
    assert!(text.contains(r#""policy":"two-level""#), "{text}");
    assert!(text.contains(r#""asked_policy":"window""#), "{text}");
    assert!(text.contains(r#"name = \"a\"\nweight = 3"#), "{text}");

    let refused = set(&mut tester, &mut host, rules("a", weight(0)));
    assert_eq!(errno(refused), Errno::EINVAL.0);
    let text = status(&mut host);
    assert!(text.contains("weight = 3"), "the old state is kept: {text}");

    assert!(set(&mut tester, &mut host, Rules::default()).is_ok());
    let text = status(&mut host);
    assert!(text.contains(r#""policy":"window""#), "{text}");
    assert!(text.contains(r#""window_ms":250"#), "{text}");
    let mut stranger = Tester::of(&mut host, 9, peer(1000));
    let refused = stranger.call(&mut host, change(u64::MAX, 9));
    assert_eq!(errno(refused), Errno::EPERM.0);
}

#[test]
fn of_changes_that_do_not_know_each_other_one_is_refused() {
    let mut world = World::new();
    let mut host = Host::serving(&mut world);
    let mut tester = Tester::new(&mut host, 7);
    let mut answer = |host: &mut Host, (after, at), name| {
        let request = tester.send(host, change(after, at), &[]);
        // Meanwhile another one comes.
        let other = tester.send(host, change(u64::MAX, 8), &[]);
        assert_eq!(errno(tester.take(host, &other).0), Errno::EBUSY.0);
        let (policy, _) = host.policies.pop().expect("the host reads the text");
        let rules = Ok(rules(name, Share::default()));
        host.tell(Input::SharesParsed { policy, rules });
        assert!(tester.take(host, &request).0.is_ok());
    };
    answer(&mut host, (0, 5), "a");
    assert!(status(&mut host).contains(r#""shares_set_ns":5,"#));
    answer(&mut host, (5, 7), "b");
    for after in [0, 5, 6] {
        let refused = tester.call(&mut host, change(after, 9));
        assert_eq!(errno(refused), Errno::ESTALE.0, "{after}");
    }
    let text = status(&mut host);
    assert!(text.contains(r#"name = \"b\""#), "{text}");
    assert!(text.contains(r#""shares_set_ns":7,"#), "{text}");
}

#[test]
fn a_policy_that_keeps_shares_stays_and_one_that_does_not_waits() {
    let mut world = World::new();
    let mut config = world.config(0, 1);
    config.scheduler = Options::for_policy("dsfq");
    config.shares = rules("*", Share::default());
    let mut host = Host::new(&world, config);
    host.give_seat(&mut world, 0);
    assert!(status(&mut host).contains(r#""policy":"dsfq""#));
    let mut tester = Tester::new(&mut host, 7);
    let text = Box::default();
    let keep = Keep::Saved;
    let request = tester.send(&mut host, Op::SetPolicy { text, keep }, &[]);
    let (policy, _) = host.policies.pop().expect("asked");
    let options = Ok(Options::for_policy("sjf"));
    host.tell(Input::PolicyParsed { policy, options });
    assert!(tester.take(&mut host, &request).0.is_ok());
    let text = status(&mut host);
    assert!(text.contains(r#""policy":"two-level""#), "{text}");
    assert!(set(&mut tester, &mut host, Rules::default()).is_ok());
    assert!(status(&mut host).contains(r#""policy":"sjf""#));
}

#[test]
fn what_is_kept_for_the_export_is_followed_without_a_request() {
    let mut world = World::new();
    let config = world.config(0, 1);
    let mut host = Host::new(&world, config);
    host.give_seat(&mut world, 0);
    host.tell(Input::PolicyFound(Options::for_policy("sjf")));
    assert!(status(&mut host).contains(r#""policy":"sjf""#));
    host.tell(Input::SharesFound(rules("*", Share::default())));
    let text = status(&mut host);
    assert!(text.contains(r#""policy":"two-level""#), "{text}");
    assert!(text.contains(r#""asked_policy":"sjf""#), "{text}");
    host.tell(Input::SharesFound(Rules::default()));
    let text = status(&mut host);
    assert!(text.contains(r#""policy":"sjf""#), "{text}");
}

#[test]
fn an_application_gets_its_rule_s_share_whenever_it_is_named() {
    let mut world = World::new();
    let mut config = world.config(0, 1);
    let share = Share {
        min: Some(Rate::Bytes(1_000_000)),
        ..Share::default()
    };
    config.shares = rules("a", share);
    config.shares.groups.push(GroupRule {
        name: "anna".to_string(),
        user: Some(User {
            uid: 0,
            name: "root".to_string(),
        }),
        project: None,
        share,
    });
    let mut host = Host::new(&world, config);
    host.give_seat(&mut world, 0);
    let mut tester = Tester::new(&mut host, 7);
    let share = |host: &Host, name| {
        let shares = host.forwarder.shares();
        shares.apps.get(&AppId::from_name(name)).copied()
    };
    assert_eq!(share(&host, "a"), None);
    tester.call(&mut host, named("a")).expect("named");
    tester.call(&mut host, named("b")).expect("named");
    let a = share(&host, "a").expect("its rule");
    assert_eq!(
        (a.share.min, a.group),
        (Some(Rate::Bytes(1_000_000)), Some(0))
    );
    let b = share(&host, "b").expect("its group");
    assert_eq!((b.share, b.group), (Share::default(), Some(0)));
}

//! Grants and tickets, as text and by who gives them.

use super::*;
use crate::limits::TICKET_GROUPS;
use alloc::string::ToString;

fn named(role: Role, expires: Option<u64>) -> Grant {
    Grant {
        role,
        name: "cn17.rack-2_a".into(),
        expires,
        by: None,
    }
}

fn limited() -> Role {
    Role::Mount(Limits {
        root_squash: Some(crate::NOBODY),
        uids: Some("1000-60000,70001".parse().expect("right")),
        gids: Some("100".parse().expect("right")),
    })
}

fn grants() -> [Grant; 6] {
    let user = |groups: &[u32]| Role::User {
        uid: 1000,
        gid: 100,
        groups: groups.into(),
    };
    [
        Grant::site(),
        named(Role::Mount(Limits::default()), Some(1_800_000_000)),
        named(Role::Operator, None),
        named(user(&[]), Some(7)),
        named(user(&[100, 27, 4_294_967_294]), None),
        named(limited(), Some(1_800_000_000)),
    ]
}

#[test]
fn what_is_written_is_read_the_same() {
    for grant in grants() {
        let text = grant.to_string();
        assert_eq!(Grant::parse(text.as_bytes()), Ok(grant), "{text}");
    }
}

#[test]
fn every_other_text_is_refused() {
    for grant in grants() {
        let text = grant.to_string();
        for cut in 0..text.len() {
            // Without its last line it is another grant, which has another key.
            let is_shorter = text[cut..].starts_with("expires=");
            let parsed = Grant::parse(&text.as_bytes()[..cut]);
            assert_eq!(parsed.is_ok(), is_shorter, "{text:?} {cut}");
        }
        for more in [
            " ",
            "\n",
            "a",
            "name=x\n",
            "expires=9\n",
            "expires=9\nexpires=9\n",
        ] {
            let grant = Grant::parse(format!("{text}{more}").as_bytes());
            let may_expire = grant.is_ok() && more == "expires=9\n";
            assert!(grant.is_err() || may_expire, "{text:?} {more:?}");
        }
    }
    let user = |id: &str| format!("role=user\nuid={id}\ngid=1\ngroups=\nname=a\n");
    assert!(Grant::parse(user("1").as_bytes()).is_ok());
    for id in ["+1", "01", "-1", "4294967295", "4294967296", "", "1 "] {
        assert!(Grant::parse(user(id).as_bytes()).is_err(), "{id}");
    }
    for text in [
        "role=mount\n",
        "role=guest\nname=a\n",
        "role=operator\nname=\n",
        "role=operator\nname=a b\n",
        "role=site\nname=a\n",
        "role=user\nuid=1\ngid=1\ngroups=1,,2\nname=a\n",
    ] {
        assert!(Grant::parse(text.as_bytes()).is_err(), "{text:?}");
    }
    let long = format!("role=operator\nname={}\n", "a".repeat(NAME_MAX + 1));
    assert!(Grant::parse(long.as_bytes()).is_err());
}

fn caller(uid: u32) -> Caller {
    Caller {
        uid,
        gid: 100,
        groups: [27, 4_294_967_294].into(),
    }
}

#[test]
fn a_ticket_is_read_with_its_giver_and_nothing_else_is() {
    for giver in [
        Grant::site(),
        named(Role::Mount(Limits::default()), Some(9)),
    ] {
        let ticket = giver.ticket(caller(1000), "cn 17!", 8).expect("it may");
        let named = if giver.name.is_empty() {
            "cn17"
        } else {
            "cn17.rack-2_a"
        };
        assert_eq!((&*ticket.name, ticket.by.as_deref()), (named, Some(&giver)));
        let text = ticket.to_string();
        assert_eq!(text, format!("{}\n{giver}", ticket.own_text()));
        assert_eq!(Grant::parse(text.as_bytes()), Ok(ticket.clone()));
        for cut in 0..text.len() {
            if let Ok(other) = Grant::parse(&text.as_bytes()[..cut]) {
                assert_ne!(other, ticket, "{cut}");
            }
        }
        let twice = format!("{}\n{text}", ticket.own_text());
        for wrong in [
            twice.as_str(),
            &format!("\n{text}"),
            &format!("{text}\n"),
            &text.replace("\n\n", "\n\n\n"),
            &text.replace("uid=1000", "uid=0"),
            &text.replace("expires=8\n", ""),
            &"\n".repeat(GRANT_MAX),
        ] {
            assert!(Grant::parse(wrong.as_bytes()).is_err(), "{wrong:?}");
        }
    }
}

#[test]
fn only_who_acts_for_users_gives_tickets_and_only_to_ordinary_ones() {
    let mount = named(Role::Mount(Limits::default()), None);
    assert!(mount.ticket(caller(0), "cn1", 8).is_err());
    let ticket = mount.ticket(caller(7), "cn1", 8).expect("it may");
    for other in [named(Role::Operator, None), grants()[3].clone(), ticket] {
        assert!(other.ticket(caller(7), "cn1", 8).is_err(), "{other}");
    }
    let in_groups = |count: u32| Caller {
        groups: (0..count).map(|group| u32::MAX - 1 - group).collect(),
        ..caller(u32::MAX - 1)
    };
    let giver = Grant {
        name: "n".repeat(NAME_MAX).into(),
        ..named(Role::Mount(Limits::default()), Some(u64::MAX))
    };
    let longest = giver
        .ticket(in_groups(TICKET_GROUPS as u32), "", u64::MAX)
        .expect("it may");
    assert_eq!(Grant::parse(longest.to_string().as_bytes()), Ok(longest));
    // Who is in more gets none: without some of them it would be another user's.
    for count in [280, 1024, 2000] {
        let refused = giver.ticket(in_groups(count), "", 8).expect_err("too many");
        let says = format!("user 4294967294 is in {count} groups, and a ticket has room for 240");
        assert_eq!(refused.to_string(), says);
    }
}

#[test]
fn limits_of_a_giver_take_room_and_the_refusal_says_so() {
    let ranges = (0..16).map(|it| format!("{0}-{0}", 4_000_000_000_u32 + 2 * it));
    let ids = ranges.collect::<Vec<_>>().join(",") + ",4100000000-4200000000";
    let lists = Limits {
        gids: Some(ids[22..].parse().expect("16 ranges")),
        uids: Some(ids[..ids.len() - 22].parse().expect("16 ranges")),
        root_squash: None,
    };
    let giver = named(Role::Mount(lists), None);
    let in_groups = |uid, count: u32| Caller {
        uid,
        gid: 4_100_000_000,
        groups: (4_100_000_000..4_100_000_000 + count).collect(),
    };
    giver
        .ticket(in_groups(4_000_000_000, 150), "", 8)
        .expect("there is room");
    let refused = giver.ticket(in_groups(4_000_000_000, 240), "", 8);
    let error = refused.expect_err("no room");
    let why = GrantError::TooLong {
        uid: 4_000_000_000,
        groups: 240,
    };
    assert_eq!(error, why);
    assert!(
        error
            .to_string()
            .ends_with("beside the limits of the secret that gives it")
    );
    // Who lies outside the limits is told that, however many groups he has.
    let outside = giver.ticket(in_groups(7, 300), "", 8).expect_err("outside");
    assert!(matches!(outside, GrantError::Wrong(_)), "{outside}");
}

#[test]
fn a_mount_with_limits_gives_tickets_within_them_only() {
    let mount = named(limited(), None);
    let text = mount.to_string();
    let lines = "role=mount\nroot_squash=65534:65534\nuids=1000-60000,70001\ngids=100\nname=";
    assert!(text.starts_with(lines), "{text}");
    let in_groups = |uid, gid, groups: &[u32]| Caller {
        uid,
        gid,
        groups: groups.into(),
    };
    let inside = mount.ticket(in_groups(70_001, 100, &[100]), "", 8);
    let inside = inside.expect("it may");
    assert_eq!(
        Grant::parse(inside.to_string().as_bytes()),
        Ok(inside.clone())
    );
    for outside in [
        in_groups(0, 100, &[]),
        in_groups(999, 100, &[]),
        in_groups(1000, 0, &[]),
        in_groups(1000, 100, &[100, 27]),
    ] {
        assert!(mount.ticket(outside, "", 8).is_err());
    }
    // Nor does a text that says so otherwise.
    for (from, to) in [("uid=70001", "uid=999"), ("groups=100", "groups=27")] {
        let text = inside.to_string().replace(from, to);
        assert!(Grant::parse(text.as_bytes()).is_err(), "{text}");
    }
    let limits = [
        "root_squash=0:5",
        "uids=",
        "uids=9,7",
        "uids=1\nroot_squash=5:5",
    ];
    for wrong in limits {
        let text = format!("role=mount\n{wrong}\nname=a\n");
        assert!(Grant::parse(text.as_bytes()).is_err(), "{text}");
    }
}

#[test]
fn a_ticket_is_void_with_its_giver() {
    let ends = |giver, own| {
        let giver = named(Role::Mount(Limits::default()), giver);
        giver.ticket(caller(7), "", own).expect("it may").ends()
    };
    assert_eq!(ends(None, 8), Some(8));
    assert_eq!(ends(Some(9), 8), Some(8));
    assert_eq!(ends(Some(7), 8), Some(7));
}

#[test]
fn a_grant_is_void_from_its_second_on() {
    let grant = &grants()[3];
    assert!(!grant.is_void(6) && grant.is_void(7));
    assert!(!Grant::site().is_void(u64::MAX));
}

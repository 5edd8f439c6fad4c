//! What one forwarder writes, another finds.

use super::*;
use crate::storage::scratch::Scratch;
use std::fs::File;
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::time::Instant;

fn folder(scratch: &Scratch) -> OwnedFd {
    File::open(scratch.path()).expect("a folder").into()
}

fn told(index: u16) -> Advertised {
    let address = format!("unix:/run/{index}").parse();
    Advertised::new(index, 3, &[address.expect("an address")])
}

fn kept(scratch: &Scratch) -> Kept {
    let own = told(0);
    own.tell(folder(scratch).as_fd());
    let listed = forwarders(folder(scratch).as_fd(), 3).expect("read");
    let found = (Texts::default(), listed);
    Kept::start(folder(scratch), own, found, Arc::new(|| ())).expect("a thread")
}

fn next(kept: &Kept) -> News {
    let until = Instant::now() + Duration::from_secs(20);
    loop {
        match kept.news() {
            Some(news) => return news,
            None => assert!(Instant::now() < until, "no news"),
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// What a client is told must mean the same there: that it may not, or that others were set since,
/// is said by the forwarder itself.
#[test]
fn a_client_is_told_only_errors_that_mean_the_same_to_it() {
    let of = |errno| errno_of(&io::Error::from_raw_os_error(errno));
    for (errno, told) in [
        (libc::ENOSPC, Errno::ENOSPC),
        (libc::EDQUOT, Errno::EDQUOT),
        (libc::EROFS, Errno::EROFS),
        // An immutable file, or a policy of the file system.
        (libc::EPERM, Errno::EACCES),
        (libc::EACCES, Errno::EACCES),
        (libc::ESTALE, Errno::EIO),
        (libc::EBUSY, Errno::EIO),
        (libc::EINVAL, Errno::EIO),
        (libc::ENOTCONN, Errno::EIO),
    ] {
        assert_eq!(of(errno), told, "{errno}");
    }
}

#[test]
fn an_export_keeps_its_number() {
    let scratch = Scratch::new("export-id");
    let folder = folder(&scratch);
    let id = export_id(folder.as_fd()).expect("recorded");
    assert_eq!(export_id(folder.as_fd()).expect("read"), id);
    let other = Scratch::new("export-id-other");
    let other = File::open(other.path()).expect("a folder");
    assert_ne!(export_id(other.as_fd()).expect("recorded"), id);
    std::fs::write(scratch.path().join("export"), "nonsense").expect("written");
    let error = export_id(folder.as_fd()).expect_err("nonsense");
    assert!(error.to_string().contains("remove it"), "{error}");
}

#[test]
fn forwarders_are_found_where_they_advertise() {
    let scratch = Scratch::new("advertised");
    let folder = folder(&scratch);
    let parse = |text: &str| text.parse::<Address>().expect("an address");
    let listening = [
        parse("tcp:0.0.0.0:4600"),
        parse("tcp:10.0.0.7:4600"),
        parse("unix:/run/f"),
    ];
    let told = advertised(&listening);
    let host = rustix::system::uname()
        .nodename()
        .to_string_lossy()
        .into_owned();
    assert_eq!(told[0].to_string(), format!("tcp:{host}:4600"));
    assert_eq!(&told[1..], &listening[1..]);
    assert_eq!(
        advertised(&[parse("tcp:[::]:9")])[0].to_string(),
        format!("tcp:{host}:9")
    );
    Advertised::new(2, 3, &listening[1..]).tell(folder.as_fd());
    Advertised::new(0, 3, &listening[2..]).tell(folder.as_fd());
    Advertised::new(3, 4, &listening[2..]).tell(folder.as_fd());
    let text = "tcp:a b:1\nnonsense\nunix:/ok\n";
    std::fs::write(scratch.path().join("forwarder.1"), text).expect("written");
    let listed = forwarders(folder.as_fd(), 3).expect("read");
    let of = |index, addresses: &[&str]| Listed {
        index,
        addresses: addresses.iter().map(|it| Box::from(*it)).collect(),
    };
    let expected = [
        of(0, &["unix:/run/f"]),
        of(1, &["unix:/ok"]),
        of(2, &["tcp:10.0.0.7:4600", "unix:/run/f"]),
    ];
    assert_eq!(*listed, expected, "none beyond the seats, and no nonsense");
}

#[test]
fn what_one_writes_another_finds() {
    let scratch = Scratch::new("kept");
    let one = kept(&scratch);
    let other = kept(&scratch);
    let order = |number, what, text: Option<&str>| {
        let (policy, text) = (PolicyId(number), text.map(str::to_string));
        one.order(Order { policy, what, text });
        match next(&one) {
            News::Written { policy, result } => {
                assert_eq!(policy, PolicyId(number));
                result.expect("written");
            }
            _ => panic!("no answer to an order"),
        }
    };
    for (number, what) in [(1, What::Policy), (2, What::Shares)] {
        order(number, what, Some("a = 1\n"));
        let path = scratch.path().join(what.file());
        let mode = std::fs::metadata(path).expect("there").permissions().mode();
        assert_eq!(
            mode & 0o777 & !0o600,
            0,
            "{mode:o}: for the forwarders alone"
        );
        let News::Found { what: found, text } = next(&other) else {
            panic!("the other has found nothing");
        };
        let text = text.expect("a text");
        assert_eq!(found, what);
        assert!(
            text.starts_with('#') && text.ends_with("\na = 1\n"),
            "{text}"
        );
    }
    // Removing what is not there is no error.
    for number in [3, 4] {
        order(number, What::Policy, None);
    }
    let gone = next(&other);
    assert!(matches!(
        gone,
        News::Found {
            what: What::Policy,
            text: None
        }
    ));
    // Nothing that it wrote itself is news to it.
    std::thread::sleep(ROUND + ROUND / 2);
    assert!(one.news().is_none());
    let own = folder(&scratch);
    told(1).tell(own.as_fd());
    let News::Forwarders(listed) = next(&one) else {
        panic!("no list of forwarders");
    };
    assert_eq!(listed.len(), 2);
}

#[test]
fn another_process_of_the_same_index_hides_nobody_for_long_and_is_told() {
    let scratch = Scratch::new("stranger");
    let one = kept(&scratch);
    let own = folder(&scratch);
    let stranger = ["unix:/run/stranger".parse().expect("an address")];
    Advertised::new(0, 3, &stranger).tell(own.as_fd());
    let path = scratch.path().join("forwarder.0");
    let until = Instant::now() + Duration::from_secs(20);
    while !std::fs::read_to_string(&path).is_ok_and(|text| text.contains("unix:/run/0")) {
        assert!(Instant::now() < until, "it does not tell again");
        std::thread::sleep(Duration::from_millis(20));
    }
    let there = loop {
        match next(&one) {
            News::Doubled(there) => break there,
            News::Forwarders(_) => {}
            _ => panic!("nothing else was done"),
        }
    };
    assert_eq!(there.as_deref(), Some("unix:/run/stranger"));
}

#[test]
fn who_says_no_more_that_he_has_the_same_index_is_forgotten() {
    let scratch = Scratch::new("doubled");
    let (tell, news) = channel();
    let mut rounds = Rounds {
        folder: folder(&scratch),
        own: told(0),
        doubled: None,
        texts: Texts::default(),
        listed: Box::default(),
        changed: None,
        quiet: 0,
        fails: false,
        tell,
        notify: Arc::new(|| ()),
    };
    rounds.own.tell(rounds.folder.as_fd());
    let stranger = || {
        let stranger = ["unix:/run/stranger".parse().expect("an address")];
        Advertised::new(0, 3, &stranger).tell(folder(&scratch).as_fd());
    };
    let mut doubled = Vec::new();
    for round in 0..2 * DOUBLED_ROUNDS {
        // It corrects what this one wrote, as often as it sees it; then it is stopped.
        if round < DOUBLED_ROUNDS && round % 3 == 0 {
            stranger();
        }
        rounds.look().expect("the folder is there");
        let told = news.try_iter().filter_map(|news| match news {
            News::Doubled(there) => Some((round, there.is_some())),
            _ => None,
        });
        doubled.extend(told);
    }
    let [(0, true), (end, false)] = doubled[..] else {
        panic!("told once, and once that it is over: {doubled:?}");
    };
    assert!(end > DOUBLED_ROUNDS, "{end}");
}

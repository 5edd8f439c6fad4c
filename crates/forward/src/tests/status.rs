//! Status text and changes of policy.

use super::*;
use crate::back_end_files::Errno;

impl Host {
    /// What a trusted client reads.
    pub(in super::super) fn forwarder_status(&mut self) -> Vec<u8> {
        let mut tester = Tester::new(self, 0xfeed00 + self.conns);
        match tester.call(self, Op::Status) {
            Ok(Outcome::Text(text)) => text.into(),
            other => panic!("no status: {other:?}"),
        }
    }
}

#[test]
fn the_status_is_json_and_counts_what_was_done() {
    let mut world = World::new();
    let mut host = Host::serving(&mut world);
    let mut tester = Tester::new(&mut host, 0x77);
    let file = tester.create(&mut host, "file");
    tester
        .call_with(&mut host, write(file, 0, 4), b"data")
        .0
        .expect("written");
    tester
        .call_with(&mut host, read(file, 0, 9), &[])
        .0
        .expect("read");
    // What is not there is no error; what cannot be removed is one.
    let lookup = Op::Lookup {
        parent: tester.root(),
        name: b"absent"[..].into(),
    };
    let attribute = Op::Getxattr {
        handle: file,
        name: b"user.absent"[..].into(),
    };
    let unlink = Op::Unlink {
        parent: tester.root(),
        name: b"absent"[..].into(),
    };
    assert_eq!(errno(tester.call(&mut host, lookup)), Errno::ENOENT.0);
    assert_eq!(errno(tester.call(&mut host, attribute)), Errno::ENODATA.0);
    assert_eq!(errno(tester.call(&mut host, unlink)), Errno::ENOENT.0);
    let text = String::from_utf8(host.forwarder_status()).expect("text");
    let expected = [
        r#","options":{"batch_bytes_max":8388608,"batch_requests_max":256,"cost_estimate":true,"#,
        r#","cost":{"read_random_base_ns":8000000,"read_random_ns_per_mib":10000000,"#,
        r#""merge":false,"queued_max":"#,
        r#"{"forwarder":0,"forwarders":1,"policy":"fifo","epoch":0,"draining":false,"#,
        r#""seats":[{"seat":0,"state":"serving","generation":1,"clients":1}]"#,
        r#"{"client":"0000000000000077","name":"node:1","uid":0,"connected":true,"#,
        r#""connections":1,"unanswered":0,"opens":0"#,
        r#""requests":{"answered":6,"errors":1,"absent":2,"replays":0,"read":1,"write":1}"#,
        r#""bytes":{"read":4,"write":4},"calls":{"read":1,"write":1},"batches":2"#,
        r#""applications":[{"app":"0000000000000000","read_requests":1,"read_bytes":4,"#,
    ];
    for part in expected {
        assert!(text.contains(part), "{part} is not in {text}");
    }
    let mut depth = 0i32;
    for c in text.chars() {
        depth += match c {
            '{' | '[' => 1,
            '}' | ']' => -1,
            _ => 0,
        };
    }
    assert_eq!(depth, 0, "{text}");
}

#[test]
fn clients_ids_are_not_shown_to_peers_that_are_not_trusted() {
    let mut world = World::new();
    let mut host = Host::serving(&mut world);
    let mut tester = Tester::of(&mut host, 0x77, peer(1000));
    let Ok(Outcome::Text(text)) = tester.call(&mut host, Op::Status) else {
        panic!("no status");
    };
    assert!(!String::from_utf8_lossy(&text).contains("77\""));
}

#[test]
fn a_policy_is_changed_by_trusted_peers_and_only_if_it_makes_sense() {
    let mut world = World::new();
    let mut host = Host::serving(&mut world);
    let mut tester = Tester::new(&mut host, 1);
    let set = || Op::SetPolicy {
        text: Box::from(&b"policy = \"window\""[..]),
        keep: tidegate_wire::Keep::Run,
    };
    let request = tester.send(&mut host, set(), &[]);
    let (policy, text) = host.policies.pop().expect("the host reads the text");
    assert_eq!(text, b"policy = \"window\"");
    host.tell(Input::PolicyParsed {
        policy,
        options: Ok(Options::for_policy("window")),
    });
    assert!(tester.take(&mut host, &request).0.is_ok());
    let status = String::from_utf8(host.forwarder_status()).expect("text");
    assert!(status.contains("\"policy\":\"window\""));
    assert!(status.contains(r#","order":"rotated","rotation_seed":0,"window_ms":1000}"#));

    let refusals = [
        Ok(Options::for_policy("no such policy")),
        Err((Errno::EINVAL, Box::from("line 1: nonsense"))),
    ];
    for options in refusals {
        let request = tester.send(&mut host, set(), &[]);
        let (policy, _) = host.policies.pop().expect("asked");
        host.tell(Input::PolicyParsed { policy, options });
        assert_eq!(errno(tester.take(&mut host, &request).0), Errno::EINVAL.0);
    }
    let mut stranger = Tester::of(&mut host, 2, peer(1000));
    assert_eq!(errno(stranger.call(&mut host, set())), Errno::EPERM.0);
}

#[test]
fn trouble_with_the_back_end_is_told_until_it_is_over() {
    let mut world = World::new();
    let mut host = Host::serving(&mut world);
    let mut tester = Tester::new(&mut host, 1);
    let file = tester.create(&mut host, "file");
    host.hold_jobs = true;
    let mut fails = |host: &mut Host, result: Result<Outcome, crate::Access>| {
        let request = tester.send(host, Op::Getattr { handle: file }, &[]);
        let (job, _) = host.jobs.pop_front().expect("the file is looked at");
        let result = JobResult::Op(result);
        host.tell(Input::Finished { job, result });
        tester.take(host, &request).0.is_err()
    };
    let mut looker = Tester::new(&mut host, 2);
    let mut trouble = |host: &mut Host| {
        let Ok(Outcome::Text(status)) = looker.call(host, Op::Status) else {
            panic!("no status");
        };
        let status = String::from_utf8(status.into()).expect("text");
        let found = status.split_once(r#""trouble":""#);
        found.map(|(_, rest)| String::from(&rest[..20]))
    };
    assert!(fails(&mut host, Err(Errno::EIO.into())));
    assert_eq!(trouble(&mut host), None, "of one request, for all we know");
    assert!(fails(&mut host, Err(Errno::ENOTCONN.into())));
    assert_eq!(trouble(&mut host).as_deref(), Some("a part of it is out "));
    assert!(fails(&mut host, Err(Errno::EACCES.into())));
    assert!(trouble(&mut host).is_some(), "nothing has gone well since");
    host.tell(Input::BackEnd(Some("the lease cannot be renewed".into())));
    assert_eq!(trouble(&mut host).as_deref(), Some("the lease cannot be "));
    host.tell(Input::BackEnd(None));
    assert!(trouble(&mut host).is_some());
    assert!(!fails(&mut host, Ok(Outcome::Attr(Default::default()))));
    assert_eq!(trouble(&mut host), None);
    assert!(fails(&mut host, Err(Errno::EROFS.into())));
    assert!(!fails(&mut host, Ok(Outcome::Attr(Default::default()))));
    let said = trouble(&mut host);
    assert_eq!(
        said.as_deref(),
        Some("it is read-only (ERO"),
        "a look changes nothing"
    );
    host.hold_jobs = false;
    tester.create(&mut host, "other");
    assert_eq!(trouble(&mut host), None);
}

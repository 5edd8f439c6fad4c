//! Names of applications reach each forwarder before the requests that carry their ids.

use super::*;

fn application(name: &str) -> Application {
    Application {
        name: name.to_string(),
        job: "17".to_string(),
        ..Application::default()
    }
}

impl Rig {
    fn tell(&mut self, app: u64, application: Application) {
        self.input(Input::Application { app, application });
    }

    /// The name that the next request tells.
    fn told(&mut self) -> (Sent, Vec<u8>) {
        let sent = self.next();
        match &sent.request.op {
            Op::Application { app: 7, name, .. } => {
                let name = name.to_vec();
                (sent, name)
            }
            other => panic!("no name: {other:?}"),
        }
    }
}

#[test]
fn a_name_is_told_once_to_each_forwarder_and_connection() {
    let mut rig = Rig::open(2);
    rig.tell(7, application("climate"));
    assert!(rig.sent.is_empty(), "nobody has asked for anything");
    let handle = rig.file_of_seat(0);
    for _ in 0..2 {
        rig.call(read(handle, 0, 10));
    }
    let (told, name) = rig.told();
    assert_eq!((told.forwarder, name), (0, b"climate".to_vec()));
    assert!(told.request.id > 0 && told.request.hints.is_none());
    rig.ok(&told, Outcome::Done);
    for _ in 0..2 {
        assert!(matches!(rig.next().request.op, Op::Read { .. }));
    }
    rig.call(read(handle, 4096, 10));
    assert_eq!(rig.told().0.forwarder, 1);
    assert!(matches!(rig.next().request.op, Op::Read { .. }));
}

#[test]
fn a_new_connection_hears_the_name_again_before_the_request() {
    let mut rig = Rig::open(1);
    rig.tell(7, application("climate"));
    rig.call(read(file(7), 0, 10));
    let (told, _) = rig.told();
    rig.ok(&told, Outcome::Done);
    rig.lose(0);
    while rig.connects.is_empty() {
        rig.wake();
    }
    rig.greet(0, GRANT, &[]);
    rig.told();
    let again = rig.next().request;
    assert!(again.replay && matches!(again.op, Op::Read { .. }));
}

#[test]
fn a_changed_job_is_told_again_and_the_same_is_not() {
    let mut rig = Rig::open(1);
    rig.tell(7, application("climate"));
    rig.call(read(file(7), 0, 10));
    let (told, _) = rig.told();
    rig.ok(&told, Outcome::Done);
    rig.next();
    rig.tell(7, application("climate"));
    rig.call(read(file(7), 0, 10));
    assert!(matches!(rig.next().request.op, Op::Read { .. }));
    let job = "18".to_string();
    rig.tell(
        7,
        Application {
            job,
            ..application("climate")
        },
    );
    rig.call(read(file(7), 0, 10));
    rig.told();
}

#[test]
fn with_one_credit_the_name_goes_first_and_the_request_follows() {
    let mut rig = Rig::new(1);
    let credits = 1;
    rig.greet(0, Grant { credits, ..GRANT }, &[]);
    rig.tell(7, application("climate"));
    let id = rig.call(read(file(7), 0, 10));
    let (told, _) = rig.told();
    assert!(rig.sent.is_empty(), "there is no second credit");
    // What a forwarder says to it changes nothing for the request.
    rig.fail(&told, Status::Errno(28));
    let sent = rig.next();
    rig.data(&sent, bytes(10));
    assert!(rig.result(id).is_ok());
}

#[test]
fn a_name_beyond_the_protocol_s_bound_is_not_told() {
    let mut rig = Rig::open(1);
    rig.tell(7, application(&"n".repeat(256)));
    rig.call(read(file(7), 0, 10));
    assert!(matches!(rig.next().request.op, Op::Read { .. }));
    let job = "é".repeat(200);
    rig.tell(
        7,
        Application {
            job,
            ..application("n")
        },
    );
    rig.call(read(file(7), 0, 10));
    let (told, _) = rig.told();
    let Op::Application { job, .. } = told.request.op else {
        unreachable!("looked at above");
    };
    assert_eq!(job.len(), 254);
}

#[test]
fn a_name_of_two_users_is_told_for_each() {
    let mut rig = Rig::open(1);
    let caller = |uid| {
        Some(Caller {
            uid,
            gid: 5,
            groups: Box::default(),
        })
    };
    for uid in [1, 2] {
        let caller = caller(uid);
        rig.tell(
            7,
            Application {
                caller,
                ..application("climate")
            },
        );
    }
    for uid in [1, 2] {
        rig.caller = caller(uid);
        rig.call(read(file(7), 0, 10));
        let (told, _) = rig.told();
        assert_eq!(told.request.caller, caller(uid));
        rig.ok(&told, Outcome::Done);
        assert_eq!(rig.next().request.caller, caller(uid));
        rig.call(read(file(7), 0, 10));
        assert!(matches!(rig.next().request.op, Op::Read { .. }));
    }
}

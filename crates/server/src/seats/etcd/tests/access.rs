//! Which server is asked, and how both ends prove who they are.

use super::*;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;

#[test]
fn endpoints_are_tried_in_turn_and_errors_say_where_and_what() {
    let Some(server) = Server::start() else {
        return;
    };
    let scratch = Scratch::new("etcd-endpoints");
    let silent = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let silent = format!("http://{}", silent.local_addr().expect("bound"));
    let mut options = server.options();
    options.endpoints.insert(0, silent.clone());
    options.endpoints.insert(0, "http://127.0.0.1:1".to_owned());
    let mut a = forwarder(&scratch, &options, 0);
    taken(&mut a, 0);
    options.endpoints.truncate(2);
    let began = Instant::now();
    let error = connect_for(TTL, &scratch, &options, 1);
    let error = error.err().expect("nobody is there");
    assert!(began.elapsed() < TTL / 2, "it took {:?}", began.elapsed());
    let error = error.to_string();
    assert!(
        error.contains("http://127.0.0.1:1: ") && error.contains(&silent),
        "{error}"
    );
    assert!(
        error.contains("see that it runs, and [ownership.etcd]"),
        "{error}"
    );
    // Another keeper of the same export.
    let files = PosixFiles::open(scratch.path(), &ExportOptions::new(LAYOUT)).expect("export");
    let seats = Seats::open(&files, LAYOUT, 1).expect("seats");
    let lease = LeaseOptions {
        ttl_ns: 1,
        outlives_node: true,
        one_node: false,
        fence: Fence::default(),
    };
    let error = LeasedSeats::by_files(seats, lease)
        .err()
        .expect("etcd keeps them");
    let error = error.to_string();
    assert!(
        error.contains("keep their seats by etcd, cluster "),
        "{error}"
    );
    assert!(!error.contains("cluster 0000000000000000"), "{error}");
    assert!(
        error.contains("/test/00000000000000000000000000000007; this one"),
        "{error}"
    );
    options = server.options();
    options.prefix = "/other".to_owned();
    assert!(matches!(
        connect(&scratch, &options, 1),
        Err(SeatsError::Keeper { .. })
    ));
}

fn private(scratch: &Scratch, name: &str, text: &str) -> std::path::PathBuf {
    let path = scratch.path().join(name);
    std::fs::write(&path, text).expect("room");
    let mode = std::fs::Permissions::from_mode(0o600);
    std::fs::set_permissions(&path, mode).expect("it is ours");
    path
}

#[test]
fn a_user_proves_himself_by_his_password_also_after_etcd_has_forgotten_it() {
    let Some(mut server) = Server::start() else {
        return;
    };
    let (scratch, open) = (Scratch::new("etcd-auth"), server.options());
    for (method, body) in [
        (
            "auth/user/add",
            json!({ "name": "root", "password": "right" }),
        ),
        ("auth/role/add", json!({ "name": "root" })),
        ("auth/user/grant", json!({ "user": "root", "role": "root" })),
        ("auth/enable", json!({})),
    ] {
        raw(&open, method, body).expect(method);
    }
    let refused = |options: &EtcdOptions| {
        let error = connect(&scratch, options, 0).err().expect("it is closed");
        error.to_string()
    };
    let error = refused(&open);
    assert!(
        error.contains("user name is empty; see user and password_file"),
        "{error}"
    );
    let with = |path| EtcdOptions {
        user: Some("root".to_owned()),
        password_file: Some(path),
        ..server.options()
    };
    let wrong = with(private(&scratch, "wrong", "left\n"));
    let error = refused(&wrong);
    assert!(
        error.contains("authentication failed") && error.contains("password_file"),
        "{error}"
    );
    let path = private(&scratch, "right", "right\n");
    let right = with(path.clone());
    let mut a = forwarder(&scratch, &right, 0);
    taken(&mut a, 0);
    server.kill();
    server.child = run(&server.data, server.ports, &[]);
    let began = Instant::now();
    while a.try_take(1).is_err() {
        let renewal = a.renew();
        renewal
            .lost
            .iter()
            .for_each(|(seat, _)| drop(a.release(*seat)));
        assert!(began.elapsed() < STARTS_MAX, "{:?}", renewal.trouble);
    }
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).expect("ours");
    let error = refused(&right);
    assert!(
        error.contains("password_file in [ownership.etcd]: "),
        "{error}"
    );
    assert!(
        error.contains("can be read by others; `chmod 600` it"),
        "{error}"
    );
}

/// Makes certificates of an authority, a server and a client; false, with a printed line, where
/// openssl is not installed.
fn certificates(scratch: &Scratch) -> bool {
    let script = "cd $0 && openssl req -x509 -newkey rsa:2048 -nodes -keyout ca.key -out ca.pem \
        -subj /CN=ca -days 2 && for one in server client; do openssl req -newkey rsa:2048 -nodes \
        -keyout $one.key -out $one.csr -subj /CN=$one && printf \
        'subjectAltName=IP:127.0.0.1\\nextendedKeyUsage=serverAuth,clientAuth\\n' > ext && \
        openssl x509 -req -in $one.csr -CA ca.pem -CAkey ca.key -CAcreateserial -extfile ext \
        -days 2 -out $one.pem && chmod 600 $one.key || exit 1; done";
    let made = Command::new("sh")
        .arg("-c")
        .arg(script)
        .arg(scratch.path())
        .output();
    if !made.is_ok_and(|made| made.status.success()) {
        assert!(
            std::env::var("CI").is_err(),
            "openssl is missing: tools/need test installs it"
        );
        println!("skipped: openssl makes no certificates here");
        return false;
    }
    true
}

#[test]
fn servers_and_forwarders_prove_themselves_by_certificates() {
    let scratch = Scratch::new("etcd-tls");
    let at = |name: &str| scratch.path().join(name).display().to_string();
    if !certificates(&scratch) {
        return;
    }
    let flags = [
        ("cert-file", "server.pem"),
        ("key-file", "server.key"),
        ("trusted-ca-file", "ca.pem"),
    ];
    let mut flags: Vec<_> = flags
        .map(|(key, file)| format!("--{key}={}", at(file)))
        .into();
    flags.push("--client-cert-auth=true".to_owned());
    let Some(server) = Server::start_with(&flags) else {
        return;
    };
    let export = Scratch::new("etcd-tls-export");
    let bare = EtcdOptions {
        endpoints: vec![format!("https://127.0.0.1:{}", server.ports[0])],
        ca: Some(at("ca.pem").into()),
        ..server.options()
    };
    let full = EtcdOptions {
        cert: Some(at("client.pem").into()),
        key: Some(at("client.key").into()),
        ..bare.clone()
    };
    let began = Instant::now();
    let mut a = loop {
        match connect(&export, &full, 0) {
            Ok(a) => break a,
            Err(error) => assert!(began.elapsed() < STARTS_MAX, "{error}"),
        }
    };
    taken(&mut a, 0);
    assert!(a.renew().until.is_some());
    assert!(connect(&export, &bare, 1).is_err(), "it has no certificate");
    let stranger = EtcdOptions {
        ca: Some(at("client.pem").into()),
        ..full.clone()
    };
    assert!(
        connect(&export, &stranger, 1).is_err(),
        "nobody vouches for the server"
    );
    let broken = EtcdOptions {
        ca: Some(at("ca.key").into()),
        ..full
    };
    let error = connect(&export, &broken, 1)
        .err()
        .expect("it is no certificate");
    assert!(
        error.to_string().contains("holds no certificate (PEM)"),
        "{error}"
    );
}

#[test]
fn another_cluster_at_one_of_the_endpoints_gives_no_seat_away() {
    let (Some(mut server), Some(other)) = (Server::start(), Server::start()) else {
        return;
    };
    let scratch = Scratch::new("etcd-two");
    let mut etcd = server.options();
    let mut a = forwarder(&scratch, &etcd, 0);
    etcd.endpoints.extend(other.options().endpoints);
    let mut b = forwarder(&scratch, &etcd, 1);
    taken(&mut a, 0);
    server.kill();
    let Err(error) = b.try_take(0) else {
        panic!("the other cluster knows nothing of the holder");
    };
    let error = error.to_string();
    assert!(error.contains("another cluster"), "{error}");
    server.again();
    assert!(a.renew().until.is_some());
}

/// Answers requests with these, one after another.
fn answers(all: Vec<(u16, &'static str)>) -> EtcdOptions {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("it is bound");
    std::thread::spawn(move || {
        for (status, body) in all {
            let (mut stream, _) = listener.accept().expect("asked");
            let mut asked = Vec::new();
            let mut bytes = [0; 4096];
            // All bodies asked with are objects.
            while !asked.ends_with(b"}") {
                let len = stream.read(&mut bytes).expect("asked");
                asked.extend(&bytes[..len]);
            }
            let head = format!("HTTP/1.1 {status} -\r\nContent-Length: {}\r\n", body.len());
            let whole = format!("{head}Connection: close\r\n\r\n{body}");
            stream.write_all(whole.as_bytes()).expect("asked");
        }
    });
    EtcdOptions {
        endpoints: vec![format!("http://{address}")],
        ..EtcdOptions::default()
    }
}

#[test]
fn a_login_from_before_users_changed_is_renewed() {
    let token = (200, r#"{"token":"t"}"#);
    let old = r#"{"error":"etcdserver: revision of auth store is old","code":3}"#;
    let all = vec![token, (400, old), token, (200, r#"{"done":"1"}"#)];
    let scratch = Scratch::new("etcd-old-login");
    let path = private(&scratch, "password", "right");
    let options = EtcdOptions {
        user: Some("io".to_owned()),
        password_file: Some(path),
        ..answers(all)
    };
    let answer = raw(&options, "kv/range", json!({})).expect("logged in again");
    assert_eq!(answer["done"], "1");
}

#[test]
fn a_member_that_cannot_go_on_is_left_for_another() {
    let stopped = r#"{"error":"raft: stopped","code":2}"#;
    let mut options = answers(vec![(500, stopped)]);
    let other = answers(vec![(200, r#"{"done":"1"}"#)]);
    options.endpoints.extend(other.endpoints);
    let answer = raw(&options, "kv/range", json!({})).expect("the other one goes on");
    assert_eq!(answer["done"], "1");
}

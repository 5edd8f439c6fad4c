//! A client with a secret before a forwarder has proved itself: it waits for nobody without end.

use crate::calls::{create, pattern};
use crate::fake::{Fake, plain};
use crate::faults::{SECRET, write_secret};
use std::net::TcpListener;
use std::process::Command;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};
use tidegate_client::{Client, Options};

#[test]
fn a_greeting_without_an_answer_is_given_up() {
    let fake = Fake::start("no-answer");
    let secret = fake.folder().join("secret");
    write_secret(&secret, SECRET, 0o600);
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let address = listener.local_addr().expect("it is bound");
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        // They stay open, and nobody answers.
        for stream in listener.incoming() {
            let _ = sender.send(stream.expect("it comes"));
        }
    });
    let mut options = Options::new([format!("tcp:{address}")]);
    options.secret_file = Some(secret);
    options.connect_timeout = Duration::from_secs(600);
    let connecting = std::thread::spawn(move || Client::connect(options).is_ok());
    let _first = receiver.recv().expect("it comes");
    let begun = Instant::now();
    let _second = receiver.recv().expect("it comes again");
    assert!(begun.elapsed() > Duration::from_secs(5), "after a while");
    assert!(!connecting.is_finished(), "it goes on trying");
}

#[test]
fn a_secret_that_cannot_be_read_to_its_end_holds_no_session_up() {
    let fake = Fake::start("slow-secret");
    let secret = fake.folder().join("secret");
    write_secret(&secret, SECRET, 0o600);
    let address = fake.start_tcp(&secret);
    let client = fake.client_with(|options| {
        options.forwarders = vec![address];
        options.secret_file = Some(secret.clone());
    });
    let file = create(&client, b"file");
    let sent = pattern(100_000, 1);
    assert_eq!(client.write(&plain(), file, 0, sent), Ok(100_000));
    // Whoever opens it waits for somebody who writes, and nobody does.
    std::fs::remove_file(&secret).expect("it is there");
    let mut mkfifo = Command::new("mkfifo");
    let made = mkfifo.args(["-m", "600"]).arg(&secret).status();
    assert!(made.expect("it is installed").success());
    fake.with(|state| state.cuts = 1);
    let read = client.read(&plain(), file, 0, 100_000);
    assert_eq!(read.expect("with the secret that was read").len, 100_000);
}

//! Runs N reads or writes of a client's core whose requests are answered at once, so that callgrind
//! can count the client's instructions alone: the difference of two runs, divided by the difference
//! of their N.
//!
//! `valgrind --tool=callgrind target/release/examples/count_client read 4096 20000`

#[path = "forwarded/world.rs"]
mod world;

fn main() {
    let mut args = std::env::args().skip(1);
    let (Some(what), Some(bytes), Some(count)) = (args.next(), args.next(), args.next()) else {
        eprintln!("usage: count_client read|write BYTES N");
        std::process::exit(2);
    };
    let bytes: u64 = bytes.parse().expect("BYTES must be a whole number");
    let count: u64 = count.parse().expect("N must be a whole number");
    let mut world = world::World::client_alone(bytes);
    world.run(count, 1, |_| what == "write");
    println!("{count} calls in {} us", world.now / 1000);
}

//! Runs N requests of 64 KiB from a client's core through a forwarder and back, without encoding,
//! so that callgrind can count the instructions of a request in both: the difference of two runs,
//! divided by the difference of their N. Reads and writes take turns.
//!
//! `valgrind --tool=callgrind target/release/examples/count_forwarded window 32 20000`

#[path = "forwarded/world.rs"]
mod world;

fn main() {
    let mut args = std::env::args().skip(1);
    let (Some(policy), Some(in_flight), Some(count)) = (args.next(), args.next(), args.next())
    else {
        eprintln!("usage: count_forwarded POLICY CALLS_IN_FLIGHT N");
        std::process::exit(2);
    };
    let in_flight: u64 = in_flight.parse().expect("CALLS_IN_FLIGHT must be a number");
    let count: u64 = count.parse().expect("N must be a whole number");
    let mut world = world::World::new(&policy);
    world.run(count, in_flight, |number| number % 2 == 1);
    println!("{count} requests in {} us", world.now / 1000);
}

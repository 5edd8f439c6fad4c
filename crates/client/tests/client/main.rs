//! The client over real sockets, against a forwarder inside the test.
//!
//! Nothing here depends on how fast things happen: a test waits for what it needs to have happened,
//! and where time itself is the subject, only lower bounds are checked.

mod c;
mod calls;
mod disturbed;
mod fake;
mod faults;
mod paths;
mod shared;
mod unproved;

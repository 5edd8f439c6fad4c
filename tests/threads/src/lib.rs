//! What threads of the product say to each other without a lock around all of it, run under every
//! order of their steps by loom: the mailbox of two server threads, the ring of the recorder, and
//! how calling threads of a client share one poller.
//!
//! The product's own files are compiled here (`build.rs` copies them), with loom's locks and
//! atomics. A wake that is lost shows as a deadlock, which loom reports with the steps that lead to
//! it: `LOOM_LOG=trace LOOM_LOCATION=1 cargo test -p tidegate-threads NAME`.
#![cfg(test)]

mod client;
mod mailbox;
mod recorder;
mod stand_in;

use stand_in::{futex, sync, time};

/// Tries all orders of a model's steps in which no thread is interrupted more often than this where
/// it could go on. What goes wrong does so within two or three.
const PREEMPTIONS: usize = 2;

/// `TIDEGATE_PREEMPTIONS` asks for more than [`PREEMPTIONS`]: 3 take minutes.
fn under_every_order(model: impl Fn() + Send + Sync + 'static) {
    let asked = std::env::var("TIDEGATE_PREEMPTIONS").ok();
    let asked = asked.map(|text| text.parse().expect("a number"));
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(asked.unwrap_or(0).max(PREEMPTIONS));
    builder.check(model);
}

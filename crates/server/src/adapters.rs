//! Adapters between the forwarder's loop and the rest of the world, beside connections and storage.
//! Each adapter owns its state. The loop passes to the forwarder what the adapters report.

pub mod gossip;
pub mod jitter;
pub mod kept;
pub mod policy_changes;
pub mod recording;
pub mod seat_keeper;
pub mod stuck;
pub mod trim;

//! What goes over a connection: streams and frames; and mail between threads.

pub mod input;
pub mod mail;
pub mod output;
pub mod transport;

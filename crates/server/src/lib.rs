//! The forwarder daemon: sockets, storage and configuration around `tidegate_forward`.

pub mod seats;
pub mod storage;

//! The client without I/O.

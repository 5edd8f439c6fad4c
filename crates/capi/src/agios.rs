//! The interface of AGIOS over the same scheduler, for programs that were written for it.

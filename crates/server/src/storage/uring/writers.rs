//! The credentials of writes through the ring: the kernel keeps those of each writer, and a write
//! names them by a number.

use crate::storage::PosixFiles;
use io_uring::IoUring;
use std::io;
use tidegate_wire::Caller;

/// The most writers whose credentials the kernel keeps.
const WRITERS_MAX: usize = 64;

/// The writers whose credentials the kernel keeps, the one who wrote last at the end.
#[derive(Default)]
pub(super) struct Writers {
    known: Vec<(Option<Caller>, u16)>,
}

impl Writers {
    /// The number of the writer's credentials; None: those of the process. Any thread of the kernel
    /// that carries out such a write has the rights that a storage thread has when it writes for
    /// this writer. `submit` hands queued calls to the kernel. Fails if the kernel takes no more.
    pub(super) fn number(
        &mut self,
        uring: &mut IoUring,
        files: &PosixFiles,
        writer: Option<&Caller>,
        submit: impl FnOnce(&mut IoUring) -> io::Result<()>,
    ) -> io::Result<Option<u16>> {
        if !files.acts_for_callers() {
            return Ok(None);
        }
        let known = self
            .known
            .iter()
            .rposition(|(one, _)| one.as_ref() == writer);
        if let Some(at) = known {
            if at + 1 < self.known.len() {
                let found = self.known.remove(at);
                self.known.push(found);
            }
            return Ok(self.known.last().map(|(_, number)| *number));
        }
        if self.known.len() >= WRITERS_MAX {
            // Queued calls may still name the number.
            submit(uring)?;
            let (_, number) = self.known.remove(0);
            uring.submitter().unregister_personality(number)?;
        }
        let register = || uring.submitter().register_personality();
        let number = files.as_writer(writer, register)??;
        self.known.push((writer.cloned(), number));
        Ok(Some(number))
    }
}

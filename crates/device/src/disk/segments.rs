//! What a disk's buffer still has of streams that it read before the present one.

use alloc::collections::VecDeque;

/// The parts of the buffer, the one used last in front.
pub(super) struct Segments {
    kept: VecDeque<(u64, u64)>,
    max: usize,
}

impl Segments {
    /// Keeps at most `max` parts.
    pub(super) fn new(max: u64) -> Segments {
        Segments {
            kept: VecDeque::new(),
            max: max as usize,
        }
    }

    /// Keeps what was read of a stream.
    pub(super) fn keep(&mut self, start: u64, end: u64) {
        self.kept.retain(|(its, to)| *to <= start || end <= *its);
        self.kept.push_front((start, end));
        self.kept.truncate(self.max);
    }

    /// Whether all of these bytes are here. Their part is then the one used last.
    pub(super) fn find(&mut self, start: u64, end: u64) -> bool {
        let found = self
            .kept
            .iter()
            .position(|(its, to)| *its <= start && end <= *to);
        let Some(part) = found.and_then(|at| self.kept.remove(at)) else {
            return false;
        };
        self.kept.push_front(part);
        true
    }

    /// Forgets parts of which bytes are written.
    pub(super) fn overwrite(&mut self, start: u64, end: u64) {
        self.kept.retain(|(its, to)| *to <= start || end <= *its);
    }
}

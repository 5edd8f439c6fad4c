//! Chooses the route of a data job to its file: direct I/O where it is possible, else the page
//! cache.

use super::Fence;
use super::cache_gate::{Gate, Kind, Pass};
use super::posix::{Direct, Ends, PosixFiles};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use tidegate_forward::{Access, IoPart};
use tidegate_sched::Direction;
use tidegate_wire::Handle;

/// The descriptors of one job. Only the thread that made it may write by it.
pub(super) struct Route {
    direction: Direction,
    /// Opens the buffered descriptor when it is first needed.
    files: Option<(PosixFiles, Handle)>,
    buffered: Option<Arc<OwnedFd>>,
    direct: Option<Arc<Direct>>,
    gate: Option<Arc<Gate>>,
    /// Blocks the parts of seats that this forwarder has lost.
    pub(super) fence: Fence,
    /// Decides whether reads have reached the end of the file.
    pub(super) ends: Ends,
}

/// The route of the next system call.
pub(super) enum Way {
    /// Direct I/O, past the page cache.
    Direct(Arc<Direct>),
    /// Through the page cache.
    Buffered(Arc<OwnedFd>),
}

impl Way {
    /// The descriptor to use.
    pub(super) fn fd(&self) -> &OwnedFd {
        match self {
            Way::Direct(direct) => &direct.fd,
            Way::Buffered(fd) => fd,
        }
    }

    /// Whether a call that moved this many bytes has reached the end of the file.
    pub(super) fn is_end(&self, direction: Direction, moved: usize) -> bool {
        match self {
            Way::Direct(direct) => direction == Direction::Read && direct.is_end(moved),
            Way::Buffered(_) => false,
        }
    }
}

impl Route {
    /// The route to a file. Fails if the file cannot be opened.
    pub(super) fn find(
        files: &PosixFiles,
        handle: Handle,
        direction: Direction,
    ) -> Result<Route, Access> {
        let (direct, gate) = files.direct_and_gate(handle, direction)?;
        let buffered = match &direct {
            Some(_) => None,
            None => Some(files.data_fd(handle, direction)?),
        };
        Ok(Route {
            direction,
            files: Some((files.clone(), handle)),
            buffered,
            direct,
            gate,
            fence: files.permit.fence().clone(),
            ends: match direction {
                Direction::Read => Ends::of(files, handle),
                Direction::Write => Ends::default(),
            },
        })
    }

    /// The route by one given descriptor.
    #[cfg(test)]
    pub(super) fn through(fd: OwnedFd, direction: Direction) -> Route {
        Route::through_until(fd, direction, Ends::default())
    }

    /// The route by one given descriptor, for a file whose cached end is not believed.
    #[cfg(test)]
    pub(super) fn through_until(fd: OwnedFd, direction: Direction, ends: Ends) -> Route {
        Route {
            direction,
            files: None,
            buffered: Some(Arc::new(fd)),
            direct: None,
            gate: None,
            fence: Fence::default(),
            ends,
        }
    }

    /// The same route, with another fence.
    #[cfg(test)]
    pub(super) fn fenced(self, fence: Fence) -> Route {
        Route { fence, ..self }
    }

    /// The same route, for a file on which other calls run at the same time.
    #[cfg(test)]
    pub(super) fn gated(self, gate: Arc<Gate>) -> Route {
        let gate = Some(gate);
        Route { gate, ..self }
    }

    /// Whether the job reads or writes.
    pub(super) fn direction(&self) -> Direction {
        self.direction
    }

    /// How the bytes from `within` the first slice on move next, and how many of the slices go
    /// together.
    pub(super) fn next(
        &mut self,
        mut offset: u64,
        slices: &[&mut [u8]],
        within: usize,
    ) -> Result<(Way, usize), Access> {
        let Some(direct) = &self.direct else {
            return Ok((Way::Buffered(self.buffered()?), slices.len()));
        };
        let mut fits = slices.iter().enumerate().map(|(index, slice)| {
            let bytes = &slice[if index == 0 { within } else { 0 }..];
            let fits = direct.takes(offset, bytes);
            offset += bytes.len() as u64;
            fits
        });
        let first = fits.next().unwrap_or_default();
        let count = 1 + fits.take_while(|fits| *fits == first).count();
        let way = match first {
            true => Way::Direct(direct.clone()),
            false => Way::Buffered(self.buffered()?),
        };
        Ok((way, count))
    }

    /// How many of the parts may be written together now: those before the first part whose seat is
    /// lost.
    pub(super) fn allowed(&self, parts: &[IoPart]) -> usize {
        let open = |part: &&IoPart| !self.fence.is_lost(part.seat);
        match self.fence.is_closed() {
            true => 0,
            false => parts.iter().take_while(open).count(),
        }
    }

    /// Notes that the file refused a direct call.
    pub(super) fn refused(&mut self) {
        self.direct = None;
        if let Some((files, handle)) = &self.files {
            files.direct_refused(*handle, self.direction);
        }
    }

    /// The pass that the thread must hold during a system call.
    pub(super) fn pass(&self, way: &Way) -> Option<Pass> {
        let kind = match (way, self.direction) {
            (Way::Direct(_), Direction::Read) => return None,
            (Way::Direct(_), Direction::Write) => Kind::DirectWrite,
            (Way::Buffered(_), _) => Kind::Buffered,
        };
        self.gate.as_ref().map(|gate| gate.enter(kind))
    }

    fn buffered(&mut self) -> Result<Arc<OwnedFd>, Access> {
        if let Some(fd) = &self.buffered {
            return Ok(fd.clone());
        }
        let (files, handle) = self.files.as_ref().expect("else it was given");
        let fd = files.data_fd(*handle, self.direction)?;
        Ok(self.buffered.insert(fd).clone())
    }
}

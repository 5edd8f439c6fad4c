//! The end of a file: where a node's cache may be old, a read that finds no more bytes is believed
//! only if the back end says the same.

use super::posix::PosixFiles;
use std::time::Duration;
use tidegate_forward::{Access, Errno};
use tidegate_wire::Handle;

/// How often a read is tried again that finds nothing where the back end says there is something.
const TRIES_MAX: u32 = 7;

/// Tells the size of the file, as the back end has it.
type Size = Box<dyn FnMut() -> Result<u64, Access> + Send>;

/// Decides for one job whether a read has met the end of its file.
#[derive(Default)]
pub(crate) struct Ends {
    /// None: what a read found is believed.
    size: Option<Size>,
    tries: u32,
    /// What a read found may lie beyond the end.
    bounds: bool,
}

impl Ends {
    /// As the export's trust in its node's memory demands.
    pub(crate) fn of(files: &PosixFiles, handle: Handle) -> Ends {
        match files.trusts_attributes() {
            true => Ends::default(),
            false => {
                let files = files.clone();
                let bounds = !files.trusts_ends();
                Ends {
                    bounds,
                    ..Ends::asking(move || files.size_now(handle))
                }
            }
        }
    }

    /// The size is asked for.
    pub(crate) fn asking(size: impl FnMut() -> Result<u64, Access> + Send + 'static) -> Ends {
        Ends {
            size: Some(Box::new(size)),
            tries: 0,
            bounds: false,
        }
    }

    /// How many of the bytes that a read found are the file's: the kernel takes zeros for bytes up
    /// to the end that it remembers.
    pub(crate) fn within(&mut self, offset: u64, read: usize) -> Result<usize, Access> {
        match &mut self.size {
            Some(size) if self.bounds && read > 0 => {
                let left = size()?.saturating_sub(offset);
                Ok(usize::try_from(left).map_or(read, |left| left.min(read)))
            }
            _ => Ok(read),
        }
    }

    /// Whether the file ends there or before, where a read has found nothing. If not, read again:
    /// asking has told the kernel the size too.
    pub(crate) fn is_at(&mut self, offset: u64) -> Result<bool, Access> {
        let Some(size) = &mut self.size else {
            return Ok(true);
        };
        let size = size()?;
        if size <= offset {
            return Ok(true);
        }
        if self.tries == TRIES_MAX {
            tracing::error!(
                size,
                offset,
                "reads find the end of a file that the back end calls longer; answered with EIO"
            );
            return Err(Errno::EIO.into());
        }
        // The first time nothing but the kernel's memory was old.
        if self.tries > 0 {
            std::thread::sleep(Duration::from_millis(1 << self.tries));
        }
        self.tries += 1;
        Ok(false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_beyond_the_end_are_none_of_the_files() {
        let mut ends = Ends::asking(|| Ok(100));
        assert_eq!(ends.within(90, 20), Ok(20), "the kernel knows it");
        ends.bounds = true;
        assert_eq!(ends.within(90, 20), Ok(10));
        assert_eq!(ends.within(80, 20), Ok(20));
        assert_eq!(ends.within(200, 20), Ok(0));
        assert_eq!(Ends::default().within(200, 20), Ok(20));
    }

    #[test]
    fn an_end_is_believed_when_the_back_end_says_so_and_not_asked_for_ever() {
        assert_eq!(Ends::default().is_at(5), Ok(true));
        let mut ends = Ends::asking(|| Ok(100));
        assert_eq!(ends.is_at(100), Ok(true));
        let mut answers = (0..).map(|_| ends.is_at(99));
        let refused = answers.position(|answer| answer == Err(Errno::EIO.into()));
        assert_eq!(refused, Some(TRIES_MAX as usize));
        let mut gone = Ends::asking(|| Err(Errno(107).into()));
        assert_eq!(gone.is_at(0), Err(Errno(107).into()));
    }
}

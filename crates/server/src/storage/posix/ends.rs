//! Finds the end of a file where this node's caches may be stale: a read counts only as far as the
//! file reaches on the back end.
//!
//! A read that finds nothing may be wrong, because the kernel remembers an older, smaller size. A
//! read past the page cache may also find too much: the kernel completes a short read through the
//! page cache, up to the size that it remembers, and fills with zeros what other nodes have cut
//! off. Such a read leaves pages in the cache, or ends with a zero where the back end has dropped
//! them already. Only then does this module ask the back end for the size, and has the read
//! repeated.

use super::PosixFiles;
use super::bypass::{Cached, Drops, cached_pages};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;
use tidegate_forward::{Access, Errno};
use tidegate_wire::Handle;

/// How often a read is repeated that contradicts the size which the back end reports.
const TRIES_MAX: u32 = 7;

/// Asks the back end for the size of the file, in bytes. The kernel learns the size too.
type Size = Box<dyn FnMut() -> Result<u64, Access> + Send>;

/// Decides for one job which of the bytes that a read returned belong to the file, and whether the
/// read has reached the file's end.
#[derive(Default)]
pub(crate) struct Ends {
    /// Asks for the size; None if every read is believed.
    size: Option<Size>,
    tries: u32,
    /// Detects whether the page cache took part in a read; only for reads past the page cache.
    watch: Option<Watch>,
}

/// Detects whether the page cache took part in a read.
struct Watch {
    drops: Arc<Drops>,
    /// [`Drops::finished`] before the read.
    finished: u32,
    /// The size that the back end reported before the read, if it was asked.
    size: Option<u64>,
}

impl Ends {
    /// Chooses the checks that the export's trust in this node's caches demands.
    pub(crate) fn of(files: &PosixFiles, handle: Handle) -> Ends {
        if files.trusts_attributes() {
            return Ends::default();
        }
        let watched = files.bypasses().then(|| files.drops(handle).clone());
        let files = files.clone();
        let ends = Ends::asking(move || files.size_now(handle));
        match watched {
            Some(drops) => ends.past_the_cache(drops),
            None => ends,
        }
    }

    /// Checks reads against the size that `size` asks for.
    pub(crate) fn asking(size: impl FnMut() -> Result<u64, Access> + Send + 'static) -> Ends {
        Ends {
            size: Some(Box::new(size)),
            ..Ends::default()
        }
    }

    /// Also checks whether the page cache took part in reads that should bypass it.
    fn past_the_cache(mut self, drops: Arc<Drops>) -> Ends {
        self.watch = Some(Watch {
            finished: drops.finished(),
            drops,
            size: None,
        });
        self
    }

    /// Must be called before a read: makes the kernel drop its cached pages of that range.
    pub(crate) fn before(&mut self, fd: impl AsFd, offset: u64, len: u64) -> Result<(), Access> {
        let (Some(watch), Some(size)) = (&mut self.watch, &mut self.size) else {
            return Ok(());
        };
        let cached = cached_pages(&fd, offset, len);
        if cached != Cached::None {
            watch.drops.drop_pages(&fd, offset, len);
        }
        if cached == Cached::Unknown && watch.size.is_none() {
            watch.size = Some(size()?);
        }
        watch.finished = watch.drops.finished();
        Ok(())
    }

    /// How many of the `read` bytes that a read of `len` bytes returned belong to the file; 0 at
    /// its end. `last` looks at the last of them. None: repeat the read.
    pub(crate) fn found(
        &mut self,
        fd: impl AsFd,
        (offset, len): (u64, u64),
        read: usize,
        last: impl FnOnce() -> u8,
    ) -> Result<Option<usize>, Access> {
        if read == 0 {
            return Ok(self.is_at(offset)?.then_some(0));
        }
        let (Some(watch), Some(size)) = (&mut self.watch, &mut self.size) else {
            return Ok(Some(read));
        };
        let cached = cached_pages(fd, offset, len) != Cached::None;
        if !cached && !watch.drops.since(watch.finished) && last() != 0 {
            return Ok(Some(read));
        }
        let now = size()?;
        // The kernel knew the earlier size when it finished the read: up to there no zeros stand
        // for bytes that were written meanwhile. Of a file that grows all the time a read returns
        // no more than that: the file ended there when the size was asked for.
        if let Some(before) = watch.size
            && (before == now || self.tries == TRIES_MAX)
        {
            let left = now.min(before).saturating_sub(offset);
            return Ok(Some(read.min(usize::try_from(left).unwrap_or(usize::MAX))));
        }
        watch.size = Some(now);
        self.tries += 1;
        Ok(None)
    }

    /// Whether the file ends at `offset` or before, where a read has found nothing. If not, repeat
    /// the read.
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
        // The first time only the size that the kernel had cached was stale.
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
    use crate::storage::scratch::Scratch;
    use std::os::unix::fs::FileExt;
    use std::sync::atomic::{AtomicU64, Ordering};

    fn file_of_150_bytes() -> (Scratch, std::fs::File) {
        let scratch = Scratch::new("ends");
        let path = scratch.path().join("f");
        std::fs::write(&path, [7; 150]).expect("room");
        (scratch, std::fs::File::open(path).expect("made"))
    }

    /// One read of a file of 150 bytes, done as [`Ends`] demands; what was found, in how many
    /// calls.
    fn read(ends: &mut Ends, file: &std::fs::File, offset: u64) -> (Result<usize, Access>, u32) {
        let mut buffer = [0; 60];
        let mut calls = 0;
        loop {
            let mut once = || {
                ends.before(file, offset, 60)?;
                let read = file.read_at(&mut buffer, offset).expect("readable");
                calls += 1;
                let last = || buffer[read - 1];
                ends.found(file, (offset, 60), read, last)
            };
            match once() {
                Ok(None) => {}
                Ok(Some(found)) => return (Ok(found), calls),
                Err(error) => return (Err(error), calls),
            }
        }
    }

    #[test]
    fn bytes_that_the_page_cache_adds_are_none_of_the_files() {
        let (_scratch, file) = file_of_150_bytes();
        // Reads of a plain file go through the page cache: as one that the kernel finishes there.
        let asked = Arc::new(AtomicU64::new(0));
        let sizes = |sizes: &'static [u64]| {
            let (asked, mut next) = (asked.clone(), 0);
            let size = move || {
                asked.fetch_add(1, Ordering::Relaxed);
                next += 1;
                Ok(sizes[(next - 1).min(sizes.len() - 1)])
            };
            Ends::asking(size).past_the_cache(Arc::default())
        };
        let reads = 2 - u32::from(cached_pages(&file, 0, 1) == Cached::Unknown);
        assert_eq!(read(&mut sizes(&[100]), &file, 90), (Ok(10), reads));
        assert_eq!(asked.load(Ordering::Relaxed), 2);
        assert_eq!(read(&mut sizes(&[100]), &file, 120), (Ok(0), reads));
        assert_eq!(read(&mut sizes(&[150]), &file, 90), (Ok(60), reads));
        // The file was written while it was read: the bytes found may be zeros from before.
        assert_eq!(
            read(&mut sizes(&[100, 140]), &file, 90),
            (Ok(50), 1 + reads)
        );
        let (found, calls) = read(&mut Ends::asking(|| Ok(100)), &file, 90);
        assert_eq!((found, calls), (Ok(60), 1), "not past the cache");
    }

    #[test]
    fn of_a_file_that_grows_under_every_read_only_what_it_had_before_is_told() {
        let (_scratch, file) = file_of_150_bytes();
        let asked = Arc::new(AtomicU64::new(0));
        let count = asked.clone();
        let grows = move || Ok(100 + count.fetch_add(1, Ordering::Relaxed));
        let mut ends = Ends::asking(grows).past_the_cache(Arc::default());
        let (found, reads) = read(&mut ends, &file, 90);
        let last = 100 + asked.load(Ordering::Relaxed) - 1;
        assert_eq!(found, Ok((last - 1 - 90) as usize));
        assert_eq!(reads, 1 + TRIES_MAX);
    }

    #[test]
    fn pages_that_another_read_dropped_are_missed() {
        let (_scratch, file) = file_of_150_bytes();
        if cached_pages(&file, 0, 150) == Cached::Unknown {
            return println!("skipped, the kernel does not tell of pages");
        }
        let drops = Arc::<Drops>::default();
        let beyond = (1 << 20, 60);
        let found = |ends: &mut Ends| ends.found(&file, beyond, 60, || 7);
        let fresh = || Ends::asking(|| Ok(100)).past_the_cache(drops.clone());
        let mut ends = fresh();
        assert_eq!(found(&mut ends), Ok(Some(60)), "no page took part");
        drops.drop_pages(&file, 0, 150);
        assert_eq!(found(&mut ends), Ok(None));
        let mut ends = fresh();
        assert_eq!(
            found(&mut ends),
            Ok(Some(60)),
            "dropped before the read began"
        );
    }

    #[test]
    fn zeros_behind_the_end_are_noticed_although_their_pages_are_gone() {
        let (_scratch, file) = file_of_150_bytes();
        if cached_pages(&file, 0, 150) == Cached::Unknown {
            return println!("skipped, the kernel does not tell of pages");
        }
        let beyond = 1 << 20;
        let reads = |size: u64, last: u8| {
            let mut ends = Ends::asking(move || Ok(size)).past_the_cache(Arc::default());
            let mut once = || ends.found(&file, (beyond, 60), 60, || last);
            [once(), once()]
        };
        assert_eq!(reads(beyond + 20, 0), [Ok(None), Ok(Some(20))]);
        assert_eq!(reads(150, 0), [Ok(None), Ok(Some(0))]);
        assert_eq!(reads(beyond + 60, 0), [Ok(None), Ok(Some(60))]);
        assert_eq!(reads(150, 7), [Ok(Some(60)); 2], "no size is asked for");
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

//! How a transfer moves that is longer than one chunk.

use super::PAYLOAD_LIMIT;

/// What of a transfer may be under way at once. A transfer is what one call moves through one
/// forwarder.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Pipelining {
    /// A chunk is sent when the one before it is done: store and forward.
    None,
    /// Chunks are sent ahead. The forwarder carries them out in order, one after another.
    Serial,
    /// Chunks are sent ahead, and carried out in any order, several at once.
    #[default]
    Parallel,
}

impl Pipelining {
    /// All of them, the least first.
    pub const ALL: [Pipelining; 3] = [Pipelining::None, Pipelining::Serial, Pipelining::Parallel];

    /// As configurations and command lines spell it.
    pub fn name(self) -> &'static str {
        match self {
            Pipelining::None => "none",
            Pipelining::Serial => "serial",
            Pipelining::Parallel => "parallel",
        }
    }

    /// The one of that name.
    pub fn from_name(name: &str) -> Option<Pipelining> {
        Pipelining::ALL.into_iter().find(|one| one.name() == name)
    }
}

/// What both ends of a session agree on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pipeline {
    /// What may be under way at once.
    pub mode: Pipelining,
    /// Bytes of a chunk: what is longer is cut. At least [`CHUNK_MIN`], at most the largest
    /// payload.
    pub chunk_bytes: u32,
}

/// The least that a chunk may have.
pub const CHUNK_MIN: u32 = 4096;

impl Pipeline {
    /// With chunks of so many bytes, or as near to that as is allowed.
    pub fn new(mode: Pipelining, chunk_bytes: u32) -> Pipeline {
        let chunk_bytes = chunk_bytes.clamp(CHUNK_MIN, PAYLOAD_LIMIT);
        Pipeline { mode, chunk_bytes }
    }

    /// What two sides agree on: the lesser of each.
    pub fn least(self, other: Pipeline) -> Pipeline {
        Pipeline {
            mode: self.mode.min(other.mode),
            chunk_bytes: self.chunk_bytes.min(other.chunk_bytes),
        }
    }
}

impl Default for Pipeline {
    /// 512 KiB: a slot of that size stays in the cache of one core between socket and file, and
    /// moves a byte with the least processor time; larger ones start the device later.
    fn default() -> Pipeline {
        Pipeline::new(Pipelining::default(), 512 << 10)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lesser_of_each_holds() {
        let ours = Pipeline::new(Pipelining::Parallel, 1 << 16);
        let theirs = Pipeline::new(Pipelining::Serial, 1 << 20);
        let agreed = Pipeline::new(Pipelining::Serial, 1 << 16);
        assert_eq!(ours.least(theirs), agreed);
        assert_eq!(theirs.least(ours), agreed);
        assert_eq!(Pipeline::new(Pipelining::None, 1).chunk_bytes, CHUNK_MIN);
    }

    #[test]
    fn names_lead_back() {
        for mode in Pipelining::ALL {
            assert_eq!(Pipelining::from_name(mode.name()), Some(mode));
        }
        assert_eq!(Pipelining::from_name("both"), None);
    }
}

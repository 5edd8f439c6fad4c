//! How client and forwarder move a transfer in chunks.

use super::PAYLOAD_LIMIT;

/// How many chunks of a transfer may be outstanding, and in which order the forwarder executes
/// them. A transfer is what one call reads or writes through one forwarder.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Pipelining {
    /// The client sends a chunk when the one before it is done: store and forward.
    None,
    /// The client sends chunks ahead. The forwarder executes them in order, one after another.
    Serial,
    /// The client sends chunks ahead. The forwarder executes several at once, in any order.
    #[default]
    Parallel,
}

impl Pipelining {
    /// All modes, the most restricted first.
    pub const ALL: [Pipelining; 3] = [Pipelining::None, Pipelining::Serial, Pipelining::Parallel];

    /// The mode's name in configurations and command lines.
    pub fn name(self) -> &'static str {
        match self {
            Pipelining::None => "none",
            Pipelining::Serial => "serial",
            Pipelining::Parallel => "parallel",
        }
    }

    /// The mode of that name; None if there is none.
    pub fn from_name(name: &str) -> Option<Pipelining> {
        Pipelining::ALL.into_iter().find(|one| one.name() == name)
    }
}

/// What client and forwarder agree on for the transfers of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pipeline {
    /// How chunks move.
    pub mode: Pipelining,
    /// Largest chunk, bytes. The client cuts what is longer. At least [`CHUNK_MIN`], at most the
    /// largest payload.
    pub chunk_bytes: u32,
}

/// The least `chunk_bytes` of a [`Pipeline`].
pub const CHUNK_MIN: u32 = 4096;

impl Pipeline {
    /// A pipeline with chunks of `chunk_bytes`, or as near to that as the bounds allow.
    pub fn new(mode: Pipelining, chunk_bytes: u32) -> Pipeline {
        let chunk_bytes = chunk_bytes.clamp(CHUNK_MIN, PAYLOAD_LIMIT);
        Pipeline { mode, chunk_bytes }
    }

    /// What two sides agree on: the more restricted mode, and the smaller chunk.
    pub fn least(self, other: Pipeline) -> Pipeline {
        Pipeline {
            mode: self.mode.min(other.mode),
            chunk_bytes: self.chunk_bytes.min(other.chunk_bytes),
        }
    }
}

impl Default for Pipeline {
    /// Chunks of 512 KiB. A slot of that size stays in one core's cache between socket and file, so
    /// it costs the least processor time a byte. With larger chunks the device starts later.
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

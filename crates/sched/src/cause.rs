//! Why a request waits: the one list of causes, in the words that statistics, metrics, documents
//! and `tidegate why` use.

/// What a request's time at a forwarder goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Cause {
    /// It waits until the forwarder's pool has memory for its payload.
    Memory,
    /// The forwarder's own steps: the seat, the user's rights to the file, its loop.
    Checks,
    /// An overlapping request is before it; in serial mode, the chunk before it.
    Overlap,
    /// Requests that came later go first, because a policy that coordinates says so.
    Window,
    /// Requests that came later go first, because a policy that shares out the device says so.
    Share,
    /// A maximum of its application, or of its group, holds it back.
    Limit,
    /// The policy leaves the device idle, because it expects requests that belong to this one.
    Prediction,
    /// As many calls run as may run at once, of requests before it.
    Device,
    /// The back end executes it.
    Service,
}

impl Cause {
    /// How many causes there are.
    pub const COUNT: usize = 9;

    /// All causes, in the order in which a request can meet them.
    pub const ALL: [Cause; Cause::COUNT] = [
        Cause::Memory,
        Cause::Checks,
        Cause::Overlap,
        Cause::Window,
        Cause::Share,
        Cause::Limit,
        Cause::Prediction,
        Cause::Device,
        Cause::Service,
    ];

    /// The word that stands for it wherever people or programs read it.
    pub const fn name(self) -> &'static str {
        match self {
            Cause::Memory => "memory",
            Cause::Checks => "checks",
            Cause::Overlap => "overlap",
            Cause::Window => "window",
            Cause::Share => "share",
            Cause::Limit => "limit",
            Cause::Prediction => "prediction",
            Cause::Device => "device",
            Cause::Service => "service",
        }
    }

    /// The cause with this name.
    pub fn of_name(name: &str) -> Option<Cause> {
        Cause::ALL.into_iter().find(|cause| cause.name() == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_cause_has_its_place_and_its_name() {
        for (at, cause) in Cause::ALL.into_iter().enumerate() {
            assert_eq!(cause as usize, at);
            assert_eq!(Cause::of_name(cause.name()), Some(cause));
        }
        assert_eq!(Cause::of_name(""), None);
    }
}

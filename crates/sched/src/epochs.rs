//! The time windows of Song et al. (SC'11), and the order of the applications in a window.
//!
//! Policies that order by windows share this block. All forwarders compute both from the requests
//! alone, and so come to the same order.

use crate::options::Options;
use crate::policy::Bound;
use crate::policy_options::{OptionKind, OptionSpec};
use crate::types::{AppId, Request, Time, mix64};

/// How the applications of one window are ranked.
pub(crate) const ORDER: OptionSpec = OptionSpec::new(
    "order",
    OptionKind::Word(&["rotated", "id", "id-15-bit"]),
    "order of the applications in a window: by a hash of application and window number, so that \
     nobody is always first; by ascending application id; or by 15 bits of it, as printed in the \
     paper, where the ids are random numbers of 15 bits, and two applications may have the same",
);

/// The seed of the rotation's hash.
pub(crate) const ROTATION_SEED: OptionSpec = OptionSpec::integer(
    "rotation_seed",
    0,
    [0, u64::MAX],
    "shifts the rotation; must be the same on all forwarders",
);

/// The paper's width for disks.
pub(crate) const WINDOW_MS: OptionSpec = OptionSpec::integer(
    "window_ms",
    1000,
    [1, 3_600_000],
    "width of a window in milliseconds; the paper recommends 1000 for disks and 250 for SSDs, \
     which is the default with an emulated SSD (`[device]` `model` `ssd-*`): name it where the \
     back end is made of SSDs",
);

/// How far a client's clock may run ahead before its stamps are cut.
const AHEAD_NS_MAX: u64 = 5_000_000;

/// What the rank of an application follows from: a word of [`ORDER`].
#[derive(Clone, Copy, PartialEq, Eq)]
enum RankBy {
    Hash,
    Id,
    ShortId,
}

/// The paper's ids are below this.
const SHORT_IDS: u64 = 1 << 15;

/// Windows, and the ranks of applications in them.
pub(crate) struct Epochs {
    width_ns: u64,
    wall_offset_ns: u64,
    rank_by: RankBy,
    rotation_seed: u64,
    /// The window of the last arrival.
    current: u64,
}

impl Epochs {
    /// Windows by the options [`ORDER`], [`ROTATION_SEED`] and [`WINDOW_MS`].
    pub(crate) fn new(options: &Options) -> Epochs {
        let table = &options.table;
        Epochs {
            width_ns: table.integer(&WINDOW_MS) * 1_000_000,
            wall_offset_ns: options.wall_offset_ns,
            rank_by: match () {
                () if table.is(&ORDER, "rotated") => RankBy::Hash,
                () if table.is(&ORDER, "id") => RankBy::Id,
                () => RankBy::ShortId,
            },
            rotation_seed: table.integer(&ROTATION_SEED),
            current: 0,
        }
    }

    fn wall_ns(&self, now: Time) -> u64 {
        now.0.saturating_add(self.wall_offset_ns)
    }

    /// The window of a request that arrived at `arrived`. A client with a wrong clock gains or
    /// loses at most one window. The epoch that the client saw in a reply of another forwarder
    /// counts, up to the current one, so that the later requests of an operation do not fall
    /// behind.
    #[inline]
    pub(crate) fn of(&mut self, request: &Request, arrived: Time) -> u64 {
        let wall_ns = self.wall_ns(arrived);
        let epoch = self.window_of(self.began_ns(request, wall_ns));
        match request.epoch_seen > epoch {
            true => epoch.max(request.epoch_seen.min(wall_ns / self.width_ns)),
            false => epoch,
        }
    }

    /// The stamp of a request that arrived at `wall_ns`, as far as it is believed.
    #[inline]
    fn began_ns(&self, request: &Request, wall_ns: u64) -> u64 {
        let min = wall_ns.saturating_sub(self.width_ns);
        request
            .stamp_ns
            .clamp(min, wall_ns.saturating_add(AHEAD_NS_MAX))
    }

    /// The window of a request that counts as begun so much later than it did.
    pub(crate) fn later(&mut self, request: &Request, arrived: Time, later_ns: u64) -> u64 {
        let began_ns = self.began_ns(request, self.wall_ns(arrived));
        let epoch = began_ns.saturating_add(later_ns) / self.width_ns;
        let seen = self.of(request, arrived) + later_ns / self.width_ns;
        epoch.max(seen)
    }

    /// The window of a time. Mostly it is the last one again, which saves a division.
    fn window_of(&mut self, wall_ns: u64) -> u64 {
        let into = wall_ns.wrapping_sub(self.current * self.width_ns);
        if into >= self.width_ns {
            self.current = wall_ns / self.width_ns;
        }
        self.current
    }

    /// The place of an application in a window: the least is first.
    #[inline]
    pub(crate) fn rank(&self, app: AppId, epoch: u64) -> u64 {
        match self.rank_by {
            RankBy::Hash => mix64(app.0 ^ mix64(epoch ^ mix64(self.rotation_seed))),
            RankBy::Id => app.0,
            RankBy::ShortId => app.0 % SHORT_IDS,
        }
    }

    /// The order of an application's requests of a window among all: the window, the
    /// application's rank, and what tells it from others of that rank, if anything does.
    #[inline]
    pub(crate) fn rank_in(&self, app: AppId, epoch: u64) -> (u64, u64, u64) {
        let rank = self.rank(app, epoch);
        match self.rank_by {
            RankBy::ShortId => (epoch, rank, rank),
            RankBy::Hash | RankBy::Id => (epoch, rank, app.0),
        }
    }

    /// The window of now.
    pub(crate) fn at(&self, now: Time) -> u64 {
        self.wall_ns(now) / self.width_ns
    }

    /// A request that arrives in window a has an epoch of at most a + ahead (a fast clock). A
    /// request that arrives in window b has an epoch of at least b - 1 (the oldest stamp allowed).
    /// So the second runs before the first only if b - 1 <= a + ahead; and where requests may stand
    /// up to `later` windows behind their epoch, only if b - 1 <= a + ahead + later.
    pub(crate) fn bound(&self, later: u64) -> Bound {
        Bound::Windows(1 + later + AHEAD_NS_MAX.div_ceil(self.width_ns))
    }

    /// The width of a window.
    pub(crate) fn width_ns(&self) -> u64 {
        self.width_ns
    }
}

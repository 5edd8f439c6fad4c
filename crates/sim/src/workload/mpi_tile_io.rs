//! mpi-tile-io: each process reads or writes its tile of a dense two-dimensional picture, one row
//! of the tile after the other in the file. Neighbouring tiles may overlap.

use super::domains::Collective;
use super::grid::Grid;
use super::keys::{Impossible, Keys, positive, require};
use super::pace::Pace;
use super::pattern::Pattern;
use super::{BETWEEN, Benchmark, Way, check_pieces, check_total, direction};
use crate::units::Bytes;
use tidegate_sched::Direction;

/// mpi-tile-io's load.
#[derive(Clone, Copy, Debug)]
pub struct MpiTileIo {
    /// Reads or writes.
    pub direction: Direction,
    /// Tiles side by side.
    pub tiles_x: u64,
    /// Tiles on top of each other. There are as many processes as tiles.
    pub tiles_y: u64,
    /// Elements of a tile's row.
    pub tile_x: u64,
    /// Rows of a tile.
    pub tile_y: u64,
    /// Bytes of an element.
    pub element: Bytes,
    /// Elements of a row that two neighbouring tiles share.
    pub overlap_x: u64,
    /// Rows that two neighbouring tiles share.
    pub overlap_y: u64,
    /// Pictures, one behind the other in the file.
    pub requests: u64,
    /// When calls are made.
    pub pace: Pace,
    /// Calls are collective.
    pub collective: Option<Collective>,
}

impl MpiTileIo {
    pub(super) fn read(keys: &mut Keys) -> MpiTileIo {
        MpiTileIo {
            direction: direction(keys),
            tiles_x: keys.required("tiles_x"),
            tiles_y: keys.required("tiles_y"),
            tile_x: keys.required("tile_x"),
            tile_y: keys.required("tile_y"),
            element: keys.required("element"),
            overlap_x: keys.or("overlap_x", 0),
            overlap_y: keys.or("overlap_y", 0),
            requests: keys.or("requests", 1),
            pace: Pace::read(keys),
            collective: Collective::read(keys),
        }
    }

    /// Elements of the picture's row.
    fn width(&self) -> u64 {
        self.tiles_x * (self.tile_x - self.overlap_x) + self.overlap_x
    }

    /// Bytes of a picture.
    fn picture(&self) -> u64 {
        let height = self.tiles_y * (self.tile_y - self.overlap_y) + self.overlap_y;
        self.width() * height * self.element.0
    }
}

struct Tiles {
    load: MpiTileIo,
    file: u64,
}

impl Pattern for Tiles {
    fn operations(&self) -> u64 {
        self.load.requests
    }

    fn file(&self, _rank: u32, _operation: u64) -> u64 {
        self.file
    }

    fn direction(&self, _operation: u64) -> Direction {
        self.load.direction
    }

    fn part(&self, rank: u32, operation: u64, _part: u32) -> Grid {
        let load = &self.load;
        let (x, y) = (
            u64::from(rank) % load.tiles_x,
            u64::from(rank) / load.tiles_x,
        );
        let column = x * (load.tile_x - load.overlap_x);
        let row = y * (load.tile_y - load.overlap_y);
        let start = operation * load.picture() + (row * load.width() + column) * load.element.0;
        let (len, stride) = (load.tile_x * load.element.0, load.width() * load.element.0);
        Grid::rows(start, len, load.tile_y, stride)
    }

    fn cover(&self, operation: u64) -> Grid {
        let bytes = self.load.picture();
        Grid::one(operation * bytes, bytes)
    }
}

impl Benchmark for MpiTileIo {
    fn check(&self, processes: u32) -> Result<(), Impossible> {
        for (key, value) in [
            ("tiles_x", self.tiles_x),
            ("tiles_y", self.tiles_y),
            ("tile_x", self.tile_x),
            ("tile_y", self.tile_y),
            ("element", self.element.0),
            ("requests", self.requests),
        ] {
            positive(key, value)?;
        }
        let tiles = self.tiles_x.saturating_mul(self.tiles_y);
        require(tiles == u64::from(processes), "tiles_x", || {
            format!("{tiles} tiles for {processes} processes: each process has one tile")
        })?;
        for (key, overlap, tile) in [
            ("overlap_x", self.overlap_x, self.tile_x),
            ("overlap_y", self.overlap_y, self.tile_y),
        ] {
            require(overlap < tile, key, || {
                format!("it must be below the {tile} of a tile")
            })?;
        }
        if self.collective.is_none() {
            let row = self.tile_x.saturating_mul(self.element.0);
            check_pieces("tile_y", row, self.tile_y)?;
        }
        let factors = [
            self.tile_x,
            self.tile_y,
            tiles,
            self.element.0,
            self.requests,
        ];
        check_total("requests", &factors)
    }

    fn pattern(&self, _processes: u32, file_base: u64, _seed: u64) -> Box<dyn Pattern> {
        Box::new(Tiles {
            load: *self,
            file: file_base,
        })
    }

    fn way(&self) -> Way {
        let row = self.tile_x.saturating_mul(self.element.0);
        Way {
            pace: self.pace,
            collective: self.collective,
            thinks: BETWEEN,
            request: row.saturating_mul(self.tile_y),
        }
    }
}

//! NAS BTIO: a block-tridiagonal solver writes its solution, five doubles for each cell of a cube,
//! every few time steps. Each process has one cell block in each slab of each dimension ("diagonal
//! multi-partitioning"), so its part of the file is in many short pieces.

use super::domains::Collective;
use super::grid::{Grid, List};
use super::keys::{Impossible, Keys, positive, require};
use super::pace::Pace;
use super::pattern::Pattern;
use super::{Benchmark, Way, check_total};
use tidegate_sched::Direction;
use tidegate_wire::Extents;

/// Bytes of a cell: five doubles.
const CELL: u64 = 40;

/// The size of the problem.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize)]
pub enum Class {
    /// 12 cells along each edge.
    S,
    /// 24.
    W,
    /// 64: 0.4 GB in 40 steps.
    #[default]
    A,
    /// 102: 1.7 GB in 40 steps.
    B,
    /// 162: 6.8 GB in 40 steps.
    C,
    /// 408: 108.7 GB in 40 steps.
    D,
}

impl Class {
    /// Cells along an edge of the cube.
    fn edge(self) -> u64 {
        match self {
            Class::S => 12,
            Class::W => 24,
            Class::A => 64,
            Class::B => 102,
            Class::C => 162,
            Class::D => 408,
        }
    }
}

/// BTIO's load.
#[derive(Clone, Copy, Debug)]
pub struct Btio {
    /// The size of the problem.
    pub class: Class,
    /// Outputs of the whole solution.
    pub steps: u64,
    /// In the end, all is read again, as the benchmark's check does.
    pub read_back: bool,
    /// Computing before each output.
    pub pace: Pace,
    /// Outputs are collective ("full"); otherwise each line of cells is one call ("simple").
    pub collective: Option<Collective>,
}

impl Btio {
    pub(super) fn read(keys: &mut Keys) -> Btio {
        Btio {
            class: keys.required("class"),
            steps: keys.or("steps", 40),
            read_back: keys.or("read_back", false),
            pace: Pace {
                barrier: true,
                ..Pace::read_think(keys)
            },
            collective: Collective::read(keys),
        }
    }
}

/// The number whose square `processes` is.
fn root(processes: u32) -> Option<u64> {
    let root = processes.isqrt();
    (root * root == processes).then_some(root.into())
}

struct Solution {
    edge: u64,
    steps: u64,
    read_back: bool,
    /// Cell blocks of each process, and along each edge.
    blocks: u64,
    file: u64,
}

impl Solution {
    /// Where a block begins along an edge, and how long it is: the first ones take what is left
    /// over.
    fn side(&self, block: u64) -> (u64, u64) {
        let (len, more) = (self.edge / self.blocks, self.edge % self.blocks);
        (block * len + block.min(more), len + u64::from(block < more))
    }

    /// Lines of a process's block in a slab.
    fn lines(&self, rank: u32, slab: u64) -> u64 {
        let (_, y) = self.place(rank, slab);
        self.side(y).1 * self.side(slab).1
    }

    /// Which block of a slab is a process's: from slab to slab it moves along the diagonal.
    fn place(&self, rank: u32, slab: u64) -> (u64, u64) {
        let (rank, blocks) = (u64::from(rank), self.blocks);
        (
            (rank % blocks + slab) % blocks,
            (rank / blocks + blocks - slab) % blocks,
        )
    }

    fn bytes(&self) -> u64 {
        self.edge.pow(3) * CELL
    }
}

impl Pattern for Solution {
    fn operations(&self) -> u64 {
        self.steps * (1 + u64::from(self.read_back))
    }

    fn file(&self, _rank: u32, _operation: u64) -> u64 {
        self.file
    }

    fn direction(&self, operation: u64) -> Direction {
        match operation < self.steps {
            true => Direction::Write,
            false => Direction::Read,
        }
    }

    fn parts(&self, _rank: u32, _operation: u64) -> u32 {
        self.blocks as u32
    }

    fn part(&self, rank: u32, operation: u64, part: u32) -> Grid {
        let slab = u64::from(part);
        let (x, y) = self.place(rank, slab);
        let ((x, width), (y, height), (z, depth)) = (self.side(x), self.side(y), self.side(slab));
        let line = self.edge * CELL;
        Grid {
            start: operation % self.steps * self.bytes() + (z * self.edge + y) * line + x * CELL,
            len: width * CELL,
            rows: height,
            row_stride: line,
            planes: depth,
            plane_stride: self.edge * line,
        }
    }

    fn calls(&self, rank: u32, _operation: u64) -> u64 {
        (0..self.blocks).map(|slab| self.lines(rank, slab)).sum()
    }

    fn call(&self, rank: u32, operation: u64, call: u64) -> Extents {
        let (mut slab, mut line) = (0, call);
        while line >= self.lines(rank, slab) {
            line -= self.lines(rank, slab);
            slab += 1;
        }
        let grid = self.part(rank, operation, slab as u32);
        let mut list = List::default();
        list.push(grid.extent(line));
        list.into_extents()
    }

    fn cover(&self, operation: u64) -> Grid {
        Grid::one(operation % self.steps * self.bytes(), self.bytes())
    }
}

impl Benchmark for Btio {
    fn check(&self, processes: u32) -> Result<(), Impossible> {
        positive("steps", self.steps)?;
        let edge = self.class.edge();
        let root = root(processes);
        require(root.is_some_and(|root| root <= edge), "processes", || {
            format!(
                "{processes}: this class needs a square number of processes, at most {}",
                edge * edge
            )
        })?;
        check_total("steps", &[edge.pow(3) * CELL, self.steps, 2])
    }

    fn pattern(&self, processes: u32, file_base: u64, _seed: u64) -> Box<dyn Pattern> {
        Box::new(Solution {
            edge: self.class.edge(),
            steps: self.steps,
            read_back: self.read_back,
            blocks: processes.isqrt().into(),
            file: file_base,
        })
    }

    fn way(&self) -> Way {
        Way {
            pace: self.pace,
            collective: self.collective,
            thinks: 0..self.steps,
            request: 0,
        }
    }
}

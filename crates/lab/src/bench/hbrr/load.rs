//! The loads: which process accesses which bytes of the shared file, call by call, and what the
//! file holds.

use tidegate_client::Bytes;

/// A record of Ohta et al.'s figures 6 and 7.
pub const RECORD: u64 = 32 << 10;
/// Bytes that BTIO writes at each output of class A: five doubles for each of 64 x 64 x 64 cells.
pub const BTIO_STEP: u64 = 64 * 64 * 64 * 40;

/// A load: the calls of each process, as offset and length.
#[derive(Clone)]
pub struct Load {
    /// In words.
    pub title: String,
    /// By process.
    pub calls: Vec<Vec<(u64, u64)>>,
    /// Whether a call begins when the last calls of all processes are done.
    pub together: bool,
}

impl Load {
    /// Call `n` of process `p` is number `n P + p` of the file.
    pub fn interleaved(processes: u64, calls: u64, bytes: u64) -> Load {
        let of = |p: u64| (0..calls).map(move |n| ((n * processes + p) * bytes, bytes));
        Load {
            title: format!("{processes} processes, {calls} x {}", size(bytes)),
            calls: (0..processes).map(|p| of(p).collect()).collect(),
            together: false,
        }
    }

    /// BTIO, class A, collective: each output is cut into as many pieces as there are aggregators,
    /// and each of them writes its piece in one call. Data has come to them over the network.
    pub fn btio(aggregators: u64, outputs: u64) -> Load {
        let piece = BTIO_STEP.div_ceil(aggregators);
        let call = |output: u64, at: u64| (output * BTIO_STEP + at, piece.min(BTIO_STEP - at));
        let of = |a: u64| (0..outputs).map(move |output| call(output, a * piece));
        Load {
            title: format!("BTIO A, {outputs} outputs, {aggregators} x {}", size(piece)),
            calls: (0..aggregators).map(|a| of(a).collect()).collect(),
            together: true,
        }
    }

    /// Of all calls.
    pub fn bytes(&self) -> u64 {
        self.calls.iter().flatten().map(|(_, len)| len).sum()
    }

    /// Of the longest call.
    fn bytes_max(&self) -> u64 {
        let lens = self.calls.iter().flatten().map(|(_, len)| *len);
        lens.max().unwrap_or(0)
    }
}

fn size(bytes: u64) -> String {
    match bytes >> 20 {
        0 => format!("{} KiB", bytes >> 10),
        _ if bytes.is_multiple_of(1 << 20) => format!("{} MiB", bytes >> 20),
        _ => format!("{:.1} MiB", bytes as f64 / 1_048_576.0),
    }
}

/// The contents of a file. They differ between places that are near each other, and between turns.
/// Writes send pieces of one buffer, so making them takes no measured time.
pub struct Content {
    repeated: Bytes,
}

/// A prime, so that what was written to a wrong place is wrong there.
const PERIOD: u64 = 1_000_003;

impl Content {
    /// Contents for the calls of a load.
    pub fn for_load(load: &Load) -> Content {
        let mut state = 1u64;
        let period: Vec<u8> = (0..PERIOD)
            .map(|_| {
                state = state
                    .wrapping_mul(0x5851_f42d_4c95_7f2d)
                    .wrapping_add(0x1405_7b7e_f767_814f);
                (state >> 56) as u8
            })
            .collect();
        let repeated = period.into_iter().cycle();
        let repeated: Vec<u8> = repeated
            .take((PERIOD + load.bytes_max()) as usize)
            .collect();
        Content {
            repeated: repeated.into(),
        }
    }

    /// The bytes from `offset` on, in the turn that writes `version`.
    pub fn at(&self, version: u64, offset: u64, len: u64) -> Bytes {
        let start = offset.wrapping_add(version.wrapping_mul(7919)) % PERIOD;
        self.repeated.slice(start as usize..(start + len) as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_belongs_to_one_call() {
        let btio = [Load::btio(64, 3), Load::btio(4, 2), Load::btio(7, 1)];
        let interleaved = [
            Load::interleaved(128, 2, RECORD),
            Load::interleaved(3, 1, 5),
        ];
        for load in btio.iter().chain(&interleaved) {
            let mut calls: Vec<_> = load.calls.iter().flatten().copied().collect();
            calls.sort_unstable();
            let mut end = 0;
            for (offset, len) in calls {
                assert_eq!(offset, end, "{}", load.title);
                end += len;
            }
            assert_eq!(end, load.bytes());
        }
        assert_eq!(Load::btio(64, 1).bytes(), 10_485_760);
        assert_eq!(Load::btio(64, 1).title, "BTIO A, 1 outputs, 64 x 160 KiB");
    }

    #[test]
    fn content_differs_by_place_and_version() {
        let content = Content::for_load(&Load::interleaved(2, 2, RECORD));
        let first = content.at(0, 0, RECORD);
        assert_eq!(first.len() as u64, RECORD);
        assert_ne!(first, content.at(0, RECORD, RECORD));
        assert_ne!(first, content.at(1, 0, RECORD));
        assert_eq!(first.slice(10..20), content.at(0, 10, 10));
    }
}

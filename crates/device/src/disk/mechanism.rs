//! The moving parts of a disk: the arm, the platters, and the buffer that the head fills from a
//! sequential stream.
//!
//! Where things are follows from time: the platters turn by themselves, so the angle is the time
//! since a start angle that the seed chooses. Consecutive tracks are skewed by the time that a
//! change of track takes, so a stream that crosses tracks loses that time and no rotation.

use super::geometry::Geometry;
use crate::options::DiskOptions;
use crate::{Access, transfer_ns};

/// The parts of a mechanism that do not change.
pub(super) struct Mechanism {
    pub(super) geometry: Geometry,
    /// Where the platters stand at time 0, in nanoseconds of rotation.
    start_angle_ns: u64,
}

/// Where the arm is and what it has read last. To see what an access would cost, let a copy of the
/// arm make it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arm {
    /// Where the arm stands.
    cylinder: u64,
    pub(super) stream: Stream,
}

/// The last access on the platters. A read goes on into the buffer after its end until the buffer
/// is full or another access needs the arm.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stream {
    /// First byte that is in the buffer.
    pub(super) start: u64,
    /// One past the last byte asked for, which passed the head at `end_ns`.
    pub(super) end: u64,
    end_ns: u64,
    pub(super) write: bool,
}

impl Arm {
    pub(super) const REST: Arm = Arm {
        cylinder: 0,
        stream: Stream {
            start: 0,
            end: 0,
            end_ns: 0,
            write: true,
        },
    };
}

impl Mechanism {
    pub(super) fn new(options: &DiskOptions, capacity_bytes: u64) -> Mechanism {
        let geometry = Geometry::new(options, capacity_bytes);
        Mechanism {
            // An odd multiplier spreads small seeds over the whole turn.
            start_angle_ns: options.rotation_seed.wrapping_mul(0x9e37_79b9_7f4a_7c15)
                % geometry.rotation_ns,
            geometry,
        }
    }

    /// The part of an access that lies on the disk: addresses begin again at the capacity, and
    /// nothing goes on behind it.
    pub(super) fn on_disk(&self, access: &Access) -> Access {
        let address = access.address % self.geometry.capacity_bytes;
        Access {
            address,
            len: access.len.min(self.geometry.capacity_bytes - address),
            ..*access
        }
    }

    /// Lets the arm make an access from `now_ns` on; returns when its last byte has passed, or has
    /// come out of the buffer.
    pub(super) fn make(&self, arm: &mut Arm, now_ns: u64, access: &Access) -> u64 {
        let (address, len) = (access.address, access.len);
        match (len, access.write) {
            (0, _) => now_ns,
            (_, false) => self.read(arm, now_ns, address, len),
            (_, true) => self.write(arm, now_ns, address, len),
        }
    }

    fn read(&self, arm: &mut Arm, now_ns: u64, address: u64, len: u64) -> u64 {
        let end = address + len;
        let stream = arm.stream;
        let lookahead_bytes = self.geometry.options.lookahead_bytes;
        let buffered_max = stream.end.saturating_add(lookahead_bytes);
        if stream.write || address < stream.start || address >= buffered_max.max(stream.end + 1) {
            return self.seek_and_pass(arm, now_ns, address, len, false);
        }
        let carry_ns = transfer_ns(len, self.geometry.options.interface_mb_s);
        let carried_ns = now_ns.saturating_add(carry_ns);
        if end <= stream.end {
            return carried_ns;
        }
        let fill_ns = self.geometry.pass_ns(stream.end, buffered_max);
        let full_ns = stream.end_ns.saturating_add(fill_ns);
        if end > buffered_max && full_ns < now_ns {
            // The buffer was full and the head went on without reading: the rest needs a turn.
            let rest = buffered_max.max(address);
            return self.seek_and_pass(arm, now_ns, rest, end - rest, false);
        }
        let pass_ns = self.geometry.pass_ns(stream.end, end);
        let passed_ns = stream.end_ns.saturating_add(pass_ns);
        arm.cylinder = self.geometry.cylinder_of(end - 1);
        arm.stream.end = end;
        arm.stream.end_ns = passed_ns;
        arm.stream.start = stream.start.max(end.saturating_sub(lookahead_bytes));
        passed_ns.max(carried_ns)
    }

    fn write(&self, arm: &mut Arm, now_ns: u64, address: u64, len: u64) -> u64 {
        let stream = arm.stream;
        let gap_ns = now_ns.saturating_sub(stream.end_ns);
        let options = &self.geometry.options;
        let gap_ns_max = (options.stream_gap_us + options.command_us) * 1000;
        if stream.write && address == stream.end && address > 0 && gap_ns <= gap_ns_max {
            // The host keeps a sequential stream going: queued commands let the drive write on
            // without losing a turn between them. The gap itself stays lost.
            let pass_ns = self.geometry.pass_ns(address, address + len);
            let end_ns = now_ns.saturating_add(pass_ns);
            arm.cylinder = self.geometry.cylinder_of(address + len - 1);
            arm.stream.end = address + len;
            arm.stream.end_ns = end_ns;
            return end_ns;
        }
        self.seek_and_pass(arm, now_ns, address, len, true)
    }

    /// Moves the arm, waits for the first byte to come round, and transfers.
    fn seek_and_pass(
        &self,
        arm: &mut Arm,
        now_ns: u64,
        address: u64,
        len: u64,
        write: bool,
    ) -> u64 {
        let end = address + len;
        let geometry = &self.geometry;
        let seek_ns = geometry.seek_ns(arm.cylinder, geometry.cylinder_of(address));
        let there_ns = now_ns.saturating_add(seek_ns);
        let angle_ns = there_ns.saturating_add(self.start_angle_ns) % geometry.rotation_ns;
        let wanted_ns = geometry.angle_ns(address);
        let wait_ns = (wanted_ns + geometry.rotation_ns - angle_ns) % geometry.rotation_ns;
        let pass_ns = geometry.pass_ns(address, end);
        let end_ns = there_ns.saturating_add(wait_ns).saturating_add(pass_ns);
        arm.cylinder = geometry.cylinder_of(end - 1);
        arm.stream = Stream {
            start: address,
            end,
            end_ns,
            write,
        };
        end_ns
    }

    /// One past the last byte that the head has read into the buffer by `now_ns`, if it went on
    /// behind the stream all the time.
    pub(super) fn read_ahead(&self, arm: &Arm, now_ns: u64) -> u64 {
        let stream = arm.stream;
        if stream.write {
            return stream.end;
        }
        let options = &self.geometry.options;
        let turned_ns = now_ns.saturating_sub(stream.end_ns);
        let bytes = u128::from(turned_ns) * u128::from(options.track_bytes)
            / u128::from(self.geometry.rotation_ns);
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        stream.end + bytes.min(options.lookahead_bytes)
    }
}

//! An SSD: parallel channels behind one interface.
//!
//! Addresses go round the channels in stripes. A stripe occupies its channel for a fixed time and
//! for its transfer; the interface carries one call's bytes after another's; the latency of the
//! flash and the controller is added once and occupies nothing. So one small access costs
//! latency, many at once are limited by channels, large ones by channels or interface. A channel
//! that has written enough pauses to collect garbage, and what waits for it waits longer.

use crate::options::SsdOptions;
use crate::{Access, transfer_ns};
use alloc::vec;
use alloc::vec::Vec;

pub(crate) struct Ssd {
    options: SsdOptions,
    /// When each channel is free again.
    channel_free_ns: Vec<u64>,
    interface_free_ns: u64,
    /// What each channel has written since it last collected garbage.
    written_bytes: Vec<u64>,
}

impl Ssd {
    pub(crate) fn new(options: &SsdOptions) -> Ssd {
        Ssd {
            options: options.clone(),
            channel_free_ns: vec![0; options.channels as usize],
            interface_free_ns: 0,
            // Channels do not all pause at the same time.
            written_bytes: (0..options.channels)
                .map(|channel| options.gc_bytes / options.channels * channel)
                .collect(),
        }
    }

    pub(crate) fn serve(&mut self, start_ns: u64, accesses: &[Access]) -> u64 {
        let mut finish_ns = start_ns;
        for access in accesses {
            finish_ns = finish_ns.max(self.access(start_ns, access));
        }
        finish_ns
    }

    fn access(&mut self, start_ns: u64, access: &Access) -> u64 {
        let SsdOptions {
            channels,
            stripe_bytes,
            ..
        } = self.options;
        let (latency_us, rate_mb_s) = if access.write {
            (self.options.write_us, self.options.channel_write_mb_s)
        } else {
            (self.options.read_us, self.options.channel_read_mb_s)
        };
        let end = access.address.saturating_add(access.len);
        if end == access.address {
            return start_ns + latency_us * 1000;
        }
        let first = access.address / stripe_bytes;
        let stripes = end.div_ceil(stripe_bytes) - first;
        let busy_ns = self.options.channel_busy_us * 1000;
        let mut ready_ns = start_ns;
        // A channel gets every `channels`-th stripe: handled together, because a call for a whole
        // device would have billions of them.
        for lane in 0..channels.min(stripes) {
            let count = (stripes - lane).div_ceil(channels);
            let mut bytes = count * stripe_bytes;
            if lane == 0 {
                bytes -= access.address % stripe_bytes;
            }
            if lane == (stripes - 1) % channels {
                bytes -= (stripe_bytes - end % stripe_bytes) % stripe_bytes;
            }
            let channel = ((first + lane) % channels) as usize;
            let pause_ns = match access.write {
                true => self.pause_ns(channel, bytes),
                false => 0,
            };
            let free_ns = &mut self.channel_free_ns[channel];
            let busy_ns = busy_ns.saturating_mul(count);
            *free_ns = start_ns
                .max(*free_ns)
                .saturating_add(busy_ns)
                .saturating_add(pause_ns)
                .saturating_add(transfer_ns(bytes, rate_mb_s));
            ready_ns = ready_ns.max(*free_ns);
        }
        // Channels and interface work at the same time; the slower one decides.
        let carry_ns = transfer_ns(access.len, self.options.interface_mb_s);
        let carried_ns = start_ns
            .max(self.interface_free_ns)
            .saturating_add(carry_ns);
        self.interface_free_ns = carried_ns;
        ready_ns.max(carried_ns).saturating_add(latency_us * 1000)
    }

    /// How long a channel collects garbage before it writes these bytes, ns.
    fn pause_ns(&mut self, channel: usize, bytes: u64) -> u64 {
        let between = self.options.gc_bytes;
        if between == 0 {
            return 0;
        }
        let written = self.written_bytes[channel].saturating_add(bytes);
        self.written_bytes[channel] = written % between;
        (written / between).saturating_mul(self.options.gc_us * 1000)
    }
}

#[cfg(test)]
mod tests {
    use crate::{Access, Device, DeviceOptions};

    /// Bytes per microsecond of `count` accesses, `depth` of them running at any time.
    fn rate_mb_s(preset: &str, count: u64, depth: usize, access: impl Fn(u64) -> Access) -> u64 {
        let mut device = Device::new(&DeviceOptions::preset(preset).unwrap()).unwrap();
        let mut running = std::collections::VecDeque::from(std::vec![0; depth]);
        let mut bytes = 0;
        for i in 0..count {
            let start_ns = running.pop_front().unwrap();
            bytes += access(i).len;
            running.push_back(device.serve(start_ns, &[access(i)]));
            running.make_contiguous().sort_unstable();
        }
        bytes * 1000 / running.back().unwrap()
    }

    fn random(i: u64, len: u64, write: bool) -> Access {
        let address = crate::address::mix(i) % (100 << 30) / len * len;
        Access {
            address,
            len,
            write,
        }
    }

    #[test]
    fn one_small_read_costs_latency_and_many_at_once_the_channels() {
        let mut device = Device::new(&DeviceOptions::preset("ssd-sata").unwrap()).unwrap();
        let finish_ns = device.serve(0, &[random(1, 4096, false)]);
        assert!((130_000..180_000).contains(&finish_ns), "{finish_ns}");
        let alone = rate_mb_s("ssd-sata", 2000, 1, |i| random(i, 4096, false));
        let together = rate_mb_s("ssd-sata", 20_000, 32, |i| random(i, 4096, false));
        // About 8,000 and 80,000 reads per second.
        assert!((20..40).contains(&alone), "{alone}");
        assert!((280..400).contains(&together), "{together}");
    }

    #[test]
    fn large_accesses_reach_the_interface() {
        let large = |i, write| Access {
            address: i << 20,
            len: 1 << 20,
            write,
        };
        for (preset, read, write) in [("ssd-sata", 490, 490), ("ssd-pcie", 700, 650)] {
            let rate = rate_mb_s(preset, 500, 4, |i| large(i, false));
            assert!((read..read * 11 / 10).contains(&rate), "{preset} {rate}");
            let rate = rate_mb_s(preset, 500, 4, |i| large(i, true));
            assert!((write..write * 11 / 10).contains(&rate), "{preset} {rate}");
        }
    }

    #[test]
    fn garbage_is_collected_by_one_channel_at_a_time() {
        let mut options = DeviceOptions::preset("ssd-sata").unwrap();
        options.set("gc_bytes", 4 << 20).unwrap();
        options.set("gc_us", 20_000).unwrap();
        let mut device = Device::new(&options).unwrap();
        let mut now_ns = 0;
        let mut slow = std::vec::Vec::new();
        // 16 KiB for each of 8 channels in turn, 16 MiB for each of them: 4 pauses.
        for i in 0..8 * 1024 {
            let access = Access {
                address: i << 14,
                len: 1 << 14,
                write: true,
            };
            let end_ns = device.serve(now_ns, &[access]);
            if end_ns - now_ns > 20_000_000 {
                slow.push(i);
            }
            now_ns = end_ns;
        }
        assert_eq!(slow.len(), 8 * 4);
        assert!(slow.windows(2).all(|pair| pair[1] - pair[0] > 100));
        let read = Access {
            address: 0,
            len: 4096,
            write: false,
        };
        assert!(device.serve(now_ns, &[read]) - now_ns < 200_000);
    }

    #[test]
    fn a_stripe_more_or_less_counts_by_its_bytes() {
        let time_ns = |address, len| {
            let mut device = Device::new(&DeviceOptions::preset("ssd-sata").unwrap()).unwrap();
            device.serve(
                0,
                &[Access {
                    address,
                    len,
                    write: false,
                }],
            )
        };
        assert_eq!(time_ns(0, 16 << 10), time_ns(3 << 14, 16 << 10));
        // Two halves on two channels are read at the same time.
        assert!(time_ns(8 << 10, 16 << 10) < time_ns(0, 16 << 10));
        assert!(time_ns(0, u64::MAX) > time_ns(0, 1 << 40));
        assert_eq!(time_ns(5, 0), 70_000);
    }
}

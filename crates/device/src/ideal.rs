//! A device on which every call takes the same time, for tests and for models on paper.

use crate::Access;
use crate::options::IdealOptions;
use alloc::vec;
use alloc::vec::Vec;

pub(crate) struct Ideal {
    options: IdealOptions,
    /// When each of the places that serve calls is free again.
    free_ns: Vec<u64>,
}

impl Ideal {
    pub(crate) fn new(options: &IdealOptions, depth: u32) -> Ideal {
        Ideal {
            options: options.clone(),
            free_ns: vec![0; depth as usize],
        }
    }

    pub(crate) fn serve(&mut self, start_ns: u64, accesses: &[Access]) -> u64 {
        let bytes = accesses
            .iter()
            .fold(0u64, |sum, access| sum.saturating_add(access.len));
        let transfer_ns = u128::from(bytes) * u128::from(self.options.ns_per_kib) / 1024;
        let transfer_ns = u64::try_from(transfer_ns).unwrap_or(u64::MAX);
        let service_ns = (self.options.service_us * 1000).saturating_add(transfer_ns);
        let free_ns = self
            .free_ns
            .iter_mut()
            .min()
            .expect("the depth is at least 1");
        *free_ns = start_ns.max(*free_ns).saturating_add(service_ns);
        *free_ns
    }
}

#[cfg(test)]
mod tests {
    use crate::{Access, Device, DeviceOptions};

    #[test]
    fn every_call_takes_the_same_time() {
        let mut options = DeviceOptions::preset("ideal").unwrap();
        options.set("service_us", 5).unwrap();
        options.set("ns_per_kib", 100).unwrap();
        options.set("depth", 2).unwrap();
        let mut device = Device::new(&options).unwrap();
        let access = Access {
            address: 0,
            len: 2048,
            write: true,
        };
        assert_eq!(device.serve(1000, &[access]), 6200);
        assert_eq!(device.serve(1000, &[access, access]), 6400);
        // Both places are taken: the third call waits for the first to end.
        assert_eq!(device.serve(2000, &[access]), 11_400);
    }
}

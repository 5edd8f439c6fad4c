//! Payload buffers: reuse, alignment, and which memory of clients is taken.

use super::*;
use rustix::fs::{MemfdFlags, fcntl_add_seals, ftruncate, memfd_create};

#[test]
fn the_last_freed_buffer_is_handed_out_first() {
    let slots = Slots::new(1 << 20);
    let first = Arc::as_ptr(&slots.open(SlotId(1), 5000));
    let second = Arc::as_ptr(&slots.open(SlotId(2), 5000));
    slots.free(SlotId(1));
    slots.free(SlotId(2));
    assert_eq!(Arc::as_ptr(&slots.open(SlotId(3), 8192)), second);
    assert_eq!(Arc::as_ptr(&slots.open(SlotId(4), 6000)), first);
    assert_eq!(
        lock_buffer(&slots.buffer(SlotId(4)).expect("open"))
            .bytes()
            .len(),
        8192
    );
    assert_eq!(slots.open_count(), 2);
}

#[test]
fn a_buffer_that_is_still_held_is_not_reused_and_the_pool_is_bounded() {
    let slots = Slots::new(4096);
    let held = slots.open(SlotId(1), 10);
    slots.free(SlotId(1));
    let other = slots.open(SlotId(2), 10);
    assert!(!Arc::ptr_eq(&held, &other));
    drop((held, other));
    slots.open(SlotId(3), 10);
    slots.free(SlotId(2));
    slots.free(SlotId(3));
    assert_eq!(slots.lock().free_bytes, 4096);
    slots.free(SlotId(9));
    assert!(slots.buffer(SlotId(9)).is_none());
}

#[test]
fn unused_buffers_make_room_for_those_in_use() {
    let slots = Slots::new(64 << 10);
    (0..16).for_each(|slot| drop(slots.open(SlotId(slot), 4096)));
    (0..16).for_each(|slot| slots.free(SlotId(slot)));
    assert_eq!(slots.lock().free_bytes, 64 << 10);
    slots.open(SlotId(0), 32 << 10);
    let held = |slots: &Slots| {
        let pool = slots.lock();
        (pool.used_bytes, pool.free_bytes)
    };
    assert_eq!(held(&slots), (32 << 10, 32 << 10));
    slots.open(SlotId(0), 4096);
    assert_eq!(held(&slots), (4096, 28 << 10), "the older buffer is gone");
    slots.free(SlotId(0));
    assert_eq!(held(&slots), (0, 32 << 10));
}

#[test]
fn every_size_is_aligned_and_zeroed() {
    for len in [1, 4096, 5000, 1 << 20] {
        let mut bytes = SlotBytes::zeroed(len);
        assert_eq!(bytes.start() as usize % ALIGN, 0);
        assert!(bytes.len() == len && bytes.iter().all(|&byte| byte == 0));
        bytes.fill(9);
        assert_eq!(bytes[len - 1], 9);
    }
}

fn memory(bytes: u64, seals: SealFlags) -> OwnedFd {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let fd = memfd_create(c"test", flags).expect("memory");
    ftruncate(&fd, bytes).expect("its size");
    fcntl_add_seals(&fd, seals).expect("seals");
    fd
}

#[test]
fn only_memory_that_stays_is_taken() {
    let sound = memory(8192, SealFlags::SHRINK);
    assert!(SharedMemory::map(&sound, 8193).is_err());
    assert!(SharedMemory::map(&sound, 0).is_err());
    assert!(SharedMemory::map(&sound, u64::MAX).is_err());
    let mapped = SharedMemory::map(&sound, 8192).expect("a sound offer");
    assert!(mapped.holds(0, 8192) && mapped.holds(8192, 0));
    assert!(!mapped.holds(1, 8192) && !mapped.holds(u64::MAX, 2));
    assert!(SharedMemory::map(&memory(8192, SealFlags::GROW), 4096).is_err());
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | MemfdFlags::HUGETLB;
    if let Ok(huge) = memfd_create(c"test", flags) {
        ftruncate(&huge, 1 << 30).expect("its size");
        fcntl_add_seals(&huge, SealFlags::SHRINK).expect("seals");
        let refused = SharedMemory::map(&huge, 4096).err().expect("it is refused");
        assert!(refused.to_string().contains("ordinary"), "{refused}");
    }
    let file = OwnedFd::from(std::fs::File::open("/proc/self/exe").expect("this program"));
    assert!(SharedMemory::map(&file, 4096).is_err());
}

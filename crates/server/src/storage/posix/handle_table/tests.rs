//! What stays in the table of known files, and what goes.

use super::*;

fn fd() -> OwnedFd {
    std::fs::File::open("/").expect("the root exists").into()
}

fn file(inode: u64) -> Handle {
    Handle { inode, birth: 1 }
}

fn place() -> Place {
    Place {
        dir: None,
        name: (*b"name").into(),
    }
}

#[test]
fn what_was_not_used_goes_and_of_open_files_the_place_stays() {
    let table = HandleTable::new(4);
    for inode in 0..10 {
        table.insert(file(inode), 0, fd()).set_open(inode % 2 == 0);
    }
    assert_eq!((table.fds(), table.too_many()), (10, 6));
    assert!(table.unused(1).len() <= 1);
    let nine = table.find(file(9));
    assert!(nine.is_some());
    let unused = table.unused(20);
    let inodes: Vec<u64> = unused.iter().map(|known| known.handle.inode).collect();
    assert!(!inodes.contains(&9) && inodes.len() == 9, "{inodes:?}");
    let in_use = table.find(file(0)).expect("known");
    for known in unused {
        let place = known.is_open().then(place);
        let (inode, used) = (known.handle.inode, Arc::strong_count(&known) > 2);
        assert_eq!(table.park(known, place), !used, "file {inode}");
    }
    assert_eq!((table.fds(), table.parked()), (2, 4));
    assert!(
        table
            .find(file(0))
            .is_some_and(|it| Arc::ptr_eq(&it, &in_use))
    );
    assert!(table.find(file(2)).is_none() && table.place(file(2)).is_some());
    assert!(table.find(file(1)).is_none() && table.place(file(1)).is_none());
    assert!(table.insert(file(2), 0, fd()).is_open());
    table.closed(file(4));
    assert!(table.place(file(4)).is_none());
    assert_eq!(table.parked(), 2);
}

#[test]
fn an_open_file_without_a_place_and_one_with_data_stay() {
    let table = HandleTable::new(1);
    let known = table.insert(file(1), 0, fd());
    known.set_open(true);
    let unused = || {
        // Its first chance, and its second.
        let mut found = table.unused(1);
        found.extend(table.unused(1));
        found.pop().expect("nothing uses it")
    };
    drop(known);
    assert!(!table.park(unused(), None));
    let known = table.find(file(1)).expect("it stays");
    known.data().read = Some(Arc::new(table.counted(fd())));
    drop(known);
    assert!(!table.park(unused(), Some(place())));
    let known = unused();
    let in_use = known.data().read.clone();
    assert!(known.take_idle_data().is_none(), "a call uses it");
    drop(in_use);
    known.set_unsynced();
    assert!(known.take_idle_data().is_none(), "an error would be lost");
    known.sync_begins();
    assert!(known.take_idle_data().is_some_and(|data| !data.is_empty()));
    assert!(table.park(known, Some(place())));
    assert_eq!((table.fds(), table.parked()), (0, 1));
    table.forget(file(1));
    assert_eq!(table.parked(), 1, "it is open");
}

#[test]
fn places_of_files_that_are_not_open_are_bounded() {
    let table = HandleTable::new(1);
    for number in 0..2 * PLACES_MAX as u64 {
        table.insert(file(number), 0, fd());
        let found = table.unused(1).into_iter();
        for known in found.chain(table.unused(1)) {
            table.park(known, Some(place()));
        }
    }
    let places = |bucket: &Mutex<Bucket>| lock(bucket).places.len();
    let places: usize = table.buckets.iter().map(places).sum();
    assert!(places <= PLACES_MAX && places > PLACES_MAX / 2, "{places}");
}

#[test]
fn a_second_insert_keeps_the_first_descriptor() {
    let table = HandleTable::new(64);
    let handle = Handle { inode: 1, birth: 2 };
    let first = table.insert(handle, 0, fd());
    assert!(Arc::ptr_eq(&first, &table.insert(handle, 0, fd())));
    assert!(table.find(Handle { inode: 1, birth: 3 }).is_none());
}

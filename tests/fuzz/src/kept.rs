//! The hidden folder of an export, whose files are damaged: a forwarder that starts there takes its
//! seats or says what is wrong.

use crate::{Draw, folder::Folder};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use tidegate_server::clock::Zero;
use tidegate_server::kept::{Texts, export_id, forwarders};
use tidegate_server::seats::{LeaseOptions, LeasedSeats, Seats, SeatsError, Tried};
use tidegate_server::storage::fence::Fence;
use tidegate_server::storage::{ExportOptions, PosixFiles};
use tidegate_wire::Layout;
use tidegate_wire::frame::checksum;

pub(crate) const LAYOUT: Layout = Layout {
    seats: 2,
    stripe: 4096,
};
/// Where the record of a lease has its checksum.
const LEASE_SUM_AT: usize = 508;
/// Nobody waits for a lease to end, and none ends in a run, however busy the machine is.
const TTL_NS: u64 = 3_600_000_000_000;
/// Pieces of a table that are copied at most before a seat is taken.
const PIECES_MAX: usize = 1000;

pub(super) fn run(data: &[u8]) {
    let mut draw = Draw::new(data);
    let folder = Folder::new();
    let (export, hidden) = (folder.path(), folder.path().join(".tidegate"));
    let leased = draw.yes();
    start(export, leased).expect("nothing is damaged yet");
    for _ in 0..1 + draw.u8() % 6 {
        // Damage that cannot be done is none.
        let _ = damage(&mut draw, &hidden);
    }
    // What is wrong is said, and nothing else happens.
    let leased = leased ^ draw.one_in(4);
    let _ = start(export, leased);
    let _ = start(export, leased);
}

/// A forwarder starts, takes its seats, and ends.
fn start(export: &Path, leased: bool) -> Result<(), String> {
    let said = |error: &dyn std::error::Error| error.to_string();
    let files = PosixFiles::open(export, &ExportOptions::new(LAYOUT));
    let files = files.map_err(|error| said(&error))?;
    let seats = Seats::open(&files, LAYOUT, 0).map_err(|error| said(&error))?;
    let others = || -> io::Result<()> {
        export_id(files.hidden())?;
        Texts::read(files.hidden())?;
        forwarders(files.hidden(), LAYOUT.seats).map(drop)
    };
    let others = others().map_err(|error| said(&error));
    let taken = match leased {
        true => LeasedSeats::by_files(seats, lease_options()).and_then(take_leases),
        false => take(&seats),
    };
    files.tidy();
    for seat in 0..LAYOUT.seats {
        let _ = files.sweep(seat);
    }
    others.and(taken.map_err(|error| said(&error)))
}

fn take(seats: &Seats) -> Result<(), SeatsError> {
    for seat in 0..LAYOUT.seats {
        if let Some(taken) = seats.try_take(seat)? {
            assert!(taken.generation > 0, "a seat without a generation");
            tidegate_forward::used_ranges(&*taken.table);
            taken.table.store(0, &[]);
            seats.settle(seat)?;
            seats.release(seat);
        }
        seats.want(seat)?;
        seats.wanted(seat);
        seats.stop_wanting(seat);
    }
    Ok(())
}

pub(crate) fn lease_options() -> LeaseOptions {
    LeaseOptions {
        ttl_ns: TTL_NS,
        outlives_node: true,
        one_node: false,
        fence: Fence::new(Zero::now()),
    }
}

/// Takes each seat once, and gives it back.
pub(crate) fn take_leases(mut seats: LeasedSeats) -> Result<(), SeatsError> {
    for seat in 0..LAYOUT.seats {
        for _ in 0..PIECES_MAX {
            match seats.try_take(seat)? {
                Tried::GoesOn => continue,
                Tried::Taken(taken, _) => {
                    assert!(taken.generation > 0, "a seat without a generation");
                    tidegate_forward::used_ranges(&*taken.table);
                    let _ = taken.table.persist_holders();
                    seats.renew();
                    let settled = seats.settle(seat);
                    let _ = seats.release(seat);
                    settled?;
                }
                Tried::Busy | Tried::Waits(_) => {}
            }
            break;
        }
        seats.look(seat);
        seats.want(seat)?;
        let _ = seats.wanted(&[]);
    }
    Ok(())
}

fn damage(draw: &mut Draw<'_>, hidden: &Path) -> io::Result<()> {
    let kind = draw.u8() % 8;
    if kind == 7 {
        let handle = format!("moved/{}-{}", draw.size(), draw.size());
        let path = String::from_utf8_lossy(draw.some_bytes()).into_owned();
        return std::os::unix::fs::symlink(path, hidden.join(handle));
    }
    if kind == 6 {
        let path = hidden.join(new_name(draw));
        return std::fs::write(path, draw.some_bytes());
    }
    let mut names: Vec<PathBuf> = std::fs::read_dir(hidden)?
        .map(|entry| Ok(entry?.path()))
        .collect::<io::Result<_>>()?;
    names.sort();
    let path = names[draw.below(names.len())].clone();
    match kind {
        0 => match draw.u8() % 3 {
            0 => std::fs::remove_file(&path),
            1 => std::fs::rename(&path, hidden.join(new_name(draw))),
            _ => std::fs::copy(&path, hidden.join(new_name(draw))).map(drop),
        },
        1 => {
            std::fs::remove_file(&path)?;
            match draw.yes() {
                true => std::fs::create_dir(&path),
                false => std::os::unix::fs::symlink("/dev/null", &path),
            }
        }
        2 => File::options()
            .write(true)
            .open(&path)?
            .set_len(draw.size() % (1 << 20)),
        _ => {
            let file = File::options().read(true).write(true).open(&path)?;
            for _ in 0..1 + draw.u8() % 4 {
                let at = u64::from(draw.u16()) % 520;
                file.write_all_at(draw.some_bytes(), at)?;
            }
            if path.to_string_lossy().contains("lease.") {
                let mut record = [0; LEASE_SUM_AT];
                file.read_exact_at(&mut record, 0)?;
                let sum = checksum(&record).to_le_bytes();
                file.write_all_at(&sum, LEASE_SUM_AT as u64)?;
            }
            Ok(())
        }
    }
}

fn new_name(draw: &mut Draw<'_>) -> String {
    let number = draw.size();
    match draw.u8() % 10 {
        0 => format!("lease.0.{number}"),
        1 => format!("spare.0.{number}"),
        2 => format!("draft.0.{number}.{}", draw.size()),
        3 => "seat.1".to_owned(),
        4 => "forwarder.1".to_owned(),
        5 => "export".to_owned(),
        6 => "layout".to_owned(),
        7 => "policy.toml".to_owned(),
        8 => format!("seat.{number}"),
        _ => String::from_utf8_lossy(draw.some_bytes()).replace(['/', '\0'], "."),
    }
}

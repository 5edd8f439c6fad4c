//! Chooses how a forwarder holds its seats against other forwarders: by locks, or by leases.

use super::StartError;
use crate::adapters::seat_keeper::{LockKeeper, SeatKeeper};
use crate::config::{Config, Durability};
use crate::seats::{LeaseKeeper, LeaseOptions, LeasedSeats, Seats};
use crate::storage::{Fence, PosixFiles, Wake};
use std::time::Duration;
use tidegate_forward::{Input, OwnershipFacts};
use tidegate_wire::ExportId;

/// The effective way to keep seats; `shared` says whether several nodes may have the export.
pub(super) fn ownership(config: &Config, shared: bool) -> Input {
    let ownership = &config.ownership;
    let leases = by_leases(config, shared);
    let outlives_node = leases && ownership.durability != Some(Durability::Process);
    Input::Ownership(OwnershipFacts {
        keeper: match ownership.etcd {
            Some(_) => "etcd",
            None => "files",
        },
        ttl_ms: leases.then_some(ownership.ttl_ms),
        durability: match outlives_node {
            true => "node",
            false => "process",
        },
        one_node: !shared,
    })
}

fn by_leases(config: &Config, shared: bool) -> bool {
    let ownership = &config.ownership;
    shared || ownership.durability == Some(Durability::Node) || ownership.etcd.is_some()
}

/// Opens the seats' files, if the export supports what the configuration demands.
pub(super) fn locks(config: &Config, files: &PosixFiles) -> Result<Seats, StartError> {
    let seats = Seats::open(files, config.layout(), config.forwarder)?;
    let seats = seats.with_room_for(config.ownership.room_for_clients);
    let others = config.fail_over && config.seats > 1 && config.ownership.etcd.is_none();
    match seats.fail_over_refusal().filter(|_| others) {
        Some(refusal) => Err(StartError::FailOver(refusal)),
        None => Ok(seats),
    }
}

/// Uses locks alone where one node has the back end, and leases where several nodes may have it or
/// where etcd is configured.
pub(super) fn keeper(
    config: &Config,
    seats: Seats,
    (files, export): (&PosixFiles, ExportId),
    shared: bool,
    fence: &Fence,
    notify: &Wake,
) -> Result<SeatKeeper, StartError> {
    let durability = config.ownership.durability;
    let etcd = config.ownership.etcd.as_ref();
    if !by_leases(config, shared) {
        seats.agree_on_keeper("locks of one node")?;
        let locks = LockKeeper::new(seats, files.clone(), config.forwarder);
        return Ok(SeatKeeper::Locks(locks));
    }
    let ttl = Duration::from_millis(config.ownership.ttl_ms.into());
    let options = LeaseOptions {
        ttl_ns: ttl.as_nanos() as u64,
        outlives_node: durability != Some(Durability::Process),
        one_node: !shared,
        fence: fence.clone(),
    };
    let leased = match etcd {
        Some(etcd) => LeasedSeats::by_etcd(&seats, etcd, export, options)?,
        None => LeasedSeats::by_files(seats, options)?,
    };
    let files = files.clone().fenced(fence);
    let keeper = LeaseKeeper::start(leased, files, config.forwarder, ttl, notify.clone());
    let keeper = keeper.map_err(StartError::system("starting a thread"))?;
    Ok(SeatKeeper::Leases(keeper))
}

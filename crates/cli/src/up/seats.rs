//! Waits until the forwarders that were started hold the directory's seats: each its own, unless
//! somebody else's forwarders have them.

use super::nested;
use super::plan::Plan;
use crate::fail::Fail;
use crate::processes;
use crate::stat::{ANSWER_MAX, states};
use crate::target;
use serde_json::Value;
use std::time::Duration;

/// Longest time until the owners have their seats.
const PATIENCE: Duration = Duration::from_secs(5);

/// Waits until each forwarder serves its own seat, or at least each seat is served by one of them.
pub fn wait(plan: &Plan) -> Result<(), Fail> {
    let found = plan.client_file();
    let client = target::connect(&found, Some(ANSWER_MAX))?;
    let mut now = Vec::new();
    let own = processes::wait_until(PATIENCE, || {
        now = states(&client, &found.forwarders);
        let mut each = now.iter().enumerate();
        each.all(|(index, state)| served(state).any(|seat| seat == index as u64))
    });
    client.shutdown();
    if own {
        return Ok(());
    }
    if let Some((index, error)) = now
        .iter()
        .enumerate()
        .find_map(|(index, state)| Some((index, state["error"].as_str()?)))
    {
        return Err(Fail::runtime(format!("forwarder {index}: {error}")));
    }
    if let Some((index, trouble)) = now
        .iter()
        .enumerate()
        .find_map(|(index, state)| Some((index, state["trouble"].as_str()?)))
    {
        return Err(Fail::runtime(format!("forwarder {index}: {trouble}")));
    }
    let elsewhere = |seat: &usize| !now.iter().flat_map(served).any(|held| held == *seat as u64);
    match (0..plan.forwarders).find(elsewhere) {
        // One of them stands in for another, which will have its seat a little later.
        None => Ok(()),
        Some(seat) => {
            let how = format!(": .tidegate/seat.{seat} in it is locked");
            Err(nested::served(&plan.export, plan.state.path(), &how))
        }
    }
}

/// The seats that a forwarder serves, by its state.
fn served(state: &Value) -> impl Iterator<Item = u64> {
    let seats = state["seats"].as_array().map_or(&[][..], Vec::as_slice);
    seats.iter().filter_map(|seat| {
        let serves = matches!(seat["state"].as_str(), Some("serving" | "grace"));
        seat["seat"].as_u64().filter(|_| serves)
    })
}

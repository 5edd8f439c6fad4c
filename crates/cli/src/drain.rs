//! `tidegate drain`: moves a forwarder's seats to others, so that its node can be worked on.

use crate::fail::Fail;
use crate::outln;
use crate::stat::health::{double, name};
use crate::stat::{ANSWER_MAX, state, states, why};
use crate::target::Target;
use serde_json::{Value, json};
use std::process::ExitCode;
use std::time::{Duration, Instant};
use tidegate_client::{Client, Errno};

/// Between two looks at what the forwarder holds.
const LOOK: Duration = Duration::from_millis(100);

/// Move the seats of one forwarder to others, so that its node can be worked on.
#[derive(clap::Args)]
pub struct Drain {
    /// Its index or its address
    #[arg(value_name = "FORWARDER")]
    which: String,
    /// Give it its seat back
    #[arg(long)]
    undo: bool,
    /// How long to wait until it has let its seats go, or has its own again
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    wait: u64,
    #[command(flatten)]
    target: Target,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Drain {
    /// Drains the forwarder, and returns when it has no seats.
    pub fn perform(self) -> Result<ExitCode, Fail> {
        let (found, client) = self.target.connect(Some(ANSWER_MAX))?;
        let index = self.index(&found.forwarders)?;
        let before = states(&client, &found.forwarders);
        let name = name(&before[index]);
        if !self.undo {
            check(&before, index)?;
        }
        let ordered = client.drain(index, self.undo);
        ordered.map_err(|errno| Fail::runtime(format!("{name}: {}", refusal(errno))))?;
        let until = Instant::now() + Duration::from_secs(self.wait);
        while !self.is_done(&client, index, &found.forwarders[index])? {
            if Instant::now() >= until {
                let (wait, what) = (self.wait, self.misses());
                let say = "it goes on; `tidegate stat --check` says how far it is";
                return Err(Fail::runtime(format!(
                    "{name} {what} after {wait} s; {say}"
                )));
            }
            std::thread::sleep(LOOK);
        }
        match self.json {
            true => outln!("{}", json!({"forwarder": index, "draining": !self.undo})),
            false if self.undo => outln!("{name} serves its seat"),
            false => outln!(
                "{name} holds no seat; it may be stopped, or `tidegate drain {index} --undo` gives \
                 its seat back"
            ),
        }
        Ok(ExitCode::SUCCESS)
    }

    fn index(&self, addresses: &[String]) -> Result<usize, Fail> {
        if let Some(index) = addresses.iter().position(|one| *one == self.which) {
            return Ok(index);
        }
        let index = self.which.parse().ok();
        index.filter(|at| *at < addresses.len()).ok_or_else(|| {
            let (which, last) = (&self.which, addresses.len() - 1);
            let all = addresses.join(", ");
            Fail::usage(format!(
                "forwarder {which} is none of these: an index from 0 to {last}, or one of {all}"
            ))
        })
    }

    fn misses(&self) -> &'static str {
        match self.undo {
            true => "does not serve its seat",
            false => "still holds a seat",
        }
    }

    fn is_done(&self, client: &Client, index: usize, address: &str) -> Result<bool, Fail> {
        let text = client.status(index).map_err(|errno| {
            Fail::runtime(format!("forwarder {index} ({address}): {}", why(errno)))
        })?;
        let state = state(&text);
        if let Some(error) = state["error"].as_str() {
            return Err(Fail::runtime(format!("forwarder {index}: its {error}")));
        }
        let mut seats = state["seats"].as_array().into_iter().flatten();
        let serves = |one: &Value| {
            let word = one["state"].as_str().unwrap_or("");
            one["seat"].as_u64() == Some(index as u64) && ["serving", "grace"].contains(&word)
        };
        Ok(match self.undo {
            true => seats.any(serves),
            // One that is asked for is let go when it comes.
            false => seats.all(|one| one["state"] == "taking"),
        })
    }
}

/// Checks that another forwarder is there to take the seats.
fn check(states: &[Value], index: usize) -> Result<(), Fail> {
    let (one, others): (Vec<_>, Vec<_>) =
        states.iter().enumerate().partition(|(at, _)| *at == index);
    if let Some(error) = one.first().and_then(|(_, state)| state["error"].as_str()) {
        let name = name(&states[index]);
        return Err(Fail::runtime(format!("{name}: {error}")));
    }
    // The other one may have the seat, and would keep it.
    if let Some(double) = double(&states[index]) {
        return Err(Fail::runtime(format!(
            "{} is not drained: {double}",
            name(&states[index])
        )));
    }
    let takes = |state: &Value| state["error"].is_null() && state["draining"] == false;
    match others.into_iter().any(|(_, state)| takes(state)) {
        true => Ok(()),
        false => Err(Fail::runtime(format!(
            "{} is the last one that serves: no other forwarder answers and takes seats (see \
             `tidegate stat --check`)",
            name(&states[index])
        ))),
    }
}

fn refusal(errno: Errno) -> String {
    match errno {
        Errno::PERM => {
            "only root, the forwarder's own user, or who has the secret of the site or of an \
             operator may set it aside"
                .to_string()
        }
        Errno::OPNOTSUPP => "no other forwarder can stand in for it: it is the only one, or has \
                             fail_over = false"
            .to_string(),
        errno => why(errno),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_one_that_serves_is_not_drained() {
        let state = |at: u64, draining: bool| {
            let address = "unix:a";
            json!({"forwarder": at, "address": address, "draining": draining})
        };
        let away = json!({"forwarder": 1, "address": "unix:b", "error": "Connection refused"});
        assert!(check(&[state(0, false), state(1, false), away.clone()], 0).is_ok());
        assert!(
            check(&[state(0, true), state(1, false)], 0).is_ok(),
            "it is aside already"
        );
        let mut doubled = state(0, false);
        doubled["doubled"] = "unix:b".into();
        let fail = check(&[doubled, state(1, false)], 0).expect_err("which one is meant?");
        let says = "is not drained: another process says that it is forwarder 0 too, at unix:b";
        assert!(fail.message.contains(says), "{}", fail.message);
        for others in [state(1, true), away.clone()] {
            let fail = check(&[state(0, false), others], 0).expect_err("nobody else serves");
            assert!(
                fail.message.contains("the last one that serves"),
                "{}",
                fail.message
            );
        }
        let fail = check(&[state(0, false), away], 1).expect_err("it does not answer");
        assert!(
            fail.message.contains("Connection refused"),
            "{}",
            fail.message
        );
    }
}

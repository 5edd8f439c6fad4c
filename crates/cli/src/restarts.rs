//! Which forwarders of a local set were started again after they died: kept in the state directory
//! by `tidegate up`, told by `tidegate stat`.

use crate::state::StateDir;
use serde::{Deserialize, Serialize};
use std::time::{SystemTime, UNIX_EPOCH};

/// The file of the state directory.
const NAME: &str = "restarts.toml";

/// Of all forwarders of a set that died.
#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq, Eq)]
pub struct Restarts {
    /// In the order in which they died first.
    #[serde(default)]
    pub forwarder: Vec<Restart>,
}

/// Of one forwarder.
#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq, Eq)]
pub struct Restart {
    /// Its index.
    pub index: usize,
    /// How often it was started again.
    pub count: u64,
    /// When it was the last time, in seconds since 1970.
    pub last_s: u64,
    /// How it ended the last time, and what its log says of that.
    pub how: String,
    /// Whether it is dead now, and will be started again.
    #[serde(default)]
    pub waits: bool,
    /// Whether it is not started any more.
    pub given_up: bool,
}

impl Restarts {
    /// What the state directory's file says; nothing without a file that can be read.
    pub fn read(state: &StateDir) -> Restarts {
        let text = std::fs::read_to_string(state.inside(&state.file(NAME)));
        toml::from_str(&text.unwrap_or_default()).unwrap_or_default()
    }

    /// Writes the file, so that nobody reads half of it.
    pub fn write(&self, state: &StateDir) -> std::io::Result<()> {
        let text = toml::to_string(self).map_err(std::io::Error::other)?;
        let new = state.inside(&state.file("restarts.new"));
        std::fs::write(&new, text)?;
        std::fs::rename(new, state.inside(&state.file(NAME)))
    }

    /// Removes the file.
    pub fn remove(state: &StateDir) {
        // Not there if none has died.
        let _ = std::fs::remove_file(state.inside(&state.file(NAME)));
    }

    /// Of that forwarder.
    pub fn of(&mut self, index: usize) -> &mut Restart {
        let at = self.forwarder.iter().position(|one| one.index == index);
        let at = at.unwrap_or_else(|| {
            self.forwarder.push(Restart {
                index,
                ..Restart::default()
            });
            self.forwarder.len() - 1
        });
        &mut self.forwarder[at]
    }

    /// Whether any has died.
    pub fn any(&self) -> bool {
        !self.forwarder.is_empty()
    }

    /// A line for each, for people.
    pub fn lines(&self) -> Vec<String> {
        let now = now_s();
        let lines = self.forwarder.iter().map(|one| {
            let Restart {
                index, count, how, ..
            } = one;
            if one.given_up {
                return one.gone();
            }
            if one.waits {
                return format!("forwarder {index} died ({how}) and will be started again");
            }
            let ago = now.saturating_sub(one.last_s);
            let times = match count {
                1 => "once".to_string(),
                count => format!("{count} times"),
            };
            format!(
                "forwarder {index} died ({how}) and was started again, {times}, {ago} s ago: its \
                 counts begin there"
            )
        });
        lines.collect()
    }

    /// A line for each that is not started any more.
    pub fn gone(&self) -> impl Iterator<Item = String> {
        let gone = self.forwarder.iter().filter(|one| one.given_up);
        gone.map(Restart::gone)
    }

    /// A line for each of those that died and do not run.
    pub fn dead(&self, runs: impl Fn(usize) -> bool) -> Vec<String> {
        let dead = self.forwarder.iter().filter(|one| !runs(one.index));
        let dead = dead.map(|Restart { index, how, .. }| {
            format!("forwarder {index} did not run any more: it died ({how})")
        });
        dead.collect()
    }
}

impl Restart {
    fn gone(&self) -> String {
        let Restart { index, how, .. } = self;
        format!("forwarder {index} died ({how}), as the times before, and is not started again")
    }
}

/// Now, in seconds since 1970.
pub fn now_s() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.unwrap_or_default().as_secs()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_told() {
        let folder = format!("tidegate-restarts-{}", std::process::id());
        let folder = std::env::temp_dir().join(folder);
        let state = StateDir::choose(Some(&folder));
        state.create().expect("fresh");
        assert_eq!(Restarts::read(&state).lines(), [""; 0]);
        let mut restarts = Restarts::default();
        let one = restarts.of(2);
        (one.count, one.last_s, one.how) = (3, now_s(), "signal: 9".to_string());
        restarts.of(0).given_up = true;
        restarts.write(&state).expect("room");
        assert_eq!(Restarts::read(&state), restarts);
        let lines = restarts.lines();
        let says = "forwarder 2 died (signal: 9) and was started again, 3 times, ";
        assert!(lines[0].starts_with(says), "{lines:?}");
        assert!(lines[1].ends_with("is not started again"), "{lines:?}");
        assert_eq!(restarts.gone().collect::<Vec<_>>(), lines[1..]);
        restarts.of(2).waits = true;
        let says = "forwarder 2 died (signal: 9) and will be started again";
        assert_eq!(restarts.lines()[0], says);
        let dead = restarts.dead(|index| index == 0);
        assert_eq!(
            dead,
            ["forwarder 2 did not run any more: it died (signal: 9)"]
        );
        Restarts::remove(&state);
        assert_eq!(Restarts::read(&state), Restarts::default());
        std::fs::remove_dir_all(&folder).expect("ours");
    }
}

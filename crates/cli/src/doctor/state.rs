//! The state directory: whose it is, and what runs by it.

use super::configuration::Configurations;
use super::finding::Finding;
use crate::members;
use crate::state::StateDir;

const CHECK: &str = "state directory";

/// Looks at the state directory that is meant. `others`: whether forwarders are named otherwise, so
/// that little depends on it. Returns also what its files say, and itself if it is this user's.
pub fn look(state: StateDir, others: bool) -> (Vec<Finding>, Configurations, Option<StateDir>) {
    let shown = state.told();
    match state.enter() {
        Err(fail) => {
            let advice = "name another with --state-dir or TIDEGATE_STATE_DIR, be its owner, or \
                          make it his alone as it says";
            let finding = match others {
                true => Finding::warning(CHECK, fail.message, advice),
                false => Finding::fails(CHECK, fail.message, advice),
            };
            (vec![finding], Configurations::default(), None)
        }
        Ok(false) => {
            let text = format!("{shown} is not there: nothing was started by it");
            (
                vec![Finding::ok(CHECK, text)],
                Configurations::default(),
                None,
            )
        }
        Ok(true) => {
            let configurations = Configurations::read(&state);
            let (mounts, forwarders) = members::running(&state);
            let text = format!(
                "{shown} is this user's alone; configured forwarders {}, running {}, mounts {}",
                configurations.forwarders(),
                forwarders.len(),
                mounts.len()
            );
            (vec![Finding::ok(CHECK, text)], configurations, Some(state))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::finding::Verdict;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_directory_that_others_may_use_fails_unless_it_does_not_matter() {
        let place = std::env::temp_dir().join(format!("tidegate-looked-{}", std::process::id()));
        let state = || StateDir::choose(Some(&place));
        let verdict = |others| look(state(), others).0[0].verdict;
        assert_eq!(verdict(false), Verdict::Ok, "none is there");
        state().create().expect("fresh");
        assert_eq!(verdict(false), Verdict::Ok);
        let open = PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(&place, open).expect("ours");
        assert_eq!(verdict(false), Verdict::Fails);
        assert_eq!(verdict(true), Verdict::Warning);
        let found = look(state(), false).0;
        assert!(found[0].text.contains("chmod 700"), "{found:?}");
        std::fs::remove_dir(&place).expect("it is empty");
    }
}

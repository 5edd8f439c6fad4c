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
            let (configurations, wrong) = Configurations::read(&state);
            let (mounts, forwarders) = members::running(&state);
            let text = format!(
                "{shown} is this user's alone; configured forwarders {}, running {}, mounts {}",
                configurations.forwarders(),
                forwarders.len(),
                mounts.len()
            );
            let advice = "correct it, or start the set anew";
            let wrong = wrong.into_iter().map(|what| {
                let text = format!("{what}, in {shown}");
                Finding::fails("configuration", text, advice)
            });
            let found = std::iter::once(Finding::ok(CHECK, text)).chain(wrong);
            (found.collect(), configurations, Some(state))
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

    #[test]
    fn a_configuration_that_is_no_toml_fails_without_a_word_of_it() {
        let place = std::env::temp_dir().join(format!("tidegate-wrong-{}", std::process::id()));
        let state = || StateDir::choose(Some(&place));
        state().create().expect("fresh");
        let file = place.join("forwarder.1.toml");
        std::fs::write(&file, "export = \"/data\"\nsecret = hush hush\n").expect("written");
        let (found, configurations, _) = look(state(), false);
        assert_eq!(configurations.forwarders(), 0);
        let [_, wrong] = &found[..] else {
            panic!("{found:?}");
        };
        assert_eq!(wrong.verdict, Verdict::Fails);
        assert!(wrong.text.contains("forwarder.1.toml is no TOML in line 2"));
        assert!(!wrong.text.contains("hush"));
        std::fs::remove_dir_all(&place).expect("ours");
    }
}

//! Which application a run is: its name, and whether that was the user's choice.

use super::launcher::Launcher;
use crate::errln;
use crate::fail::Fail;
use crate::plain;
use std::time::{SystemTime, UNIX_EPOCH};
use tidegate_client::wire::NAME_MAX;

/// Set beside TIDEGATE_APP where its name was not the user's choice, and the program may start
/// several MPI jobs: each is an application of its own then.
pub const APP_MADE: &str = "TIDEGATE_APP_MADE";

/// The variable that names the application.
pub const APP: &str = "TIDEGATE_APP";

/// The application that the program is.
pub struct App {
    pub name: String,
    pub is_made: bool,
}

impl App {
    /// That of the command line, the environment or the batch system, else one that nobody else
    /// has. Forwarders count a name that they cannot show by its hash alone, and no rule of shares
    /// can mean it: so such a name is refused, and told where the environment has it.
    pub fn choose(given: Option<&str>, launcher: Option<Launcher>) -> Result<App, Fail> {
        let set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        if let Some(why) = given.and_then(unfit) {
            return Err(Fail::usage(format!("--app: {why}")));
        }
        let is_given = given.is_some() || (set(APP) && !set(APP_MADE));
        let app = App {
            name: given.map_or_else(application, str::to_string),
            is_made: !is_given && (launcher.is_none() || set(APP_MADE)),
        };
        if let Some(why) = unfit(&app.name) {
            errln!(
                "tidegate: warning: {APP}: {why}; it is counted without a name, and no rule of \
                 shares is for it"
            );
        }
        Ok(app)
    }
}

/// What is wrong with a name, if something is.
pub fn unfit(name: &str) -> Option<String> {
    if !(1..=NAME_MAX).contains(&name.len()) {
        let len = name.len();
        return Some(format!(
            "the name must have 1 to {NAME_MAX} bytes, not {len}"
        ));
    }
    let has_control = name.contains(char::is_control);
    has_control.then(|| format!("the name {} has a control character", plain::line(name)))
}

/// The application's name: the environment's or the batch system's, else one that nobody else has.
fn application() -> String {
    let variable = |name: &str| std::env::var(name).ok();
    tidegate_client::application_name_from_env(variable).unwrap_or_else(|| {
        let host = rustix::system::uname()
            .nodename()
            .to_string_lossy()
            .into_owned();
        let since = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        format!("run-{host}-{}-{}", std::process::id(), since.as_millis())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_no_rule_can_mean_is_refused() {
        let long = "n".repeat(NAME_MAX + 1);
        for name in ["", "a\nb", long.as_str()] {
            let fail = App::choose(Some(name), None).err().expect("refused");
            assert!(
                fail.code == 2 && fail.message.starts_with("--app: "),
                "{}",
                fail.message
            );
        }
        let longest = "n".repeat(NAME_MAX);
        assert!(App::choose(Some(&longest), None).is_ok_and(|app| app.name == longest));
    }
}

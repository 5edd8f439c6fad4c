//! Takes out of texts what may be a name of users' files, or a secret.

use serde_json::Value;
use std::path::{Path, PathBuf};

/// What stands for a path.
const PATH: &str = "(a path)";

/// What stands for what may be a secret.
const SECRET: &str = "(left out)";

/// Paths of the system, which name no user's file.
const OF_SYSTEM: [&str; 8] = [
    "/bin", "/dev", "/etc", "/lib", "/proc", "/sbin", "/sys", "/usr",
];

/// Paths below them that may name one: memory that programs share, and what a process has open.
const OF_SYSTEM_USERS: [&str; 3] = ["/dev/mqueue", "/dev/shm", "/proc"];
/// But not these.
const OF_PROC: [&str; 2] = ["/proc/self/mounts", "/proc/sys"];

/// Secrets and tickets are runs of letters and digits, no shorter than this.
const RUN_MIN: usize = 32;

/// Fields of states that are names of users' data.
const OF_USERS: [&str; 1] = ["directory"];

/// Which paths stay.
pub struct Mask {
    kept: Vec<PathBuf>,
}

impl Mask {
    /// These stay, and those of the system.
    pub fn new(kept: Vec<PathBuf>) -> Mask {
        Mask { kept }
    }

    /// The same, with all its texts masked.
    pub fn value(&self, value: &mut Value) {
        match value {
            Value::String(text) => *text = self.text(text),
            Value::Array(all) => all.iter_mut().for_each(|one| self.value(one)),
            Value::Object(fields) => {
                for (name, field) in fields {
                    match OF_USERS.contains(&name.as_str()) {
                        true => *field = SECRET.into(),
                        false => self.value(field),
                    }
                }
            }
            _ => {}
        }
    }

    /// The text without other paths, and without what may be a secret.
    pub fn text(&self, text: &str) -> String {
        let mut masked = String::with_capacity(text.len());
        let (mut rest, mut last, mut is_quoted) = (text, ' ', false);
        while let Some(first) = rest.chars().next() {
            let begins = !(last.is_alphanumeric() || "._-~/".contains(last));
            if first == '/' && begins {
                let token = token(rest, is_quoted);
                let (len, shown) = match self.stays(token) {
                    true => (token.len(), token),
                    false => (whole(rest, is_quoted).len(), PATH),
                };
                masked.push_str(shown);
                (rest, last) = (&rest[len..], 'x');
                continue;
            }
            let run = run(rest);
            if run.len() >= RUN_MIN && begins {
                masked.push_str(SECRET);
                (rest, last) = (&rest[run.len()..], 'x');
                continue;
            }
            is_quoted ^= first == '"';
            masked.push(first);
            (rest, last) = (&rest[first.len_utf8()..], first);
        }
        masked
    }

    /// Whether a path is of the configuration or the system: one that is kept, or a file that
    /// Tidegate keeps in one.
    fn stays(&self, path: &str) -> bool {
        let path = Path::new(path);
        let is_in = |places: &[&str]| places.iter().any(|place| path.starts_with(place));
        let of_system = is_in(&OF_SYSTEM) && (!is_in(&OF_SYSTEM_USERS) || is_in(&OF_PROC));
        let is_own = |name: &str| {
            let kinds = ["forwarder.", "client.", "mount.", "up.", ".tidegate"];
            kinds.iter().any(|kind| name.starts_with(kind))
        };
        let kept = |place: &PathBuf| {
            let inside = path.strip_prefix(place).ok();
            let first = inside.map(|inside| inside.components().next());
            first.is_some_and(|first| {
                first.is_none_or(|first| first.as_os_str().to_str().is_some_and(is_own))
            })
        };
        of_system || path == Path::new("/") || self.kept.iter().any(kept)
    }
}

/// The path that a text begins with, if it has no blanks; with them, in quotes.
fn token(text: &str, is_quoted: bool) -> &str {
    let ends = |c: char| match is_quoted {
        true => c == '"',
        false => c.is_whitespace() || "\"'`,;:()[]{}<>|".contains(c),
    };
    let token = &text[..text.find(ends).unwrap_or(text.len())];
    match is_quoted {
        true => token,
        false => token.trim_end_matches('.'),
    }
}

/// The path that a text begins with, however many blanks are in it: up to the error behind it.
fn whole(text: &str, is_quoted: bool) -> &str {
    let end = match is_quoted {
        true => text.find('"'),
        false => text.find(": "),
    };
    &text[..end.unwrap_or(text.len())]
}

/// The letters and digits that a text begins with, as keys are written.
fn run(text: &str) -> &str {
    let goes_on = |c: char| c.is_ascii_alphanumeric() || "+/=_-".contains(c);
    &text[..text.find(|c| !goes_on(c)).unwrap_or(text.len())]
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn mask() -> Mask {
        Mask::new(vec!["/data".into(), "/run/tidegate".into()])
    }

    #[test]
    fn paths_of_users_are_taken_out() {
        let masked = |text: &str| mask().text(text);
        for (text, wanted) in [
            (
                "export /data, and /etc/fuse.conf.",
                "export /data, and /etc/fuse.conf.",
            ),
            (
                "unix:/run/tidegate/forwarder.0.sock",
                "unix:/run/tidegate/forwarder.0.sock",
            ),
            ("/data/.tidegate/seat.0: EIO", "/data/.tidegate/seat.0: EIO"),
            ("/data/alice/x y: No space", "(a path): No space"),
            ("/dev/shm/alice/x: EIO", "(a path): EIO"),
            ("/proc/7/cwd/x", "(a path)"),
            ("/proc/sys/fs/nr_open", "/proc/sys/fs/nr_open"),
            ("file=\"/data/alice/x y\" n=1", "file=\"(a path)\" n=1"),
            ("cannot open /home/me/a b c", "cannot open (a path)"),
            ("/data2", "(a path)"),
            ("/run/tidegate/private", "(a path)"),
            ("read/write at 5/7", "read/write at 5/7"),
        ] {
            assert_eq!(masked(text), wanted);
        }
    }

    #[test]
    fn secrets_are_taken_out() {
        let secret = "q0dY3c+1/5kq0dY3c+1/5kq0dY3c+1/5kq0dY3c+1/4=";
        let text = mask().text(&format!("told {secret} and key=\"{secret}\""));
        assert_eq!(text, "told (left out) and key=\"(left out)\"");
        let short = "tidegate-client 0.1.0 by io1:123";
        assert_eq!(mask().text(short), short);
        let mut value = json!({"a": ["/home/x"], "view": {"directory": "alice"}, "n": 1});
        mask().value(&mut value);
        let wanted = json!({"a": ["(a path)"], "view": {"directory": "(left out)"}, "n": 1});
        assert_eq!(value, wanted);
    }
}

//! Reads from `/proc` the groups of the calling process, and what names its application.

use std::fs::File;
use std::io::Read;
use tidegate_client::wire::{Caller, GROUPS_MAX};

/// Longest environment that the mount searches, in bytes: the kernel's own default bound on
/// arguments and environment together.
const ENVIRONMENT_MAX: u64 = 2 << 20;

/// Users and groups of a thread. Of a user in more groups than the wire carries, the first count:
/// what others allow is refused, and what they are forbidden the kernel has refused already, by all
/// groups of the thread (`default_permissions`).
pub(super) fn caller(uid: u32, gid: u32, tid: u32) -> Caller {
    // Root may anyway, whatever its groups.
    if uid == 0 {
        return Caller {
            uid,
            gid,
            groups: Box::default(),
        };
    }
    caller_with_groups(uid, gid, tid).unwrap_or_else(|| Caller::alone(uid, gid))
}

/// The same; None if the groups cannot be seen.
pub(super) fn caller_with_groups(uid: u32, gid: u32, tid: u32) -> Option<Caller> {
    // Not remembered between requests: a process may change its groups at any time.
    let status = read_text(&format!("/proc/{tid}/status"))?;
    Some(Caller {
        uid,
        gid,
        groups: groups(&status).into_boxed_slice(),
    })
}

pub(super) fn groups(status: &str) -> Vec<u32> {
    let line = status.lines().find_map(|line| line.strip_prefix("Groups:"));
    let numbers = line
        .unwrap_or("")
        .split_ascii_whitespace()
        .map_while(|word| word.parse().ok());
    numbers.take(GROUPS_MAX).collect()
}

/// Identifies one run of a program: it changes with each new process and each exec.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Life {
    tid: u32,
    start_time: u64,
    /// Address of the environment, which the kernel chooses anew at random with each exec.
    environment: u64,
    /// The session. It does not tell lives apart, but is read together with the rest.
    session: u32,
}

impl Life {
    /// The present life of thread `tid`.
    pub(super) fn of(tid: u32) -> Option<Self> {
        parse_stat(&read_text(&format!("/proc/{tid}/stat"))?, tid)
    }

    /// The life of the process that the thread belongs to.
    pub(super) fn of_process(&self) -> Option<Self> {
        let status = read_text(&format!("/proc/{}/status", self.tid))?;
        let line = status.lines().find_map(|line| line.strip_prefix("Tgid:"))?;
        Life::of(line.trim().parse().ok()?)
    }

    pub(super) fn session(&self) -> u32 {
        self.session
    }

    /// The value of a variable of its environment, as it was at the last exec.
    pub(super) fn environment(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        if let Ok(file) = File::open(format!("/proc/{}/environ", self.tid)) {
            // What was read before an error is as good as what a smaller environment says.
            _ = file.take(ENVIRONMENT_MAX).read_to_end(&mut bytes);
        }
        bytes
    }

    pub(super) fn control_groups(&self) -> String {
        read_text(&format!("/proc/{}/cgroup", self.tid)).unwrap_or_default()
    }
}

/// The value of a variable in an environment block.
pub(super) fn variable(environment: &[u8], name: &str) -> Option<String> {
    let value = environment
        .split(|byte| *byte == 0)
        .find_map(|variable| variable.strip_prefix(name.as_bytes())?.strip_prefix(b"="))?;
    Some(String::from_utf8_lossy(value).into_owned())
}

/// The life in the text of `/proc/PID/stat`.
pub(super) fn parse_stat(stat: &str, tid: u32) -> Option<Life> {
    // The second field is the program's name, which may hold anything: count from its end.
    let (_, rest) = stat.rsplit_once(')')?;
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
    Some(Life {
        tid,
        session: u32::try_from(field(6)?).ok()?,
        start_time: field(22)?,
        environment: field(50).unwrap_or(0),
    })
}

fn read_text(path: &str) -> Option<String> {
    let mut text = Vec::with_capacity(2048);
    File::open(path).ok()?.read_to_end(&mut text).ok()?;
    Some(String::from_utf8_lossy(&text).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_read_and_bounded() {
        assert_eq!(
            groups("Name:\tx\nGroups:\t4 24 1000 \nNStgid:\t1\n"),
            [4, 24, 1000]
        );
        assert_eq!(groups("Groups:\t\n"), []);
        assert_eq!(groups("nothing"), []);
        let many: String = (0..2000).map(|group| format!("{group} ")).collect();
        assert_eq!(groups(&format!("Groups:\t{many}\n")).len(), GROUPS_MAX);
    }

    #[test]
    fn a_name_with_brackets_and_blanks_does_not_shift_the_fields() {
        let mut fields: Vec<String> = (3..=52).map(|number| number.to_string()).collect();
        fields[0] = "S".into();
        let stat = format!("7 (a) b (c)) {}\n", fields.join(" "));
        let life = parse_stat(&stat, 7).unwrap();
        assert_eq!(
            life,
            Life {
                tid: 7,
                start_time: 22,
                environment: 50,
                session: 6
            }
        );
        assert_eq!(parse_stat("7 (cut", 7), None);
        assert_eq!(parse_stat("7 (cut) S 1 2", 7), None);
    }

    #[test]
    fn this_process_has_a_life_and_an_environment() {
        let life = Life::of(std::process::id()).expect("alive");
        assert_eq!(Life::of(std::process::id()), Some(life));
        let path = std::env::var("PATH").expect("a path");
        assert_eq!(variable(&life.environment(), "PATH"), Some(path));
        assert_eq!(Life::of(0), None);
    }

    #[test]
    fn only_the_whole_name_of_a_variable_counts() {
        let block = b"XA=1\0A=2\0AB=3\0";
        assert_eq!(variable(block, "A").as_deref(), Some("2"));
        assert_eq!(variable(block, "B"), None);
    }
}

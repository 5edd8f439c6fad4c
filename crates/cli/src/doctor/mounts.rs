//! The mounts of Tidegate on this node: whether each answers.

use super::bounded::apart;
use super::finding::Finding;
use crate::set_mounts;
use rustix::io::Errno;
use std::path::Path;
use std::time::Duration;
use tidegate_client::FuseMount;

/// Mounts that are asked.
const ASKED_MAX: usize = 64;

/// How long a mount may take.
pub const ANSWER_MAX: Duration = Duration::from_secs(3);

const CHECK: &str = "mount";

/// What this process is called to ask one mount.
pub const PROBE: &str = "mount";

/// Asks each of them, all at once. Each of them is asked by a process of its own.
pub fn look() -> Vec<Finding> {
    let mounts: Vec<FuseMount> = tidegate_client::fuse_mounts()
        .into_iter()
        .filter(|mount| mount.is_tidegates())
        // Others at the same place hide it.
        .filter(|mount| set_mounts::at(&mount.point).is_some_and(|top| top == *mount))
        .collect();
    if mounts.is_empty() {
        return vec![Finding::ok(CHECK, "no mount of Tidegate is on this node")];
    }
    let left = mounts.len().saturating_sub(ASKED_MAX);
    let asking: Vec<_> = mounts
        .into_iter()
        .take(ASKED_MAX)
        .map(|mount| std::thread::spawn(move || ask(&mount)))
        .collect();
    let joined = asking.into_iter().filter_map(|asked| asked.join().ok());
    let mut all: Vec<Finding> = joined.flatten().collect();
    if left > 0 {
        all.push(Finding::ok(CHECK, format!("{left} more were not asked")));
    }
    all
}

fn ask(mount: &FuseMount) -> Vec<Finding> {
    let told = apart(PROBE, &mount.point, ANSWER_MAX);
    told.unwrap_or_else(|| vec![of(&mount.point, mount.owner, None)])
}

/// What this process finds at a place: it may be held there for long.
pub fn probe(point: &Path) -> Vec<Finding> {
    let owner = set_mounts::at(point).map_or(0, |mount| mount.owner);
    let answer = rustix::fs::statfs(point).map(drop);
    vec![of(point, owner, Some(answer))]
}

/// What an answer means; None: there is none in time.
fn of(point: &Path, owner: u32, answer: Option<Result<(), Errno>>) -> Finding {
    let shown = point.display();
    let silent = |text: String| {
        Finding::fails(
            CHECK,
            text,
            "see whether its process is stopped, and whether its forwarders answer; `tidegate \
             umount` takes it away",
        )
    };
    match answer {
        Some(Ok(())) => Finding::ok(CHECK, format!("{shown} answers")),
        Some(Err(Errno::NOTCONN | Errno::CONNABORTED)) => dead(point, owner),
        Some(Err(Errno::ACCESS | Errno::PERM)) => Finding::ok(
            CHECK,
            format!("{shown} is user {owner}'s alone, and was not asked"),
        ),
        Some(Err(error)) => silent(format!("{shown}: {error}")),
        None => silent(format!(
            "{shown} does not answer within {} s",
            ANSWER_MAX.as_secs()
        )),
    }
}

fn dead(point: &Path, owner: u32) -> Finding {
    let shown = point.display();
    let own = rustix::process::getuid().as_raw();
    let away = match own {
        0 => "umount -l",
        _ => "fusermount3 -uz",
    };
    let advice = match owner == own {
        true => format!(
            "`tidegate mount {shown}`, with the same options for the forwarders, takes it away \
             and mounts anew; `{away} {shown}` only takes it away"
        ),
        false => format!("user {owner} or root takes it away: `umount -l {shown}`"),
    };
    let text = format!("{shown} is dead, its process is gone: every access is ENOTCONN");
    Finding::fails(CHECK, text, advice)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::finding::Verdict;

    #[test]
    fn a_mount_that_does_not_answer_is_told_with_what_to_do() {
        let own = rustix::process::getuid().as_raw();
        let point = Path::new("/nowhere/mnt");
        let told = |owner, answer| of(point, owner, answer);
        assert_eq!(told(own, Some(Ok(()))).verdict, Verdict::Ok);
        assert_eq!(told(own + 1, Some(Err(Errno::ACCESS))).verdict, Verdict::Ok);
        let dead = told(own, Some(Err(Errno::NOTCONN)));
        assert_eq!(dead.verdict, Verdict::Fails);
        let advice = dead.advice.expect("it is told");
        assert!(advice.contains("`tidegate mount /nowhere/mnt`"), "{advice}");
        let theirs = told(own + 1, Some(Err(Errno::CONNABORTED)));
        let advice = theirs.advice.expect("it is told");
        assert!(advice.contains("umount -l /nowhere/mnt"), "{advice}");
        let silent = told(own, None);
        assert_eq!(silent.verdict, Verdict::Fails);
        assert!(silent.text.contains("within 3 s"), "{silent:?}");
    }
}

//! `tidegate check`: instances on several nodes meet in a folder of the directory. One of them
//! leads, and has each pair run the trials.

mod meeting;

use super::Backend;
use super::alone;
use super::op::{OPEN_CREATE, Op, Verb};
use super::property::{Finding, Findings, Found};
use super::side::{Gone, Local, Side};
use super::talk::{Call, Peer, serve};
use super::trials;
use meeting::{Meeting, Seat};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The folder in which instances meet, below the directory that is checked.
pub const FOLDER: &str = ".tidegate-check";
/// The results that end a conversation.
const FIT: &str = "fit";
const UNFIT: &str = "unfit";
const ONE_MOUNT: &str = "one-mount";
const FAILED: &str = "failed";
const DIE: &str = "die";
/// How often a waiting instance shows that it is running.
const BEAT: Duration = Duration::from_millis(200);

/// What to check.
pub struct Plan {
    /// The directory, on the mount that forwarders would use.
    pub dir: PathBuf,
    /// How many instances take part, this one included.
    pub nodes: u16,
    /// How long the whole check may take.
    pub time: Duration,
    /// Whether this instance's node will be killed at the end.
    pub dies: bool,
    /// Set by another thread: end soon.
    pub ends: Arc<AtomicBool>,
}

/// Why there is no verdict.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CheckError {
    /// The directory cannot be used.
    #[error("{0}")]
    Directory(String),
    /// Too few instances came, or one left.
    #[error("{0}")]
    Nodes(String),
    /// The check was interrupted, or took too long.
    #[error("ended before all was tried: {0}")]
    Ended(String),
}

/// The result of a check.
pub struct Checked {
    /// The file system of the directory, as this node has it mounted.
    pub backend: Backend,
    /// What this node found alone. At the leading instance, also what all pairs found.
    pub findings: Findings,
    /// The names of the nodes that took part; where this instance led, its own is first.
    pub nodes: Vec<String>,
    /// Whether two instances used one mount, so that each sees the cached writes of the other.
    pub same_mount: bool,
    /// Whether all instances used one mount, so that they have tested only the cache of one kernel.
    pub one_mount: bool,
    /// Whether this instance led. Others learn only the verdict about the pairs.
    pub led: bool,
    /// Whether the pairs passed. None if no pair with two mounts was tried.
    pub pairs_fit: Option<bool>,
}

impl Checked {
    /// The first property that is required, for forwarders on several nodes or on one, and that is
    /// missing.
    pub fn missing(&self, several: bool) -> Option<&Finding> {
        self.findings.missing(several, self.backend.reach)
    }

    /// Whether the directory is fit for forwarders on one node.
    pub fn fit_one(&self) -> bool {
        self.missing(false).is_none()
    }

    /// Whether the directory is fit for forwarders on several nodes if etcd keeps the seats: only
    /// properties of locks are missing.
    pub fn fit_with_etcd(&self) -> bool {
        let others = self.findings.without_locks();
        let fit = others.missing(true, self.backend.reach).is_none();
        fit && self.led
            && !self.one_mount
            && self.pairs_fit.is_some()
            && self.fit_several() == Some(false)
    }

    /// Whether the directory is fit for forwarders on several nodes. None if that was not tested,
    /// with one instance or one mount.
    pub fn fit_several(&self) -> Option<bool> {
        match self.missing(true) {
            Some(_) => Some(false),
            None => self.pairs_fit,
        }
    }

    /// Takes over the verdict about the pairs, which the leading instance sends to all.
    fn hear(&mut self, word: &str) {
        self.one_mount |= word == ONE_MOUNT;
        self.same_mount |= self.one_mount;
        self.pairs_fit = (word != ONE_MOUNT).then_some(word == FIT);
    }
}

/// Runs a check. Passes lines about its progress to `tell`.
pub fn check(plan: &Plan, tell: &dyn Fn(&str)) -> Result<Checked, CheckError> {
    let backend = Backend::of_path(&plan.dir);
    let backend = backend.map_err(|error| directory(&plan.dir, &error))?;
    let until = Instant::now() + plan.time;
    let meeting = Meeting::open(&plan.dir, plan.nodes, plan.ends.clone());
    let meeting = meeting.map_err(|error| directory(&plan.dir, &error))?;
    let id = format!("{:x}", std::process::id());
    let folder = meeting.folder();
    let alone = alone::trials(std::os::fd::AsFd::as_fd(&*folder), &backend, &id, false);
    let mut checked = Checked {
        backend,
        findings: alone,
        nodes: vec![rustix::system::uname().nodename().to_string_lossy().into()],
        same_mount: false,
        one_mount: false,
        led: true,
        pairs_fit: None,
    };
    if plan.nodes == 1 {
        return Ok(checked);
    }
    tell(&format!(
        "waiting for {} more, started elsewhere with the same --nodes",
        plan.nodes - 1
    ));
    let mut seat = meeting.join(until, plan.dies)?;
    let mut local = Local::new(folder);
    match seat.number() {
        0 => lead(plan, until, &mut seat, &mut local, &mut checked, tell)?,
        _ => {
            checked.led = false;
            let word = follow(plan, until, &mut seat, &mut local, tell)?;
            checked.hear(word);
        }
    }
    Ok(checked)
}

fn directory(path: &Path, error: &std::io::Error) -> CheckError {
    let path = path.display();
    CheckError::Directory(format!(
        "{path}: {error}; name a directory that you may write, on the mount that forwarders use"
    ))
}

fn system(error: std::io::Error) -> CheckError {
    CheckError::Nodes(format!("the other instances cannot be heard: {error}"))
}

/// Has each pair run the trials.
fn lead(
    plan: &Plan,
    until: Instant,
    seat: &mut Seat,
    local: &mut Local,
    checked: &mut Checked,
    tell: &dyn Fn(&str),
) -> Result<(), CheckError> {
    let others = seat.wait_for_all(until)?;
    checked
        .nodes
        .extend(others.iter().map(|one| one.host.clone()));
    let mut mounts: Vec<u64> = others.iter().map(|one| one.mount).collect();
    mounts.push(seat.own.mount());
    mounts.sort_unstable();
    mounts.dedup();
    checked.same_mount = mounts.len() < usize::from(plan.nodes);
    checked.one_mount = mounts.len() == 1;
    let reach = checked.backend.reach;
    let tried = pairs(plan, seat, local, tell).and_then(|mut findings| {
        if let Some(dies) = others.iter().find(|one| one.body == DIE) {
            dead_node(seat, local, dies.from, until, &mut findings, tell)?;
        }
        Ok(findings)
    });
    let word = match &tried {
        Ok(findings) if findings.missing(true, reach).is_some() => UNFIT,
        Ok(_) if checked.one_mount => ONE_MOUNT,
        Ok(_) => FIT,
        Err(_) => FAILED,
    };
    for one in &others {
        if let Ok(Call::Talking(peer)) = Peer::call(&mut seat.own, one.from) {
            // An instance that does not get the verdict waits until its own time ends.
            let _ = peer.end(word);
        }
    }
    checked.findings.add(tried?);
    checked.hear(word);
    Ok(())
}

fn pairs(
    plan: &Plan,
    seat: &mut Seat,
    local: &mut Local,
    tell: &dyn Fn(&str),
) -> Result<Findings, CheckError> {
    let mut findings = Findings::new();
    for first in 0..plan.nodes {
        for second in first + 1..plan.nodes {
            tell(&format!("trying {first} with {second}"));
            let prefix = format!("{:x}-{first}-{second}", std::process::id());
            let (one, two) = (&mut seat.own, &mut seat.second);
            let found = {
                let mut peer = talking(Peer::call(two, second), second)?;
                let found = if first == 0 {
                    trials::series(local, &mut peer, &prefix, false)
                } else {
                    let mut other = talking(Peer::call(one, first), first)?;
                    let found = trials::series(&mut other, &mut peer, &prefix, false);
                    other.end("").map_err(system)?;
                    found
                };
                peer.end("").map_err(system)?;
                found
            };
            let found = found.map_err(|Gone(what)| match plan.ends.load(Ordering::Acquire) {
                true => CheckError::Ended("interrupted, or out of time".to_owned()),
                false => CheckError::Nodes(format!("an instance is lost: {what}")),
            })?;
            findings.add(found);
        }
    }
    Ok(findings)
}

fn talking(call: std::io::Result<Call<'_>>, side: u16) -> Result<Peer<'_>, CheckError> {
    match call.map_err(system)? {
        Call::Talking(peer) => Ok(peer),
        _ => Err(CheckError::Nodes(format!(
            "instance {side} does not answer: it ended, or this directory does not show what it \
             writes"
        ))),
    }
}

/// Measures how long the lock of a node persists that dies with it.
fn dead_node(
    seat: &mut Seat,
    local: &mut Local,
    dies: u16,
    until: Instant,
    findings: &mut Findings,
    tell: &dyn Fn(&str),
) -> Result<(), CheckError> {
    let property = "locks of a dead node";
    let name = format!("t-{:x}-dead", std::process::id());
    let open = Op::new(Verb::Open).file(9).name(&name).at(OPEN_CREATE);
    let lock = Op::new(Verb::Lock).file(9);
    let lost = |Gone(what): Gone| CheckError::Nodes(what);
    let mut peer = talking(Peer::call(&mut seat.own, dies), dies)?;
    let had = peer
        .run(&open)
        .and_then(|_| peer.run(&lock))
        .map_err(lost)?;
    peer.end(DIE).map_err(system)?;
    let opened = local.run(&open).map_err(lost)?;
    if had.number != 1 || !opened.ok() {
        findings.note(property, Found::Unknown, "no lock was had".to_owned());
        return Ok(());
    }
    tell(&format!("instance {dies} has a lock; kill its node now"));
    let (mut beat, mut heard) = (0, Instant::now());
    loop {
        if let Some(message) = seat
            .own
            .read(dies)
            .map_err(system)?
            .filter(|it| it.beat != beat)
        {
            (beat, heard) = (message.beat, Instant::now());
        }
        let alive = heard.elapsed() < 10 * BEAT;
        let seconds = heard.elapsed().as_secs();
        if local.run(&lock).map_err(lost)?.number == 1 {
            match alive {
                true => {
                    let seen = "free at once: a living node lost it, or only its process ended";
                    findings.note(property, Found::No, seen.to_owned());
                }
                false => findings.note(property, Found::Yes, format!("free after {seconds} s")),
            }
            return Ok(());
        }
        if Instant::now() + 10 * BEAT > until || seat.own.ends() {
            let seen = match alive {
                true => "the node was not killed in time".to_owned(),
                false => format!("still held after {seconds} s"),
            };
            findings.note(
                property,
                if alive { Found::Unknown } else { Found::No },
                seen,
            );
            return Ok(());
        }
        seat.own.beat().map_err(system)?;
        std::thread::sleep(BEAT);
    }
}

/// Executes what the leading instance sends. Returns its verdict about the pairs.
fn follow(
    plan: &Plan,
    until: Instant,
    seat: &mut Seat,
    local: &mut Local,
    tell: &dyn Fn(&str),
) -> Result<&'static str, CheckError> {
    let (mut beat, mut heard) = (0, Instant::now());
    let mut dying = false;
    let word = if plan.dies { DIE } else { "" };
    loop {
        if plan.ends.load(Ordering::Acquire) || Instant::now() > until {
            return Err(CheckError::Ended("interrupted, or out of time".to_owned()));
        }
        if let Some(leader) = seat
            .own
            .read(0)
            .map_err(system)?
            .filter(|it| it.beat != beat)
        {
            (beat, heard) = (leader.beat, Instant::now());
        }
        if heard.elapsed() > Duration::from_secs(20) {
            let what = "the instance that leads is silent for 20 s: it ended, or this directory \
                        does not show what it writes";
            return Err(CheckError::Nodes(what.to_owned()));
        }
        match seat.own.caller().map_err(system)? {
            Some(caller) => match serve(&mut seat.own, &caller, local).map_err(system)? {
                Some(said) if said == FAILED => {
                    let what =
                        "the instance that leads has lost another one; its output says which";
                    return Err(CheckError::Nodes(what.to_owned()));
                }
                Some(said) if said == DIE => dying = true,
                Some(said) => {
                    let words = [FIT, UNFIT, ONE_MOUNT];
                    if let Some(word) = words.into_iter().find(|word| said == *word) {
                        return Ok(word);
                    }
                }
                None => {}
            },
            None => seat.own.beat_with(word).map_err(system)?,
        }
        if std::mem::take(&mut dying) {
            tell("this node has a lock: kill it now (power off, or the mount's daemon by SIGKILL)");
        }
        std::thread::sleep(BEAT / 4);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::Reach;

    #[test]
    fn what_is_told_of_pairs_is_the_verdict_unless_this_node_lacks_something() {
        let judged = |word: &str, lacks: Option<&str>| {
            let mut findings = Findings::new();
            findings.tell("sizes", true, String::new);
            if let Some(name) = lacks {
                findings.tell(name, false, || "refused".to_owned());
            }
            let mut checked = Checked {
                backend: Backend {
                    kind: "nfs4".to_owned(),
                    source: "server:/x".to_owned(),
                    mount_point: "/mnt".into(),
                    options: Vec::new(),
                    reach: Reach::Cached,
                },
                findings,
                nodes: Vec::new(),
                same_mount: false,
                one_mount: false,
                led: true,
                pairs_fit: None,
            };
            checked.hear(word);
            (checked.fit_several(), checked.fit_with_etcd())
        };
        assert_eq!(judged(FIT, None), (Some(true), false));
        assert_eq!(judged(UNFIT, None).0, Some(false));
        assert_eq!(judged(FIT, Some("hard links")), (Some(false), false));
        assert_eq!(
            judged(FIT, Some("locks leave the node")),
            (Some(false), true)
        );
        assert_eq!(judged(ONE_MOUNT, None), (None, false));
        let lacks_locks = judged(ONE_MOUNT, Some("locks leave the node"));
        assert_eq!(lacks_locks, (Some(false), false), "the rest was not tried");
    }
}

//! A conversation between two sides of a trial. One side calls the other and sends operations; the
//! other executes them on its own mount and answers. Each side writes its own file and reads the
//! other's.

use super::messages::{Message, Messages, State};
use super::op::{Answer, Op, Verb};
use super::side::{Gone, Side};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tracing::warn;

/// A side that was called and writes nothing for so long is not running. Between conversations a
/// side looks for calls once a second.
pub(crate) const ANSWER_MAX: Duration = Duration::from_millis(3500);
/// The longest wait for any side, however busy it is.
pub(crate) const BUSY_MAX: Duration = Duration::from_secs(15);
/// How long one operation may take, beside the time that it is told to take.
const STEP_MAX: Duration = Duration::from_secs(10);
/// How long the called side waits for the next operation before it gives up.
const SILENCE_MAX: Duration = Duration::from_secs(15);
/// How often the other's file is read while the answer is due, and when it is late.
const LOOK: Duration = Duration::from_micros(700);
const LOOK_LATE: Duration = Duration::from_millis(5);

/// The address of a message to all sides. A side that is running then shows it.
const ALL: u16 = u16::MAX;

/// This side's own file, and what it reads of the others'.
pub(crate) struct Messenger {
    files: Messages,
    last: Message,
    /// The last request for a sign of life that was answered.
    answered: u64,
    /// Set from another thread when this side must end. Every wait here then ends soon.
    ends: Arc<AtomicBool>,
}

impl Messenger {
    /// Uses the folder of trials as side `own`. Fails if the folder cannot be used.
    pub(crate) fn new(
        folder: Arc<OwnedFd>,
        own: u16,
        ends: Arc<AtomicBool>,
    ) -> io::Result<Messenger> {
        let last = Message {
            from: own,
            life: random()?,
            mount: mount_id(&folder)?,
            host: rustix::system::uname().nodename().to_string_lossy().into(),
            state: State::Here,
            beat: 0,
            talk: 0,
            to: 0,
            number: 0,
            body: String::new(),
        };
        let files = Messages::new(folder);
        Ok(Messenger {
            files,
            last,
            answered: 0,
            ends,
        })
    }

    pub(crate) fn number(&self) -> u16 {
        self.last.from
    }

    pub(crate) fn life(&self) -> u64 {
        self.last.life
    }

    /// Whether this side must end.
    pub(crate) fn ends(&self) -> bool {
        self.ends.load(Ordering::Acquire)
    }

    /// A number of the mount on which this side works; two kernels have different numbers.
    pub(crate) fn mount(&self) -> u64 {
        self.last.mount
    }

    /// For tests: pretends another mount, so that one process can be two sides.
    #[cfg(test)]
    pub(crate) fn pretend_mount(&mut self, mount: u64) {
        self.last.mount = mount;
    }

    /// Shows that this side is running, outside of any conversation.
    pub(crate) fn beat(&mut self) -> io::Result<()> {
        self.say(0, 0, 0, "")
    }

    /// Does the same with a text for all sides.
    pub(crate) fn beat_with(&mut self, word: &str) -> io::Result<()> {
        self.say(0, 0, 0, word)
    }

    /// Says that this side leaves.
    pub(crate) fn leave(&mut self) -> io::Result<()> {
        self.last.state = State::Gone;
        self.beat()
    }

    pub(crate) fn read(&mut self, side: u16) -> io::Result<Option<Message>> {
        self.files.read(side)
    }

    /// The side that calls this one and still waits. A call may be left over from long ago. A side
    /// that only asks for a sign of life is answered here.
    pub(crate) fn caller(&mut self) -> io::Result<Option<Message>> {
        let own = self.number();
        let Some(notice) = self.files.notified(own)? else {
            return Ok(None);
        };
        let caller = self.files.read(notice.from)?;
        let waits = |one: &Message| one.talk == notice.talk && one.talk != 0 && one.number == 0;
        let caller = caller.filter(|one| waits(one) && one.state == State::Here);
        match caller {
            Some(caller) if caller.to == ALL => {
                if self.answered != caller.talk {
                    self.answered = caller.talk;
                    self.last.beat += 1;
                    self.files.write(&self.last)?;
                }
                Ok(None)
            }
            caller => Ok(caller.filter(|one| one.to == own)),
        }
    }

    /// Which of these sides are running: those that show a sign of life within [`ANSWER_MAX`].
    pub(crate) fn running_of(&mut self, sides: &[Message]) -> io::Result<Vec<u16>> {
        let mut alive = Vec::new();
        self.say(random()? | 1, ALL, 0, "")?;
        for side in sides {
            let to = side.from;
            let notice = Message {
                to,
                ..self.last.clone()
            };
            self.files.notify(&notice)?;
        }
        let began = Instant::now();
        while alive.len() < sides.len() && began.elapsed() < ANSWER_MAX && !self.ends() {
            std::thread::sleep(4 * LOOK_LATE);
            for side in sides {
                let known = alive.contains(&side.from);
                let now = if known { None } else { self.read(side.from)? };
                if now.is_some_and(|now| (now.life, now.beat) != (side.life, side.beat)) {
                    alive.push(side.from);
                }
            }
            // Two sides that start at once each ask the other for a sign of life.
            self.caller()?;
        }
        self.beat()?;
        Ok(alive)
    }

    /// Reopens all files, because another side may have removed and made them again.
    pub(crate) fn reopen(&mut self) {
        self.files.close();
    }

    fn say(&mut self, talk: u64, to: u16, number: u64, body: &str) -> io::Result<()> {
        let beat = self.last.beat + 1;
        let (last, body) = (self.last.clone(), body.to_owned());
        self.last = Message {
            beat,
            talk,
            to,
            number,
            body,
            ..last
        };
        self.files.write(&self.last)
    }
}

fn random() -> io::Result<u64> {
    getrandom::u64().map_err(|error| io::Error::other(error.to_string()))
}

/// A number that differs for each mount: two mounts of one node have caches of their own, but a
/// mount that two containers see has only one.
fn mount_id(folder: &OwnedFd) -> io::Result<u64> {
    let device = rustix::fs::fstat(folder.as_fd())?.st_dev;
    let boot = crate::identity::boot();
    let text = format!("{boot:016x} {device}");
    Ok(tidegate_sched::AppId::from_name(&text).0)
}

/// The result of a call.
pub(crate) enum Call<'a> {
    /// The other side listens.
    Talking(Peer<'a>),
    /// The other side has left, or never existed.
    Nobody,
    /// The other side should be running and does not answer.
    Silent,
    /// The other side is busy. Or it calls this side and has the smaller number, so its call comes
    /// first.
    Busy,
}

/// The other side of a conversation.
pub(crate) struct Peer<'a> {
    own: &'a mut Messenger,
    /// Its message when the conversation began.
    met: Message,
    talk: u64,
    number: u64,
    /// How long the operation under way may take.
    step: Duration,
}

impl<'a> Peer<'a> {
    /// Calls a side. Waits at most [`BUSY_MAX`], or [`ANSWER_MAX`] if the side is not running.
    pub(crate) fn call(own: &'a mut Messenger, side: u16) -> io::Result<Call<'a>> {
        let first = match own.read(side)? {
            Some(message) if message.state == State::Here => message,
            _ => return Ok(Call::Nobody),
        };
        let talk = random()? | 1;
        own.say(talk, side, 0, "")?;
        own.files.notify(&own.last)?;
        let (began, mut beat) = (Instant::now(), first.beat);
        let (mut heard, mut looked) = (began, began);
        loop {
            std::thread::sleep(LOOK_LATE);
            let now = Instant::now();
            let theirs = own.read(side)?.unwrap_or_else(|| first.clone());
            if theirs.state == State::Gone {
                own.beat()?;
                return Ok(Call::Nobody);
            }
            if theirs.talk == talk && theirs.to == own.number() {
                let peer = Peer {
                    own,
                    met: theirs,
                    talk,
                    number: 0,
                    step: STEP_MAX,
                };
                return Ok(Call::Talking(peer));
            }
            if theirs.beat != beat {
                (heard, beat) = (now, theirs.beat);
            }
            if now - looked > Duration::from_millis(100) {
                looked = now;
                let calls = own.caller()?.filter(|caller| caller.from < own.number());
                if calls.is_some() || now - began > BUSY_MAX {
                    own.beat()?;
                    return Ok(Call::Busy);
                }
                // Another side's call may have overwritten this one.
                own.files.notify(&own.last)?;
            }
            if now - heard > ANSWER_MAX || own.ends() {
                own.beat()?;
                return Ok(Call::Silent);
            }
        }
    }

    /// The node of the other side.
    pub(crate) fn host(&self) -> &str {
        &self.met.host
    }

    /// Ends the conversation with a result: one word, which may be empty.
    pub(crate) fn end(mut self, said: &str) -> io::Result<()> {
        let bye = Op::new(Verb::Bye).name(said);
        // The other side may be gone by now; the conversation ends all the same.
        let _ = self.run(&bye);
        self.own.beat()
    }

    fn gone(&self, what: &str) -> Gone {
        Gone(format!(
            "forwarder {} on {} {what}",
            self.met.from, self.met.host
        ))
    }
}

impl Side for Peer<'_> {
    fn run(&mut self, op: &Op) -> Result<Answer, Gone> {
        self.begin(op)?;
        self.finish()
    }

    fn begin(&mut self, op: &Op) -> Result<(), Gone> {
        self.number += 1;
        self.step = STEP_MAX
            + match op.verb {
                Verb::Churn | Verb::Watch => Duration::from_millis(op.len),
                _ => Duration::ZERO,
            };
        let said = self
            .own
            .say(self.talk, self.met.from, self.number, &op.text());
        said.map_err(|error| Gone(format!("the own message cannot be written: {error}")))
    }

    fn finish(&mut self) -> Result<Answer, Gone> {
        let began = Instant::now();
        loop {
            let message = self.own.read(self.met.from);
            let message = message.map_err(|e| self.gone(&format!("cannot be heard: {e}")))?;
            match message {
                Some(message) if message.talk != self.talk || message.life != self.met.life => {
                    return Err(self.gone("has left the trial"));
                }
                Some(message) if message.number == self.number => {
                    let answer = Answer::parse(&message.body);
                    return answer.ok_or_else(|| self.gone("answers what is no answer"));
                }
                _ => {}
            }
            let waited = began.elapsed();
            if self.own.ends() {
                return Err(Gone("this side is to end".to_owned()));
            }
            if waited > self.step {
                let seconds = self.step.as_secs();
                return Err(self.gone(&format!("has not answered for {seconds} s")));
            }
            std::thread::sleep(if waited > 40 * LOOK { LOOK_LATE } else { LOOK });
        }
    }
}

/// Executes what a caller sends until it says good-bye. Returns its last word, if it sent one.
pub(crate) fn serve(
    own: &mut Messenger,
    caller: &Message,
    side: &mut dyn Side,
) -> io::Result<Option<String>> {
    let (talk, to) = (caller.talk, caller.from);
    own.say(talk, to, 0, "")?;
    let (mut done, mut heard) = (0, Instant::now());
    while heard.elapsed() < SILENCE_MAX && !own.ends() {
        let message = own.read(to)?;
        match message {
            Some(message) if message.talk != talk || message.life != caller.life => break,
            Some(message) if message.number == done + 1 => {
                done += 1;
                let op = Op::parse(&message.body);
                let answer = match &op {
                    Some(op) if op.verb == Verb::Bye => Answer::default(),
                    Some(op) => side.run(op).map_err(|gone| io::Error::other(gone.0))?,
                    None => {
                        warn!(from = to, said = message.body, "ignored: not an operation");
                        Answer::failed(&io::Error::from_raw_os_error(libc::EINVAL))
                    }
                };
                own.say(talk, to, done, &answer.text())?;
                if let Some(op) = op.filter(|op| op.verb == Verb::Bye) {
                    linger(own, &message)?;
                    own.beat()?;
                    return Ok(Some(op.name));
                }
                heard = Instant::now();
            }
            _ => {}
        }
        let late = heard.elapsed() > 40 * LOOK;
        std::thread::sleep(if late { LOOK_LATE } else { LOOK });
    }
    own.beat()?;
    Ok(None)
}

/// Leaves the last answer in place until it was read; then the caller ends the conversation itself.
fn linger(own: &mut Messenger, bye: &Message) -> io::Result<()> {
    let until = Instant::now() + Duration::from_millis(500);
    while Instant::now() < until {
        match own.read(bye.from)? {
            Some(message) if message.talk == bye.talk => std::thread::sleep(LOOK_LATE),
            _ => break,
        }
    }
    Ok(())
}

//! What the other sides of trials say, as functions of text: for programs that hand in any text,
//! right or wrong.

use super::messages::Message;
use super::op::{Answer, Op};
use super::property::Findings;
use super::side::{Gone, Local, Side};
use super::trials;
use std::cell::RefCell;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// The message in the text of a side's file, as this side would have written it; None if it is
/// none.
pub fn message(text: &str) -> Option<String> {
    Message::parse(text).map(|message| message.text())
}

/// The operation in a message, as this side would have said it; None if it is none.
pub fn operation(line: &str) -> Option<String> {
    Op::parse(line).map(|op| op.text())
}

/// The answer in a message, as this side would have said it; None if it is none.
pub fn answer(line: &str) -> Option<String> {
    Answer::parse(line).map(|answer| answer.text())
}

/// What a side says of an operation.
pub type Say<'f> = &'f mut dyn FnMut(&str) -> Option<String>;

/// Runs the trials of two sides that both answer as `say` does, which is handed each operation as
/// text. None where a side says what is no answer, or nothing more.
pub fn series(say: Say<'_>, short: bool) -> Option<Findings> {
    let say = RefCell::new(say);
    let side = || Told {
        say: &say,
        begun: None,
    };
    trials::series(&mut side(), &mut side(), "1", short).ok()
}

/// A side that says what `say` returns.
struct Told<'s, 'f> {
    say: &'s RefCell<Say<'f>>,
    begun: Option<Op>,
}

impl Side for Told<'_, '_> {
    fn run(&mut self, op: &Op) -> Result<Answer, Gone> {
        let said = (self.say.borrow_mut())(&op.text());
        let answer = said.as_deref().and_then(Answer::parse);
        answer.ok_or_else(|| Gone("it says what is no answer".to_owned()))
    }

    fn begin(&mut self, op: &Op) -> Result<(), Gone> {
        self.begun = Some(op.clone());
        Ok(())
    }

    fn finish(&mut self) -> Result<Answer, Gone> {
        let op = self.begun.take().expect("it was begun");
        self.run(&op)
    }
}

/// This side, which carries out in a folder what others say.
pub struct Executor(Local);

impl Executor {
    /// Carries operations out in an open folder.
    pub fn new(folder: OwnedFd) -> Executor {
        Executor(Local::new(Arc::new(folder)))
    }

    /// Carries an operation out, and returns the answer; None if it is no operation.
    pub fn execute(&mut self, line: &str) -> Option<String> {
        let op = Op::parse(line)?;
        Some(self.0.run(&op).ok()?.text())
    }
}

//! One call of a process to the forwarders: on whose behalf, until when, and what kind of result it
//! expects.

use super::convert;
use super::forwarders::Forwarders;
use super::opens::OpenFile;
use crate::fuse::{self, Errno};
use std::time::{Duration, Instant};
use tidegate_client::wire::{Attr, Caller, Extent, Op, Outcome};
use tidegate_client::{Answer, Bytes, Collective, Context};

/// The kernel counts the time for which it caches something in whole ticks of its clock, of which
/// the first and the last are not whole.
const TICKS: Duration = Duration::from_millis(20);

/// A call, which is cancelled together with the kernel's request. It ends at the latest with the
/// client's time limit.
pub(super) struct Call<'a> {
    forwarders: &'a dyn Forwarders,
    context: Context,
    _cancelled: fuse::Registration,
}

impl<'a> Call<'a> {
    pub(super) fn new(
        forwarders: &'a dyn Forwarders,
        cancel: &fuse::CancelToken,
        caller: Option<Caller>,
        app: u64,
        caches: bool,
    ) -> Self {
        let token = tidegate_client::CancelToken::new();
        let context = Context {
            caller,
            app,
            cancel: Some(token.clone()),
            caches,
            ..Context::default()
        };
        let cancelled = cancel.on_cancel(move || token.cancel());
        Self {
            forwarders,
            context,
            _cancelled: cancelled,
        }
    }

    /// Makes the call a part of a collective operation, if there is one.
    pub(super) fn part_of(mut self, collective: Option<Collective>) -> Self {
        self.context.collective = collective;
        self
    }

    /// Says by which open file the call is made.
    pub(super) fn by(mut self, file: &OpenFile) -> Self {
        self.context.open = Some(file.held.number());
        self
    }

    /// Says where in the file the bytes are that an fsync must make stable.
    pub(super) fn within(mut self, range: Extent) -> Self {
        self.context.range = Some(range);
        self
    }

    pub(super) fn context(&self) -> &Context {
        &self.context
    }

    pub(super) fn answer(&self, op: Op, payload: Bytes) -> Result<Answer, Errno> {
        self.forwarders
            .call(&self.context, op, payload)
            .map_err(convert::errno)
    }

    pub(super) fn outcome(&self, op: Op) -> Result<Outcome, Errno> {
        self.answer(op, Bytes::new()).map(|answer| answer.outcome)
    }

    pub(super) fn done(&self, op: Op) -> Result<(), Errno> {
        self.outcome(op).map(drop)
    }

    pub(super) fn attr(&self, op: Op) -> Result<Attr, Errno> {
        match self.outcome(op)? {
            Outcome::Attr(attr) => Ok(attr),
            _ => Err(Errno::IO),
        }
    }

    /// The attributes, and until when the kernel may cache them.
    pub(super) fn lasting_attr(&self, op: Op) -> Result<(Attr, Instant), Errno> {
        let answer = self.answer(op, Bytes::new())?;
        match answer.outcome {
            Outcome::Attr(attr) => {
                let lasts = Duration::from_nanos(answer.lasts_ns).saturating_sub(TICKS);
                Ok((attr, Instant::now() + lasts))
            }
            _ => Err(Errno::IO),
        }
    }

    pub(super) fn text(&self, op: Op) -> Result<Box<[u8]>, Errno> {
        match self.outcome(op)? {
            Outcome::Text(text) => Ok(text),
            _ => Err(Errno::IO),
        }
    }

    pub(super) fn written(&self, op: Op, payload: Bytes) -> Result<u64, Errno> {
        match self.answer(op, payload)?.outcome {
            Outcome::Written { len } | Outcome::Appended { len, .. } => Ok(len),
            _ => Err(Errno::IO),
        }
    }
}

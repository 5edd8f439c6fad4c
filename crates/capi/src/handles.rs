//! Handles: numbers in the shape of pointers, looked up in a table of entries that is never freed.
//!
//! A handle is never followed, so a wild or stale one is an error and not a crash. It names a entry
//! and the generation of what lives there; generations are never used twice. Looking it up takes
//! no lock of all: an index, a comparison, and then the lock of that one scheduler, which a call
//! needs anyway. The entries lie in static memory, so that a call which races with `free` finds a
//! entry, takes its lock, sees another generation, and leaves.

use crate::failure::{Failure, fail};
use crate::instance::Instance;
use crate::lock::{Condition, Guard, Lock};
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Schedulers that a process can have at a time.
pub(crate) const HANDLES_MAX: usize = 4096;
const INDEX_BITS: u32 = 12;
/// The low bits of every handle. Pointers to objects are aligned, so none of them ends like this.
const MARK: usize = 0xb;
const MARK_BITS: u32 = 4;
const KIND: &str = "a scheduler";

/// A place for one scheduler, apart from its neighbours in the processor's caches.
#[repr(align(64))]
pub(crate) struct HandleEntry {
    /// Of what lives here; 0 if nothing does, which ends unlike every handle.
    handle: AtomicU64,
    /// Whether it is for one thread, and `busy` stands for the lock.
    single: AtomicBool,
    /// Whether a call is using what is for one thread.
    busy: AtomicBool,
    live: Lock<Option<Box<Instance>>>,
    /// Wakes the library's own thread.
    pub(crate) wake: Condition,
    /// Wakes who waits for that thread to end.
    pub(crate) ended: Condition,
}

static TABLE: [HandleEntry; HANDLES_MAX] = [const { HandleEntry::new() }; HANDLES_MAX];
static GENERATION: AtomicU64 = AtomicU64::new(0);
/// The first entry that was never used, and those that are free again.
static FREE: Lock<(usize, Vec<usize>)> = Lock::new((0, Vec::new()));

impl HandleEntry {
    const fn new() -> HandleEntry {
        HandleEntry {
            handle: AtomicU64::new(0),
            single: AtomicBool::new(false),
            busy: AtomicBool::new(false),
            live: Lock::new(None),
            wake: Condition::new(),
            ended: Condition::new(),
        }
    }

    #[inline(always)]
    fn is_not(&self, handle: usize) -> bool {
        self.handle.load(Ordering::Acquire) != handle as u64
    }

    /// The scheduler that many threads share.
    pub(crate) fn lock(&'static self) -> Guard<'static, Option<Box<Instance>>> {
        self.live.lock()
    }
}

/// The use of what lives in a entry, until it is dropped: `busy` is set, or the lock is held.
struct Use {
    entry: &'static HandleEntry,
    single: bool,
}

impl Use {
    #[inline(always)]
    fn place(&mut self) -> &mut Option<Box<Instance>> {
        // SAFETY: nobody else uses it: by the lock, or because `busy` was free and is ours, by the
        // host's promise of `single_thread`.
        unsafe { &mut *self.entry.live.place() }
    }
}

impl Drop for Use {
    #[inline(always)]
    fn drop(&mut self) {
        if self.single {
            self.entry.busy.store(false, Ordering::Release);
            return;
        }
        let live = self.place().as_mut();
        let poke = live.is_some_and(|instance| std::mem::take(&mut instance.poke));
        // Waking before the lock is free would let the thread run into it.
        // SAFETY: this thread has locked it, and left no guard.
        unsafe { self.entry.live.unlock() };
        if poke {
            self.entry.wake.tell_one();
        }
    }
}

/// Where a scheduler of this handle would live.
#[inline(always)]
fn place_of(handle: usize) -> usize {
    (handle >> MARK_BITS) % HANDLES_MAX
}

/// The entry of a live scheduler, unless another call ends it at this moment.
#[inline(always)]
fn locate(handle: usize) -> Result<&'static HandleEntry, Box<Failure>> {
    let entry = &TABLE[place_of(handle)];
    if handle % (1 << MARK_BITS) != MARK || entry.is_not(handle) {
        return fail(Failure::Handle(KIND));
    }
    Ok(entry)
}

/// The entry of a live scheduler that many threads share.
pub(crate) fn shared(handle: usize) -> Result<&'static HandleEntry, Box<Failure>> {
    let entry = locate(handle)?;
    if entry.single.load(Ordering::Relaxed) {
        return fail(Failure::State(
            "the handle was made with single_thread=true, so it cannot have a thread of its own",
        ));
    }
    Ok(entry)
}

/// Makes a scheduler live. Many threads may use it at a time unless it is for a `single` one.
pub(crate) fn insert(instance: Instance, single: bool) -> Result<usize, Box<Failure>> {
    let mut free = FREE.lock();
    let index = match free.1.pop() {
        Some(index) => index,
        None if free.0 < HANDLES_MAX => {
            free.0 += 1;
            let entry = &TABLE[free.0 - 1];
            entry.wake.use_monotonic_clock();
            entry.ended.use_monotonic_clock();
            free.0 - 1
        }
        None => {
            return fail(Failure::System(format!(
                "{HANDLES_MAX} schedulers are alive; free some first"
            )));
        }
    };
    let entry = &TABLE[index];
    let generation = GENERATION.fetch_add(1, Ordering::Relaxed) + 1;
    let handle = (generation << INDEX_BITS | index as u64) << MARK_BITS | MARK as u64;
    entry.single.store(single, Ordering::Relaxed);
    if single {
        // A call with a stale handle may still be about to see that it is stale.
        while entry.busy.swap(true, Ordering::Acquire) {
            std::thread::yield_now();
        }
        let single = true;
        let mut used = Use { entry, single };
        *used.place() = Some(Box::new(instance));
        entry.handle.store(handle, Ordering::Release);
    } else {
        let mut live = entry.lock();
        *live = Some(Box::new(instance));
        entry.handle.store(handle, Ordering::Release);
    }
    Ok(handle as usize)
}

/// Runs a call on the scheduler that `handle` names. A panic makes that scheduler unusable.
#[inline(always)]
pub(crate) fn with<R>(
    handle: usize,
    call: impl FnOnce(&mut Instance) -> Result<R, Box<Failure>>,
) -> Result<R, Box<Failure>> {
    with_place(handle, |place| match place {
        Some(instance) => guarded(instance, call),
        None => fail(Failure::Handle(KIND)),
    })
}

/// As `with`, also on a scheduler that has panicked: for what does not touch it.
pub(crate) fn with_poisoned<R>(
    handle: usize,
    call: impl FnOnce(&mut Instance) -> Result<R, Box<Failure>>,
) -> Result<R, Box<Failure>> {
    with_place(handle, |place| match place {
        Some(instance) => call(instance),
        None => fail(Failure::Handle(KIND)),
    })
}

/// Ends the scheduler that `handle` names.
pub(crate) fn remove(handle: usize) -> Result<(), Box<Failure>> {
    let entry = locate(handle)?;
    let instance = with_place(handle, |place| {
        if place.as_ref().is_some_and(|live| live.thread().is_some()) {
            return fail(Failure::State(
                "the scheduler was started: call tg_sched_stop first, and not from a callback",
            ));
        }
        entry.handle.store(0, Ordering::Release);
        Ok(place.take())
    })?;
    // Dropping what a panic left half done may panic again.
    let dropped = catch_unwind(AssertUnwindSafe(|| drop(instance)));
    let mut free = FREE.lock();
    free.1.push(place_of(handle));
    dropped.or_else(|panic| fail(Failure::Poisoned(panic_text(&*panic))))
}

/// The place of a live scheduler, while nobody else uses it. `call` stands here once, so that it
/// becomes a part of the caller.
#[inline(always)]
fn with_place<R>(
    handle: usize,
    call: impl FnOnce(&mut Option<Box<Instance>>) -> Result<R, Box<Failure>>,
) -> Result<R, Box<Failure>> {
    let entry = locate(handle)?;
    let single = entry.single.load(Ordering::Relaxed);
    if single {
        // Not one atomic exchange: it would cost as much as the rest of the call. Two threads that
        // break the host's promise at the very same moment are not noticed.
        if entry.busy.load(Ordering::Acquire) {
            return fail(Failure::Busy);
        }
        entry.busy.store(true, Ordering::Relaxed);
    } else {
        // Unlocked by the end of `used`.
        std::mem::forget(entry.live.lock());
    }
    let mut used = Use { entry, single };
    // It may have been freed before the lock was ours.
    if !single && entry.is_not(handle) {
        return fail(Failure::Handle(KIND));
    }
    call(used.place())
}

/// Runs a call, unless an earlier one has panicked; if this one does, it is the last.
#[inline(always)]
pub(crate) fn guarded<R>(
    instance: &mut Instance,
    call: impl FnOnce(&mut Instance) -> Result<R, Box<Failure>>,
) -> Result<R, Box<Failure>> {
    if let Some(text) = instance.poison() {
        return fail(Failure::Poisoned(text.clone()));
    }
    // What a panic may leave half done is never looked at again.
    match catch_unwind(AssertUnwindSafe(|| call(instance))) {
        Ok(result) => result,
        Err(panic) => {
            let text = panic_text(&*panic);
            instance.spoil(text.clone());
            fail(Failure::Poisoned(text))
        }
    }
}

/// What a panic said.
#[cold]
pub(crate) fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(ToString::to_string);
    text.or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "a panic without a text".to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_sched::Options;

    fn instance() -> Instance {
        Instance::new(Options::default()).unwrap()
    }

    #[test]
    fn wild_and_stale_handles_are_refused() {
        for single in [false, true] {
            let first = insert(instance(), single).unwrap();
            assert!(with(first, |_| Ok(())).is_ok());
            remove(first).unwrap();
            let second = insert(instance(), single).unwrap();
            let place = 0u64;
            let wild = [0, 1, 8, MARK, usize::MAX, first, first ^ 16];
            for handle in wild.into_iter().chain([(&raw const place) as usize]) {
                let refused = with(handle, |_| Ok(()));
                assert!(
                    matches!(refused.map_err(|failure| *failure), Err(Failure::Handle(_))),
                    "{handle:x}"
                );
                assert!(matches!(
                    remove(handle).map_err(|failure| *failure),
                    Err(Failure::Handle(_))
                ));
            }
            remove(second).unwrap();
        }
    }

    #[test]
    fn a_panic_stops_here_and_spoils_one_handle() {
        for single in [false, true] {
            let (spoilt, other) = (insert(instance(), single), insert(instance(), single));
            let (spoilt, other) = (spoilt.unwrap(), other.unwrap());
            let panicked = with(spoilt, |_| -> Result<(), Box<Failure>> {
                panic!("on purpose")
            });
            let again = with(spoilt, |_| Ok(()));
            for refused in [panicked, again] {
                let refused = refused.unwrap_err();
                assert_eq!(refused.code(), -12);
                assert!(refused.to_string().contains("on purpose"));
            }
            assert!(with(other, |_| Ok(())).is_ok());
            remove(spoilt).unwrap();
            remove(other).unwrap();
        }
    }

    #[test]
    fn a_second_user_of_a_single_thread_handle_is_told() {
        let handle = insert(instance(), true).unwrap();
        let inner = with(handle, |_| {
            Ok(with(handle, |_| Ok(())).is_err_and(|failure| failure.code() == -9))
        });
        assert!(inner.unwrap());
        remove(handle).unwrap();
    }
}

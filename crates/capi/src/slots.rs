//! Handles: numbers in the shape of pointers, looked up in a table of slots that is never freed.
//!
//! A handle is never followed, so a wild or stale one is an error and not a crash. It names a slot
//! and the generation of what lives there; generations are never used twice. Looking it up takes
//! no lock of all: an index, a comparison, and then the lock of that one scheduler, which a call
//! needs anyway. The slots lie in static memory, so that a call which races with `free` finds a
//! slot, takes its lock, sees another generation, and leaves.

use crate::failure::{Failure, fail};
use crate::instance::Instance;
use crate::lock::{Condition, Guard, Lock};
use std::any::Any;
use std::cell::UnsafeCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Schedulers that a process can have at a time.
pub(crate) const SLOTS: usize = 4096;
const INDEX_BITS: u32 = 12;
/// The low bits of every handle. Pointers to objects are aligned, so none of them ends like this.
const MARK: u64 = 0xb;
const MARK_BITS: u32 = 4;
const KIND: &str = "a scheduler";

/// A place for one scheduler, apart from its neighbours in the processor's caches.
#[repr(align(64))]
pub(crate) struct Slot {
    /// Of what lives here; 0 if nothing does.
    generation: AtomicU64,
    /// Whether it lives in `alone` rather than in `shared`.
    single: AtomicBool,
    /// Whether a call is using `alone`.
    busy: AtomicBool,
    alone: UnsafeCell<Option<Box<Instance>>>,
    shared: Lock<Option<Box<Instance>>>,
    /// Wakes the library's own thread.
    pub(crate) wake: Condition,
    /// Wakes who waits for that thread to end.
    pub(crate) ended: Condition,
}

// SAFETY: `alone` is touched only by the call that has set `busy`, and the host of such a scheduler
// promises that its calls come one at a time.
unsafe impl Sync for Slot {}

static TABLE: [Slot; SLOTS] = [const { Slot::new() }; SLOTS];
static GENERATION: AtomicU64 = AtomicU64::new(0);
/// The first slot that was never used, and those that are free again.
static FREE: Lock<(usize, Vec<usize>)> = Lock::new((0, Vec::new()));

impl Slot {
    const fn new() -> Slot {
        Slot {
            generation: AtomicU64::new(0),
            single: AtomicBool::new(false),
            busy: AtomicBool::new(false),
            alone: UnsafeCell::new(None),
            shared: Lock::new(None),
            wake: Condition::new(),
            ended: Condition::new(),
        }
    }

    /// The scheduler that many threads share.
    pub(crate) fn lock(&'static self) -> Guard<'static, Option<Box<Instance>>> {
        self.shared.lock()
    }
}

/// Ends the use of `alone`.
struct Use<'a>(&'a Slot);

impl Drop for Use<'_> {
    fn drop(&mut self) {
        self.0.busy.store(false, Ordering::Release);
    }
}

/// The handle's slot, and the generation that it must have there.
#[inline(always)]
fn locate(handle: usize) -> Result<(&'static Slot, u64), Box<Failure>> {
    let handle = handle as u64;
    let index = (handle >> MARK_BITS) as usize % SLOTS;
    let generation = handle >> (MARK_BITS + INDEX_BITS);
    if handle % (1 << MARK_BITS) != MARK || generation == 0 {
        return fail(Failure::Handle(KIND));
    }
    Ok((&TABLE[index], generation))
}

/// The slot of a live scheduler that many threads share.
pub(crate) fn shared(handle: usize) -> Result<&'static Slot, Box<Failure>> {
    let (slot, generation) = locate(handle)?;
    if slot.generation.load(Ordering::Acquire) != generation {
        return fail(Failure::Handle(KIND));
    }
    if slot.single.load(Ordering::Relaxed) {
        return fail(Failure::State(
            "the handle was made with single_thread=true, so it cannot have a thread of its own",
        ));
    }
    Ok(slot)
}

/// Makes a scheduler live. Many threads may use it at a time unless it is for a `single` one.
pub(crate) fn insert(instance: Instance, single: bool) -> Result<usize, Box<Failure>> {
    let mut free = FREE.lock();
    let index = match free.1.pop() {
        Some(index) => index,
        None if free.0 < SLOTS => {
            free.0 += 1;
            let slot = &TABLE[free.0 - 1];
            slot.wake.use_monotonic_clock();
            slot.ended.use_monotonic_clock();
            free.0 - 1
        }
        None => {
            return fail(Failure::System(format!(
                "{SLOTS} schedulers are alive; free some first"
            )));
        }
    };
    let slot = &TABLE[index];
    let generation = GENERATION.fetch_add(1, Ordering::Relaxed) + 1;
    slot.single.store(single, Ordering::Relaxed);
    if single {
        // A call with a stale handle may still be about to see that it is stale.
        while slot.busy.swap(true, Ordering::Acquire) {
            std::thread::yield_now();
        }
        let _use = Use(slot);
        // SAFETY: `busy` was free and is ours.
        unsafe { *slot.alone.get() = Some(Box::new(instance)) };
        slot.generation.store(generation, Ordering::Release);
    } else {
        let mut shared = slot.lock();
        *shared = Some(Box::new(instance));
        slot.generation.store(generation, Ordering::Release);
    }
    let id = (generation << INDEX_BITS | index as u64) << MARK_BITS | MARK;
    Ok(id as usize)
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
    let (slot, generation) = locate(handle)?;
    let instance = with_place(handle, |place| {
        if place.as_ref().is_some_and(|live| live.thread.is_some()) {
            return fail(Failure::State(
                "the scheduler was started: call tg_sched_stop first, and not from a callback",
            ));
        }
        slot.generation.store(0, Ordering::Release);
        Ok(place.take())
    })?;
    debug_assert!(generation != 0);
    // Dropping what a panic left half done may panic again.
    let dropped = catch_unwind(AssertUnwindSafe(|| drop(instance)));
    let index = (handle as u64 >> MARK_BITS) as usize % SLOTS;
    let mut free = FREE.lock();
    free.1.push(index);
    dropped.or_else(|panic| fail(Failure::Poisoned(panic_text(&*panic))))
}

/// The place of a live scheduler, while nobody else uses it.
#[inline(always)]
fn with_place<R>(
    handle: usize,
    call: impl FnOnce(&mut Option<Box<Instance>>) -> Result<R, Box<Failure>>,
) -> Result<R, Box<Failure>> {
    let (slot, generation) = locate(handle)?;
    let stale = || slot.generation.load(Ordering::Acquire) != generation;
    if stale() {
        return fail(Failure::Handle(KIND));
    }
    if slot.single.load(Ordering::Relaxed) {
        // Not one atomic exchange: it would cost as much as the rest of the call. Two threads that
        // break the host's promise at the very same moment are not noticed.
        if slot.busy.load(Ordering::Acquire) {
            return fail(Failure::Busy);
        }
        slot.busy.store(true, Ordering::Relaxed);
        let _use = Use(slot);
        // It may have been freed before `busy` was ours.
        if stale() {
            return fail(Failure::Handle(KIND));
        }
        // SAFETY: `busy` was free and is ours, by the host's promise of `single_thread`.
        return call(unsafe { &mut *slot.alone.get() });
    }
    let mut shared = slot.lock();
    if stale() {
        return fail(Failure::Handle(KIND));
    }
    let result = call(&mut shared);
    let poke = shared
        .as_mut()
        .is_some_and(|instance| std::mem::take(&mut instance.poke));
    // Waking before the lock is free would let the thread run into it.
    drop(shared);
    if poke {
        slot.wake.tell_one();
    }
    result
}

/// Runs a call, unless an earlier one has panicked; if this one does, it is the last.
#[inline(always)]
pub(crate) fn guarded<R>(
    instance: &mut Instance,
    call: impl FnOnce(&mut Instance) -> Result<R, Box<Failure>>,
) -> Result<R, Box<Failure>> {
    if let Some(text) = &instance.poison {
        return fail(Failure::Poisoned(text.clone()));
    }
    // What a panic may leave half done is never looked at again.
    match catch_unwind(AssertUnwindSafe(|| call(instance))) {
        Ok(result) => result,
        Err(panic) => {
            let text = panic_text(&*panic);
            instance.poison = Some(text.clone());
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
            let wild = [0, 1, 8, MARK as usize, usize::MAX, first, first ^ 16];
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

//! Turns of users for the storage threads, by counts.

use super::*;

const FLOODER: Asker = Asker::User(7);
const OTHER: Asker = Asker::User(8);
const MANY: u32 = 10_000;

impl<T> JobQueue<T> {
    /// A job has ended, and its result was seen.
    fn done(&mut self, asker: Asker) {
        self.ended(asker, None);
        self.seen(asker);
    }
}

fn flooded(threads: usize) -> JobQueue<u32> {
    let mut queue = JobQueue::new(threads, 2 * threads);
    (0..MANY).for_each(|job| {
        queue.push(FLOODER, job);
    });
    queue
}

#[test]
fn a_thread_is_left_for_others_while_one_asks_for_all() {
    let mut queue = flooded(4);
    assert_eq!((queue.len(), queue.open()), (10_000, 3));
    for job in 0..3 {
        assert_eq!(queue.take(), Some((FLOODER, job)));
    }
    assert_eq!((queue.take(), queue.open()), (None, 0));
    for asker in [OTHER, Asker::Own, Asker::Scheduler] {
        assert!(queue.push(asker, MANY));
        assert_eq!(queue.take(), Some((asker, MANY)));
        queue.done(asker);
    }
    assert!(!queue.push(FLOODER, MANY));
    queue.done(FLOODER);
    assert_eq!((queue.take(), queue.take()), (Some((FLOODER, 3)), None));
}

#[test]
fn a_job_behind_thousands_of_another_user_is_taken_second() {
    let mut queue = flooded(1);
    let others = [OTHER, Asker::Own, Asker::User(9), Asker::Scheduler];
    others.into_iter().for_each(|asker| {
        queue.push(asker, MANY);
        queue.push(asker, MANY + 1);
    });
    let mut taken = Vec::new();
    for _ in 0..10 {
        let (asker, _) = queue.take().expect("many wait");
        taken.push(asker);
        queue.done(asker);
    }
    let [one, other, third, data] = others;
    let lines = [data, FLOODER, data, one, other, third];
    assert_eq!(taken[..6], lines);
    assert_eq!(taken[6..], [FLOODER, one, other, third]);
}

#[test]
fn what_the_scheduler_let_through_keeps_its_order_and_every_second_turn() {
    let mut queue = flooded(8);
    (0..MANY).for_each(|job| {
        queue.push(Asker::Scheduler, job);
    });
    for turn in 0..2 * MANY {
        let (asker, job) = queue.take().expect("both wait");
        queue.done(asker);
        let expected = [Asker::Scheduler, FLOODER][turn as usize % 2];
        assert_eq!((asker, job), (expected, turn / 2));
    }
    assert_eq!((queue.len(), queue.open(), queue.take()), (0, 0, None));
}

/// The number of open jobs, by which threads are woken, is that of the jobs that may be taken.
#[test]
fn as_many_jobs_can_be_taken_as_are_open() {
    let mut random = 1_u64;
    let mut below = |bound: usize| {
        random = random.wrapping_mul(6_364_136_223_846_793_005);
        random = random.wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) as usize % bound
    };
    let askers = [FLOODER, OTHER, Asker::Own, Asker::Scheduler];
    for threads in [1, 2, 5] {
        let mut queue = JobQueue::new(threads, 2);
        let (mut running, mut unseen) = (Vec::new(), Vec::new());
        for step in 0..20_000_u64 {
            if below(50) == 0 {
                queue.widen_stuck();
            }
            match below(3) {
                0 => {
                    let before = queue.open();
                    let opens = queue.push(askers[below(4)], step);
                    assert_eq!(queue.open(), before + usize::from(opens));
                }
                1 if running.len() < threads => running.extend(queue.take().map(|it| it.0)),
                _ if running.is_empty() => {}
                _ => {
                    let asker = running.swap_remove(below(running.len()));
                    let computed = [200, 20][usize::from(below(100) < 30)];
                    queue.ended(asker, Some(JobTime::new(step, computed)));
                    unseen.push(asker);
                    if below(4) == 0 {
                        unseen.drain(..).for_each(|asker| queue.seen(asker));
                    }
                }
            }
            let waiting = queue.lines.iter();
            let open: usize = waiting.map(|(_, line)| line.open()).sum();
            assert_eq!(queue.open(), open + queue.scheduled.len());
            let in_turn = |it: &(&Asker, &Line<_>)| queue.turns.contains(it.0);
            let lines = queue.lines.iter();
            let may = |it: &(&Asker, &Line<_>)| it.1.open() > 0;
            assert!(lines.clone().all(|it| in_turn(&it) == may(&it)));
            assert_eq!(queue.turns.len(), lines.filter(may).count());
        }
        unseen.drain(..).for_each(|asker| queue.seen(asker));
        while queue.len() > 0 {
            running.drain(..).for_each(|asker| queue.done(asker));
            assert!(queue.open() > 0, "jobs that nobody may take");
            running.extend(queue.take().map(|it| it.0));
        }
    }
}

#[test]
fn results_that_nobody_looks_at_hold_back_their_user_alone() {
    let mut queue = flooded(4);
    let mut done = 0;
    while let Some((asker, _)) = queue.take() {
        queue.ended(asker, None);
        done += 1;
    }
    assert_eq!((done, queue.open()), (3 + RESULTS_MAX, 0));
    queue.push(OTHER, MANY);
    assert_eq!(queue.take(), Some((OTHER, MANY)));
    assert!(!queue.push(FLOODER, MANY));
    // Looked at before the thread says that it has ended.
    queue.seen(FLOODER);
    assert_eq!(queue.open(), 1);
    queue.close();
    assert_eq!(queue.open(), queue.len());
    while let Some((asker, _)) = queue.take() {
        queue.ended(asker, None);
    }
    assert_eq!((queue.len(), queue.open()), (0, 0));
}

#[test]
fn lines_of_users_who_have_gone_are_dropped() {
    let mut queue = JobQueue::new(2, 2);
    for uid in 0..MANY {
        queue.push(Asker::User(uid), uid);
        assert_eq!(queue.take(), Some((Asker::User(uid), uid)));
        queue.done(Asker::User(uid));
        assert!(queue.lines.len() <= IDLE_KEPT);
    }
    // And none of those that have something.
    (0..MANY).for_each(|uid| {
        queue.push(Asker::User(uid), uid);
    });
    assert_eq!((queue.len(), queue.open()), (10_000, 10_000));
}

#[test]
fn a_user_whose_jobs_compute_has_few_threads_and_more_while_they_wait() {
    let mut queue = JobQueue::new(8, 2);
    (0..MANY).for_each(|job| {
        queue.push(FLOODER, job);
    });
    let taken = |queue: &mut JobQueue<u32>| std::iter::from_fn(|| queue.take()).count();
    assert_eq!(taken(&mut queue), 1);
    let end = |queue: &mut JobQueue<u32>, at: u64, computed: u64| {
        queue.ended(FLOODER, Some(JobTime::new(at, computed)));
        queue.seen(FLOODER);
        taken(queue);
        queue.lines[&FLOODER].running
    };
    for job in 1..100 {
        assert_eq!(end(&mut queue, 200 * job, 200), 1, "they compute");
    }
    for (job, running) in [2, 3, 4, 5, 6, 7, 7].into_iter().enumerate() {
        let at = 30_000 + 200 * job as u64;
        assert_eq!(end(&mut queue, at, 10), running, "they wait");
    }
    assert!(queue.push(OTHER, MANY), "a thread is left");
}

#[test]
fn a_job_that_takes_long_keeps_no_others_of_its_user_waiting() {
    let mut queue = JobQueue::new(8, 2);
    (0..MANY).for_each(|job| {
        queue.push(FLOODER, job);
    });
    queue.take().expect("one of many");
    for looks in 0..10 {
        assert_eq!(queue.open(), usize::from((2..8).contains(&looks)));
        queue.take();
        queue.widen_stuck();
    }
    // Where one ends between two looks, nothing is stuck.
    let mut queue = JobQueue::new(8, 2);
    (0..MANY).for_each(|job| {
        queue.push(FLOODER, job);
    });
    for _ in 0..10 {
        assert_eq!((queue.take().is_some(), queue.open()), (true, 0));
        queue.widen_stuck();
        queue.done(FLOODER);
    }
}

#[test]
fn one_of_several_threads_takes_jobs_of_the_scheduler_alone() {
    for (threads, kept) in [(1, false), (3, false), (4, true), (8, true)] {
        let kinds: Vec<_> = (0..threads as usize)
            .map(|number| Takes::of(number, threads))
            .collect();
        let own = kinds.iter().filter(|it| **it == Takes::Scheduled).count();
        assert_eq!((own == 1, own), (kept, usize::from(kept)));
    }
    let mut queue = JobQueue::new(7, 2);
    queue.push(OTHER, 1);
    assert_eq!((queue.scheduled(), queue.take_scheduled()), (0, None));
    queue.push(Asker::Scheduler, 2);
    queue.push(Asker::Scheduler, 3);
    assert_eq!(queue.take_scheduled(), Some((Asker::Scheduler, 2)));
    assert_eq!((queue.scheduled(), queue.open(), queue.len()), (1, 2, 2));
    // The lines have their turn after it.
    assert_eq!(queue.take(), Some((OTHER, 1)));
    assert!(Takes::Scheduled.takes(Asker::Scheduler) && !Takes::Scheduled.takes(Asker::Own));
}

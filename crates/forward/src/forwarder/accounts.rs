//! What each application has moved: a bounded number of accounts, of which every user has a part.

use super::wait_sums::WaitSums;
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use tidegate_sched::{AppId, Direction};

/// Accounts of applications. Beyond them the user with the most has his smallest closed.
const ACCOUNTS_MAX: usize = 4096;

/// Accounts of named applications of one user, if he is not the forwarder's own.
const OF_USER_MAX: usize = 512;

/// Data requests and their bytes, by direction.
#[derive(Clone, Copy, Default)]
pub(super) struct Moved {
    pub(super) requests: [u64; 2],
    pub(super) bytes: [u64; 2],
    pub(super) charged_ns: u64,
}

impl Moved {
    pub(super) fn add(&mut self, direction: Direction, bytes: u64, charged_ns: u64) {
        self.requests[direction as usize] += 1;
        self.bytes[direction as usize] += bytes;
        self.charged_ns += charged_ns;
    }

    pub(super) fn add_all(&mut self, other: &Moved) {
        for direction in 0..2 {
            self.requests[direction] += other.requests[direction];
            self.bytes[direction] += other.bytes[direction];
        }
        self.charged_ns += other.charged_ns;
    }
}

/// What is counted of one application.
pub(super) struct Account {
    /// None: the forwarder's own user.
    pub(super) user: Option<u32>,
    pub(super) moved: Moved,
    pub(super) waits: Box<WaitSums>,
}

/// The accounts, by the id under which an application counts. What was in an account that is closed
/// goes to its user's account for what he did without a name, so sums by user stay right.
#[derive(Default)]
pub(super) struct Accounts {
    of: BTreeMap<u64, Account>,
    /// How many accounts of named applications each user has.
    named: BTreeMap<u32, usize>,
}

impl Accounts {
    /// The account of an application of a user; None for the forwarder's own user.
    pub(super) fn account(&mut self, app: u64, user: Option<u32>) -> &mut Account {
        let (app, user) = match self.of.contains_key(&app) {
            true => (app, user),
            false => match self.open(app, user) {
                0 => (0, None),
                open => (open, user),
            },
        };
        self.of.entry(app).or_insert_with(|| Account {
            user,
            moved: Moved::default(),
            waits: Box::default(),
        })
    }

    /// What the requests of an application of a user waited for. It closes no account: without room
    /// it is what the user did without a name.
    pub(super) fn waits(&mut self, app: u64, user: Option<u32>) -> &mut WaitSums {
        let app = match self.of.contains_key(&app) || self.has_room(user) {
            true => app,
            false => user.map_or(0, |uid| AppId::unnamed_of(uid).0),
        };
        &mut self.account(app, user).waits
    }

    /// Whether a user can have one more account beside all others.
    fn has_room(&self, user: Option<u32>) -> bool {
        let his = user.and_then(|uid| self.named.get(&uid));
        self.of.len() < ACCOUNTS_MAX && his.is_none_or(|named| *named < OF_USER_MAX)
    }

    /// All accounts: id, user and what was counted.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, Option<u32>, &Account)> {
        let accounts = self.of.iter();
        accounts.map(|(app, account)| (*app, account.user, account))
    }

    /// What is counted under an id, if anything is.
    pub(super) fn get(&self, app: u64) -> Option<&Account> {
        self.of.get(&app)
    }

    /// The id under which an application without an account counts: its own, if there is room or
    /// can be made.
    #[cold]
    fn open(&mut self, app: u64, user: Option<u32>) -> u64 {
        let Some(uid) = user else {
            return match self.of.len() < ACCOUNTS_MAX || self.close_of_most(0) {
                true => app,
                false => 0,
            };
        };
        if app == AppId::unnamed_of(uid).0 {
            // Twice as many, so that a user without names always has one unless they are thousands.
            return if self.of.len() < 2 * ACCOUNTS_MAX {
                app
            } else {
                0
            };
        }
        let own = self.named.get(&uid).copied().unwrap_or(0);
        let full = self.of.len() >= ACCOUNTS_MAX && !self.close_of_most(own);
        if own >= OF_USER_MAX || full {
            if own == 0 {
                return self.open(AppId::unnamed_of(uid).0, user);
            }
            self.close_smallest(uid);
        }
        *self.named.entry(uid).or_default() += 1;
        app
    }

    /// Closes an account of the user who has the most. False if nobody has clearly more than `own`.
    fn close_of_most(&mut self, own: usize) -> bool {
        let most = self.named.iter().max_by_key(|(_, named)| **named);
        let Some((uid, _)) = most.filter(|(_, named)| **named > own + 1) else {
            return false;
        };
        let uid = *uid;
        self.close_smallest(uid);
        true
    }

    /// Closes the account of a user's application that has had the least device time.
    fn close_smallest(&mut self, uid: u32) {
        let unnamed = AppId::unnamed_of(uid).0;
        let his = self.of.iter().filter(|(_, it)| it.user == Some(uid));
        let named = his.filter(|(app, _)| **app != unnamed);
        let smallest = named.min_by_key(|(_, it)| it.moved.charged_ns);
        let Some(app) = smallest.map(|(app, _)| *app) else {
            return;
        };
        let closed = self.of.remove(&app).expect("found above");
        let into = self.account(unnamed, Some(uid));
        into.moved.add_all(&closed.moved);
        into.waits.add_all(&closed.waits);
        match self.named.get_mut(&uid) {
            Some(named) if *named > 1 => *named -= 1,
            _ => drop(self.named.remove(&uid)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_sched::Cause;

    fn requests(accounts: &Accounts, of: u32) -> u64 {
        let his = accounts.iter().filter(|(_, user, _)| *user == Some(of));
        his.map(|(_, _, its)| its.moved.requests[0]).sum()
    }

    #[test]
    fn a_user_with_endless_names_takes_no_account_of_another() {
        let mut accounts = Accounts::default();
        let of = |n: u64, uid| AppId(n).of_user(uid).0;
        let count = |accounts: &mut Accounts, app, uid| {
            let account = accounts.account(app, Some(uid));
            account.moved.add(Direction::Read, 1, 1);
        };
        count(&mut accounts, of(1, 7), 7);
        for n in 0..36_000 {
            count(&mut accounts, of(n, 8), 8);
        }
        assert!(accounts.of.len() <= OF_USER_MAX + 2);
        assert_eq!(requests(&accounts, 8), 36_000);
        assert_eq!(accounts.of[&of(1, 7)].moved.requests[0], 1);
        for uid in 100..120 {
            for n in 0..OF_USER_MAX as u64 {
                count(&mut accounts, of(n, uid), uid);
            }
        }
        count(&mut accounts, of(2, 7), 7);
        let own = accounts.account(5, None);
        own.moved.add(Direction::Read, 1, 1);
        assert!(accounts.of.len() <= ACCOUNTS_MAX + 23);
        for app in [of(1, 7), of(2, 7), 5] {
            assert_eq!(accounts.of[&app].moved.requests[0], 1);
        }
        assert_eq!(requests(&accounts, 110), OF_USER_MAX as u64);
    }

    #[test]
    fn what_requests_wait_for_closes_no_account() {
        let mut accounts = Accounts::default();
        let of = |n: u64| AppId(n).of_user(7).0;
        for n in 1..=OF_USER_MAX as u64 + 100 {
            accounts.waits(of(n), Some(7)).add(Cause::Device, 1);
        }
        assert_eq!(accounts.of.len(), OF_USER_MAX + 1);
        let unnamed = &accounts.of[&AppId::unnamed_of(7).0];
        assert!((1..=OF_USER_MAX as u64).all(|n| accounts.of.contains_key(&of(n))));
        assert_eq!(unnamed.waits.ns[Cause::Device as usize], 100);
    }
}

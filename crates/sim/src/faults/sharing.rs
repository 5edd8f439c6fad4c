//! What programs of several clients see of names and a size that all of them change: never
//! something older than what anybody has seen, or has been told, before they asked.
//!
//! A flag is a name that programs move files to, each time a new one, so that what a look-up finds
//! says which change it has seen. The journal only grows.

use std::collections::BTreeMap;
use tidegate_wire::Handle;

/// What one operation of a program says, from its call to its answer.
#[derive(Clone, Debug)]
pub struct Seen {
    /// When the program made the call, ns.
    pub begin: u64,
    /// When it had the answer, ns.
    pub end: u64,
    /// What the answer says.
    pub what: Sight,
}

/// What an answer says.
#[derive(Clone, Debug)]
pub enum Sight {
    /// The program has moved this file to the flag of this number.
    Moved(u64, Handle),
    /// The flag led to this file.
    Found(u64, Option<Handle>),
    /// The journal has at least so many bytes, as an append says.
    Grown(u64),
    /// The journal's size, as its attributes say.
    Size(u64),
}

/// Compares what all programs have seen. The journal's records have `record` bytes.
pub fn check(seen: &[Seen], record: u64) -> Result<(), String> {
    check_size(seen, record)?;
    let flags = seen.iter().filter_map(|it| match it.what {
        Sight::Moved(flag, _) => Some(flag),
        _ => None,
    });
    let mut flags: Vec<u64> = flags.collect();
    flags.sort_unstable();
    flags.dedup();
    flags
        .into_iter()
        .try_for_each(|flag| check_flag(flag, seen))
}

fn check_size(seen: &[Seen], record: u64) -> Result<(), String> {
    for look in seen {
        let Sight::Size(size) = look.what else {
            continue;
        };
        let before = seen.iter().filter(|it| it.end < look.begin);
        // Of a record that a dying forwarder had begun to append, the rest is cut off.
        let known = before.filter_map(|it| match it.what {
            Sight::Size(size) | Sight::Grown(size) => Some(size / record * record),
            _ => None,
        });
        let known = known.max().unwrap_or(0);
        if size < known {
            return Err(format!(
                "an old size: {size} in {look:?}, and {known} was known"
            ));
        }
    }
    Ok(())
}

/// From when on a change may have been, and since when it certainly was.
#[derive(Clone, Copy)]
struct Change {
    begin: u64,
    certain: u64,
}

fn check_flag(flag: u64, seen: &[Seen]) -> Result<(), String> {
    let mut changes: BTreeMap<Handle, Change> = BTreeMap::new();
    for it in seen {
        if let Sight::Moved(of, file) = it.what
            && of == flag
        {
            let (begin, certain) = (it.begin, it.end);
            changes.insert(file, Change { begin, certain });
        }
    }
    let looks = || {
        seen.iter().filter_map(|it| match it.what {
            Sight::Found(of, file) if of == flag => Some((it, file)),
            _ => None,
        })
    };
    for (look, file) in looks() {
        if let Some(change) = file.and_then(|file| changes.get_mut(&file)) {
            change.certain = change.certain.min(look.end);
        }
    }
    for (look, file) in looks() {
        let found = match file {
            None => Change {
                begin: 0,
                certain: 0,
            },
            Some(file) => *changes
                .get(&file)
                .ok_or_else(|| format!("{look:?}: nobody has moved that file there"))?,
        };
        if look.end < found.begin {
            return Err(format!("{look:?}: the file was moved there later"));
        }
        let newer = changes.iter().find(|(other, change)| {
            Some(**other) != file && change.begin > found.certain && change.certain < look.begin
        });
        if let Some((newer, _)) = newer {
            return Err(format!("an old name: {look:?}, and {newer:?} was there"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(inode: u64) -> Handle {
        Handle { inode, birth: 0 }
    }

    fn seen(begin: u64, end: u64, what: Sight) -> Seen {
        Seen { begin, end, what }
    }

    #[test]
    fn what_is_old_is_noticed_and_what_may_be_is_not() {
        let moved = |begin, end, inode| seen(begin, end, Sight::Moved(0, file(inode)));
        let found = |begin, end, inode| seen(begin, end, Sight::Found(0, Some(file(inode))));
        let history = vec![moved(10, 20, 1), moved(30, 60, 2), found(35, 40, 1)];
        assert_eq!(check(&history, 16), Ok(()));
        let with = |more: Seen| check(&[&history[..], &[more]].concat(), 16);
        // The second move has not been answered, and nobody has seen it.
        assert_eq!(with(found(45, 50, 1)), Ok(()));
        assert!(with(found(61, 70, 1)).is_err());
        assert!(with(seen(21, 25, Sight::Found(0, None))).is_err());
        assert!(with(found(1, 5, 1)).is_err());
        assert!(with(found(61, 70, 3)).is_err());
        let observed = [&history[..], &[found(36, 41, 2), found(42, 50, 1)]].concat();
        assert!(check(&observed, 16).is_err(), "old after new");
    }

    #[test]
    fn a_size_that_was_known_to_be_larger_is_noticed() {
        let grown = seen(1, 5, Sight::Grown(16));
        assert!(check(&[grown.clone(), seen(6, 7, Sight::Size(0))], 16).is_err());
        assert!(check(&[grown.clone(), seen(4, 7, Sight::Size(0))], 16).is_ok());
        assert!(check(&[grown, seen(6, 7, Sight::Size(32))], 16).is_ok());
    }
}

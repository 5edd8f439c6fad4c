//! The properties that forwarders need of a back end, by name, and what trials have found about
//! them.

use super::Reach;

/// How much a property is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// Forwarders do not start without it.
    Must,
    /// Forwarders do not start without it where a node's caches may be stale ([`Reach::Cached`]).
    MustIfCached,
    /// Some programs need it.
    Wish,
    /// It is only reported.
    Tells,
}

impl Need {
    /// The word for it in tables.
    pub fn word(self) -> &'static str {
        match self {
            Need::Must | Need::MustIfCached => "must",
            Need::Wish => "wish",
            Need::Tells => "-",
        }
    }
}

/// One property of a back end.
#[derive(Debug, PartialEq, Eq)]
pub struct Property {
    /// Its name, in tables, messages and documents.
    pub name: &'static str,
    /// The need for forwarders on one node.
    one: Need,
    /// The need for forwarders on several nodes.
    several: Need,
}

const fn property(name: &'static str, one: Need, several: Need) -> Property {
    Property { name, one, several }
}

/// All properties, in the order of tables.
pub static PROPERTIES: &[Property] = &[
    property("byte locks", Need::Must, Need::Must),
    property("locks leave the node", Need::Tells, Need::Must),
    property("settings of the volume", Need::Tells, Need::Must),
    property("hard links", Need::Must, Need::Must),
    property("groups of callers", Need::Must, Need::Must),
    property("case of names", Need::Must, Need::Must),
    property("direct I/O", Need::Tells, Need::Must),
    property("unaligned direct I/O", Need::Tells, Need::MustIfCached),
    property("rename flags", Need::Wish, Need::Wish),
    property("birth times", Need::Wish, Need::Wish),
    property("extended attributes", Need::Wish, Need::Wish),
    property("names of 255 bytes", Need::Wish, Need::Wish),
    property("files of 16 TiB", Need::Wish, Need::Wish),
    property("fallocate", Need::Wish, Need::Wish),
    property("copy_file_range", Need::Tells, Need::Tells),
    property("holes", Need::Tells, Need::Tells),
    property("shared mappings", Need::Tells, Need::Tells),
    property("clock", Need::Wish, Need::Wish),
    property("sizes", Need::Tells, Need::Must),
    property("remembered sizes", Need::Tells, Need::Tells),
    property("ends of files", Need::Tells, Need::Must),
    property("data, direct", Need::Tells, Need::Must),
    property("data, dropped first", Need::Tells, Need::Must),
    property("data, opened anew", Need::Tells, Need::Tells),
    property("data of open files", Need::Tells, Need::Tells),
    property("data before sync", Need::Tells, Need::Tells),
    property("data of mappings", Need::Tells, Need::Tells),
    property("new names", Need::Tells, Need::Must),
    property("removed names", Need::Tells, Need::Must),
    property("renamed names", Need::Tells, Need::Must),
    property("exclusive creation", Need::Tells, Need::Must),
    property("listings", Need::Tells, Need::Must),
    property("atomic rename", Need::Tells, Need::Must),
    property("link counts", Need::Tells, Need::Must),
    property("locks between nodes", Need::Tells, Need::Must),
    property("release of locks", Need::Tells, Need::Must),
    property("flock between nodes", Need::Tells, Need::Tells),
    property("appends from two nodes", Need::Tells, Need::Tells),
    property("writes by turns", Need::Tells, Need::Wish),
    property("locks of a dead node", Need::Tells, Need::Wish),
];

/// The properties that concern the back end's own locks.
const OF_LOCKS: &[&str] = &[
    "byte locks",
    "locks leave the node",
    "locks between nodes",
    "release of locks",
];

impl Property {
    /// How much the property is needed on a file system with this reach, for forwarders on several
    /// nodes or on one.
    pub fn need(&self, several: bool, reach: Reach) -> Need {
        match if several { self.several } else { self.one } {
            Need::MustIfCached if reach == Reach::Cached => Need::Must,
            Need::MustIfCached => Need::Tells,
            need => need,
        }
    }

    /// The property with this name.
    pub fn named(name: &str) -> Option<&'static Property> {
        PROPERTIES.iter().find(|one| one.name == name)
    }
}

/// Whether a call failed for a reason that says nothing about the back end's properties: it is
/// full, hangs, or has lost its servers. Such a failure refuses or fences nobody.
pub(crate) fn passing(errno: i32) -> bool {
    matches!(
        errno,
        libc::ENOSPC
            | libc::EDQUOT
            | libc::EIO
            | libc::EROFS
            | libc::ENOMEM
            | libc::ENFILE
            | libc::EMFILE
            | libc::ETIMEDOUT
            | libc::EINTR
            | libc::ENOTCONN
            | libc::ESHUTDOWN
            | libc::ECONNABORTED
            | libc::ECONNRESET
            | libc::EHOSTDOWN
            | libc::EHOSTUNREACH
    )
}

/// Whether a back end has a property.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// Yes, as far as it was tried.
    Yes,
    /// No.
    No,
    /// It could not be tried.
    Unknown,
}

/// The result of the trials of one property.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The property.
    pub property: &'static Property,
    /// Whether the back end has it.
    pub found: Found,
    /// What was observed, in a few words; may be empty.
    pub seen: String,
    /// Whether this side observed it on its own mount, or the other side on the other mount. None:
    /// it is not tied to one mount.
    pub here: Option<bool>,
}

/// The results of many trials: one finding for each property. A failure outweighs all else.
#[derive(Clone, Debug, Default)]
pub struct Findings {
    found: Vec<Finding>,
    /// Set during trials: whether this side observes, or the other.
    observer_here: Option<bool>,
}

impl Findings {
    /// Findings before anything was tried.
    pub fn new() -> Findings {
        Findings::default()
    }

    /// The findings, in the order of [`PROPERTIES`].
    pub fn iter(&self) -> impl Iterator<Item = &Finding> {
        let of = |one: &'static Property| self.found.iter().find(move |it| it.property == one);
        PROPERTIES.iter().filter_map(of)
    }

    /// The finding about a property, by the property's name.
    pub fn of(&self, name: &str) -> Option<&Finding> {
        self.found.iter().find(|one| one.property.name == name)
    }

    /// The first property that is required, on several nodes or on one, and that the back end
    /// lacks.
    pub fn missing(&self, several: bool, reach: Reach) -> Option<&Finding> {
        self.iter().find(|one| {
            let need = one.property.need(several, reach);
            need == Need::Must && one.found == Found::No
        })
    }

    /// The findings without those about locks, which are not needed where etcd keeps the seats.
    pub fn without_locks(&self) -> Findings {
        let mut found = self.found.clone();
        found.retain(|one| !OF_LOCKS.contains(&one.property.name));
        Findings {
            found,
            ..Findings::default()
        }
    }

    /// The names of all properties that are required and lacking.
    pub fn all_missing(&self, several: bool, reach: Reach) -> Vec<&'static str> {
        let must = |one: &&Finding| {
            one.property.need(several, reach) == Need::Must && one.found == Found::No
        };
        self.iter()
            .filter(must)
            .map(|one| one.property.name)
            .collect()
    }

    /// Adds the findings of another side.
    pub fn add(&mut self, other: Findings) {
        for one in other.found {
            self.put(one);
        }
    }

    pub(crate) fn observed(&mut self, here: Option<bool>) {
        self.observer_here = here;
    }

    /// Records the result of a trial; `seen` makes the description.
    pub(crate) fn tell(&mut self, name: &str, good: bool, seen: impl FnOnce() -> String) {
        let found = if good { Found::Yes } else { Found::No };
        let seen = if good { String::new() } else { seen() };
        self.note(name, found, seen);
    }

    /// Records a finding with its description.
    pub(crate) fn note(&mut self, name: &str, found: Found, seen: String) {
        let property = Property::named(name).expect("a property of the list");
        self.put(Finding {
            property,
            found,
            seen,
            here: self.observer_here,
        });
    }

    fn put(&mut self, new: Finding) {
        let rank = |found: Found| match found {
            Found::No => 2,
            Found::Yes => 1,
            Found::Unknown => 0,
        };
        match self
            .found
            .iter_mut()
            .find(|one| one.property == new.property)
        {
            Some(one) if rank(new.found) > rank(one.found) => *one = new,
            Some(_) => {}
            None => self.found.push(new),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_goes_before_all_else_and_the_first_that_must_be_is_told() {
        let mut findings = Findings::new();
        findings.tell("sizes", true, || unreachable!("it is good"));
        assert!(findings.missing(true, Reach::Cached).is_none());
        findings.note("flock between nodes", Found::No, "none".into());
        assert!(findings.missing(true, Reach::Cached).is_none());
        findings.tell("sizes", false, || "3 for 4".into());
        findings.tell("sizes", true, String::new);
        findings.tell("direct I/O", false, || "EINVAL".into());
        let first = findings
            .missing(true, Reach::Cached)
            .expect("two are missing");
        assert_eq!(first.property.name, "direct I/O");
        assert_eq!(findings.of("sizes").expect("tried").seen, "3 for 4");
        assert!(findings.missing(false, Reach::Cached).is_none());
    }

    #[test]
    fn locks_are_not_needed_where_etcd_keeps_the_seats() {
        let mut findings = Findings::new();
        for name in OF_LOCKS {
            findings.tell(name, false, || "two hold one".into());
        }
        assert_eq!(findings.all_missing(true, Reach::Cached), OF_LOCKS);
        let without = findings.without_locks();
        assert!(without.missing(true, Reach::Cached).is_none());
        findings.tell("sizes", false, || "3 for 4".into());
        let first = findings.without_locks();
        let first = first.missing(true, Reach::Cached).expect("sizes");
        assert_eq!(first.property.name, "sizes");
    }

    #[test]
    fn names_are_unique() {
        for one in PROPERTIES {
            let first = Property::named(one.name).expect("it is there");
            assert!(std::ptr::eq(first, one), "{}", one.name);
        }
    }
}

//! The table of operations. A row states an operation's code, what its reply holds, which seat a
//! client asks, whether the operation changes something, and which files and names it mentions.
//! For each class of operations the table makes a pattern (`session_ops!()` and so on) that stands
//! for the whole class in a `match`.

use super::{Extents, Handle, Op};

/// Which [`Outcome`](super::Outcome) the body of a reply without error holds.
#[allow(missing_docs, reason = "each is the outcome of the same name")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplyKind {
    Done,
    Hello,
    Attr,
    Removed,
    Recalled,
    Text,
    Entries,
    Data,
    Written,
    Appended,
    Offset,
    Statfs,
    Lock,
}

/// Which seat a client asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AskedSeat {
    /// Any forwarder answers, whatever seats it holds.
    Any,
    /// The seat that the request names. The operation's arguments do not tell which one that is.
    Named,
    /// The seat of the operation's first file, which is the directory of a name.
    Parent,
    /// The seat of the operation's first file.
    File,
    /// The seat of the export's root directory.
    Root,
    /// The seat of the first byte of the operation's extents.
    Byte,
}

/// What an operation does with a file that it mentions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileUse {
    /// It reads names or attributes.
    Look,
    /// It makes, moves or removes names in this directory.
    Names,
    /// It changes attributes.
    Set,
    /// It reads bytes.
    Read,
    /// It writes bytes.
    Write,
    /// It makes written bytes durable.
    Sync,
}

/// A name that an operation mentions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Named<'a> {
    /// The name of a directory's entry.
    Entry(&'a [u8]),
    /// The name of an extended attribute.
    Xattr(&'a [u8]),
}

/// A row of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpSpec {
    /// The operation's name in this crate.
    pub name: &'static str,
    /// Its class, which is a heading of this table.
    pub class: &'static str,
    /// Its code in the header of a frame.
    pub code: u8,
    /// What its reply holds.
    pub reply: ReplyKind,
    /// Which seat a client asks.
    pub seat: AskedSeat,
    /// Whether it changes files. A replay must not change them twice, so the request names a reply
    /// slot.
    pub changes: bool,
}

macro_rules! up_to_two {
    () => {
        [None, None]
    };
    ($one:expr) => {
        [Some($one), None]
    };
    ($one:expr, $other:expr) => {
        [Some($one), Some($other)]
    };
}

macro_rules! effect {
    (reads) => {
        false
    };
    (changes) => {
        true
    };
}

macro_rules! operations {
    ($(
        $(#[doc = $about:literal])+
        $class:ident($pattern:ident) {
            $($op:ident $code:literal $reply:ident $seat:ident $effect:ident
                [$($use:ident $file:ident),*] [$($kind:ident $name:ident),*];)+
        }
    )+) => {
        /// An operation without its arguments; as a number, its code.
        #[allow(missing_docs, reason = "each is the operation of the same name")]
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub enum OpKind {
            $($($op = $code,)+)+
        }

        impl OpKind {
            /// All operations, in the order of the table.
            pub const ALL: &[OpKind] = &[$($(OpKind::$op,)+)+];

            /// The operation of a code; None for an unknown one.
            pub fn of_code(code: u8) -> Option<OpKind> {
                match code {
                    $($($code => Some(OpKind::$op),)+)+
                    _ => None,
                }
            }

            /// The operation's row of the table.
            #[inline]
            pub const fn spec(self) -> &'static OpSpec {
                match self {
                    $($(OpKind::$op => &OpSpec {
                        name: stringify!($op),
                        class: stringify!($class),
                        code: $code,
                        reply: ReplyKind::$reply,
                        seat: AskedSeat::$seat,
                        changes: effect!($effect),
                    },)+)+
                }
            }
        }

        impl Op {
            /// Which operation it is.
            #[inline]
            pub fn kind(&self) -> OpKind {
                match self {
                    $($(Op::$op { .. } => OpKind::$op,)+)+
                }
            }

            /// The files that a forwarder must know to execute it, and what it does with each. If
            /// the client asks the seat of a file or directory, that is the first one.
            pub fn files(&self) -> [Option<(Handle, FileUse)>; 2] {
                match self {
                    $($(Op::$op { $($file,)* .. } => up_to_two!($((*$file, FileUse::$use)),*),)+)+
                }
            }

            /// The names that it mentions.
            pub fn names(&self) -> [Option<Named<'_>>; 2] {
                match self {
                    $($(Op::$op { $($name,)* .. } => up_to_two!($(Named::$kind($name)),*),)+)+
                }
            }
        }

        $(
            $(#[doc = $about])+
            ///
            /// A pattern for operations of this class, by reference or by value.
            #[macro_export]
            macro_rules! $pattern {
                () => {
                    $($crate::Op::$op { .. })|+
                };
            }
        )+
    };
}

operations! {
    /// Operations on the session and the forwarder itself.
    Session(session_ops) {
        Hello            1  Hello    Any    reads   [] [];
        Bye              2  Done     Any    reads   [] [];
        Ping             3  Done     Any    reads   [] [];
        Status           4  Text     Any    reads   [] [];
        SetPolicy        5  Done     Any    reads   [] [];
        SetShares        7  Done     Any    reads   [] [];
        Application      8  Done     Any    reads   [] [];
        ShareMemory      9  Done     Any    reads   [] [];
        RegisterMemory  10  Done     Any    reads   [] [];
        Drain           11  Done     Any    reads   [] [];
        GiveBack        12  Recalled Any    reads   [] [];
    }
    /// Operations that make a file known to a forwarder.
    Path(path_ops) {
        ResolvePath      6  Attr     Any    reads   [] [];
    }
    /// Operations that ask the back end and change nothing.
    Look(look_ops) {
        Lookup          16  Attr     Parent reads   [Look parent] [Entry name];
        Readdir         25  Entries  File   reads   [Look handle] [];
        Getattr         32  Attr     File   reads   [Look handle] [];
        Readlink        36  Text     File   reads   [Look handle] [];
        Access          37  Done     File   reads   [Look handle] [];
        Statfs          39  Statfs   Root   reads   [] [];
        Seek            42  Offset   File   reads   [Read handle] [];
        Getxattr        43  Text     File   reads   [Look handle] [Xattr name];
        Listxattr       45  Text     File   reads   [Look handle] [];
    }
    /// Operations that change the names in a directory.
    Names(name_ops) {
        Create          17  Attr     Parent changes [Names parent] [Entry name];
        Mkdir           18  Attr     Parent changes [Names parent] [Entry name];
        Mknod           19  Attr     Parent changes [Names parent] [Entry name];
        Symlink         20  Attr     Parent changes [Names parent] [Entry name];
        Link            21  Attr     Parent changes [Names parent, Look handle] [Entry name];
        Unlink          22  Removed  Parent changes [Names parent] [Entry name];
        Rmdir           23  Removed  Parent changes [Names parent] [Entry name];
        Rename          24  Removed  Parent changes
            [Names parent, Names new_parent] [Entry name, Entry new_name];
    }
    /// Operations that change attributes.
    Attributes(attribute_ops) {
        Setattr         33  Attr     File   changes [Set handle] [];
        Setxattr        44  Done     File   changes [Set handle] [Xattr name];
        Removexattr     46  Done     File   changes [Set handle] [Xattr name];
    }
    /// Operations on the contents of a whole file.
    Contents(content_ops) {
        Fsync           38  Done     Any    reads   [Sync handle] [];
        Fallocate       40  Done     File   changes [Write handle] [];
        CopyRange       41  Written  File   changes [Write handle, Read source] [];
        Append          82  Appended File   changes [Write handle] [];
    }
    /// Operations on opens, of which a forwarder keeps count.
    Opens(open_ops) {
        Open            34  Attr     File   reads   [Look handle] [];
        Close           35  Done     File   reads   [Look handle] [];
    }
    /// Operations on advisory locks, and on what is reclaimed after a seat has changed hands.
    Locks(lock_ops) {
        SetLock         64  Done     File   reads   [Look handle] [];
        TestLock        65  Lock     File   reads   [Look handle] [];
        DropLocks       66  Done     File   reads   [Look handle] [];
        CancelLock      67  Done     Named  reads   [] [];
        ReclaimDone     68  Done     Named  reads   [] [];
    }
    /// Operations on bytes of one seat.
    Data(data_ops) {
        Read            80  Data     Byte   reads   [Read handle] [];
        Write           81  Written  Byte   changes [Write handle] [];
    }
}

impl Op {
    /// Whether the operation changes files. A replay must not change them twice, so the request
    /// names a reply slot.
    pub fn mutates(&self) -> bool {
        self.kind().spec().changes
    }

    /// Whether a client may send it whatever else is unanswered: others wait for what it gives
    /// back, and the forwarder answers it at once.
    pub fn needs_no_credit(&self) -> bool {
        matches!(self, Op::GiveBack { .. })
    }

    /// Whether the operation moves payload. Its request then carries hints, and the scheduler
    /// orders it as data.
    pub fn moves_data(&self) -> bool {
        matches!(self, data_ops!() | Op::Append { .. })
    }

    /// File and extents of a read or write.
    #[inline]
    pub fn data(&self) -> Option<(Handle, &Extents)> {
        match self {
            Op::Read { handle, extents } | Op::Write { handle, extents } => {
                Some((*handle, extents))
            }
            session_ops!() | path_ops!() | look_ops!() | name_ops!() => None,
            attribute_ops!() | content_ops!() | open_ops!() | lock_ops!() => None,
        }
    }
}

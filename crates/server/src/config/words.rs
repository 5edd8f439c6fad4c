//! Keys whose value is one of several words, and the words.

use super::value::Word;
use tidegate_net::Encryption;
use tidegate_wire::Pipelining;

/// Makes an enum of which each variant is written as a word.
macro_rules! words {
    ($($(#[$about:meta])* pub enum $name:ident {
        $($(#[$meaning:meta])* $variant:ident = $word:literal,)*
    })*) => {$(
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $name {
            $($(#[$meaning])* $variant,)*
        }

        impl Word for $name {
            const WORDS: &'static [(&'static str, $name)] = &[$(($word, $name::$variant)),*];
        }
    )*};
}

words! {
    /// Through the page cache of the forwarder's node or past it.
    #[derive(Default)]
    pub enum Io {
        /// Through it.
        #[default]
        Buffered = "buffered",
        /// Past it, by `O_DIRECT`, where files and requests allow.
        Direct = "direct",
    }

    /// Who makes the calls that move data.
    #[derive(Default)]
    pub enum Engine {
        /// io_uring for direct I/O where a trial at the start succeeds, else threads.
        #[default]
        Auto = "auto",
        /// A pool of threads.
        Threads = "threads",
        /// io_uring, or no start.
        Uring = "uring",
    }

    /// What a seat's reply table outlives.
    pub enum Durability {
        /// The forwarder's process: the table lies in the page cache of its node.
        Process = "process",
        /// The forwarder's node: an intent is on the back end before the operation takes effect.
        Node = "node",
    }

    /// Who keeps the seats where forwarders may run on several nodes.
    #[derive(Default)]
    pub enum Keeper {
        /// Byte locks and files of the back end.
        #[default]
        Files = "files",
        /// A cluster of etcd.
        Etcd = "etcd",
    }

    /// Whether the kernel holds a process to what it needs.
    #[derive(Default)]
    pub enum Sandbox {
        /// It does, as far as it can.
        #[default]
        On = "on",
        /// The process can do what its user can.
        Off = "off",
    }

    /// Whether clients of other nodes may have munge vouch for their users.
    #[derive(Default)]
    pub enum Munge {
        /// They need a secret or a ticket.
        #[default]
        Off = "off",
        /// A credential of munge gets them a ticket.
        On = "on",
    }

    /// How much is logged.
    #[derive(Default)]
    #[allow(missing_docs, reason = "the names of the levels say it")]
    pub enum LogLevel {
        Error = "error",
        Warn = "warn",
        #[default]
        Info = "info",
        Debug = "debug",
        Trace = "trace",
    }

    /// How a line of the log is written.
    #[derive(Default)]
    pub enum LogFormat {
        /// For people: time, level, message, and what belongs to it as `name=value`.
        #[default]
        Text = "text",
        /// For programs: an object of JSON with the same.
        Json = "json",
    }
}

impl Word for Encryption {
    const WORDS: &'static [(&'static str, Encryption)] = &[
        ("off", Encryption::Off),
        ("integrity", Encryption::Integrity),
        ("on", Encryption::On),
    ];
}

impl Word for Pipelining {
    const WORDS: &'static [(&'static str, Pipelining)] = &[
        ("none", Pipelining::None),
        ("serial", Pipelining::Serial),
        ("parallel", Pipelining::Parallel),
    ];
}

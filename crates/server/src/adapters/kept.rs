//! Files of the hidden folder that the forwarders of an export share: the export's number, the
//! addresses of each forwarder, and the policy and rules of shares that were set at run time.
//!
//! A thread writes the files, and looks once a second whether another forwarder has written them.
//! So a forwarder that missed a change takes it over later, and all agree with the files in the
//! end. The forwarder's loop never waits for this thread.

use crate::config::{Address, Place};
use crate::storage::Wake;
use crate::storage::posix::{read_hidden_file, read_or_record, replace_hidden_file};
use crate::thread_rights::{Work, keep_for};
use rustix::fs::AtFlags;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;
use tidegate_forward::{Errno, PolicyId};
use tidegate_wire::{ADDRESS_MAX, ADDRESSES_MAX, ExportId, LISTED_BYTES_MAX, Listed};
use tracing::warn;

/// How often the thread looks at the files.
const ROUND: Duration = Duration::from_secs(1);

/// Rounds after which the thread reads the addresses though the folder looks unchanged: a node may
/// learn late that it has changed.
const QUIET_ROUNDS: u32 = 10;

/// Two processes with one index overwrite each other's addresses again and again. A process that
/// has not done so for this many rounds has ended.
const DOUBLED_ROUNDS: u32 = 3 * QUIET_ROUNDS;

/// A setting that is kept as text in the hidden folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// The scheduler's policy and options.
    Policy,
    /// The rules of shares.
    Shares,
}

impl What {
    const ALL: [What; 2] = [What::Policy, What::Shares];

    /// The name of its file in the hidden folder.
    pub fn file(self) -> &'static str {
        match self {
            What::Policy => "policy.toml",
            What::Shares => "shares.toml",
        }
    }

    fn command(self) -> &'static str {
        match self {
            What::Policy => "tidegate policy",
            What::Shares => "tidegate share",
        }
    }

    /// The text with its heading, as the file has it.
    fn headed(self, text: &str) -> String {
        let command = self.command();
        format!(
            "# Set by `{command} set`, in the place of what the forwarders' configurations say; \
             `{command} reset` removes it.\n{text}"
        )
    }
}

/// A change of a file that the thread is to make.
pub struct Order {
    /// The change of policy or shares whose reply waits for this.
    pub policy: PolicyId,
    /// The setting to change.
    pub what: What,
    /// The new text; None removes the file, so that the configuration's setting holds again.
    pub text: Option<String>,
}

/// What the thread reports to the forwarder's loop.
pub enum News {
    /// The thread has carried out an order, or has failed to.
    Written {
        /// The change of policy or shares whose reply waits for this.
        policy: PolicyId,
        /// If it failed: the error of the system, and a text that names the file.
        result: Result<(), (Errno, String)>,
    },
    /// Another forwarder has changed a setting.
    Found {
        /// The setting.
        what: What,
        /// The text in the file; None if the file was removed.
        text: Option<String>,
    },
    /// The list of the forwarders' addresses has changed.
    Forwarders(Box<[Listed]>),
    /// Another process claims this forwarder's index, and listens at this address. None: no process
    /// has claimed it for a while.
    Doubled(Option<Box<str>>),
}

/// The settings that were found at the start.
#[derive(Clone, Debug, Default)]
pub struct Texts {
    /// The text of `policy.toml`, if there is one.
    pub policy: Option<String>,
    /// The text of `shares.toml`, if there is one.
    pub shares: Option<String>,
}

impl Texts {
    /// Reads both files. Fails if one exists and cannot be read.
    pub fn read(folder: BorrowedFd<'_>) -> io::Result<Texts> {
        Ok(Texts {
            policy: read_hidden_file(folder, What::Policy.file())?,
            shares: read_hidden_file(folder, What::Shares.file())?,
        })
    }

    fn of(&mut self, what: What) -> &mut Option<String> {
        match what {
            What::Policy => &mut self.policy,
            What::Shares => &mut self.shares,
        }
    }
}

/// The loop's end of the thread.
pub struct Kept {
    orders: Sender<Order>,
    news: Receiver<News>,
}

/// The number of the export, which its first forwarder has drawn at random. Fails if the file
/// cannot be read or written, or holds something else.
pub fn export_id(folder: BorrowedFd<'_>) -> io::Result<ExportId> {
    let mut drawn = [0; 16];
    getrandom::fill(&mut drawn).map_err(|error| io::Error::other(error.to_string()))?;
    let ours = ExportId(u128::from_le_bytes(drawn));
    let text = read_or_record(folder, "export", &format!("id = {ours}\n"))?;
    let id = text.trim().strip_prefix("id = ");
    let id = id.and_then(|id| u128::from_str_radix(id, 16).ok());
    id.map(ExportId).ok_or_else(|| {
        let what = "is not what a forwarder wrote; if none runs, remove it";
        io::Error::new(io::ErrorKind::InvalidData, what)
    })
}

/// The addresses at which clients reach a forwarder that listens at `listening`. A wildcard address
/// is replaced by the node's name, and the path of a Unix socket is made absolute.
pub fn advertised(listening: &[Address]) -> Vec<Address> {
    let uname = rustix::system::uname();
    let host = uname.nodename().to_string_lossy();
    let named = |place: &str| match place.rsplit_once(':') {
        Some(("0.0.0.0" | "[::]" | "::" | "*", port)) => format!("{host}:{port}"),
        _ => place.to_string(),
    };
    let one = |address: &Address| Address {
        provider: address.provider,
        place: match &address.place {
            Place::Unix(path) => Place::Unix(std::path::absolute(path).unwrap_or(path.clone())),
            Place::Tcp(place) => Place::Tcp(named(place)),
        },
    };
    listening.iter().map(one).collect()
}

/// The addresses that a forwarder announces to the others.
pub struct Advertised {
    /// The forwarder's index.
    pub index: u16,
    /// The number of forwarders of the export.
    pub seats: u16,
    addresses: Vec<String>,
}

impl Advertised {
    /// Announces `addresses` for forwarder `index` of an export with `seats` forwarders.
    pub fn new(index: u16, seats: u16, addresses: &[Address]) -> Advertised {
        let addresses = addresses.iter().map(ToString::to_string);
        // An address that does not fit a list is not announced.
        let told = addresses.filter(|it| it.len() <= ADDRESS_MAX && is_told(it));
        Advertised {
            index,
            seats,
            addresses: told.take(ADDRESSES_MAX).collect(),
        }
    }

    /// Writes the addresses for the other forwarders, which pass them on to clients. A failure is
    /// logged only: clients that name an address themselves still reach the forwarder.
    pub fn tell(&self, folder: BorrowedFd<'_>) {
        let lines = self.addresses.iter().map(|address| format!("{address}\n"));
        let (index, lines) = (self.index, lines.collect::<String>());
        let text = format!("# Where forwarder {index} listens.\n{lines}");
        let name = forwarder_file(index);
        if matches!(read_hidden_file(folder, &name), Ok(Some(known)) if known == text) {
            return;
        }
        if let Err(error) = replace_hidden_file(folder, &name, &text, true) {
            warn!(file = name, %error, "clients are not told where this forwarder listens");
        }
    }
}

/// The addresses that all forwarders have announced. Fails if a file exists and cannot be read.
pub fn forwarders(folder: BorrowedFd<'_>, seats: u16) -> io::Result<Box<[Listed]>> {
    let mut all = Vec::new();
    let mut bytes = 0;
    for index in 0..seats {
        let Some(text) = read_hidden_file(folder, &forwarder_file(index))? else {
            continue;
        };
        let lines = text.lines().map(str::trim);
        let usable = lines.filter(|line| line.len() <= ADDRESS_MAX && is_told(line));
        let addresses: Vec<Box<str>> = usable.take(ADDRESSES_MAX).map(Box::from).collect();
        bytes += 3 + addresses.iter().map(|it| it.len() + 4).sum::<usize>();
        if bytes > LISTED_BYTES_MAX {
            break;
        }
        all.push(Listed { index, addresses });
    }
    Ok(all.into())
}

/// Whether a line is an address that a list on a client's command line may contain.
fn is_told(line: &str) -> bool {
    let fits = |c: char| !c.is_control() && !c.is_whitespace() && c != ',' && c != ';';
    line.chars().all(fits) && line.parse::<Address>().is_ok()
}

/// What a client is told of a change that could not be written down: only what means the same to
/// it. That it may not change the forwarder (EPERM), or that others were set since, the forwarder
/// says itself.
fn errno_of(error: &io::Error) -> Errno {
    match error.raw_os_error() {
        Some(libc::ENOSPC) => Errno::ENOSPC,
        Some(libc::EDQUOT) => Errno::EDQUOT,
        Some(libc::EROFS) => Errno::EROFS,
        // The file is immutable, or a policy of the file system forbids it.
        Some(libc::EPERM | libc::EACCES) => Errno::EACCES,
        _ => Errno::EIO,
    }
}

fn forwarder_file(index: u16) -> String {
    format!("forwarder.{index}")
}

impl Kept {
    /// Starts the thread. `folder` is the hidden folder of the export; `texts` and `listed` are
    /// what it held at the start. `notify` tells the loop that there is news.
    pub fn start(
        folder: OwnedFd,
        own: Advertised,
        (texts, listed): (Texts, Box<[Listed]>),
        notify: Wake,
    ) -> io::Result<Kept> {
        let (orders, come) = channel();
        let (tell, news) = channel();
        let rounds = Rounds {
            folder,
            own,
            doubled: None,
            texts,
            listed,
            changed: None,
            quiet: 0,
            fails: false,
            tell,
            notify,
        };
        // The thread is not joined: a back end that hangs must not delay the end of the process.
        std::thread::Builder::new()
            .name("kept".to_string())
            .spawn(move || {
                keep_for(Work::OwnFiles);
                rounds.run(&come);
            })?;
        Ok(Kept { orders, news })
    }

    /// Asks the thread to change a file. The thread answers with [`News::Written`].
    pub fn order(&self, order: Order) {
        // The thread ends after this only.
        let _ = self.orders.send(order);
    }

    /// The next news of the thread, if there is any.
    pub fn news(&self) -> Option<News> {
        self.news.try_recv().ok()
    }
}

/// The thread's side.
struct Rounds {
    folder: OwnedFd,
    own: Advertised,
    /// The address of another process that claims the same index, and for how many more rounds this
    /// thread believes it.
    doubled: Option<(Box<str>, u32)>,
    /// The texts as the files last had them.
    texts: Texts,
    listed: Box<[Listed]>,
    /// When the folder was last changed, as this node saw it.
    changed: Option<(i64, i64)>,
    quiet: u32,
    fails: bool,
    tell: Sender<News>,
    notify: Wake,
}

impl Rounds {
    fn run(mut self, orders: &Receiver<Order>) {
        loop {
            match orders.recv_timeout(ROUND) {
                Ok(order) => self.write(order),
                Err(RecvTimeoutError::Timeout) => {
                    let looked = self.look();
                    if let Some(error) = looked.as_ref().err().filter(|_| !self.fails) {
                        warn!(%error, "what is kept for the export cannot be read; trying on");
                    }
                    self.fails = looked.is_err();
                }
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn write(&mut self, order: Order) {
        let Order { policy, what, text } = order;
        let folder = self.folder.as_fd();
        let text = text.map(|text| what.headed(&text));
        let written = match &text {
            Some(text) => replace_hidden_file(folder, what.file(), text, true),
            None => match rustix::fs::unlinkat(folder, what.file(), AtFlags::empty()) {
                Ok(()) | Err(rustix::io::Errno::NOENT) => Ok(()),
                Err(errno) => Err(errno.into()),
            },
        };
        let result = written.map_err(|error| {
            let text = format!(".tidegate/{}: {error}", what.file());
            (errno_of(&error), text)
        });
        if result.is_ok() {
            *self.texts.of(what) = text;
        }
        self.say(News::Written { policy, result });
    }

    fn look(&mut self) -> io::Result<()> {
        self.forget_double();
        for what in What::ALL {
            let text = read_hidden_file(self.folder.as_fd(), what.file())?;
            if text != *self.texts.of(what) {
                self.texts.of(what).clone_from(&text);
                self.say(News::Found { what, text });
            }
        }
        let now = rustix::fs::fstat(&self.folder)?;
        let now = Some((now.st_mtime as i64, now.st_mtime_nsec as i64));
        self.quiet += 1;
        if now == self.changed && self.quiet < QUIET_ROUNDS {
            return Ok(());
        }
        let listed = forwarders(self.folder.as_fd(), self.own.seats)?;
        self.tell_again(&listed);
        (self.changed, self.quiet) = (now, 0);
        if listed != self.listed {
            self.listed.clone_from(&listed);
            self.say(News::Forwarders(listed));
        }
        Ok(())
    }

    /// Corrects the addresses that another process wrote under this forwarder's index, so that
    /// clients also find the forwarder that was there first. Reports the other process.
    fn tell_again(&mut self, listed: &[Listed]) {
        let Advertised {
            index, addresses, ..
        } = &self.own;
        let found = listed.iter().find(|listed| listed.index == *index);
        let others = found.map_or(&[][..], |listed| &listed.addresses[..]);
        if others
            .iter()
            .map(|it| &**it)
            .eq(addresses.iter().map(String::as_str))
        {
            return;
        }
        if !others.is_empty() {
            let there = others.join(" ");
            let known = self.doubled.as_ref().map(|(known, _)| &**known);
            if known != Some(&*there) {
                warn!(
                    file = format!(".tidegate/{}", forwarder_file(*index)),
                    addresses = there,
                    "another process says that it is forwarder {index}; if it runs still, correct \
                     `forwarder` in its configuration and start it again"
                );
                self.say(News::Doubled(Some(there.as_str().into())));
            }
            self.doubled = Some((there.into(), DOUBLED_ROUNDS));
        }
        self.own.tell(self.folder.as_fd());
    }

    /// Counts a round in which no other process has claimed this forwarder's index yet.
    fn forget_double(&mut self) {
        let Some((_, rounds)) = &mut self.doubled else {
            return;
        };
        *rounds = rounds.saturating_sub(1);
        if *rounds == 0 {
            self.doubled = None;
            self.say(News::Doubled(None));
        }
    }

    fn say(&self, news: News) {
        // This fails if the forwarder has ended.
        let _ = self.tell.send(news);
        (self.notify)();
    }
}

#[cfg(test)]
mod tests;

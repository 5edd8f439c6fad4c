//! Who may take which room: what a user writes through a forwarder of root takes no more room than
//! what the same user writes by hand.

use super::scratch::{Ext4, Scratch};
use super::slots::lock_buffer;
use super::*;
use crate::seats::Seats;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Instant;
use tidegate_forward::{Access, Errno, Files, IoPart, ReplySlotAddress, SlotId};
use tidegate_sched::Direction;
use tidegate_wire::{Caller, Handle, Layout, Op, Outcome, SetAttr};

const USER: u32 = 12_345;
/// The bytes of one write.
const STEP: u32 = 64 << 10;
const MEBIBYTES: u64 = 64;
/// A user's quota in tests of quotas, in bytes.
const QUOTA: u64 = 8 << 20;

/// How bytes are written.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Way {
    Write,
    Append,
    Allocate,
    Copy,
    Ring,
}

struct Rig {
    files: PosixFiles,
    storage: Box<dyn Storage>,
    target: Handle,
    source: Handle,
    jobs: u64,
    reply_slot: ReplySlotAddress,
    _seats: Seats,
}

fn caller(uid: u32) -> Caller {
    Caller {
        uid,
        gid: USER,
        groups: [USER + 1].into(),
    }
}

/// A forwarder's files and storage. None, with a printed line, if there is no io_uring.
fn rig(dir: &Path, way: Way) -> Option<Rig> {
    prepare_process();
    let layout = Layout {
        seats: 1,
        stripe: 1 << 20,
    };
    let options = ExportOptions {
        direct: way == Way::Ring,
        ..ExportOptions::new(layout)
    };
    let mut files = PosixFiles::open(dir, &options).expect("export");
    let slots = Slots::new(1 << 20);
    lock_buffer(&slots.open(SlotId(1), STEP)).bytes().fill(7);
    let pool = PoolOptions {
        threads: 2,
        queued_max: 64,
        faults: Faults::default(),
        fence: Fence::default(),
    };
    let wake: Wake = Arc::new(|| ());
    let storage: Box<dyn Storage> = match way {
        Way::Ring => {
            let depth = UringOptions { depth: 4 };
            match Uring::new(&files, &slots, &pool, &depth, wake) {
                Ok(ring) => Box::new(ring),
                Err(refused) => {
                    println!("skipped, no io_uring: {refused}");
                    return None;
                }
            }
        }
        _ => Box::new(ThreadPool::new(&files, &slots, &pool, wake).expect("threads")),
    };
    let root = files.root().expect("root").handle;
    let everybody = SetAttr {
        mode: Some(0o1777),
        ..SetAttr::default()
    };
    files.set_attr(None, root, &everybody).expect("chmod");
    let mut make = |name: &[u8]| files.create(Some(&caller(USER)), root, name, 0o666);
    let target = make(b"target").expect("create").handle;
    let source = make(b"source").expect("create").handle;
    let seats = Seats::open(&files, layout, 0).expect("seats");
    let reply_slot = ReplySlotAddress {
        seat: 0,
        table: seats.try_take(0).expect("take").expect("free").table,
        reply_slot: 0,
        sequence: 0,
        unresolved: Vec::new(),
    };
    Some(Rig {
        files,
        storage,
        target,
        source,
        jobs: 0,
        reply_slot,
        _seats: seats,
    })
}

impl Rig {
    fn run(&mut self, work: Job) -> JobResult {
        self.jobs += 1;
        self.storage.submit(JobId(self.jobs), work);
        self.storage.flush();
        let give_up = Instant::now() + Duration::from_secs(60);
        let mut done = Vec::new();
        while done.is_empty() {
            assert!(Instant::now() < give_up, "the job is lost");
            self.storage.completions(&mut done);
            std::thread::sleep(Duration::from_micros(50));
        }
        done.remove(0).result
    }

    fn part(offset: u64) -> IoPart {
        IoPart {
            offset,
            len: STEP,
            slot: SlotId(1),
            slot_offset: 0,
            seat: 0,
        }
    }

    fn write(
        &mut self,
        handle: Handle,
        writer: Option<Caller>,
        offset: u64,
    ) -> Result<u64, Access> {
        let work = Job::Io {
            handle,
            direction: Direction::Write,
            parts: vec![Rig::part(offset)],
            writer,
        };
        match self.run(work) {
            JobResult::Io { parts, .. } => parts[0].map(u64::from),
            _ => panic!("a data job has a result of its kind"),
        }
    }

    /// Takes room in one step for a user. Returns the bytes.
    fn step(&mut self, way: Way, uid: u32, offset: u64) -> Result<u64, Access> {
        let (handle, source) = (self.target, self.source);
        let (op, payload) = match way {
            Way::Write | Way::Ring => return self.write(handle, Some(caller(uid)), offset),
            Way::Append => (Op::Append { handle }, Some((SlotId(1), STEP))),
            Way::Allocate => {
                let (mode, len) = (0, STEP.into());
                let op = Op::Fallocate {
                    handle,
                    mode,
                    offset,
                    len,
                };
                (op, None)
            }
            Way::Copy => {
                let (source_offset, len) = (0, STEP.into());
                let op = Op::CopyRange {
                    handle,
                    offset,
                    source,
                    source_offset,
                    len,
                };
                (op, None)
            }
        };
        self.reply_slot.sequence += 1;
        let result = self.run(Job::Op {
            directory: None,
            caller: Some(caller(uid)),
            op,
            reply_slot: Some(self.reply_slot.clone()),
            payload,
        });
        match result {
            JobResult::Op(Ok(Outcome::Written { len } | Outcome::Appended { len, .. })) => Ok(len),
            JobResult::Op(Ok(_)) => Ok(STEP.into()),
            JobResult::Op(Err(error)) => Err(error),
            _ => panic!("an operation has a result of its kind"),
        }
    }

    /// The bytes that a user can take until there is no room.
    fn fill(&mut self, way: Way, uid: u32) -> (u64, Access) {
        let mut taken = 0;
        loop {
            match self.step(way, uid, taken) {
                Ok(step) => taken += step,
                Err(error) => return (taken, error),
            }
            assert!(taken <= MEBIBYTES << 20, "there is no more");
        }
    }
}

/// The bytes that the user can write by hand.
fn by_hand(dir: &Path) -> u64 {
    let path = dir.join("hand");
    std::fs::write(&path, b"").expect("room");
    std::os::unix::fs::chown(&path, Some(USER), Some(USER)).expect("it is root");
    let ids = [
        format!("--reuid={USER}"),
        format!("--regid={USER}"),
        format!("--groups={}", USER + 1),
    ];
    let run = Command::new("setpriv")
        .args(ids)
        .args(["dd", "if=/dev/zero", "bs=65536"])
        .arg(format!("of={}", path.display()))
        .stderr(Stdio::null())
        .status();
    run.expect("setpriv and dd");
    let len = std::fs::metadata(&path).expect("there").len();
    std::fs::remove_file(&path).expect("it is root");
    rustix::fs::sync();
    len
}

/// Whether two amounts of room differ by a few blocks only, as those for the tree of a file may.
fn are_alike(one: u64, other: u64) -> bool {
    one.abs_diff(other) <= 4 * u64::from(STEP)
}

#[test]
fn what_a_file_system_reserves_for_root_is_not_taken_by_others() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped, only root's forwarder acts for others");
        return;
    }
    for way in [Way::Write, Way::Append, Way::Allocate, Way::Copy, Way::Ring] {
        let scratch = Scratch::new("room");
        let at = scratch.path().join("fs");
        std::fs::create_dir(&at).expect("fresh");
        let Some(_mounted) = Ext4::mount(&at, MEBIBYTES, false) else {
            return;
        };
        let Some(mut rig) = rig(&at, way) else {
            continue;
        };
        let source = rig.source;
        assert_eq!(rig.write(source, None, 0), Ok(STEP.into()));
        // Descriptors for direct I/O are opened when they are first used.
        assert_eq!(rig.step(way, USER, 0), Ok(STEP.into()));
        let none = SetAttr {
            size: Some(0),
            ..SetAttr::default()
        };
        let target = rig.target;
        rig.files.set_attr(None, target, &none).expect("truncate");
        rustix::fs::sync();
        let by_hand = by_hand(&at);
        let (taken, error) = rig.fill(way, USER);
        assert_eq!(error, Access::Errno(Errno::ENOSPC), "{way:?}");
        assert!(
            are_alike(taken, by_hand),
            "{way:?}: {taken}, by hand {by_hand}"
        );
        // Root's own processes have the reserve, by hand too.
        assert_eq!(rig.step(way, 0, taken), Ok(STEP.into()), "{way:?}");
        assert!(
            rig.step(way, USER, taken + u64::from(STEP)).is_err(),
            "{way:?}"
        );
    }
}

#[test]
fn a_quota_binds_whoever_writes_through_a_forwarder() {
    let scratch = Scratch::new("quota");
    let at = scratch.path().join("fs");
    std::fs::create_dir(&at).expect("fresh");
    let Some(mounted) = Ext4::mount(&at, MEBIBYTES, true) else {
        return;
    };
    // SAFETY: a structure of numbers.
    let mut limits: libc::dqblk = unsafe { std::mem::zeroed() };
    limits.dqb_bhardlimit = QUOTA / 1024;
    limits.dqb_valid = libc::QIF_BLIMITS;
    let command = libc::Q_SETQUOTA << 8 | libc::USRQUOTA;
    let device = mounted.device();
    let start = (&raw mut limits).cast();
    // SAFETY: device and limits outlive the call, which reads them.
    let set = unsafe { libc::quotactl(command, device.as_ptr(), USER as i32, start) };
    assert_eq!(set, 0, "{}", std::io::Error::last_os_error());
    for way in [Way::Write, Way::Append, Way::Allocate] {
        let mut rig = rig(&at, way).expect("threads");
        let (taken, error) = rig.fill(way, USER);
        assert_eq!(error, Access::Errno(Errno::EDQUOT), "{way:?}");
        assert!(are_alike(taken, QUOTA), "{way:?}: {taken}");
        drop(rig);
        for name in ["target", "source"] {
            std::fs::remove_file(at.join(name)).expect("it is root");
        }
    }
}

//! Each changing operation, killed between any two of its steps, and replayed at the next process.

use super::*;
use crate::back_end_files::Errno;
use crate::reply_table::{self, REPLY_SLOTS, ReplySlotState, SEGMENT_CLIENTS};
use std::format;
use tidegate_wire::{RenameMode, SetAttr};

/// What is there before each trial: names below the root and what they are.
fn furnish(host: &mut Host, tester: &mut Tester) -> Handles {
    let root = tester.root();
    let mut made = |op| tester.attr(host, op).handle;
    let [dir, other, empty] = ["dir", "other", "empty"].map(|name| {
        made(Op::Mkdir {
            parent: root,
            name: name.as_bytes().into(),
            mode: 0o755,
        })
    });
    let file = made(create(dir, "file", true));
    let second = made(create(dir, "second", true));
    let third = made(create(other, "third", true));
    let bytes = b"0123456789";
    for handle in [file, second] {
        tester
            .call_with(host, write(handle, 0, 10), bytes)
            .0
            .expect("written");
    }
    let set = Op::Setxattr {
        handle: second,
        name: Box::from(&b"user.old"[..]),
        value: Box::from(&b"value"[..]),
        flags: 0,
    };
    tester.call(host, set).expect("set");
    Handles {
        dir,
        other,
        empty,
        file,
        second,
        third,
    }
}

#[derive(Clone, Copy)]
struct Handles {
    dir: Handle,
    other: Handle,
    empty: Handle,
    file: Handle,
    second: Handle,
    third: Handle,
}

impl Handles {
    fn paths(&self) -> [(Handle, &'static str); 6] {
        [
            (self.dir, "dir"),
            (self.other, "other"),
            (self.empty, "empty"),
            (self.file, "dir/file"),
            (self.second, "dir/second"),
            (self.third, "other/third"),
        ]
    }
}

fn name(text: &str) -> Box<[u8]> {
    text.as_bytes().into()
}

fn rename(from: (Handle, &str), to: (Handle, &str), mode: RenameMode) -> Op {
    Op::Rename {
        parent: from.0,
        name: name(from.1),
        new_parent: to.0,
        new_name: name(to.1),
        mode,
    }
}

struct Case {
    label: &'static str,
    op: fn(&Handles) -> Op,
    payload: &'static [u8],
    /// Without the look-up of intents some kill would show.
    needs_intent: bool,
}

const fn case(label: &'static str, needs_intent: bool, op: fn(&Handles) -> Op) -> Case {
    Case {
        label,
        op,
        payload: b"",
        needs_intent,
    }
}

fn cases() -> Vec<Case> {
    name_cases().into_iter().chain(content_cases()).collect()
}

/// Cases whose evidence is a name.
fn name_cases() -> Vec<Case> {
    use RenameMode::*;
    vec![
        case("create exclusively", true, |it| create(it.dir, "new", true)),
        case("create", false, |it| create(it.dir, "new", false)),
        case("create what exists", false, |it| {
            create(it.dir, "file", false)
        }),
        case("mkdir", true, |it| Op::Mkdir {
            parent: it.dir,
            name: name("new"),
            mode: 0o700,
        }),
        case("mknod", true, |it| Op::Mknod {
            parent: it.dir,
            name: name("fifo"),
            mode: 0o010644,
            rdev: 0,
        }),
        case("symlink", true, |it| Op::Symlink {
            parent: it.dir,
            name: name("link"),
            target: name("../other"),
        }),
        case("link", true, |it| Op::Link {
            handle: it.file,
            parent: it.other,
            name: name("hard"),
        }),
        case("unlink", true, |it| Op::Unlink {
            parent: it.dir,
            name: name("file"),
        }),
        case("rmdir", true, |it| Op::Rmdir {
            parent: it.root(),
            name: name("empty"),
        }),
        case("rename", true, |it| {
            rename((it.dir, "file"), (it.other, "moved"), Replace)
        }),
        case("rename over", true, |it| {
            rename((it.dir, "file"), (it.dir, "second"), Replace)
        }),
        case("rename, no replace", true, |it| {
            rename((it.dir, "file"), (it.dir, "moved"), NoReplace)
        }),
        case("exchange", true, |it| {
            rename((it.dir, "file"), (it.other, "third"), Exchange)
        }),
        case("unlink what is not there", false, |it| Op::Unlink {
            parent: it.dir,
            name: name("missing"),
        }),
    ]
}

/// Cases whose evidence is a size or a value, and those that may be repeated.
fn content_cases() -> Vec<Case> {
    vec![
        Case {
            payload: b"appended bytes",
            ..case("append", true, |it| Op::Append { handle: it.file })
        },
        case("truncate", false, |it| Op::Setattr {
            handle: it.file,
            set: SetAttr {
                size: Some(3),
                ..SetAttr::default()
            },
        }),
        case("chmod", false, |it| Op::Setattr {
            handle: it.file,
            set: SetAttr {
                mode: Some(0o600),
                ..SetAttr::default()
            },
        }),
        case("setxattr, create", true, |it| Op::Setxattr {
            handle: it.file,
            name: name("user.new"),
            value: name("value"),
            flags: 1,
        }),
        case("setxattr, replace", false, |it| Op::Setxattr {
            handle: it.second,
            name: name("user.old"),
            value: name("changed"),
            flags: 2,
        }),
        case("removexattr", true, |it| Op::Removexattr {
            handle: it.second,
            name: name("user.old"),
        }),
        case("fallocate", false, |it| Op::Fallocate {
            handle: it.file,
            mode: 0,
            offset: 0,
            len: 100,
        }),
        case("copy a range", false, |it| Op::CopyRange {
            source: it.file,
            source_offset: 2,
            handle: it.second,
            offset: 20,
            len: 5,
        }),
        Case {
            payload: b"abc",
            ..case("write", false, |it| write(it.file, 1, 3))
        },
    ]
}

impl Handles {
    fn root(&self) -> Handle {
        // The first inode that the model makes.
        Handle {
            inode: 1,
            birth: Disk::new().root().handle.birth,
        }
    }
}

/// What a result says apart from times, which differ between a first try and a second.
fn gist(result: &Result<Outcome, Status>) -> String {
    match result {
        Ok(Outcome::Attr(attr)) => {
            let Attr {
                size, mode, nlink, ..
            } = attr;
            format!(
                "inode {} size {size} mode {mode:o} links {nlink}",
                attr.handle.inode
            )
        }
        other => format!("{other:?}"),
    }
}

struct Trial {
    /// The first process was killed before it answered.
    killed: bool,
    result: String,
    tree: String,
}

/// What happens to the table between the two processes.
#[derive(Clone, Copy, PartialEq)]
enum Table {
    Kept,
    /// As if nothing looked intents up.
    IntentsLost,
}

/// Kills the first process after `calls` calls of the operation and replays it at a second one.
fn trial(case: &Case, calls: u64, torn: bool, table: Table, births: bool) -> Trial {
    let mut world = World::new();
    if !births {
        world.disk = world.disk.without_births();
    }
    let mut first = Host::serving(&mut world);
    let mut tester = Tester::new(&mut first, 77);
    let handles = furnish(&mut first, &mut tester);
    let mut op = (case.op)(&handles);
    if let (Op::Rmdir { parent, .. }, false) = (&mut op, births) {
        parent.birth = 0;
    }
    first.switch.fail_after(calls, torn);
    let request = tester.send(&mut first, op, case.payload);
    let killed = first.switch.is_killed();
    first.replies.clear();
    first.switch.fail_after(0, false);

    if table == Table::IntentsLost {
        let seen = world.tables[&0].seen_by(&Switch::new());
        for reply_slot in 0..(SEGMENT_CLIENTS * REPLY_SLOTS) as u32 {
            if reply_table::peek(&seen, reply_slot).0 == ReplySlotState::Intent {
                reply_table::clear(&seen, reply_slot);
            }
        }
    }
    let mut second = Host::serving(&mut world);
    tester.connect(&mut second, peer(0));
    let result = replay(&mut second, &mut tester, &handles, &request, case.payload);
    let once = gist(&result);
    // The reply may be lost as well: then the same comes again.
    let result = replay(&mut second, &mut tester, &handles, &request, case.payload);
    assert_eq!(
        gist(&result),
        once,
        "{}: a second replay differs",
        case.label
    );
    Trial {
        killed,
        result: once,
        tree: world.disk.tree(),
    }
}

/// Sends until it is answered: tells paths of unknown handles, learns the seat's generation.
fn replay(
    host: &mut Host,
    tester: &mut Tester,
    handles: &Handles,
    request: &Request,
    payload: &[u8],
) -> Result<Outcome, Status> {
    for _ in 0..4 {
        match tester.again(host, request, payload) {
            Err(Status::NewGeneration) => {
                tester.call(host, Op::ReclaimDone).expect("known");
            }
            Err(Status::UnknownHandle) => {
                for (handle, path) in handles.paths() {
                    // What the operation itself removed is not there any more.
                    let _ = tester.call(
                        host,
                        Op::ResolvePath {
                            handle,
                            path: name(path),
                        },
                    );
                }
            }
            result => return result,
        }
    }
    panic!("the replay of {:?} finds no end", request.op)
}

/// The operation without any kill.
fn reference(case: &Case, births: bool) -> (String, String) {
    let mut world = World::new();
    if !births {
        world.disk = world.disk.without_births();
    }
    let mut host = Host::serving(&mut world);
    let mut tester = Tester::new(&mut host, 77);
    let handles = furnish(&mut host, &mut tester);
    let mut op = (case.op)(&handles);
    if let (Op::Rmdir { parent, .. }, false) = (&mut op, births) {
        parent.birth = 0;
    }
    let (result, _) = tester.call_with(&mut host, op, case.payload);
    (gist(&result), world.disk.tree())
}

/// All kills of a case: how many there were, and how many were seen in reply or tree.
fn kills(case: &Case, torn: bool, table: Table, births: bool) -> (usize, Vec<String>) {
    let (result, tree) = reference(case, births);
    let mut wrong = Vec::new();
    for calls in 0..100 {
        let trial = trial(case, calls, torn, table, births);
        if trial.result != result || trial.tree != tree {
            wrong.push(format!(
                "{} killed after {calls} calls (torn: {torn}): {}, not {result}\n{}",
                case.label, trial.result, trial.tree
            ));
        }
        if !trial.killed {
            return (calls as usize, wrong);
        }
    }
    panic!("{} does not end", case.label)
}

#[test]
fn a_kill_at_any_step_and_a_replay_make_one_effect_and_the_right_reply() {
    for births in [true, false] {
        for torn in [false, true] {
            for case in cases() {
                let (steps, wrong) = kills(&case, torn, Table::Kept, births);
                assert_eq!(wrong, [""; 0], "births: {births}");
                assert!(
                    steps >= 2,
                    "{} was killed at {steps} steps only",
                    case.label
                );
            }
        }
    }
}

#[test]
fn without_looking_intents_up_a_kill_would_be_seen() {
    for case in cases() {
        let (_, wrong) = kills(&case, false, Table::IntentsLost, true);
        assert_eq!(
            !wrong.is_empty(),
            case.needs_intent,
            "{}: {wrong:?}",
            case.label
        );
    }
}

#[test]
fn an_append_that_was_torn_is_cut_off_before_it_is_done_again() {
    let append = Case {
        payload: b"appended bytes",
        ..case("append", true, |it| Op::Append { handle: it.file })
    };
    let (_, tree) = reference(&append, true);
    assert!(tree.contains("0123456789appended bytes"), "{tree}");
    // Torn writes are among the kills; without the cut their halves would stay.
    assert_eq!(kills(&append, true, Table::Kept, true).1, [""; 0]);
    assert!(!kills(&append, true, Table::IntentsLost, true).1.is_empty());
}

#[test]
fn what_cannot_be_looked_up_yet_is_looked_up_before_the_next_change() {
    // The first process makes dir/new and dies before it says so. The second does not know dir.
    // Another client removes dir/new there first; the replay must not make it again.
    let mut world = World::new();
    let mut first = Host::serving(&mut world);
    let mut tester = Tester::new(&mut first, 77);
    let handles = furnish(&mut first, &mut tester);
    let steps = kills(&cases()[0], false, Table::Kept, true).0 as u64;
    // The last steps store the result: three stores.
    first.switch.fail_after(steps - 3, false);
    let request = tester.send(&mut first, create(handles.dir, "new", true), &[]);
    assert!(first.switch.is_killed() && world.disk.contents("dir/new").is_some());

    let mut second = Host::serving(&mut world);
    let mut other = Tester::new(&mut second, 88);
    let path = name("dir");
    other.attr(
        &mut second,
        Op::ResolvePath {
            handle: handles.dir,
            path,
        },
    );
    let unlink = Op::Unlink {
        parent: handles.dir,
        name: name("new"),
    };
    other.call(&mut second, unlink).expect("it is there");
    tester.connect(&mut second, peer(0));
    let result = replay(&mut second, &mut tester, &handles, &request, &[]);
    assert!(matches!(result, Ok(Outcome::Attr(_))), "{result:?}");
    assert_eq!(world.disk.contents("dir/new"), None);
}

#[test]
fn a_name_made_by_somebody_else_is_not_taken_for_ours() {
    let mut world = World::new();
    let mut first = Host::serving(&mut world);
    let mut tester = Tester::new(&mut first, 77);
    let handles = furnish(&mut first, &mut tester);
    // Long after the other files came into being the process is killed between intent and effect:
    // after the look-up and four stores.
    world
        .disk
        .set_wall_ns(world.disk.root().mtime_ns + 100 * SECOND as i64);
    first.switch.fail_after(5, false);
    let request = tester.send(&mut first, create(handles.dir, "new", true), &[]);
    assert!(first.switch.is_killed() && world.disk.contents("dir/new").is_none());
    // Another seat moves an old file to that name.
    let mut files = world.disk.files(&Switch::new());
    for (handle, path) in [(handles.dir, "dir"), (handles.other, "other")] {
        crate::Files::resolve_path(&mut files, handle, path.as_bytes()).expect("there");
    }
    let (from, to) = ((handles.other, &b"third"[..]), (handles.dir, &b"new"[..]));
    crate::Files::rename(&mut files, None, from, to, RenameMode::Replace).expect("renamed");

    let mut second = Host::serving(&mut world);
    tester.connect(&mut second, peer(0));
    let result = replay(&mut second, &mut tester, &handles, &request, &[]);
    assert_eq!(errno(result), Errno::EEXIST.0);
}

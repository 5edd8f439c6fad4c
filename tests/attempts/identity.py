"""Attempts to be somebody else: in a request, in a hello, in a session, and towards opens and locks."""
import os
import struct

from peer import EXCLUSIVE, NONE, SHARED, WHOLE, Peer

from .scene import GROUP, attempt

ROOT = (0, 0)


def callers(control="root"):
    return attempt("forged callers", control)


@callers()
def read_as_root(p, s):
    p.read(s.h["secret"], caller=ROOT)


@callers()
def open_as_root(p, s):
    p.open(s.h["dir/inner"], caller=ROOT)


@callers()
def list_as_root(p, s):
    p.listing(s.h["dir"], caller=ROOT)


@callers()
def look_up_as_root(p, s):
    p.lookup(s.h["dir"], "inner", caller=ROOT)


@callers()
def attributes_as_root(p, s):
    p.attr(s.h["dir/inner"], caller=ROOT)


@callers()
def resolve_as_root(p, s):
    p.resolve(s.h["dir/inner"], f"{s.name}/victim/dir/inner", caller=ROOT)


@callers()
def write_as_root(p, s):
    p.write(s.h["shared"], caller=ROOT)


@callers()
def append_as_root(p, s):
    p.append(s.h["shared"], caller=ROOT)


@callers()
def truncate_as_root(p, s):
    p.setattr(s.h["shared"], size=0, caller=ROOT)


@callers()
def take_as_root(p, s):
    p.setattr(s.h["shared"], uid=s.uid, caller=ROOT)


@callers()
def create_as_root(p, s):
    p.make(s.h["victim"], "planted", caller=ROOT)


@callers()
def unlink_as_root(p, s):
    p.unlink(s.h["victim"], "shared", caller=ROOT)


@callers()
def read_as_the_victim(p, s):
    p.read(s.h["secret"], caller=(s.victim, s.victim))


@callers()
def list_as_the_victim(p, s):
    p.listing(s.h["dir"], caller=(s.victim, s.victim))


@callers()
def write_as_the_victim(p, s):
    p.write(s.h["shared"], caller=(s.victim, s.victim))


@callers()
def create_as_the_victim(p, s):
    p.make(s.h["victim"], "planted", caller=(s.victim, s.victim))


@callers()
def unlink_as_the_victim(p, s):
    p.unlink(s.h["victim"], "shared", caller=(s.victim, s.victim))


@callers()
def rename_as_the_victim(p, s):
    p.rename(s.h["victim"], "shared", s.h["victim"], "moved", caller=(s.victim, s.victim))


@callers()
def extended_attribute_as_the_victim(p, s):
    p.set_xattr(s.h["shared"], "user.mark", b"1", caller=(s.victim, s.victim))


@callers()
def read_as_a_member_of_a_group(p, s):
    p.read(s.h["group"], caller=(s.uid, s.uid, GROUP))


@callers()
def open_with_a_foreign_group(p, s):
    p.open(s.h["group"], caller=(s.uid, GROUP))
    p.read(s.h["group"], caller=(s.uid, GROUP))


@callers()
def create_with_a_foreign_group(p, s):
    p.make(s.h["own"], "file2", caller=(s.uid, GROUP))


@callers()
def read_with_every_group(p, s):
    p.read(s.h["group"], caller=(s.uid, s.uid, GROUP, *range(1, 60)))


@attempt("forged callers", None, why="no caller has that group")
def a_group_that_none_is(p, s):
    p.attr(s.h["own"], caller=(s.uid, 2**32 - 1, 2**32 - 1))
    p.make(s.h["victim"], "planted", caller=(2**32 - 1, 2**32 - 1))


# Groups of the process that connected count for it and against it.

@attempt("groups", "root", ways=("unix",))
def a_file_that_a_group_must_not_read(p, s):
    # Everybody else may read it, so root's own reading shows that there is something to read.
    member = p if s.intruder_is_root(p) else s.peer(groups=[GROUP])
    member.intrudes = True
    member.open(s.h["against"])
    member.read(s.h["against"])


@attempt("groups", "root", ways=("unix",))
def a_file_that_a_group_must_not_read_without_an_open(p, s):
    member = p if s.intruder_is_root(p) else s.peer(groups=[1, 2, GROUP, 3])
    member.intrudes = True
    member.read(s.h["against"])


@attempt("groups", "root", ways=("unix",))
def a_further_connection_without_the_groups(p, s):
    # The session began with the group that must not read; another connection joins without it.
    member = s.peer(groups=[GROUP])
    joined = s.peer(greet=False)
    joined.client, joined.incarnation, joined.intrudes = member.client, member.incarnation, True
    if s.intruder_is_root(p):
        joined = p
    else:
        joined.greeted(joins=1)
    joined.root = p.root
    joined.read(s.h["against"])


@attempt("groups", "root", ways=("unix",))
def a_newer_session_without_the_groups_keeps_rights(p, s):
    # What access(2) said to a member holds no longer once the client comes without the group.
    member = s.peer(groups=[GROUP])
    member.read(s.h["group"])
    later = p if s.intruder_is_root(p) else s.peer(greet=False)
    if later is not p:
        later.client, later.incarnation = member.client, 2
        later.greeted()
    later.intrudes = True
    later.read(s.h["group"])


# The hello.

def hellos(control, **more):
    return attempt("hello", control, **more)


@hellos("root", ways=("unix", "tcp"))
def names_root(p, s):
    other = p if s.intruder_is_root(p) else s.peer(greet=False)
    if other is not p:
        other.wants = (0, 0)
        other.greeted()
    other.intrudes = True
    other.read(s.h["secret"])


@hellos("root", ways=("unix", "tcp"))
def names_the_victim(p, s):
    other = p if s.intruder_is_root(p) else s.peer(greet=False)
    if other is not p:
        other.wants = (s.victim, s.victim)
        other.greeted()
    other.intrudes = True
    other.read(s.h["secret"])
    other.make(s.h["victim"], "planted")


@hellos("victim")
def takes_the_victims_session(p, s):
    victim = s.victims_peer()
    other = s.again(p, victim)
    other.incarnation = 99
    other.greeted()


@hellos("victim")
def joins_the_victims_session(p, s):
    victim = s.victims_peer()
    victim.open(s.h["dir/inner"])
    other = s.again(p, victim)
    other.intrudes = True
    other.incarnation = victim.incarnation
    other.root = p.root
    s.quietly(other.greeted, joins=1)
    other.read(s.h["dir/inner"])


@hellos("root")
def takes_roots_session(p, s):
    root = s.peer(0, way="unix")
    s.prove("root's session goes on", root.alive)
    other = s.again(p, root)
    other.incarnation = 99
    other.greeted()


@hellos(None, why="nobody has a session of that name")
def joins_a_session_that_is_not(p, s):
    other = s.peer(greet=False)
    other.intrudes = True
    other.greeted(joins=1)
    other.read(s.h["secret"])


@hellos(None, why="the hello must come first")
def requests_before_the_hello(p, s):
    other = s.peer(greet=False)
    other.intrudes = True
    other.root = p.root
    other.send(17, s.h["victim"] + b"\7planted" + struct.pack("<IB", 0o644, 0))
    other.read(s.h["secret"])


@hellos(None, why="nobody may say it twice")
def a_second_hello_as_somebody_else(p, s):
    p.wants, p.incarnation = (s.victim, s.victim), 2
    s.quietly(p.greeted)
    p.read(s.h["secret"])


@hellos("victim")
def asks_and_goes_on(p, s):
    # A hello that only asks opens no session.
    victim = s.victims_peer()
    other = s.again(p, victim)
    other.incarnation = 99
    if s.is_victim(p):
        other.greeted()
    else:
        other.greeted(asks=1)
        other.intrudes = True
        other.read(s.h["secret"])


# Opens of somebody else.

def opens(control="victim", **more):
    return attempt("opens", control, **more)


@opens("victim")
def closes_the_victims_open(p, s):
    # The file has no name any more: it lives as long as it is open.
    victim = s.victims_peer()
    victim.open(s.h["shared"], read=True, number=5)
    victim.unlink(s.h["victim"], "shared")
    s.settle()
    s.prove("the victim reads what it has open", lambda: victim.read(s.h["shared"]).startswith(b"to be read"))
    s.as_victim(p, victim).close_file(s.h["shared"], 5)


@opens("victim")
def closes_every_open(p, s):
    victim = s.victims_peer()
    victim.open(s.h["shared"], read=True, number=3)
    victim.unlink(s.h["victim"], "shared")
    s.settle()
    s.prove("the victim reads what it has open", lambda: victim.read(s.h["shared"]).startswith(b"to be read"))
    for number in range(20):
        s.as_victim(p, victim).close_file(s.h["shared"], number)


@opens("root")
def uses_a_file_that_only_the_victim_has_open(p, s):
    victim = s.victims_peer()
    victim.open(s.h["dir/inner"], write=True, number=9)
    p.read(s.h["dir/inner"])


@opens("root")
def reads_a_file_without_a_name(p, s):
    victim = s.victims_peer()
    victim.open(s.h["secret"], number=9)
    victim.unlink(s.h["victim"], "secret")
    s.settle()
    p.read(s.h["secret"])


@opens("root")
def opens_a_file_without_a_name(p, s):
    victim = s.victims_peer()
    victim.open(s.h["dir/inner"], number=9)
    victim.unlink(s.h["dir"], "inner")
    s.settle()
    p.open(s.h["dir/inner"])


@opens(None, why="a file without a name gets no other one")
def links_a_file_without_a_name(p, s):
    victim = s.victims_peer()
    victim.open(s.h["shared"], number=9)
    victim.unlink(s.h["victim"], "shared")
    s.settle()
    s.inodes.add(int.from_bytes(s.h["shared"][:8], "little"))
    p.link(s.h["shared"], s.h["own"], "mine")
    return "it was linked"


@opens("victim")
def reclaims_an_open_that_it_never_had(p, s):
    generation = s.world.state()["seats"][0]["generation"]
    p.open(s.h["dir/inner"], number=9, generation=generation)
    p.read(s.h["dir/inner"], generation=generation)


# Locks of somebody else, and locks without a right.

def locks(control="victim", **more):
    return attempt("locks", control, **more)


def held_by_victim(s, **what):
    """The victim locks a file that all may open, and must have the lock afterwards."""
    victim = s.victims_peer()
    victim.open(s.h["open"], write=True)
    victim.lock(s.h["open"], EXCLUSIVE, owner=1, **what)
    root = s.watcher("open")
    s.prove("the victim has its lock", lambda: bool(root.holder(s.h["open"], SHARED, owner=77, **what)))
    return victim


@locks()
def releases_a_range(p, s):
    s.as_victim(p, held_by_victim(s)).lock(s.h["open"], NONE, owner=1)


@locks()
def releases_a_whole_lock(p, s):
    s.as_victim(p, held_by_victim(s, family=WHOLE)).lock(s.h["open"], NONE, owner=1, family=WHOLE)


@locks()
def drops_the_locks_of_an_owner(p, s):
    s.as_victim(p, held_by_victim(s)).drop_locks(s.h["open"], owner=1)


@locks()
def releases_with_an_own_open(p, s):
    victim = held_by_victim(s)
    p.open(s.h["open"], write=True)
    s.as_victim(p, victim).lock(s.h["open"], NONE, owner=1)


@locks()
def drops_with_an_own_open(p, s):
    victim = held_by_victim(s)
    p.open(s.h["open"], write=True)
    s.as_victim(p, victim).drop_locks(s.h["open"], owner=1)


@locks()
def closes_the_file_and_so_its_locks(p, s):
    victim = held_by_victim(s)
    p.open(s.h["open"], write=True)
    s.as_victim(p, victim).close_file(s.h["open"])


@locks()
def takes_a_part_of_a_held_range(p, s):
    victim = held_by_victim(s)
    p.open(s.h["open"], write=True)
    s.as_victim(p, victim).lock(s.h["open"], NONE, owner=1, start=0, end=5)
    return not s.watcher("open").holder(s.h["open"], SHARED, owner=78, start=0, end=5)


@locks(None, why="a lock that is held is nobody else's")
def reclaims_a_held_lock(p, s):
    held_by_victim(s)
    p.open(s.h["open"], write=True)
    p.lock(s.h["open"], EXCLUSIVE, owner=1, reclaim=1)
    return "it was granted"


def no_lock_of(s, name, **what):
    s.prove(f"nobody has locked {name}", lambda: not s.watcher(name).holder(s.h[name], EXCLUSIVE, owner=77, **what))


@locks("victim")
def locks_a_range_without_an_open(p, s):
    no_lock_of(s, "shared")
    if s.is_victim(p):
        p.open(s.h["shared"], write=True)
    p.lock(s.h["shared"], EXCLUSIVE)


@locks("victim")
def locks_the_whole_without_an_open(p, s):
    no_lock_of(s, "shared", family=WHOLE)
    if s.is_victim(p):
        p.open(s.h["shared"])
    p.lock(s.h["shared"], EXCLUSIVE, family=WHOLE)


@locks("victim")
def locks_exclusively_with_an_open_for_reading(p, s):
    no_lock_of(s, "shared")
    p.open(s.h["shared"], write=s.is_victim(p))
    p.lock(s.h["shared"], EXCLUSIVE)


@locks("victim")
def locks_after_the_close(p, s):
    no_lock_of(s, "shared")
    p.open(s.h["shared"], number=4)
    if not s.is_victim(p):
        p.close_file(s.h["shared"], 4)
    p.lock(s.h["shared"], SHARED)


@locks("victim")
def locks_a_private_file(p, s):
    no_lock_of(s, "secret", family=WHOLE)
    if s.is_victim(p):
        p.open(s.h["secret"])
    p.lock(s.h["secret"], SHARED, family=WHOLE)


@locks("victim")
def waits_for_a_lock_without_an_open(p, s):
    no_lock_of(s, "shared")
    if s.is_victim(p):
        p.open(s.h["shared"], write=True)
    p.lock(s.h["shared"], EXCLUSIVE, wait=1)


@locks("victim")
def reclaims_a_lock_without_an_open(p, s):
    no_lock_of(s, "shared")
    if s.is_victim(p):
        p.open(s.h["shared"], write=True)
    p.lock(s.h["shared"], EXCLUSIVE, reclaim=1)


@locks("root")
def asks_whose_lock_it_is_without_an_open(p, s):
    victim = s.victims_peer()
    victim.open(s.h["secret"], write=True)
    victim.lock(s.h["secret"], EXCLUSIVE)
    return bool(p.holder(s.h["secret"]))


@locks("victim")
def cancels_a_lock_that_the_victim_waits_for(p, s):
    holder = s.peer(0, way="unix")
    holder.open(s.h["open"], write=True)
    holder.lock(s.h["open"], EXCLUSIVE)
    victim = s.victims_peer()
    victim.open(s.h["open"], write=True)
    victim.send(64, s.h["open"] + Peer.lock_of(EXCLUSIVE) + b"\1\0")
    waiting = victim.ids
    s.victims = None
    watcher = s.watcher("open")
    s.prove("the victim gets its lock", lambda: holder.lock(s.h["open"], NONE)
            and bool(watcher.holder(s.h["open"], SHARED, owner=77)))
    for request in range(waiting + 3):
        s.quietly(s.as_victim(p, victim).cancel, request)


@locks("victim")
def a_lock_outlives_a_session(p, s):
    # Goodbye ends what a client holds.
    p.open(s.h["open"], write=True)
    p.lock(s.h["open"], EXCLUSIVE)
    no_lock_of(s, "open")
    if not s.is_victim(p):
        p.bye()


# Requests that are sent again.

@attempt("replay", None, why="a stored answer is sent to its client alone")
def a_reply_slot_with_another_operation(p, s):
    p.make(s.h["own"], "first", sequence=1)
    p.unlink(s.h["victim"], "shared", sequence=1, flags=2)


@attempt("replay", None, why="a stored answer is sent to its client alone")
def a_reply_slot_with_an_older_number(p, s):
    p.make(s.h["own"], "first", sequence=9)
    p.unlink(s.h["victim"], "shared", sequence=3)


@attempt("replay", None, why="there is no such reply slot")
def a_reply_slot_beyond_the_table(p, s):
    p.unlink(s.h["victim"], "shared", index=60000, sequence=1)


@attempt("replay", "victim")
def a_request_of_the_victim_by_its_number(p, s):
    victim = s.victims_peer()
    victim.make(s.h["victim"], "made")
    os.unlink(s.path / "victim/made")
    s.settle()
    again = victim.ids
    p.make(s.h["victim"], "made", sequence=2, number=again + 7, flags=2)


@attempt("replay", None, why="the number is the forwarder's own")
def the_number_of_notices(p, s):
    p.unlink(s.h["victim"], "shared", number=2**64 - 1)

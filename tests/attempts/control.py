"""Attempts to change the forwarder, to count for somebody else, to see what others do, and to forge its log."""
import json
import time

from peer import Peer, app_of, unnamed_of

from .scene import attempt

ALL = ("unix", "tcp", "open")


# Who is not an operator changes nothing. The scene compares policy, rules and service.

def administers(ways=ALL):
    return attempt("administration", "root", ways)


@administers()
def set_the_policy(p, s):
    p.policy(b'policy = "sjf"\n')


@administers()
def set_an_option_of_the_policy(p, s):
    p.policy(b"depth = 3\n")


@administers()
def save_a_policy(p, s):
    p.policy(b'policy = "wfq"\n', keep=1)


@administers()
def set_the_policy_as_a_caller(p, s):
    p.policy(b'policy = "sjf"\n', caller=(0, 0))


@administers()
def go_back_to_the_configured_policy(p, s):
    s.world.root.policy(b'policy = "edf"\n')
    s.settle()
    p.policy(b"", keep=2)


@administers()
def set_shares(p, s):
    p.shares(b'[[app]]\nname = "mine"\nweight = 8\n')


@administers()
def save_shares(p, s):
    p.shares(b'[[app]]\nname = "mine"\nweight = 9\n', keep=1)


@administers()
def set_shares_as_a_caller(p, s):
    p.shares(b'[[app]]\nname = "mine"\nweight = 7\n', caller=(0, 0))


@administers()
def take_the_shares_away(p, s):
    s.world.root.shares(b'[[app]]\nname = "ours"\nweight = 8\n')
    s.settle()
    p.shares(b"", keep=2)


@attempt("administration", None, why="a forwarder that is alone cannot be drained, by nobody")
def drain(p, s):
    p.drain()
    return "it was drained"


@attempt("administration", None, why="a forwarder that is alone cannot be drained, by nobody")
def put_back_into_service(p, s):
    p.drain(undo=1)
    return "it was put back"


# What is done counts for who does it.

def accounting(control="victim", ways=ALL):
    return attempt("accounts", control, ways)


def accounts(world, uid):
    """What the forwarder has counted for a user."""
    apps = json.loads(world.root.status())["applications"]
    mine = [app for app in apps if app.get("uid") == uid]
    return sorted((app["app"], app["read_requests"], app["write_requests"]) for app in mine)


def victims_account(s):
    """The victim has an application, to which nobody else may add."""
    s.app = f"victims-{s.name}".encode()
    victim = s.victims_peer()
    victim.introduce(s.app, b"job", b"project")
    victim.claim(app_of(s.app))
    victim.read(s.h["shared"])
    # A name without requests takes an account, too.
    s.victims.alive()
    before = accounts(s.world, s.victim)
    s.prove("only the victim's requests count for the victim", lambda: accounts(s.world, s.victim) == before)


@accounting()
def read_under_the_victims_application(p, s):
    victims_account(s)
    p.claim(app_of(s.app))
    p.read(s.h["shared"])


@accounting()
def read_under_the_victims_introduced_application(p, s):
    victims_account(s)
    p.introduce(s.app)
    p.claim(app_of(s.app))
    p.read(s.h["shared"])


@accounting("root")
def introduce_an_application_for_the_victim(p, s):
    victims_account(s)
    p.introduce(b"foreign-" + s.name.encode(), caller=(s.victim, s.victim))


@accounting("root")
def read_as_the_victim_counts_for_the_victim(p, s):
    victims_account(s)
    p.claim(app_of(s.app))
    p.read(s.h["shared"], caller=(s.victim, s.victim))


@accounting()
def read_without_a_name_under_the_id_of_the_victims_unnamed(p, s):
    victims_account(s)
    p.claim(unnamed_of(s.victim))
    p.read(s.h["shared"])


@accounting()
def read_under_every_id_that_stat_shows(p, s):
    victims_account(s)
    for app, _, _ in accounts(s.world, s.victim):
        p.claim(int(app, 16))
        p.read(s.h["shared"])


@accounting("root")
def introduce_with_the_id_of_root(p, s):
    victims_account(s)
    name = b"roots-" + s.name.encode()
    p.introduce(name)
    p.claim(app_of(name))
    p.read(s.h["shared"])
    apps = json.loads(s.world.root.status())["applications"]
    return any(int(app["app"], 16) == app_of(name) and app["read_requests"] for app in apps)


@attempt("accounts", None, why="a name is its hash, for everybody")
def introduce_a_name_under_another_id(p, s):
    p.introduce(b"anything", app=app_of(b"something"))
    return "it was taken"


@attempt("accounts", None, why="no name has control characters")
def introduce_a_name_of_two_lines(p, s):
    p.introduce(b"one\ntwo-" + s.name.encode())
    return "it was taken"


@attempt("accounts", None, why="no name has control characters")
def introduce_a_job_of_two_lines(p, s):
    p.introduce(b"one-" + s.name.encode(), job=b"a\x1b[2Jb")
    return "it was taken"


@attempt("accounts", None, why="no name is that long")
def introduce_a_name_of_256_bytes(p, s):
    p.introduce(b"a" * 256)
    return "it was taken"


@attempt("accounts", None, why="a name is not empty")
def introduce_no_name(p, s):
    p.introduce(b"")
    return "it was taken"


# `stat` tells a user of others only sums.

def status(ways=ALL):
    return attempt("status", "root", ways)


@status()
def see_the_victims_application(p, s):
    s.victims_peer().introduce(s.token("name of an application"))
    p.status()


@status()
def see_the_victims_job(p, s):
    s.victims_peer().introduce(b"app-" + s.name.encode(), job=s.token("job"))
    p.status()


@status()
def see_the_victims_project(p, s):
    s.victims_peer().introduce(b"app-" + s.name.encode(), project=s.token("project"))
    p.status()


@status()
def see_the_victims_client(p, s):
    victim = s.peer(s.victim, way="unix", greet=False)
    victim.name = s.token("name of a client")
    victim.greeted()
    p.status()


@status()
def see_the_id_of_the_victims_session(p, s):
    s.tokens["id of a session"] = b"%016x" % s.victims_peer().client
    p.status()


@status()
def see_as_a_caller(p, s):
    s.victims_peer().introduce(s.token("name of an application"))
    p.call(4, caller=(s.victim, s.victim))


@status()
def see_a_text_that_root_was_told(p, s):
    s.victims_peer().introduce(s.token("name of an application"))
    s.world.root.status()
    p.status()
    p.status()


# The log is the forwarder's.

def log(name):
    return attempt("log", None, why="a line of the log is never a peer's")


FORGED = b"2026-01-01T00:00:00Z ERROR forged line "


def unforged(s):
    mark = FORGED + s.name.encode()
    s.prove("no line of the log is forged", lambda: not any(
        line.startswith(mark) for line in s.world.log().replace(b"\r", b"\n").split(b"\n")))
    return b"x\n" + mark, b"x\r" + mark


def misbehaves(s, names):
    for name in names:
        other = s.peer(greet=False)
        other.name = name
        s.quietly(other.greeted)
        # Whatever ends a session may be logged, with its name.
        s.quietly(other.call, 32, s.h["own"], seat=99)


@log("hello")
def a_line_by_a_clients_name(p, s):
    misbehaves(s, unforged(s))


@log("hello")
def a_line_by_the_name_of_a_client_that_is_refused(p, s):
    for name in unforged(s):
        other = Peer(s.world.unix)
        s.peers.append(other)
        other.name, other.version = name, 3
        s.quietly(other.greeted)


@log("file")
def a_line_by_the_name_of_a_file(p, s):
    for name in unforged(s):
        s.quietly(p.make, s.h["own"], name)
        s.quietly(p.lookup, s.h["victim"], name)
        s.quietly(p.symlink, s.h["own"], b"link" + name[:3], name)


@log("policy")
def a_line_by_a_policy(p, s):
    for name in unforged(s):
        s.quietly(p.policy, b'policy = "' + name + b'"\n')
        s.quietly(p.shares, b'[[app]]\nname = "' + name + b'"\nweight = -1\n')


@log("flood")
def lines_without_end(p, s):
    count = lambda: s.world.log().count(b"\n")
    before, begin = count(), time.monotonic()
    for _ in range(150):
        # Over TCP without a handshake, which is soon refused.
        other = Peer(s.world.unix if s.way == "unix" else s.world.tcp)
        s.quietly(other.call, 32, p.root)
        other.end()
    # 20 lines in each 10 s, and one that says how many were left out.
    periods = (time.monotonic() - begin) // 10 + 2
    s.prove("the log has a bound", lambda: count() - before <= 25 * periods)

"""Attempts of two users and of the network on forwarders of root: none may succeed. Each is judged by what the
intruder was told, by the export, and by what others are served (tests/attempts/scene.py), and each that
somebody may make is made by that one too, with the same code, and must then be seen to succeed."""
import collections
import importlib
import itertools
import os

import pytest
from attempts import scene
from conftest import LONG

USERS = (12345, 12346)
TABLES = ("files", "identity", "control", "paths", "frames", "network", "commands")
for table in TABLES:
    importlib.import_module(f"attempts.{table}")
MADE, SEEN, TURNS = collections.Counter(), [], itertools.count()
LEAST = 200


@pytest.fixture(scope="module")
def worlds(work):
    if os.geteuid():
        pytest.skip("only root can be several users")
    with work.part() as first, work.part() as second:
        secure = scene.World(first, encryption="on")
        insecure = scene.World(second, insecure=True)
        yield {"unix": secure, "tcp": secure, "open": insecure}
        for world in (secure, insecure):
            world.end()


@pytest.mark.parametrize("it", scene.ATTEMPTS, ids=[it.name for it in scene.ATTEMPTS])
def test_attempt(worlds, it):
    harm = {}
    # In the short form by the first way and one of the others.
    ways = it.ways if LONG else [it.ways[0], *it.ways[1 + next(TURNS) % 2:][:1]]
    for number, way in enumerate(ways):
        # Each user is the victim of the other.
        turn = number % 2
        uid, victim = USERS[turn], USERS[1 - turn]
        MADE[way] += 1
        found = scene.harm_of(it, worlds[way], way, uid, victim)
        if found:
            harm[f"user {uid} by {way}"] = found
    if harm:
        SEEN.append(it.name)
    assert not harm, f"{it.name}: {harm}"
    if it.control:
        # Who may do this does it, and is seen: the attempt has an effect, and the judgement an eye.
        uid, victim = USERS
        assert scene.harm_of(it, worlds[it.ways[0]], it.ways[0], uid, victim, as_whom=it.control), \
            f"{it.name}: nothing was seen where {it.control} did it"


def test_count(worlds):
    by_kind = collections.Counter(it.kind for it in scene.ATTEMPTS)
    shown = ", ".join(f"{kind} {count}" for kind, count in by_kind.items())
    controls = sum(bool(it.control) for it in scene.ATTEMPTS)
    print(f"\n{sum(MADE.values())} attempts: {len(scene.ATTEMPTS)} different ones ({shown}), "
          + ", ".join(f"{count} by {way}" for way, count in MADE.items())
          + f"; {controls} of them shown to succeed for who may; {len(SEEN)} succeeded{': ' if SEEN else ''}{', '.join(SEEN)}")
    assert len(scene.ATTEMPTS) >= LEAST and not SEEN

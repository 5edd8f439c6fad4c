"""`tidegate why` over a real forwarder and an emulated disk: a neighbour's checkpoint, a maximum and a slow device
are each named with most of the time that was lost; people read two sentences, programs JSON, and who asks for what
is not there is told what is."""
import contextlib
import os
import signal

import pytest
from conftest import matches, until


@pytest.fixture(scope="module")
def up(forwarders):
    with forwarders(1, "--device", "hdd-7200") as up:
        yield up


def wrote(up, name):
    applications = [app for state in up.states() for app in state.get("applications", [])]
    return sum(app["write_requests"] for app in applications if app.get("name") == name)


@contextlib.contextmanager
def writers(up, name, count, size):
    """So many writers of an application, each with one write at a time, which are at work."""
    (up.mount / name).mkdir(exist_ok=True)
    before = wrote(up, name)
    processes = [up.begin(
        "run", "--app", name, "--", "sh", "-c", f"while dd if=/dev/zero of={up.mount / name}/{number} bs={size} "
        "count=64 conv=notrunc status=none; do :; done", start_new_session=True) for number in range(count)]
    until(lambda: wrote(up, name) > before + 10, f"{name} does not write")
    yield
    for process in processes:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def why(up, name, *words):
    told = up.json("why", name, *words)
    ns = {one["cause"]: one["ns"] for one in told["causes"]}
    assert told["all_ns"] == sum(ns.values()) and told["lost_ns"] == told["all_ns"] - ns.get("service", 0)
    print({cause: f"{time / 1e9:.3f} s" for cause, time in ns.items()})
    return told, ns


def test_a_slow_device(up):
    with writers(up, "alone", 1, "64k"):
        told, ns = why(up, "alone", "--since", "3")
        text = up.tidegate("why", "alone").stdout
    assert ns["service"] >= 0.8 * told["all_ns"] > 0
    assert (told["requests"] > 0, told["forwarders"], told["since_s"]) == (True, 1, 3)
    assert matches(r"The requests of `alone` have waited .* of .* at 1 forwarder since the forwarders began\. "
                   r"For \d+ % of that time the back end worked for them \(service\)\.", text), text
    assert matches(r"(?m)^service +\d+\.\d{3} +\d+ %$", text), text


def test_a_neighbour_s_checkpoint(up):
    with writers(up, "checkpoint", 12, "1M"), writers(up, "small", 1, "4k"):
        told, ns = why(up, "small", "--since", "4")
        text = up.tidegate("why", "small").stdout
    assert told["cause"] == "device" and ns["device"] >= 0.8 * told["lost_ns"], told
    device = next(one for one in told["causes"] if one["cause"] == "device")
    assert device["neighbours"][0]["name"] == "checkpoint", device
    assert device["neighbours"][0]["ns"] >= 0.8 * ns["device"], device
    assert matches(r"\d+ % of the wait was for the device, which `checkpoint` had\.", text), text
    assert matches("(?m)^small .* device [0-9]+ %$", up.tidegate("stat").stdout)


def test_a_maximum(up):
    up.tidegate("share", "set", "held", "max=1MB/s")
    with writers(up, "held", 2, "256k"):
        told, ns = why(up, "held", "--since", "4")
        text = up.tidegate("why", "held").stdout
    up.tidegate("share", "remove", "held")
    assert told["cause"] == "limit" and ns["limit"] >= 0.8 * told["lost_ns"], told
    assert told["rules"] == ["rule `held`"]
    assert matches(r"limit: the maximum of rule `held` held them back\.", text), text


def test_who_asks_wrongly_is_told_what_there_is(up):
    said = up.tidegate("why", "none-such", code=2).stderr
    assert said.count("\n") == 1, said
    assert matches("no application or job of yours is called `none-such`: there are .*`alone`", said), said
    up.tidegate("why", "alone", "--since", "0", code=2)

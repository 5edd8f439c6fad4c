"""Wrong input gives one line on stderr that says what to do, and exit code 2."""
import os
import re
import socket

import pytest
from conftest import TIDEGATE, free_port, matches, ready, run, stop, tidegate

SERVE = "serve --export {served} --forwarder 0 --seats 1 --listen"
# What is wrong, what is said, and the command. Names in braces are files and addresses of `where`.
WRONG = [
    ("an unknown key", "key.toml:1.*no_such_key", "serve --config {key}"),
    ("an unknown section", "section.toml.*no_such_section", "serve --config {section}"),
    ("a broken configuration", "broken.toml:[0-9]+", "serve --config {broken}"),
    ("a configuration that is not there", "nowhere.toml", "serve --config {nowhere}"),
    ("an unknown policy", "no-such-policy.*fifo", SERVE + " unix:{sock} --policy no-such-policy"),
    ("TCP without a secret", "secret_file", SERVE + " tcp:127.0.0.1:1"),
    ("a missing directory", "{none}", "serve --export {none} --forwarder 0 --seats 1 --listen unix:{sock}"),
    ("up over a missing directory", "{none}", "up {none} --mount {mount} --state-dir {state} --foreground"),
    ("a file as the directory", "{file}", "serve --export {file} --forwarder 0 --seats 1 --listen unix:{sock}"),
    ("a broken cost model", "model.toml:[0-9]+: cost_file .*line 1: .*speed", "serve --config {model}"),
    ("calibrate in a file", "{file}.*not a directory", "calibrate {file}"),
    ("calibrate in a directory that is not there", "{none}", "calibrate {none}"),
    ("calibrate in too little", "1MiB", "calibrate {served} --size 4096"),
    ("calibrate over another file", "no cost model", "calibrate {served} --output {config}"),
    ("a socket in use", "forwarder.0.sock", "serve --config {config}"),
    ("a busy port", ":{busy}", SERVE + " tcp:127.0.0.1:{busy} --insecure"),
    ("a wrong secret", "secret", "stat --forwarders {tcp} --secret-file {wrong}"),
    ("no secret", "secret", "stat --forwarders {tcp}"),
    ("a secret file that is not there", "no.secret", "stat --forwarders {tcp} --secret-file {served}/no.secret"),
    ("run without forwarders", "tidegate up", "run -- true"),
    ("stat without forwarders", "tidegate up", "stat")]


@pytest.fixture(scope="module")
def up(forwarders):
    with forwarders(1) as up:
        yield up


@pytest.fixture(scope="module")
def where(up, work):
    """Files and addresses that commands name."""
    with work.part() as part, socket.create_server(("127.0.0.1", 0)) as busy:
        config = (up.state / "forwarder.0.toml").read_text()
        cost = f"cost_file = '{part.file('cost', 'speed = 1')}'"
        model = re.sub(r"^\[scheduler\]", r"\g<0>\n" + cost, config, flags=re.MULTILINE)
        found = {name: part.file(f"{name}.toml", text) for name, text in {
            "key": f"no_such_key = 1\n{config}", "section": f"{config}\n[no_such_section]\na = 1\n",
            "broken": f"{config}\nwrong = [\n", "model": model if cost in model else f"{config}\n[scheduler]\n{cost}\n"}.items()}
        served, secret, tcp = part.folder("served"), part.secret(), f"tcp:127.0.0.1:{free_port()}"
        process = part.start(TIDEGATE, *SERVE.format(served=served).split(), tcp, "--secret-file", secret, log=part / "log")
        ready(process, part / "log", lambda: "serving" in (part / "log").read_text())
        yield found | {
            "nowhere": part / "nowhere.toml", "none": part / "none", "file": part.file("file", "\n"), "sock": part / "s",
            "served": served, "config": up.state / "forwarder.0.toml", "mount": up.mount, "state": part / "state",
            "busy": busy.getsockname()[1], "tcp": tcp, "secret": secret, "wrong": part.secret("wrong")}
        stop(process)


@pytest.mark.parametrize("words, pattern", [pytest.param(words, pattern, id=what) for what, pattern, words in WRONG])
def test_refused(where, words, pattern):
    # Nothing says where forwarders are but the command.
    nowhere = {key: value for key, value in os.environ.items() if key != "TIDEGATE_FORWARDERS"}
    # A state directory that is named keeps commands from mounts of root, which another suite may have.
    nowhere["TIDEGATE_STATE_DIR"] = f"{where['none']}"
    said = tidegate(*words.format(**where).split(), code=2, timeout=10, env=nowhere).stderr
    assert said.count("\n") == 1 and matches(re.sub("{(.*?)}", lambda name: str(where[name[1]]), pattern), said), said
    print(said.strip(), end=" ")


def test_what_is_right_goes_on(up, where):
    """After all of that: the right secret is taken, and the mount serves."""
    tidegate("stat", "--forwarders", where["tcp"], "--secret-file", where["secret"], timeout=20)
    run("cp", where["config"], up.mount / "copied")
    tidegate("no-such-command", code=2)

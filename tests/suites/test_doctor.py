"""`tidegate doctor`: what it says of a healthy node, names who is dead, silent or another's, and ends in time; what it
collects for who helps holds no secret and no name of users' files."""
import json
import os
import re
import signal
import socket

import pytest
from conftest import TIDEGATE, Forwarder, alive, free_port, need_fuse, process_field, run, until

USER = 12345
CODES = {"ok": 0, "warning": 1, "fails": 2}


def doctor(*words, within=(), program=TIDEGATE, **options):
    """The findings of a run, whose exit code is that of the worst of them."""
    done = run(*within, program, "doctor", "--json", *words, code=None, **options)
    assert done.returncode in CODES.values() and done.stdout, done
    told = json.loads(done.stdout)
    worst = max((finding["verdict"] for finding in told["findings"]), key=CODES.get)
    assert told["verdict"] == worst and done.returncode == CODES[worst], done
    for verdict in CODES:
        assert told[verdict] == sum(finding["verdict"] == verdict for finding in told["findings"])
    for finding in told["findings"]:
        assert (finding["verdict"] == "ok") <= (finding["advice"] is None), finding
    return told["findings"]


def of(findings, check):
    """What was found of one thing: pairs of verdict and text."""
    return [(finding["verdict"], finding["text"]) for finding in findings if finding["check"] == check]


def failing(findings, place):
    """What fails. Other suites may have mounts on this node that are dead."""
    fails = [finding for finding in findings if finding["verdict"] == "fails"]
    return [finding for finding in fails if finding["check"] != "mount" or f"{place}/" in finding["text"]]


def only(findings, check, part):
    """The one finding of a thing whose text has that part."""
    [found] = [finding for finding in findings if finding["check"] == check and part in finding["text"]]
    return found


def test_a_healthy_node_has_nothing_that_fails(forwarders):
    with forwarders(2) as up:
        findings = doctor("--state-dir", up.state, up.data)
        assert not failing(findings, up.path), findings
        told = of(findings, "forwarder")
        assert [verdict for verdict, _ in told] == ["ok", "ok"], told
        for index, (_, text) in enumerate(told):
            assert text.startswith(f"forwarder {index} of 2, unix:{up.state}/forwarder.{index}.sock: answers"), told
        assert [verdict for verdict, _ in of(findings, "clock")] == ["ok", "ok"], findings
        assert of(findings, "forwarders") == [("ok", "2, each serves its own seat")]
        assert ("ok", f"{up.mount} answers") in of(findings, "mount")
        [(verdict, text)] = of(findings, "state directory")
        assert verdict == "ok" and "configured forwarders 2, running 2, mounts 1" in text, text
        # By its list, the same set.
        listed = doctor("--client", up.state / "client.toml")
        assert "configured forwarders 2" in of(listed, "state directory")[0][1], listed
        for check in ("program", "FUSE device", "openat2", "pidfd", "open files", "short-cut", "rights", "room", "locks"):
            [(verdict, text)] = of(findings, check)
            assert verdict == "ok", (check, text)
        assert re.match(r"tidegate [0-9.]+, protocol [0-9]+$", of(findings, "program")[0][1])
        # What was tried in the directory left nothing there.
        assert [path.name for path in up.data.iterdir()] == [".tidegate"]
        # For people, the same.
        page = up.tidegate("doctor", code=None).stdout
        counts = f"{page.count(chr(10) + 'ok ') + page.startswith('ok ')} ok, "
        assert page.splitlines()[-1].startswith(counts), page
        # A mount of forwarders is not to be exported.
        found = only(doctor("--state-dir", up.state, up.mount), "file system", "a mount of forwarders")
        assert found["verdict"] == "fails" and "name the directory" in found["advice"], found


def test_a_forwarder_that_was_killed_is_named_with_what_to_do(forwarders):
    with forwarders(2) as up:
        pid = up.pid(1)
        os.kill(pid, signal.SIGKILL)
        until(lambda: not alive(pid), "it lives")
        findings = doctor("--state-dir", up.state)
        dead = only(findings, "forwarder", "forwarder 1,")
        assert dead["verdict"] == "fails" and "its process is gone" in dead["text"], dead
        assert f"`tidegate serve --config {up.state}/forwarder.1.toml`" in dead["advice"], dead
        assert only(findings, "forwarder", "forwarder 0 of 2")["verdict"] == "ok"
        assert [verdict for verdict, text in of(findings, "forwarders") if "seat 1 is served by" in text], findings
        up.restart(1)
        until(lambda: ("ok", "2, each serves its own seat") in of(doctor("--state-dir", up.state), "forwarders"),
              "it is not well again")


def test_one_that_drains_is_a_warning(forwarders):
    with forwarders(2) as up:
        up.tidegate("drain", 1)
        findings = doctor("--state-dir", up.state)
        assert only(findings, "forwarders", "forwarder 1 (")["verdict"] == "warning", findings
        assert not failing(findings, up.path), findings


def test_a_state_directory_of_another_user_fails(work):
    if os.geteuid():
        pytest.skip("only root can give a directory to another user")
    with work.part() as part:
        theirs = part.folder("theirs")
        theirs.chmod(0o700)
        os.chown(theirs, USER, USER)
        found = only(doctor("--state-dir", theirs), "state directory", f"belongs to user {USER}")
        assert found["verdict"] == "fails" and "--state-dir" in found["advice"], found
        # Where forwarders are named otherwise, little depends on it.
        findings = doctor("--state-dir", theirs, "--forwarders", f"unix:{part.path}/none.sock")
        assert only(findings, "state directory", "belongs to")["verdict"] == "warning", findings


def test_addresses_where_nobody_answers_are_told_in_time(work):
    """The bounds are the command's: `run` waits for much longer."""
    with work.part() as part, socket.create_server(("127.0.0.1", 0)) as silent, \
            socket.socket(socket.AF_UNIX) as mute:
        mute.bind(str(part / "mute.sock"))
        mute.listen()
        addresses = [f"tcp:127.0.0.1:{silent.getsockname()[1]}", f"unix:{part.path}/mute.sock",
                     f"tcp:127.0.0.1:{free_port()}", f"unix:{part.path}/none.sock"]
        findings = doctor("--state-dir", part / "run", "--forwarders", ",".join(addresses), "--secret-file", part.secret())
        told = of(findings, "forwarder")
        assert [verdict for verdict, _ in told] == ["fails"] * 4, told
        for address, (_, text) in zip(addresses, told):
            assert text.startswith(f"{address}: nobody answers: "), told
        assert not of(findings, "clock"), findings
        # One that makes no sense is no trouble for others.
        told = of(doctor("--state-dir", part / "run", "--forwarders", f"nonsense,{addresses[3]}"), "forwarder")
        assert [verdict for verdict, _ in told] == ["fails"] * 2 and "nonsense: cannot be asked: " in told[0][1], told


def test_a_wrong_record_and_a_wrong_secret_are_told(work):
    with work.part() as part:
        port, elsewhere = free_port(), free_port()
        address = f"tcp:127.0.0.1:{port}"
        keys = {"export": part.folder("data"), "listen": address, "secret_file": part.secret()}
        one = Forwarder(part, "one", advertise=f"tcp:127.0.0.1:{elsewhere}", **keys)
        words = ("--state-dir", part / "run", "--forwarders", address, "--secret-file")
        findings = doctor(*words, keys["secret_file"])
        assert only(findings, "forwarder", f"forwarder 0 of 1, {address}")["verdict"] == "ok", findings
        record = only(findings, "recorded address", f"tcp:127.0.0.1:{elsewhere}")
        assert record["verdict"] == "warning" and "`advertise`" in record["advice"], record
        refused = only(doctor(*words, part.secret("other")), "forwarder", address)
        assert refused["verdict"] == "fails" and "no forwarder for this client" in refused["text"], refused
        assert "secret" in refused["advice"], refused
        # As that of the record it has nothing to tell.
        one.stop()
        one = Forwarder(part, "one", **keys)
        assert not of(doctor(*words, keys["secret_file"]), "recorded address")
        one.stop()


def test_a_mount_that_is_dead_or_stopped_is_told_in_time(forwarders):
    with forwarders(2) as up:
        mounts = {name: up / name for name in ("dead", "stopped")}
        processes = {name: up.mount_at(point, "--state-dir", up.state) for name, point in mounts.items()}
        try:
            processes["dead"].kill()
            processes["dead"].wait()
            processes["stopped"].send_signal(signal.SIGSTOP)
            until(lambda: process_field(processes["stopped"].pid, 3) == "T", "it runs")
            findings = doctor("--state-dir", up.state)
            dead = only(findings, "mount", f"{mounts['dead']} is dead")
            assert dead["verdict"] == "fails" and f"`tidegate mount {mounts['dead']}`" in dead["advice"], dead
            stopped = only(findings, "mount", str(mounts["stopped"]))
            assert stopped["verdict"] == "fails" and "does not answer within 3 s" in stopped["text"], stopped
            assert ("ok", f"{up.mount} answers") in of(findings, "mount"), findings
            assert only(doctor("--state-dir", up.state, mounts["stopped"]), "directory", "does not answer within")
        finally:
            processes["stopped"].send_signal(signal.SIGCONT)
            run("umount", "-l", mounts["dead"], code=None)
            run("fusermount3", "-uz", mounts["dead"], code=None)
            run(TIDEGATE, "umount", mounts["stopped"])
            processes["stopped"].wait(30)


def test_a_user_who_is_not_root_is_told_what_holds_for_him(work):
    need_fuse()
    with work.part() as part:
        home = part.folder("home")
        data = home / "data"
        data.mkdir()
        within, his = part.as_user(USER, home)
        for path in (home, data):
            os.chown(path, USER, USER)
        words = {"program": home / "tidegate", "env": os.environ | {"TIDEGATE_STATE_DIR": str(home / "run")}}
        findings = doctor(data, within=(*within, *his), **words)
        assert not failing(findings, part.path), findings
        for check in ("FUSE device", "fusermount3", "other users", "rights"):
            [(verdict, text)] = of(findings, check)
            assert verdict == "ok", (check, text)
        assert "is not there" in of(findings, "state directory")[0][1], findings
        # What he cannot do.
        findings = doctor("/root", within=(*within, *his, "--no-new-privs"), **words)
        assert only(findings, "fusermount3", "no_new_privs")["verdict"] == "fails", findings
        assert any(finding["check"] in ("rights", "directory") and finding["verdict"] == "fails" for finding in findings)
        # His own forwarders and mount.
        command = (*within, *his, home / "tidegate")
        run(*command, "up", data, "--forwarders", 2, env=words["env"])
        try:
            findings = doctor(within=(*within, *his), **words)
            assert [verdict for verdict, _ in of(findings, "forwarder")] == ["ok", "ok"], findings
            assert ("ok", f"{home}/run/mnt answers") in of(findings, "mount"), findings
            # Root may not look into it, and does not try.
            verdicts = [found for found in of(doctor("--state-dir", part / "none", within=within), "mount")
                        if str(home) in found[1]]
            assert [verdict for verdict, _ in verdicts] == ["ok"], verdicts
        finally:
            run(*command, "down", env=words["env"])


def test_a_bundle_holds_no_secret_and_no_name_of_data(forwarders):
    with forwarders(2, "--transport", "tcp") as up:
        secret = (up.state / "secret").read_text().strip()
        (up.mount / "hush of alice").write_text("data")
        with open(up.state / "forwarder.0.log", "a") as log:
            log.write(f"WARN a secret {secret}\nWARN {up.data}/hush of alice: No space\nWARN file=\"/home/hush of alice\"\n")
        with open(up.state / "forwarder.0.toml", "a") as settings:
            settings.write('\n# a hush\n[ownership.etcd]\npassword = "hush"\nendpoints = ["https://me:hush@etcd:2379"]\n')
        bundle = up / "bundle.json"
        done = up.tidegate("doctor", "--bundle", bundle, code=None)
        assert done.returncode in CODES.values(), done
        assert f"{bundle} holds:" in done.stdout and "forwarder.0.log" in done.stdout and "left out:" in done.stdout, done
        assert bundle.stat().st_mode & 0o777 == 0o600
        text = bundle.read_text()
        for private in (secret, secret[:20], "hush", "alice"):
            assert private not in text, [line for line in text.splitlines() if private in line]
        held = json.loads(text)
        assert [state["forwarder"] for state in held["stat"]] == [0, 1]
        assert held["report"]["findings"] and held["versions"]["protocol"] > 0
        settings = held["configuration"]["forwarder.0.toml"]
        assert settings["export"] == str(up.data) and settings["secret_file"] == str(up.state / "secret"), settings
        logs = held["logs"]
        assert any("serving" in line for line in logs["forwarder.1.log"]), logs
        assert "WARN a secret (left out)" in logs["forwarder.0.log"] and "WARN (a path): No space" in logs["forwarder.0.log"]
        # What is there stays.
        again = up.tidegate("doctor", "--bundle", bundle, code=2)
        assert "is there already" in again.stderr and bundle.read_text() == text, again


def test_without_forwarders_nothing_is_wrong(work):
    with work.part() as part:
        # Named, and not there.
        [(verdict, text)] = of(doctor("--state-dir", part / "none"), "forwarders")
        assert verdict == "warning" and "there are no forwarders in" in text, text
        if os.geteuid():
            pytest.skip("only root can leave the mounts of others out of sight")
        # Not named: then a mount of root's would be meant.
        alone = 'while read -r _ point kind _; do [ $kind != fuse.tidegate ] || umount -l "$point"; done < /proc/mounts; exec "$@"'
        environment = {name: value for name, value in os.environ.items() if not name.startswith("TIDEGATE_")}
        environment |= {"XDG_RUNTIME_DIR": str(part.path)}
        findings = doctor(within=("unshare", "--mount", "sh", "-c", alone, "sh"), env=environment)
        [(verdict, text)] = of(findings, "forwarders")
        assert verdict == "ok" and "none is asked" in text, text
        assert of(findings, "mount") == [("ok", "no mount of Tidegate is on this node")]
        assert not [finding for finding in findings if finding["verdict"] == "fails"], findings

"""Forwarders and clients through libfabric, with the providers tcp and shm: unmodified programs see what
they see on a plain directory, and either side may be killed."""
import contextlib
import os
import pathlib
import signal
import subprocess
import threading
import time

import pytest
from conftest import REPO, Forwarder, alive, compare, free_port, kill, need_fuse, run, tidegate, until

SIZE = 500 * 1000000 + 7


@pytest.fixture(scope="module", autouse=True)
def libfabric():
    need_fuse()
    done = run(REPO / "tools/need", "fabric", code=None, timeout=600)
    if done.returncode:
        pytest.skip(f"libfabric: {(done.stdout + done.stderr).splitlines()[-1]}")


@pytest.mark.parametrize("crate, words", [
    ("fabric", "--features libfabric"),
    ("server", "--features fabric --test fabric"),  # clients and forwarders, one of them killed
    pytest.param("server", "--features fabric --test clients", marks=pytest.mark.long)])  # again and again
def test_of_a_crate(crate, words):
    run("cargo", "test", "--quiet", "--locked", "--manifest-path", REPO / f"crates/{crate}/Cargo.toml",
        *words.split(), timeout=3000)


@pytest.fixture(scope="module")
def program():
    """A program with the feature: TIDEGATE_FABRIC names one that was built already."""
    built = os.environ.get("TIDEGATE_FABRIC")
    if not built:
        # Beside the usual build, whose dependencies it shares.
        target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR") or REPO / "target")
        run("cargo", "build", "--release", "--quiet", "--locked", "-p", "tidegate-cli", "-p", "tidegate-preload",
            "--features", "tidegate-cli/fabric", cwd=REPO, timeout=3000,
            env=os.environ | {"CARGO_BUILD_BUILD_DIR": str(target), "CARGO_TARGET_DIR": f"{target}/fabric"})
        built = target / "fabric/release/tidegate"
    return pathlib.Path(built)


@pytest.fixture(scope="module")
def sent(work):
    return work.file("in", os.urandom(SIZE))


def through(sent, mount, data, name):
    """A file of odd length arrives, and comes back."""
    run("cp", sent, mount / name)
    run("cmp", sent, data / name)
    # What the page cache of the mount has would not be asked for.
    with contextlib.suppress(OSError):
        pathlib.Path("/proc/sys/vm/drop_caches").write_text("3")
    run("cmp", sent, mount / name)


def under_way(path):
    """Waits until some of that file is written."""
    until(lambda: path.exists() and path.stat().st_size > 0, f"{path} is not written", pause=0.005)


@pytest.mark.long
def test_without_the_feature(work):
    config = work.toml("none.toml", export=work.path, listen=[f"fabric:shm:{work / 'none.sock'}"])
    done = tidegate("serve", "--config", config, code=None, timeout=20)
    assert done.returncode != 0 and "features fabric" in done.stderr


@pytest.mark.long
def test_provider_shm(forwarders, program, sent):
    with forwarders(2, "--transport", "fabric:shm", program=program) as up:
        through(sent, up.mount, up.data, "first")
        assert "fabric:shm" in (up.state / "client.toml").read_text()
        up.tidegate("stat")
        up.compare("shm", "--shortcut", program.parent / "libtidegate_preload.so")
        again, victim = up.restart_when_dead(1), up.pid(1)

        def amid():
            under_way(up.data / "killed.2")
            os.kill(victim, signal.SIGKILL)
        killer = threading.Thread(target=amid)
        killer.start()
        for number in range(1, 5):
            run("cp", sent, up.mount / f"killed.{number}")
            run("cmp", sent, up.data / f"killed.{number}")
        killer.join()
        again.join(20)
        assert up.restarted, "the forwarder was not restarted"
        through(sent, up.mount, up.data, "restarted")
    left = [path for path in pathlib.Path("/dev/shm").glob("tidegate.*") if not alive(path.name.split(".")[1])]
    assert not left


@pytest.mark.long
def test_provider_tcp_with_a_secret(work, program, sent):
    with work.part() as part:
        secret, data, mount = part.secret(), part.folder("data"), part / "mnt"
        addresses = [f"fabric:tcp:127.0.0.1:{free_port()}" for _ in range(2)]
        forwarders = [Forwarder(part, f"forwarder.{index}", program, export=data, forwarder=index, seats=2,
                                listen=[address], secret_file=secret, **{"log.level": "debug"})
                      for index, address in enumerate(addresses)]
        client = part.toml("client.toml", forwarders=addresses, secret_file=secret)
        mounting = part.mount_at(mount, "--client", client, program=program)
        through(sent, mount, data, "first")
        compare(part.folder("plain"), mount, data, "tcp", "--shortcut", program.parent / "libtidegate_preload.so")

        # The client is killed, and comes back.
        writer = part.start("sh", "-c", 'cat /dev/zero > "$0"', mount / "endless", start_new_session=True)
        under_way(data / "endless")
        kill(mounting)
        run("umount", "--lazy", mount)
        os.killpg(writer.pid, signal.SIGKILL)
        writer.wait(30)
        (data / "endless").unlink()
        assert all(forwarder.process.poll() is None for forwarder in forwarders)
        part.mount_at(mount, "--client", client, program=program)
        through(sent, mount, data, "again")

        # A forwarder is killed, and comes back.
        copy = subprocess.Popen(["cp", sent, mount / "over"])
        under_way(data / "over")
        kill(forwarders[0].process)
        time.sleep(1)  # clients look for it in vain
        forwarders[0].start()
        assert copy.wait(300) == 0
        run("cmp", sent, data / "over")
        through(sent, mount, data, "back")
        assert "fabric:tcp:127" in forwarders[1].log.read_text()
        run("fusermount3", "-u", mount)
        for forwarder in forwarders:
            forwarder.stop()

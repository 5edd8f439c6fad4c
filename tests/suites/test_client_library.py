"""The client's C library as a program gets it: installed, compiled with what pkg-config says, run against
forwarders, linked in both ways, and taken away again. The program is the one of docs/client.md."""
import os
import re
import struct

import pytest
from conftest import REPO, Forwarders, run

PREFIX, LIBDIR, HEADERS = "/opt/tidegate", "/opt/lib64", "/opt/headers"


def make(what, *settings):
    run("make", "--silent", "-C", REPO, what, *settings, timeout=500)


def files(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir())


@pytest.fixture(scope="module")
def installed(work):
    with work.part() as part:
        make("install-libraries", f"PREFIX={part / 'stage'}")
        part.file("x.c", re.search(r"```c\n(.*?)```", (REPO / "docs/client.md").read_text(), re.DOTALL)[1])
        yield part


@pytest.fixture(scope="module")
def addresses(work):
    with Forwarders(work.folder("served"), 2) as forwarders:
        listed = re.findall(r'"(unix:[^"]*)"', (forwarders.state / "client.toml").read_text())
        assert len(listed) == 2
        yield forwarders, ",".join(listed)


def compiled(installed, command):
    environment = os.environ | {"PKG_CONFIG_PATH": str(installed / "stage/lib/pkgconfig"),
                                "LD_LIBRARY_PATH": str(installed / "stage/lib")}
    run("sh", "-euc", f"cc -Wall -Wextra -Werror -pedantic -std=c99 {command} -o x", env=environment, cwd=installed / ".")
    return environment


def works(installed, addresses, environment):
    forwarders, listed = addresses
    matrix = forwarders.data / "matrix"
    matrix.unlink(missing_ok=True)
    run(installed / "x", listed, env=environment)
    content = matrix.read_bytes()
    assert len(content) == 999 * 8000 + 8
    assert [struct.unpack_from("d", content, row * 8000)[0] for row in range(1000)] == list(range(1000))
    refused = run(installed / "x", "unix:/nowhere;connect_timeout_s=0", env=environment, code=1).stderr
    assert "/nowhere" in refused, refused


def test_with_what_pkg_config_says(installed, addresses):
    environment = compiled(installed, "x.c $(pkg-config --cflags --libs tidegate_client)")
    assert "libtidegate_client.so.0" in run("objdump", "-p", installed / "x").stdout
    works(installed, addresses, environment)


def test_with_the_archive(installed, addresses):
    environment = compiled(installed, "x.c $(pkg-config --cflags tidegate_client) stage/lib/libtidegate_client.a "
                           "$(pkg-config --static --libs-only-l tidegate_client | sed s/-ltidegate_client//)")
    assert "libtidegate_client" not in run("objdump", "-p", installed / "x").stdout
    works(installed, addresses, environment)


def test_cxx_takes_the_header(installed):
    installed.file("x.cpp", "#include <tidegate.h>\nint main() { return *tidegate_version() == 0; }\n")
    environment = os.environ | {"PKG_CONFIG_PATH": str(installed / "stage/lib/pkgconfig")}
    run("sh", "-euc", "c++ -Wall -Wextra -Werror x.cpp $(pkg-config --cflags --libs tidegate_client) -o y",
        env=environment, cwd=installed / ".")


def test_nothing_else_is_exported(installed):
    defined = run("nm", "-D", "--defined-only", installed / "stage/lib/libtidegate_client.so").stdout.splitlines()
    names = {line.split()[-1] for line in defined}
    assert {"tidegate_connect", "tidegate_read_list", "tidegate_write_list"} <= names
    assert all(name.startswith("tidegate_") for name in names), names


def test_every_folder_is_where_it_is_wanted_and_empty_in_the_end(work):
    with work.part() as part:
        root = part / "root"
        settings = (f"PREFIX={PREFIX}", f"LIBDIR={LIBDIR}", f"INCLUDEDIR={HEADERS}", f"DESTDIR={root}")
        make("install-libraries", *settings)
        found = files(root)
        assert {"opt/lib64/libtidegate_client.so.0", "opt/lib64/libtidegate_client.a", "opt/headers/tidegate.h",
                "opt/lib64/pkgconfig/tidegate_client.pc"} <= set(found)
        # The file names where things will be, and DESTDIR is no part of it.
        told = (root / "opt/lib64/pkgconfig/tidegate_client.pc").read_text()
        assert f"libdir={LIBDIR}\nincludedir={HEADERS}\n" in told and str(root) not in told
        make("install-libraries", *settings)
        assert files(root) == found, "a second time changes nothing"
        part.file("root/opt/headers/other.h", "")
        make("uninstall-libraries", *settings)
        assert files(root) == ["opt/headers/other.h"]
        run("make", "--silent", "-C", REPO, "uninstall", f"DESTDIR={root}", "PREFIX=relative", code=2)

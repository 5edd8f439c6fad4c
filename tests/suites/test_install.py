"""The programs as `make install` puts them: they find each other and their libraries there, the unit files name
them, and nothing is left when they are taken away."""
import os
import re

import pytest
from conftest import REPO, need_fuse, run

TOOL = REPO / "tools/install-programs"


def tool(word, code=0, **settings):
    return run(TOOL, word, code=code, env=os.environ | {name: str(value) for name, value in settings.items()})


def files(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir())


@pytest.fixture
def stage(work):
    with work.part() as part:
        tool("install", PREFIX=part / "stage")
        yield part


def test_what_is_installed_works_where_it_is(stage):
    need_fuse()
    program, state, data = stage / "stage/bin/tidegate", stage / "state", stage.folder("data")
    run(program, "up", data, "--forwarders", 2, "--state-dir", state)
    try:
        done = run(program, "run", "--summary", "--state-dir", state, "--", "sh", "-c", "echo text > made; cat made", cwd=data)
        assert done.stdout == "text\n" and " 0 past them" in done.stderr, done
        assert "libtidegate_preload.so is neither" not in done.stderr, done
        told = run(program, "run", "--state-dir", state, "--", "sh", "-c", 'echo "$LD_PRELOAD"', cwd=data).stdout
        assert str(stage / "stage/lib/libtidegate_preload.so") in told, told
    finally:
        run(program, "down", "--state-dir", state)
    assert (data / "made").read_text() == "text\n"
    # The other program, by its name alone.
    assert "vpfs" in run(program, "sim", "--list").stdout


def test_unit_files_name_the_programs_where_they_are(work):
    with work.part() as part:
        tool("install", PREFIX="/opt/x", DESTDIR=part / "root")
        found = files(part / "root")
        assert {"opt/x/bin/tidegate", "opt/x/bin/tidegate-lab", "opt/x/lib/libtidegate_preload.so"} <= set(found), found
        units = [name for name in found if name.endswith(".service")]
        assert len(units) == 2 and all(name.startswith("opt/x/lib/systemd/system/") for name in units), found
        for name in units:
            [started] = re.findall(r"^ExecStart=(\S+)", (part / "root" / name).read_text(), re.MULTILINE)
            assert started == "/opt/x/bin/tidegate"
        # A masked unit stays what it is, and so does what the link leads to.
        masked, aim = part / "root/opt/x/lib/systemd/system/tidegate-mount.service", part / "aim"
        masked.unlink()
        aim.write_text("of root")
        aim.chmod(0o600)
        masked.symlink_to(aim)
        tool("install", PREFIX="/opt/x", DESTDIR=part / "root")
        assert aim.read_text() == "of root" and aim.stat().st_mode & 0o777 == 0o600
        (part / "root/opt/x/bin/other").write_text("of somebody else")
        tool("uninstall", PREFIX="/opt/x", DESTDIR=part / "root")
        assert files(part / "root") == ["opt/x/bin/other", "opt/x/lib/systemd/system/tidegate-mount.service"]


def test_a_folder_that_programs_could_not_load_from_is_refused(work):
    with work.part() as part:
        for prefix in (part / "with space", "relative", part / "with:colon", part / "with&and"):
            refused = tool("install", code=2, PREFIX=prefix).stderr
            assert refused.startswith("install-programs: PREFIX="), refused
        assert not files(part.path)

"""The programs as `make install` puts them: they find each other and their libraries there, the unit files name
them, manual pages and completions are those of all commands, and nothing is left when they are taken away."""
import os
import re
import shutil

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
    # What mount(8) starts.
    helper = run(stage / "stage/sbin/mount.tidegate", "tcp:nowhere:1", "/mnt", "-f", "-v")
    assert helper.stdout.startswith("mount.tidegate: tidegate mount /mnt --forwarders=tcp:nowhere:1"), helper
    # The other program, by its name alone.
    assert "vpfs" in run(program, "sim", "--list").stdout


def test_unit_files_name_the_programs_where_they_are(work):
    with work.part() as part:
        tool("install", PREFIX="/opt/x", DESTDIR=part / "root")
        found = files(part / "root")
        assert {"opt/x/bin/tidegate", "opt/x/bin/tidegate-lab", "opt/x/lib/libtidegate_preload.so"} <= set(found), found
        assert os.readlink(part / "root/opt/x/sbin/mount.tidegate") == "../bin/tidegate"
        units = [name for name in found if name.endswith(".service")]
        assert len(units) == 3 and all(name.startswith("opt/x/lib/systemd/system/") for name in units), found
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


def need(*programs):
    for program in programs:
        if not shutil.which(program):
            pytest.skip(f"{program} is missing: run tools/need test")


def test_each_command_has_a_manual_page_without_warnings(stage):
    need("man", "groff")
    pages = {path.name.removesuffix(".1"): path for path in (stage / "stage/share/man/man1").iterdir()}
    assert set(pages) == set(commands(stage / "stage/bin/tidegate"))
    pages["mount.tidegate"] = stage / "stage/share/man/man8/mount.tidegate.8"
    for name, page in pages.items():
        # What the formatter warns of is all that is on standard error.
        shown = run("man", "--warnings", "--local-file", page, env=os.environ | {"MANWIDTH": "80", "LC_ALL": "C.UTF-8"})
        assert not shown.stderr, (name, shown.stderr)
        # A long name ends with a hyphen where a line does.
        assert f"{name} - " in " ".join(shown.stdout.split()) and "EXIT STATUS" in shown.stdout, shown.stdout


def commands(program, *words):
    """The names of pages of a command and of those below it, as help pages list them."""
    yield "-".join(("tidegate", *words))
    listed = re.search(r"^Commands:\n((?:  .*\n)*)", run(program, *words, "--help").stdout, re.MULTILINE)
    for line in listed[1].splitlines() if listed else ():
        if re.match("  [a-z]", line) and line.split()[0] != "help":
            yield from commands(program, *words, line.split()[0])


def test_shells_complete_commands_flags_and_values(stage):
    need("zsh", "fish")
    share = stage / "stage/share"

    def bash(*words):
        script = 'source "$0"; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); ' \
                 '_tidegate tidegate "${@: -1}" "${@: -2:1}"; printf "%s\n" "${COMPREPLY[@]}"'
        return run("bash", "-c", script, share / "bash-completion/completions/tidegate", *words).stdout.split()

    def fish(*words):
        script = "source $argv[1]; complete --do-complete $argv[2]"
        file = share / "fish/vendor_completions.d/tidegate.fish"
        lines = run("fish", "--no-config", "-c", script, file, " ".join(words), env=os.environ | {"HOME": str(stage.path)})
        return [line.split("\t")[0] for line in lines.stdout.splitlines()]

    for complete in (bash, fish):
        assert sorted(complete("tidegate", "se")) == ["secret", "serve"], complete
        # Of `tidegate-lab`, and of a command below a command.
        assert "--quick" in complete("tidegate", "demo", "--q"), complete
        assert complete("tidegate", "share", "rem") == ["remove"], complete
        assert sorted(complete("tidegate", "mount", "--checks", "")) == ["forwarders", "kernel"], complete
    zsh = 'fpath=($0 $fpath); autoload -Uz compinit; compinit -u -D; print $_comps[tidegate]; ' \
          'autoload +X _tidegate && print $functions[_tidegate] | grep -c -- serve'
    told = run("zsh", "-f", "-c", zsh, share / "zsh/site-functions").stdout.split()
    assert told[0] == "_tidegate" and int(told[1]) > 0, told


def test_pages_and_completions_go_and_those_of_others_stay(work):
    with work.part() as part:
        manual = part / "share/man/man1"
        manual.mkdir(parents=True)
        (manual / "tidegate-other.1").write_text('.TH tidegate-other 1 "" "Other 1"\n')
        # Of a command that there was in an earlier version.
        (manual / "tidegate-gone.1").write_text('.TH tidegate-gone 1 " " "Tidegate 0.0.1"\n')
        tool("install", PREFIX=part.path)
        found = files(part.path)
        assert {f"share/man/man1/tidegate{name}.1" for name in ("", "-serve", "-sim", "-other")} <= set(found), found
        assert not (manual / "tidegate-gone.1").exists()
        tool("uninstall", PREFIX=part.path)
        assert files(part.path) == ["share/man/man1/tidegate-other.1"]


@pytest.mark.parametrize("mistake, said", [
    (("completions", "tcsh"), "possible values: bash, zsh, fish"),
    (("man", "--to", "/proc/none"), "--to /proc/none: "),
])
def test_what_cannot_be_written_is_told(mistake, said, stage):
    assert said in run(stage / "stage/bin/tidegate", *mistake, code=2).stderr

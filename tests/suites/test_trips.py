"""How many requests a mount sends to forwarders for each call of a program, by the forwarder's own
count, and that a mount where forwarders alone check refuses what a plain directory refuses."""
import json
import os
import pathlib
import re
import subprocess

import pytest
from conftest import REPO, TIDEGATE, need_fuse, run, until

USER, TIMES = 12345, 40
# What each call is, as the table of docs/data-path.md names it, and a line that makes it once.
CALLS = {
    '`stat("f")`': 'os.stat(f"f{n}")',
    '`stat("f")`, which is not there': "absent()",
    '`stat("d/e/f")`': 'os.stat("d/e/f")',
    "`fstat`": "os.fstat(held)",
    '`access("f", R_OK)`': 'os.access(f"f{n}", os.R_OK)',
    '`access("f", F_OK)`': 'os.access(f"f{n}", os.F_OK)',
    "`open`, `read`, `close` of a small file": 'whole(f"f{n}")',
    "`open` to write and truncate, `write`, `close`": 'written(f"f{n}")',
    "create, `write`, `close`": 'made(f"new{n}")',
    "`mkdir`": 'os.mkdir(f"dir{n}")',
    "`rename`": 'os.rename(f"new{n}", f"other{n}")',
    "`unlink`": 'os.unlink(f"other{n}")',
    "`rmdir`": 'os.rmdir(f"dir{n}")',
    "`chmod`": 'os.chmod(f"f{n}", 0o640)',
    "`truncate` by name": 'os.truncate(f"f{n}", 3)',
    "`symlink`": 'os.symlink("target", f"soft{n}")',
    "`readlink`": 'os.readlink(f"soft{n}")',
    "`link`": 'os.link(f"f{n}", f"hard{n}")',
    "`setxattr`": 'os.setxattr(f"f{n}", "user.one", b"value")',
    "`getxattr`": 'os.getxattr(f"f{n}", "user.one")',
    "`opendir`, `fstat`, `readdir` to the end, `closedir`": 'os.listdir("small")',
    "`chdir` down and up again": 'os.chdir("d"), os.chdir("..")',
}
LISTED = "`ls -l` of n entries"
# Requests for each: where nothing is lent, on a mount where the kernel checks modes, and on a user's own, where
# forwarders alone do; where names and attributes are lent, the first time and again, where there is such; for the last one a
# factor of n, and the rest, but the first time where names are lent one for so many entries, at most, and the rest.
TRIPS = {
    '`stat("f")`': (3, 2, 1, 0),
    '`stat("f")`, which is not there': (2, 1, None, 0),
    '`stat("d/e/f")`': (7, 4, None, 0),
    "`fstat`": (1, 1, None, 0),
    '`access("f", R_OK)`': (3, 2, 1, 0),
    '`access("f", F_OK)`': (3, 1, 1, 0),
    "`open`, `read`, `close` of a small file": (6, 4, 4, 3),
    "`open` to write and truncate, `write`, `close`": (8, 7, 6, 6),
    "create, `write`, `close`": (8, 5, 6, None),
    "`mkdir`": (4, 2, 2, None),
    "`rename`": (7, 3, 3, None),
    "`unlink`": (4, 2, 2, None),
    "`rmdir`": (4, 2, 2, None),
    "`chmod`": (3, 2, 2, 2),
    "`truncate` by name": (5, 4, 3, 3),
    "`symlink`": (4, 2, 2, None),
    "`readlink`": (3, 2, 2, 0),
    "`link`": (7, 3, 3, None),
    "`setxattr`": (4, 2, 2, 2),
    "`getxattr`": (4, 2, 2, 0),
    "`opendir`, `fstat`, `readdir` to the end, `closedir`": (5, 4, None, 1),
    "`chdir` down and up again": (5, 3, None, 0),
    LISTED: ((9, 7), (6, 5), (100, 3), (0, 2)),
}
PROGRAM = """
import os, sys
def absent():
    try:
        os.stat("nothing")
    except FileNotFoundError:
        pass
def whole(name):
    fd = os.open(name, os.O_RDONLY)
    os.read(fd, 4096)
    os.close(fd)
def made(name):
    fd = os.open(name, os.O_CREAT | os.O_WRONLY | os.O_EXCL, 0o644)
    os.write(fd, b"bytes")
    os.close(fd)
def written(name):
    fd = os.open(name, os.O_WRONLY | os.O_TRUNC)
    os.write(fd, b"other bytes")
    os.close(fd)
def at(n):
    os.chdir(f"{sys.argv[1]}/p{n}")
def back():
    os.chdir(sys.argv[1])
back()
times = int(sys.argv[2])
for name in ("d", "d/e", "small", "long"):
    os.mkdir(name)
made("d/e/f")
made("small/one")
for n in range(times):
    made(f"f{n}")
held = os.open("f0", os.O_RDWR)
print("done", flush=True)
for line in sys.stdin:
    code = compile(line, "line", "exec")
    for n in range(times):
        exec(code)
    print("done", flush=True)
"""


def each_of(requests):
    """So many of each call. Where this takes long, leases are renewed meanwhile: a few for all calls."""
    each = round(requests / TIMES)
    assert abs(requests - each * TIMES) <= TIMES // 8, f"{requests} requests for {TIMES} calls"
    return each


class Counted:
    """A program in a mount, and the count of the requests that the one forwarder has answered."""

    def __init__(self, work, mount, state, program=TIDEGATE, within=()):
        self.stat = [str(word) for word in (*within, program, "stat", "--json", "--state-dir", state)]
        self.within, self.mount = within, mount
        words = [str(word) for word in (*within, "/usr/bin/python3", "-I", "-c", PROGRAM, mount, TIMES)]
        self.program = work.remember(subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                                      text=True))
        assert self.program.stdout.readline() == "done\n"
        self.looks, self.look_costs = 0, None
        self.settled()

    def look(self):
        """The count, without what looking costs."""
        self.looks += 1
        count = json.loads(run(*self.stat).stdout)[0]["requests"]["answered"]
        return count - self.looks * (self.look_costs or 0)

    def settled(self):
        """The count when nothing more comes: the mount closes files in the background."""
        if self.look_costs is None:
            first, second, third = self.look(), self.look(), self.look()
            self.look_costs = min(second - first, third - second)
        counts = [self.look()]

        def rests():
            counts.append(self.look())
            return counts[-1] == counts[-2]
        until(rests, lambda: f"the count does not rest: {counts[-10:]}", pause=0.01)
        return counts[-1]

    def cost(self, line):
        """Requests for one call."""
        before = self.settled()
        self.do(line)
        return each_of(self.settled() - before)

    def do(self, line):
        print(line, file=self.program.stdin, flush=True)
        assert self.program.stdout.readline() == "done\n", line

    def end(self):
        self.program.stdin.close()
        assert self.program.wait(30) == 0

    def listing(self):
        """Requests of `ls -l`: for each entry, and for the rest."""
        costs = []
        for number in range(2):
            self.do(f'made(f"long/{number}.{{n}}")')
            before = self.settled()
            run(*self.within, "env", "LC_ALL=C", "sh", "-c", 'cd "$0" && ls -l', self.mount / "long")
            costs.append(self.settled() - before)
        each = each_of(costs[1] - costs[0])
        return each, costs[0] - each * TIMES


@pytest.fixture(scope="module")
def roots(forwarders):
    """A program on a mount that root has made."""
    if os.geteuid() != 0:
        pytest.skip("only root makes such a mount")
    with forwarders(1, "--outside-ms", 0) as up:
        counted = Counted(up, up.mount, up.state)
        yield counted
        counted.end()


@pytest.fixture(scope="module")
def own(work):
    """A program on a mount that an ordinary user has made for himself, where forwarders alone check, and the
    folders behind it; beside it one where the kernel does."""
    need_fuse()
    with work.part() as part:
        home = part.folder("home")
        inside, as_user = part.as_user(USER, home)
        as_user = (*inside, *as_user)
        names = ("data", "mnt", "kernel", "run", "plain")
        data, mount, by_kernel, state, plain = (part.folder(name) for name in names)
        for folder in (data, mount, by_kernel, state, plain):
            os.chown(folder, USER, USER)
        state.chmod(0o700)
        run(*as_user, home / "tidegate", "up", data, "--forwarders", 1, "--outside-ms", 0, "--state-dir", state, "--mount", by_kernel)
        forwarders = ("--checks", "forwarders", "--state-dir", state)
        run(*as_user, home / "tidegate", "mount", mount, *forwarders)
        counted = Counted(part, mount, state, home / "tidegate", as_user)
        counted.data, counted.plain, counted.by_kernel = data, plain, by_kernel
        counted.program_of = home / "tidegate"
        yield counted
        counted.end()
        run(*as_user, home / "tidegate", "down", "--state-dir", state)


@pytest.fixture(scope="module")
def lending(forwarders):
    """A mount of root's to which the forwarder lends for longer than a test takes."""
    if os.geteuid() != 0:
        pytest.skip("only root makes such a mount")
    with forwarders(1, "--outside-ms", 10_000) as up:
        yield up


@pytest.fixture
def lent(lending, request):
    """A program there, in a folder of its own."""
    folder = lending.folder()
    place = lending.mount / folder.name
    os.mkdir(place)
    counted = Counted(lending, place, lending.state)
    yield counted
    counted.end()


@pytest.mark.parametrize("call", CALLS)
def test_trips_where_names_are_lent(lent, call):
    first, again = TRIPS[call][2:]
    line = CALLS[call]
    if first is not None:
        # In a directory of its own each, or the mount would look ahead. It has seen them before.
        lent.do('os.mkdir(f"p{n}"); at(n); made(f"f{n}"); back()')
        line = f"at(n); {line}; back()"
    prepare = {"`rename`": 'made(f"new{n}")', "`unlink`": 'made(f"other{n}")', "`rmdir`": 'os.mkdir(f"dir{n}")',
               "`readlink`": 'os.symlink("target", f"soft{n}")', "`getxattr`": 'os.setxattr(f"f{n}", "user.one", b"value")'}
    if call in prepare:
        lent.do(f"at(n); {prepare[call]}; back()")
    if first is not None:
        lent.do("at(n); back()")
    if call == "`fstat`":
        # The program has the file open for writing; of such a file nothing is lent.
        lent.do("held = os.open(f'f{n}', os.O_RDONLY) if n == 1 else held")
    found = lent.cost(line)
    # Some calls name the same file each time.
    found = (None if first is None else found, None if again is None else lent.cost(line))
    assert found == (first, again)


@pytest.mark.parametrize("call", ["create, `write`, `close`", "`mkdir`", "`rename`", "`unlink`", "`rmdir`", "`symlink`"])
def test_changes_in_a_row_cost_no_more_than_each_by_itself(lent, call):
    """The answer to each says what the directory is then, which the kernel asks for before the next one."""
    prepare = {"`rename`": 'made(f"new{n}")', "`unlink`": 'made(f"other{n}")', "`rmdir`": 'os.mkdir(f"dir{n}")'}
    lent.do(prepare.get(call, 'os.stat(".")'))
    assert lent.cost(CALLS[call]) == TRIPS[call][2]


def test_trips_of_a_listing_where_names_are_lent(lent):
    def listing(folder):
        before = lent.settled()
        shown = run("env", "LC_ALL=C", "sh", "-c", 'cd "$0" && ls -l', lent.mount / folder).stdout
        assert shown.startswith("total ")
        return lent.settled() - before
    (entries, first), (each, again) = TRIPS[LISTED][2:]
    # The first listing tells the mount for which extended attributes `ls` asks.
    name = "a-name-of-forty-nine-bytes-as-a-program-makes"
    folders = [f"long{number}" for number in range(3)]
    for folder in folders:
        lent.do(f'os.mkdir("{folder}") if n == 0 else None')
        for factor in range(20):
            lent.do(f'made(f"{folder}/{{n:02}}{name}{factor:02}")')
    lent.do('made(f"small/{n}")')
    assert listing("small") <= first + 3
    # Where the machine is busy, a forwarder's time for one listing ends early, and so do loans.
    assert min(map(listing, folders)) <= 20 * TIMES / entries + first
    # A lease may be renewed meanwhile.
    assert each == 0 and again <= min(listing(folders[-1]) for _ in range(3)) <= again + 1


@pytest.mark.parametrize("call", CALLS)
def test_trips_on_root_s_mount(roots, call):
    assert roots.cost(CALLS[call]) == TRIPS[call][0]


@pytest.mark.parametrize("call", CALLS)
def test_trips_on_a_user_s_own_mount(own, call):
    assert own.cost(CALLS[call]) == TRIPS[call][1]


def holds(found, wanted):
    """Whether a listing cost that, or a few renewed leases more."""
    assert found[0] == wanted[0] and 0 <= found[1] - wanted[1] <= 3, f"{found}, not {wanted}"


def test_trips_of_a_listing_on_root_s_mount(roots):
    holds(roots.listing(), TRIPS[LISTED][0])


def test_trips_of_a_listing_on_a_user_s_own_mount(own):
    holds(own.listing(), TRIPS[LISTED][1])


def test_the_page_says_the_same():
    """Each row of the table of docs/data-path.md is a row here."""
    rows = {}
    for line in (REPO / "docs/data-path.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 6 and re.fullmatch(r"\d+(n \+ \d+)?", cells[1]):
            ends = [[int(number) for number in re.findall(r"\d+", cell)] for cell in cells[1:5]]
            rows[cells[0]] = tuple((end[0] if end else None) if len(end) < 2 else tuple(end) for end in ends)
    assert rows == TRIPS


# What an ordinary user tries on files of each mode, his own and root's, and what came of it.
TRIES = """
import itertools, os, subprocess, sys
os.chdir(sys.argv[1])
def told(what, call):
    try:
        call()
        print(what, "ok")
    except OSError as error:
        print(what, error.errno)
def opened(*words):
    os.close(os.open(*words))
def started(*words):
    subprocess.run(words, check=False)
for owner, kind in itertools.product(("mine", "roots"), ("file", "script")):
    for mode in ("000", "100", "200", "400", "300", "500", "600", "700", "004", "002", "001", "007"):
        name = f"{owner}.{kind}.{mode}"
        for flags in ("O_RDONLY", "O_WRONLY", "O_RDWR", "O_PATH"):
            told(f"{name} {flags}", lambda: opened(name, getattr(os, flags)))
        told(f"{name} O_RDONLY|O_TRUNC", lambda: opened(name, os.O_RDONLY | os.O_TRUNC))
        told(f"{name} O_WRONLY|O_TRUNC", lambda: opened(name, os.O_WRONLY | os.O_TRUNC))
        told(f"{name} O_CREAT", lambda: opened(name, os.O_WRONLY | os.O_CREAT, 0o600))
        told(f"{name} truncate", lambda: os.truncate(name, 30))
        told(f"{name} run", lambda: started("./" + name))
        told(f"{name} utime now", lambda: os.utime(name))
        told(f"{name} utime", lambda: os.utime(name, (1, 2)))
        told(f"{name} setxattr", lambda: os.setxattr(name, "user.x", b"y"))
        told(f"{name} getxattr", lambda: os.getxattr(name, "user.x"))
        told(f"{name} link", lambda: os.link(name, name + ".link"))
        told(f"{name} chmod", lambda: os.chmod(name, int(mode, 8)))
        told(f"{name} chown", lambda: os.chown(name, 1, -1))
        for mask in range(8):
            print(name, "access", mask, os.access(name, mask))
for owner in ("mine", "roots", "sticky"):
    for mode in ("000", "100", "200", "300", "400", "500", "700", "003", "007"):
        name = f"{owner}.folder.{mode}"
        told(f"{name} list", lambda: os.listdir(name))
        told(f"{name} chdir", lambda: (os.chdir(name), os.chdir(sys.argv[1])))
        told(f"{name} stat", lambda: os.stat(name))
        told(f"{name} stat below", lambda: os.stat(name + "/there"))
        told(f"{name} stat of nothing", lambda: os.stat(name + "/nothing"))
        told(f"{name} open below", lambda: opened(name + "/there", os.O_RDONLY))
        told(f"{name} create", lambda: opened(name + "/new", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o444))
        told(f"{name} mkdir", lambda: os.mkdir(name + "/folder"))
        told(f"{name} mkdir again", lambda: os.mkdir(name + "/there"))
        told(f"{name} symlink", lambda: os.symlink("there", name + "/soft"))
        told(f"{name} follow", lambda: os.stat(name + "/soft"))
        told(f"{name} rename", lambda: os.rename(name + "/new", name + "/newer"))
        told(f"{name} rename there", lambda: os.rename(name + "/there", name + "/gone"))
        told(f"{name} unlink", lambda: os.unlink(name + "/newer"))
        told(f"{name} unlink there", lambda: os.unlink(name + "/gone"))
        told(f"{name} rmdir", lambda: os.rmdir(name + "/folder"))
        for mask in range(8):
            print(name, "access", mask, os.access(name, mask))
# What was opened before its mode forbade it stays usable.
fd = os.open("late", os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o444)
told("late write", lambda: os.write(fd, b"bytes"))
told("late ftruncate", lambda: os.ftruncate(fd, 2))
told("late truncate", lambda: os.truncate("late", 1))
told("late open", lambda: opened("late", os.O_RDWR))
told("late open again", lambda: opened(f"/proc/self/fd/{fd}", os.O_RDWR))
print(os.stat("late").st_size)
"""


def lay_out(folder):
    """Files and folders of each mode, an ordinary user's and root's."""
    for owner, user in ("mine", USER), ("roots", 0), ("sticky", 0):
        for mode in ("000", "100", "200", "400", "300", "500", "600", "700", "004", "002", "001", "003", "007"):
            bits = int(mode, 8)
            for kind, content in ("file", "bytes"), ("script", "#!/bin/sh\nexit 0\n"):
                path = folder / f"{owner}.{kind}.{mode}"
                path.write_text(content)
                os.chown(path, user, user)
                path.chmod(bits)
            below = folder / f"{owner}.folder.{mode}"
            below.mkdir()
            (below / "there").write_text("bytes")
            os.chown(below, user, user)
            below.chmod(bits | (0o1000 if owner == "sticky" else 0))


def test_a_user_s_own_mount_refuses_what_a_plain_folder_refuses(own):
    """Where the kernel checks modes, and where it does not and the forwarder does, with each call."""
    said = {}
    places = (own.plain, own.plain), (own.data / "one", own.mount / "one"), (own.data / "two", own.by_kernel / "two")
    for behind, folder in places:
        behind.mkdir(exist_ok=True)
        os.chown(behind, USER, USER)
        lay_out(behind)
        done = run(*own.within, "/usr/bin/python3", "-I", "-c", TRIES, folder)
        said[folder] = done.stdout.splitlines()
    plain, *mounts = said.values()
    assert len(plain) > 1000 and {"ok", "13", "1"} <= {line.split()[-1] for line in plain}
    for mounted in mounts:
        pairs = zip(plain, mounted, strict=True)
        # The user's forwarder cannot read them.
        assert [there for here, there in pairs if here != there] == \
            ["roots.file.001 run 13", "roots.script.001 run 13"]


def test_what_is_not_checked_on_a_user_s_own_mount(own):
    """Of this docs/semantics.md speaks. Where the kernel checks it is, as in a plain folder."""
    tries = "mkdir shut && mkfifo fifo && chmod 0 shut fifo && stat shut/. ; stat shut/.. ; exec 3<> fifo"
    for folder, code in (own.plain, 2), (own.mount, 0):
        assert run(*own.within, "sh", "-c", f'cd "$0" && {tries}', folder, code=code).stdout.count("File: ") == \
            (0 if code else 2)
    run(*own.within, "sh", "-c", 'cd "$0" && exec 3<> fifo', own.by_kernel, code=2)


def test_links_of_others_in_sticky_directories_are_followed_only_if_the_user_asked_for_it(own):
    """As `protected_symlinks` refuses it, where the machine has it on."""
    refused = int(pathlib.Path("/proc/sys/fs/protected_symlinks").read_text())
    for behind in own.plain, own.data:
        shared = behind / "shared"
        shared.mkdir()
        shared.chmod(0o1777)
        (shared / "victim").write_text("bytes")
        os.chown(shared / "victim", USER, USER)
        # Somebody else's, in root's directory.
        os.symlink("victim", shared / "soft")
        os.lchown(shared / "soft", USER + 1, USER + 1)
    for folder, code in (own.plain, refused), (own.by_kernel, refused), (own.mount, 0):
        run(*own.within, "cat", folder / "shared/soft", code=code)
    # It goes by what the kernel knows of the directory.
    mounts = run(*own.within, "cat", "/proc/self/mounts").stdout.splitlines()
    checks = {line.split()[1]: "default_permissions" in line for line in mounts}
    assert (checks[str(own.by_kernel)], checks[str(own.mount)]) == (True, False)


def test_forwarders_alone_check_only_where_one_user_is(own, roots):
    for words in (TIDEGATE, "mount", roots.mount.parent / "nowhere"), \
            (*own.within, own.program_of, "mount", own.plain, "--allow-other"):
        refused = run(*words, "--checks", "forwarders", code=2)
        assert "only where one ordinary user has the mount to himself" in refused.stderr


def test_a_change_of_a_mode_is_heeded_at_once(own):
    (own.data / "heeded").write_text("bytes")
    os.chown(own.data / "heeded", USER, USER)
    for mode, code in (0o000, 1), (0o400, 0), (0o200, 1), (0o600, 0):
        (own.data / "heeded").chmod(mode)
        run(*own.within, "cat", own.mount / "heeded", code=code)

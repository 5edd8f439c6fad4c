"""What goes past the forwarders: names of the exported directory itself lead to the mount, `run` says what it will not
lead there, and counts it."""
import os
import pathlib
import shutil
import struct
import sys
import tempfile

import pytest
from conftest import TIDEGATE, matches, mounted, run, until
from runs import OUTSIDE, dd, numbers, told

# Calls that take names, of which each that leads elsewhere than to the mount is told.
CALLS = r"""
import ctypes, glob, os, shutil, sys, tempfile
export, mount = sys.argv[1:]
device = os.stat(mount).st_dev
assert device != os.stat("/").st_dev
def is_here(*paths):
    for path in paths:
        assert os.stat(path).st_dev == os.lstat(path).st_dev == device, path
top = export + "/calls"
os.mkdir(top); is_here(top, export, export + "/", "/." + export)
with open(top + "/a", "w") as file:
    file.write("a"); assert os.fstat(file.fileno()).st_dev == device
os.rename(top + "/a", top + "/b"); os.link(top + "/b", top + "/c"); os.symlink("b", top + "/d")
is_here(top + "/b", top + "/c"); assert os.readlink(top + "/d") == "b"
assert sorted(os.listdir(top)) == ["b", "c", "d"] == sorted(it.name for it in os.scandir(top))
os.chmod(top + "/b", 0o600); os.utime(top + "/b", (5, 5)); os.truncate(top + "/b", 9)
assert (os.stat(top + "/c").st_mode & 0o777, os.path.getsize(top + "/c")) == (0o600, 9)
os.setxattr(top + "/b", "user.x", b"1"); assert os.getxattr(top + "/c", "user.x") == b"1"
assert os.access(top + "/b", os.R_OK) and os.path.exists(top + "/../calls/b")
fd, name = tempfile.mkstemp(dir=top); assert name.startswith(top) and os.fstat(fd).st_dev == device; os.unlink(name)
libc = ctypes.CDLL(None)
template = ctypes.create_string_buffer((top + "/tXXXXXX").encode())
fd = libc.mkstemp(template); assert os.fstat(fd).st_dev == device
assert template.value.decode().startswith(top + "/t") and b"X" * 6 not in template.value
is_here(template.value); os.unlink(template.value)
template = ctypes.create_string_buffer((top + "/uXXXXXX").encode())
libc.mkdtemp.restype = ctypes.c_char_p
made = libc.mkdtemp(template); assert made == template.value; is_here(made); os.rmdir(made)
shutil.copytree(top, export + "/copy", symlinks=True); is_here(export + "/copy/b"); shutil.rmtree(export + "/copy")
assert not os.path.exists(export + "/copy") and sorted(glob.glob(top + "/[bc]")) == [top + "/b", top + "/c"]
# Relative to a working directory that leads there.
os.chdir(os.path.dirname(export)); below = os.path.basename(export)
is_here(below, below + "/calls/b"); open(below + "/e", "w").close(); os.unlink(below + "/e")
os.chdir("/usr"); is_here(".." + export + "/calls/b")
os.chdir(top); assert os.getcwd() == mount + "/calls"; is_here("b", "../calls/b")
# What only looks like it is left alone.
for path in (export + "/..", export + "/../x", "/tmp", export + "2"):
    try: assert os.stat(path).st_dev != device, path
    except FileNotFoundError: pass
# From the same file system, where the mount could say EXDEV alone.
os.chdir("/")
outside = os.path.dirname(export) + "/outside"
open(outside, "w").close(); os.rename(outside, export + "/moved"); is_here(export + "/moved")
os.rename(export + "/moved", outside); os.unlink(outside)
if os.fork() == 0:
    os.chdir(export); is_here("calls/b"); os._exit(0)
assert os.wait()[1] == 0
print("done")
"""
STATIC = """
#include <fcntl.h>
#include <unistd.h>
int main(int count, char **names) { return write(open(names[count - 1], O_CREAT | O_WRONLY, 0600), "x", 1) != 1; }
"""

# Starts the program argv[2] in the way argv[1], by a name that leads into the exported directory.
STARTS = r"""
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
extern char **environ;
static int spawned(int error, pid_t pid) {
  int status = 0;
  if (!error) waitpid(pid, &status, 0);
  else fprintf(stderr, "%s\n", strerror(error));
  return error || status;
}
int main(int count, char **words) {
  char *way = words[1], *path = words[2], **rest = words + 2;
  pid_t pid;
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  if (!strcmp(way, "execve")) execve(path, rest, environ);
  if (!strcmp(way, "execv")) execv(path, rest);
  if (!strcmp(way, "execvp")) execvp(path, rest);
  if (!strcmp(way, "execvpe")) execvpe(path, rest, environ);
  if (!strcmp(way, "execl")) execl(path, "1", rest[1], (char *)0);
  if (!strcmp(way, "execlp")) execlp(path, "1", "2", "3", "4", "5", "6", "7", "8", rest[1], (char *)0);
  if (!strcmp(way, "execle")) execle(path, "1", "2", "3", "4", "5", "6", "7", "8", rest[1], (char *)0, environ);
  if (!strcmp(way, "posix_spawn")) return spawned(posix_spawn(&pid, path, 0, 0, rest, environ), pid);
  if (!strcmp(way, "posix_spawnp")) return spawned(posix_spawnp(&pid, path, &actions, 0, rest, environ), pid);
  if (!strcmp(way, "addchdir")) { /* the name is one there */
    posix_spawn_file_actions_addchdir_np(&actions, "/usr");
    return spawned(posix_spawn(&pid, path, &actions, 0, rest, environ), pid);
  }
  if (!strcmp(way, "addopen")) { /* creates the file of the first word, and opens that of the second */
    posix_spawn_file_actions_addopen(&actions, 8, rest[1], O_CREAT | O_EXCL | O_WRONLY, 0600);
    posix_spawn_file_actions_addopen(&actions, 9, rest[2], O_RDONLY, 0);
    return spawned(posix_spawn(&pid, path, &actions, 0, rest, environ), pid);
  }
  perror(way);
  return 1;
}
"""
# Starts a program from a child with a stack of argv[1] KiB, and from a thread with the smallest one.
STACKS = r"""
#define _GNU_SOURCE
#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
extern char **environ;
static char **rest;
static int child(void *none) { (void)none; execvp(rest[0], rest); _exit(1); }
static void *thread(void *none) {
  static int status; pid_t pid; (void)none;
  status = posix_spawnp(&pid, rest[0], 0, 0, rest, environ);
  if (!status) waitpid(pid, &status, 0);
  return &status;
}
int main(int count, char **words) {
  size_t len = atoi(words[1]) * 1024; int status; void *result; pthread_t id; pthread_attr_t small;
  char *stack = mmap(0, len + 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  (void)count; rest = words + 2;
  mprotect(stack, 4096, PROT_NONE);
  if (waitpid(clone(child, stack + 4096 + len, CLONE_VM | CLONE_VFORK | SIGCHLD, 0), &status, 0) < 0 || status)
    return printf("child: %x\n", status);
  pthread_attr_init(&small); pthread_attr_setstacksize(&small, PTHREAD_STACK_MIN);
  if (pthread_create(&id, &small, thread, 0) || pthread_join(id, &result) || *(int *)result)
    return printf("thread: %x\n", *(int *)result);
  return 0;
}
"""
# Has a child write by a relative name, after the change of directory argv[1], if there is one.
OPENS = r"""
#define _GNU_SOURCE
#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
extern char **environ;
int main(int count, char **words) {
  char *echo[] = {"echo", "x", 0}; pid_t pid; int status = 1;
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  if (count > 2) posix_spawn_file_actions_addchdir_np(&actions, words[1]);
  posix_spawn_file_actions_addopen(&actions, 1, words[count - 1], O_CREAT | O_TRUNC | O_WRONLY, 0644);
  if (!posix_spawn(&pid, "/bin/echo", &actions, 0, echo, environ)) waitpid(pid, &status, 0);
  return status;
}
"""
# Sees the memory of the counts for the first time when it has no descriptor left for that.
NO_DESCRIPTOR = """
import os, resource, sys
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
last = os.dup(0); os.close(last)
resource.setrlimit(resource.RLIMIT_NOFILE, (last + 1, hard))
first = os.open(sys.argv[1] + "/first", os.O_CREAT | os.O_WRONLY)
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
for name in "abc": open(sys.argv[1] + "/" + name, "w").close()
"""
# A thread opens the files of its arguments when the main thread has ended.
LATE = r"""
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>
static pthread_t first;
static void *late(void *names) {
  pthread_join(first, 0);
  for (int i = 0; i < 10000 && !access("/proc/self/fd/0", F_OK); i++) usleep(1000);
  for (char **name = names; *name; name++) close(open(*name, O_CREAT | O_WRONLY, 0600));
  exit(0);
}
int main(int count, char **words) {
  pthread_t other; (void)count;
  first = pthread_self();
  return pthread_create(&other, 0, late, words + 1) || (pthread_exit(0), 1);
}
"""
HELLO = """
#include <stdio.h>
int main(int count, char **words) {
  for (int i = 1; i < count; i++) printf("%s ", words[i]);
  puts("hello");
  return 0;
}
"""


@pytest.fixture(scope="module")
def up(forwarders):
    with forwarders(2) as up:
        run("cc", "-static", "-o", up / "static", up.file("static.c", STATIC))
        run("cc", "-o", up / "starts", up.file("starts.c", STARTS))
        run("cc", "-o", up / "hello", up.file("hello.c", HELLO))
        run("cc", "-pthread", "-o", up / "stacks", up.file("stacks.c", STACKS))
        run("cc", "-pthread", "-o", up / "threads", up.file("threads.c", LATE))
        run("cc", "-o", up / "opens", up.file("opens.c", OPENS))
        up.file("calls.py", CALLS)
        yield up


def test_a_good_run_says_nothing(up):
    assert told(up, *dd("good"), cwd=up.data, options=()) == []
    assert told(up, *dd(up.mount / "good"), options=()) == []
    assert told(up, *dd(up.data / "good"), options=()) == []
    assert told(up, "sh", "-c", "echo x > $TIDEGATE_MOUNT/good", options=()) == []
    assert told(up, up / "static", "good", cwd=up.data, options=()) == []


@pytest.mark.parametrize("cwd", ["here", "above", "outside"])
def test_names_of_the_directory_lead_to_the_mount(up, cwd):
    path, cwd = {"here": (up.data / "led", up.data), "above": ("data/led", up.path),
                 "outside": (up.data / "led", OUTSIDE)}[cwd]
    before = sum(up.answered())
    line, = told(up, *dd(path), cwd=cwd)
    assert numbers(line) == (1, 1, 0), line
    assert sum(up.answered()) >= before + 40
    line, = told(up, "sh", "-c", f"echo x > {path}; cat {path} | cat >> {path}; cat {path} > /dev/null", cwd=cwd)
    assert numbers(line)[2] == 0 and numbers(line)[1] >= 3, line


def test_all_calls_with_names(up):
    done = up.tidegate("run", "--summary", "--", sys.executable, up / "calls.py", up.data, up.mount, cwd=OUTSIDE)
    assert done.stdout == "done\n", done
    # Past the mount go the two names that come from outside and leave again.
    assert numbers(done.stderr)[1] >= 5 and numbers(done.stderr)[2] == 0, done.stderr
    assert f"; 2 renamed past them, 1 into {up.data}" in done.stderr, done.stderr


def test_programs_with_names_of_the_directory(up):
    data = up.data
    script = f"""
        set -e
        mkdir -p {data}/programs/a; cd /usr; cp -r /usr/include/linux/netfilter {data}/programs/linux
        cp -a {data}/programs/linux {data}/programs/b
        diff -r /usr/include/linux/netfilter {data}/programs/b; find {data}/programs -name 'nf_*' | grep -q .
        tar -C {data}/programs -cf {data}/t.tar linux; tar -C {data}/programs/a -xf {data}/t.tar
        diff -r {data}/programs/linux {data}/programs/a/linux; du -s {data}/programs > /dev/null
        mv {data}/programs/a {data}/programs/c; ls -lR {data}/programs/c | grep -q nf_
        rm -r {data}/programs {data}/t.tar; test ! -e {data}/programs
    """
    line, = told(up, "bash", "-c", script)
    assert numbers(line)[1] > 100 and numbers(line)[2] == 0, line
    assert not (data / "programs").exists()


def test_what_is_not_led_is_said_and_counted(up):
    for options, env in ((("--no-redirect",), None), ((), {"TIDEGATE_REDIRECT": "off"})):
        first, last = told(up, *dd(up.data / "not"), options=options, env=env)
        assert matches(f"of={up.data}/not` names the directory .*redirection is off.*\\$TIDEGATE_MOUNT", first), first
        assert numbers(last) == (1, 0, 1) and "1 for writing" in last, last
    first, = told(up, *dd(up.data / "not"), options=("--no-shortcut",))
    assert "--no-shortcut leaves redirection out" in first, first
    # That something went through the forwarders is no reason to be silent when asked.
    script = f"echo x > {up.data}/not; echo y > {up.mount}/yes"
    *_, last = told(up, "sh", "-c", script, options=("--no-redirect", "--summary"))
    assert numbers(last) == (2, 1, 1), last


def test_another_name_of_the_directory(up):
    link = up / "link"
    link.symlink_to(up.data)
    for cwd in (OUTSIDE, up.data):
        first, last = told(up, *dd(link / "other"), cwd=cwd, options=())
        assert matches(f"of={link}/other` leads to the directory {up.data} by another name", first), first
    assert numbers(last) == (1, 0, 1) and "by another name" in last, last
    # Nobody has asked for that, so it is said whatever else goes through.
    last, = told(up, "sh", "-c", f"echo a > {link}/other; echo b > y", cwd=up.data, options=())
    assert numbers(last) == (2, 1, 1) and "by another name" in last, last
    assert told(up, "sh", "-c", f"cat {link}/other > y", cwd=up.data, options=()) == []


def test_a_working_directory_elsewhere(up):
    line, = told(up, "true", options=())
    assert matches(f"working directory / is not below {up.data}.*\\$TIDEGATE_MOUNT", line), line


def test_static_programs_are_named(up):
    (up / "first/static").mkdir(parents=True)
    first, = told(up, up / "static", up.data / "s", options=())
    assert matches(f"names the directory .*static is statically linked.*below {up.mount}", first), first
    *_, last = told(up, up / "static", up.data / "s")
    assert "not counted: static, statically linked" in last, last
    for words in (("sh", "-c", f"{up.path}/static s; true"),
                  ("env", f"PATH={up.path}:/usr/bin", "timeout", "5", "static", "s"),
                  # A folder of its name comes first in PATH, which is no program.
                  ("env", f"PATH={up.path}/first:{up.path}:/usr/bin", "timeout", "5", "static", "s"),
                  (sys.executable, "-c", f"import subprocess; subprocess.run(['{up.path}/static', 's'])")):
        *_, last = told(up, *words, cwd=up.data)
        assert "not counted: static, statically linked" in last, last


def test_tidegate_itself_is_not_led(up):
    """A forwarder opens what it exports."""
    other = up.folder("other")
    run_dir = up.folder("other.run")
    run_dir.chmod(0o700)
    words = f"{TIDEGATE} up {up.data}/sub --no-mount --state-dir {run_dir} && {TIDEGATE} down --state-dir {run_dir}"
    (up.data / "sub").mkdir()
    done = up.tidegate("run", "--", "sh", "-c", words, cwd=other, code=None)
    assert "other forwarders serve" in done.stderr, done  # and not that it is in a mount
    os.rmdir(up.data / "sub")


def test_words_one_by_one(up):
    program, starts = up.data / "words", up.path / "starts"
    script = f"cp {up.path}/hello {program}; {starts} execl {program} a; {starts} execlp {program} b; " \
             f"X=5 {starts} execle {program} c; cp /usr/bin/printenv {program}; {starts} execl {program} TIDEGATE_MOUNT"
    assert says(up, "sh", "-c", script).splitlines() == \
        ["a hello", *(f"2 3 4 5 6 7 8 {it} hello" for it in "bc"), str(up.mount)]


def says(up, *words, cwd=OUTSIDE, env=None):
    """What a program under `run` prints."""
    done = up.tidegate("run", "--", *words, cwd=cwd, env=env, code=None)
    assert done.returncode == 0, done
    return done.stdout


@pytest.mark.parametrize("way", ["execve", "execv", "execvp", "execvpe", "posix_spawn", "posix_spawnp"])
def test_a_program_runs_when_it_is_written(up, way):
    """The forwarder still has it open for writing, on the back end."""
    data, starts = up.data / way, up / "starts"
    script = f"""
        set -e
        mkdir {data}; cp {up.path}/hello {data}/t
        {starts} {way} {data}/t a; {starts} {way} ./{os.path.relpath(data, "/")}/t b
        printf '#!/bin/sh\necho "$0"; "$(dirname "$0")/t" "$@"\n' > {data}/s; chmod +x {data}/s
        {starts} {way} {data}/s c
        cp /bin/cat {data}/cat; printf '#! {data}/cat  -n \nx\n' > {data}/i; chmod +x {data}/i
        {starts} {way} {data}/i
        printf '#!{data}/t\n' > {up.path}/{way}.outside; chmod +x {up.path}/{way}.outside
        {starts} {way} {up.path}/{way}.outside d
    """
    mounted = up.mount / way
    numbered = [f"     1\t#! {data}/cat  -n ", "     2\tx"]
    told = says(up, "sh", "-c", script).splitlines()
    assert told == ["a hello", "b hello", f"{mounted}/s", "c hello", *numbered, f"{up.path}/{way}.outside d hello"]


def test_programs_are_found_where_they_are_written(up):
    folder = up.data / "bin"
    script = f"mkdir {folder}; cp {up.path}/hello {folder}/ours; PATH={folder}:/usr/bin; export PATH; ours a; env ours b; " \
             f"{up.path}/starts execvpe ours c; {up.path}/starts posix_spawnp ours d; {up.path}/starts execvp printf e; " \
             f"cd {folder}; PATH=/usr/bin:; {up.path}/starts execvp ours f"
    assert says(up, "sh", "-c", script).split("\n") == [*(f"{it} hello" for it in "abcd"), "ef hello", ""]


def test_compilers_and_their_programs(up):
    source = up.file("compiled.c", HELLO)
    script = f"cd /; cc -o {up.data}/compiled {source} && {up.data}/compiled x && " \
             f"{sys.executable} -c \"import subprocess; subprocess.check_call(['{up.data}/compiled', 'y'])\""
    assert says(up, "sh", "-c", script) == "x hello\ny hello\n"


def test_starts_that_stay_as_they_are(up):
    """A program with rights of its own, which the mount takes; a name that is one elsewhere."""
    program = up.data / "rights"
    run("cp", up / "hello", program)
    os.chmod(program, 0o4755)
    assert says(up, up / "starts", "execv", program, "a") == "a hello\n"
    assert says(up, up / "starts", "addchdir", "bin/printf", "b", cwd=up.path) == "b"
    for program, error in ((up.data / "none", "No such file"), (up.data, "Permission denied")):
        for way in ("execve", "execvp", "posix_spawn"):
            done = up.tidegate("run", "--", up / "starts", way, program, cwd=OUTSIDE, code=1)
            assert error in done.stderr, done


@pytest.mark.parametrize("noexec", [False, pytest.param(True, marks=pytest.mark.skipif(os.geteuid() != 0,
                                                                                     reason="only root can mount"))])
def test_what_a_start_does_before_is_done_once(up, noexec):
    """A file action that is denied is no denied start."""
    folder = up.folder(f"data/once.{noexec}")
    run("cp", up / "hello", folder / "hello")
    script, closed = folder / "script", folder / "closed"
    script.write_text(f"#!{folder}/hello\n")
    script.chmod(0o755)
    closed.write_text("")
    closed.chmod(0)
    # Root may open all.
    weak = ("setpriv", "--bounding-set=-dac_override,-dac_read_search") if os.geteuid() == 0 else ()
    if noexec:
        run("mount", "-i", "-o", "remount,noexec", up.mount)
    try:
        for program in ("hello", "script"):
            starts = (up / "starts", "addopen", folder / program, up / f"once.{program}.{noexec}")
            done = up.tidegate("run", "--", *weak, *starts, closed, cwd=OUTSIDE, code=1)
            assert done.stderr.strip().endswith("Permission denied"), done
            os.unlink(up / f"once.{program}.{noexec}")
            assert "hello" in says(up, *weak, *starts, up / "starts.c")
    finally:
        if noexec:
            run("mount", "-i", "-o", "remount,exec", up.mount)


def test_a_child_writes_where_it_is_moved(up):
    other = up.folder("moved")
    (other / "data").mkdir()
    told(up, up / "opens", other, "data/where", cwd=up.path)
    assert (other / "data/where").read_text() == "x\n" and not (up.data / "where").exists()
    line, = told(up, up / "opens", other, up.data / "where", cwd=up.path)
    assert (up.data / "where").read_text() == "x\n" and numbers(line)[2] == 0, line


def test_starts_need_little_stack(up):
    folder = up.folder("data/little")
    run("cp", up / "hello", folder / "little")
    assert says(up, up / "stacks", "6", "true") == ""
    assert says(up, up / "stacks", "6", "little", env={"PATH": f"{folder}:/usr/bin"}) == "hello\n" * 2
    assert says(up, up / "stacks", "6", "data/little/little", cwd=up.path) == "hello\n" * 2


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give up its rights")
def test_a_user_who_cannot_reach_the_mount(up):
    """A daemon that drops its rights works past the forwarders, and that is told."""
    top = pathlib.Path(tempfile.mkdtemp(dir="/tmp"))  # where others may go
    data, state = top / "data", top / "state"
    for path, mode in ((top, 0o755), (data, 0o1777), (state, 0o700)):
        path.mkdir(exist_ok=True)
        path.chmod(mode)
    up.tidegate("up", data, "--forwarders", 1, "--state-dir", state)
    words = ("setpriv", "--reuid", "12345", "--regid", "12345", "--clear-groups", "sh", "-c",
             f"ls {data} && echo x > {data}/f")
    try:
        done = up.tidegate("run", "--state-dir", state, "--", *words, cwd=OUTSIDE)
        assert (data / "f").read_text() == "x\n" and (data / "f").stat().st_uid == 12345
        assert numbers(done.stderr)[1] == 0, done
        assert "sh, of a user who cannot reach the mount" in done.stderr, done
        drops = f"import os; open('{data}/g', 'w'); os.setuid(12345); open('{data}/h', 'w')"
        done = up.tidegate("run", "--state-dir", state, "--", sys.executable, "-c", drops, cwd=OUTSIDE)
        assert numbers(done.stderr) == (2, 1, 1) and (data / "h").stat().st_uid == 12345, done
        assert f"1 in {data}, the mount out of reach" in done.stderr, done
        able = top / "able"
        run("cp", "/bin/true", able)
        os.setxattr(able, "security.capability", struct.pack("<5I", 0x2000001, 1 << 10, 0, 0, 0))
        done = up.tidegate("run", "--state-dir", state, "--summary", "--", *words[:6], able, cwd=OUTSIDE)
        assert "able, set-user-ID or with capabilities" in done.stderr, done
        half = "import os; os.seteuid(12345); os.posix_spawn('/bin/true', ['true'], os.environ); os.wait()"
        done = up.tidegate("run", "--state-dir", state, "--summary", "--", sys.executable, "-c", half, cwd=OUTSIDE)
        assert "true, set-user-ID or with capabilities" in done.stderr, done
        # A shell that libc starts.
        for call in (f"system(b'echo x > {data}/i')", f"popen(b'echo x > {data}/i', b'r')"):
            drops = f"import ctypes, os; os.setuid(12345); ctypes.CDLL(None).{call}"
            done = up.tidegate("run", "--state-dir", state, "--", sys.executable, "-c", drops, cwd=OUTSIDE)
            assert "sh, of a user who cannot reach the mount" in done.stderr, done
    finally:
        up.tidegate("down", "--state-dir", state)
        shutil.rmtree(top)


def test_a_program_without_the_environment(up):
    script = f"env -i /bin/sh -c 'echo x > {up.data}/bare'"
    for words in (("sh", "-c", script), ("env", "-i", "sh", "-c", f"echo x > {up.data}/bare")):
        line, = told(up, *words, options=())
        assert numbers(line)[1] == 0 and "not counted: sh, without the environment of the run" in line, line
    *_, line = told(up, sys.executable, "-c", "import subprocess; subprocess.run(['printf', ''], env={'A': 'b'})")
    assert "not counted: printf, without the environment of the run" in line, line
    # When files do go through the forwarders, it is told only if asked for.
    assert told(up, "sh", "-c", f"{script}; echo y > {up.data}/led", options=()) == []


def test_names_that_are_moved_past_the_mount(up):
    out = up / "moved.out"
    assert told(up, "sh", "-c", f"echo x > {up.data}/out; mv {up.data}/out {out}", options=()) == []
    assert out.read_text() == "x\n"
    line, = told(up, "sh", "-c", f"echo x > {up.data}/out; mv {up.data}/out {out}")
    assert numbers(line) == (1, 1, 0) and line.endswith("; 1 renamed past them"), line
    line, = told(up, "mv", out, up.data / "in", options=())
    assert numbers(line) == (0, 0, 0) and f"; 1 renamed past them, 1 into {up.data}" in line, line


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")
def test_an_interpreter_on_a_mount_that_starts_nothing(up):
    script = up.file("noexec.script", f"#!{up.data}/noexec\n")
    script.chmod(0o755)
    run("cp", up / "hello", up.data / "noexec")
    run("mount", "-i", "-o", "remount,noexec", up.mount)
    try:
        for way in ("execv", "posix_spawn"):
            assert says(up, up / "starts", way, script, "a") == f"{script} a hello\n"
    finally:
        run("mount", "-i", "-o", "remount,exec", up.mount)


def test_counts_begin_when_a_descriptor_is_free(up):
    line, = told(up, sys.executable, "-c", NO_DESCRIPTOR, up.data)
    assert numbers(line)[1:] == (3, 0), line


def test_counts_go_on_without_the_main_thread(up):
    link = up / "threads.link"
    link.symlink_to(up.data)
    *_, line = told(up, up / "threads", up.data / "late", link / "late", up.data / "later")
    assert numbers(line) == (3, 2, 1) and "by another name" in line, line


def test_a_program_that_outlives_the_forwarders(forwarders):
    """Its names lead to a mount, and not to the folder that the mount leaves behind."""
    with forwarders(1) as up:
        go = up / "go"
        os.mkfifo(go)
        script = f"echo one > {up.data}/one; read x < {go}; echo two > {up.data}/two; mkdir -p {up.data}/a/b; " \
                 f"cp {up.data}/two {up.data}/a/b/three"
        process = up.begin("run", "--", "sh", "-c", script, cwd=OUTSIDE)
        until(lambda: (up.data / "one").exists(), "the program does not begin")
        up.down()
        go.write_text("\n")
        assert process.wait(60) == 0
        assert os.listdir(up.mount) == []
        assert (up.data / "two").read_text() == (up.data / "a/b/three").read_text() == "two\n"


def test_a_program_that_outlives_its_run(up):
    """The run's own mount, and its folder, are gone by then."""
    data, state, go, end = up.folder("late"), up.folder("late.run"), up / "late.go", up / "late.end"
    state.chmod(0o700)
    os.mkfifo(go)
    up.tidegate("up", data, "--forwarders", 1, "--no-mount", "--state-dir", state)
    try:
        script = f"( exec > /dev/null 2>&1; read x < {go}; mkdir -p {data}/a; echo $TIDEGATE_MOUNT > {data}/a/f; " \
                 f"touch {end} ) & echo $TIDEGATE_MOUNT; echo x > {data}/begun"
        done = up.tidegate("run", "--state-dir", state, "--", "sh", "-c", script, cwd=OUTSIDE)
        mount = done.stdout.strip()
        assert (data / "begun").exists() and not os.path.exists(mount), done
        go.write_text("\n")
        until(end.exists, "the program does not go on")
        assert (data / "a/f").read_text().strip() == mount and not os.path.exists(mount)
    finally:
        up.tidegate("down", "--state-dir", state)

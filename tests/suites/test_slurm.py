"""Slurm: what `tidegate run` does where its program is Slurm's, or starts one of Slurm's. Slurm's daemons are the
suite's own, on one node in namespaces of its own; an ordinary user has forwarders and a mount there."""
import os
import re
import shutil
import stat

import pytest
from conftest import TIDEGATE, matches, need_fuse, run, until

USER, ADDRESS = 12345, "10.77.0.1"
# A node whose names and users are the suite's. An address that is not the loopback's: Slurm looks for one.
NODE = """
hostname node; ip link set lo up; ip address add "$1/32" dev lo
mount --bind "$2" /etc/hosts; mount --bind "$3" /etc/passwd; mount --bind "$4" /etc/group; mount --bind "$5" /dev/fuse
touch "$6"; exec sleep infinity
"""
CONFIGURATION = """
ClusterName=suite
SlurmctldHost=node
AuthType=auth/munge
AuthInfo=socket={at}/munge.socket
CredType=cred/munge
SlurmUser=root
SlurmdUser=root
StateSaveLocation={at}/state
SlurmdSpoolDir={at}/spool
SlurmctldPidFile={at}/slurmctld.pid
SlurmdPidFile={at}/slurmd.pid
SlurmctldLogFile={at}/slurmctld.log
SlurmdLogFile={at}/slurmd.log
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/linear
JobAcctGatherType=jobacct_gather/none
ReturnToService=2
NodeName=node CPUs=4 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


class Node:
    """A node with Slurm, and a user's forwarders and mount on it."""

    def __init__(self, work):
        self.work = work
        for folder in (work.path, *work.path.parents[:1]):
            folder.chmod(0o711)
        self.begin()
        self.slurm()
        self.data, self.mount, self.state, self.home = (work.folder(it) for it in ("data", "mnt", "run", "home"))
        for folder in (self.data, self.mount, self.state, self.home):
            os.chown(folder, USER, USER)
        self.state.chmod(0o700)
        self.tidegate("up", self.data, "--forwarders", 2, "--mount", self.mount)

    def begin(self):
        """The namespaces: all that is in them ends with them."""
        work = self.work
        users = work.file("passwd", open("/etc/passwd").read() + f"worker:x:{USER}:{USER}::/:/bin/sh\n")
        groups = work.file("group", open("/etc/group").read() + f"worker:x:{USER}:\n")
        hosts = work.file("hosts", f"127.0.0.1 localhost\n{ADDRESS} node\n")
        fuse, ready = work / "fuse", work / "ready"
        os.mknod(fuse, stat.S_IFCHR | 0o666, os.stat("/dev/fuse").st_rdev)
        fuse.chmod(0o666)
        holder = work.start("unshare", "--net", "--mount", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc",
                            "sh", "-ec", NODE, "sh", ADDRESS, hosts, users, groups, fuse, ready, log=work / "node.log")
        until(ready.exists, "the namespaces are not ready")
        child = run("pgrep", "-P", holder.pid).stdout.strip()
        self.within = ("nsenter", "-t", child, "--net", "--mount", "--uts", "--pid",
                       "sh", "-ec", 'cd "$1"; shift; exec "$@"', "sh")

    def slurm(self):
        work, at = self.work, self.work.folder("slurm")
        at.chmod(0o755)
        for name in ("state", "spool"):
            (at / name).mkdir()
        key, self.conf = at / "munge.key", at / "slurm.conf"
        key.write_bytes(os.urandom(128))
        key.chmod(0o600)
        self.conf.write_text(CONFIGURATION.format(at=at))
        environment = os.environ | {"SLURM_CONF": str(self.conf)}
        for words in (("munged", "--foreground", "--socket", at / "munge.socket", "--key-file", key, "--pid-file",
                       at / "munge.pid", "--log-file", at / "munge.log", "--seed-file", at / "munge.seed"),
                      ("slurmctld", "-D", "-i"), ("slurmd", "-D", "-N", "node")):
            work.start(*self.within, at, *words, env=environment, log=work / f"{words[0]}.log")
            if words[0] == "munged":
                until((at / "munge.socket").exists, "munged does not answer")
        def idle():
            words = ("sinfo", "--noheader", "--format=%T")
            return run(*self.within, at, *words, code=None, env=environment).stdout.strip() == "idle"
        until(idle, "the node is not idle", pause=0.3)

    def by_user(self, *words, cwd=None, code=0, **more):
        """A command of the user's."""
        known = {name: value for name, value in os.environ.items() if not name.startswith(("TIDEGATE_", "SLURM_"))}
        known |= {"SLURM_CONF": str(self.conf), "TMPDIR": str(self.home), "HOME": str(self.home),
                  "XDG_RUNTIME_DIR": "/nonexistent", "TIDEGATE_STATE_DIR": str(self.state)} | more
        user = ("setpriv", "--reuid", USER, "--regid", USER, "--clear-groups")
        return run(*self.within, cwd or self.data, *user, *words, code=code, env=known)

    def tidegate(self, *words, **more):
        return self.by_user(TIDEGATE, *words, **more)

    def applications(self):
        """The names of the applications that have been seen."""
        return set(re.findall(r"slurm-[\d.]+", self.tidegate("stat").stdout))

    def batch(self, name, script, **more):
        """Runs a job's script, in the exported directory; what it has written."""
        file, output = self.home / f"{name}.sh", self.home / f"{name}.out"
        file.write_text(f"#!/bin/sh\n{script}\n")
        done = self.by_user("sbatch", "--wait", "--output", output, file, code=None, **more)
        text = output.read_text() if output.exists() else "no output"
        assert done.returncode == 0, f"{done.stderr}\n{text}"
        return int(re.search(r"job (\d+)", done.stdout)[1]), text


@pytest.fixture(scope="module")
def node(work):
    if os.geteuid():
        pytest.skip("only root makes namespaces with users in them")
    missing = [it for it in ("slurmctld", "slurmd", "srun", "sbatch", "munged", "ip") if not shutil.which(it)]
    if missing:
        pytest.skip(f"{' '.join(missing)}: missing; run tools/need test")
    need_fuse()
    with work.part() as part:
        yield Node(part)


def test_tasks_of_a_step_work_on_the_mount(node):
    """Each task works where the user does, and the bytes are there."""
    done = node.tidegate("run", "--", "srun", "-n", 2, "sh", "-c", "pwd; echo $SLURM_PROCID > task.$SLURM_PROCID")
    assert done.stdout.split() == [str(node.mount)] * 2 and "going to /tmp" not in done.stderr, done
    assert [(node.data / f"task.{i}").read_text() for i in range(2)] == ["0\n", "1\n"]
    node.tidegate("run", "--", "srun", "dd", "if=/dev/zero", "of=s2", "bs=64K", "count=16", "status=none")
    assert (node.data / "s2").stat().st_size == 1 << 20 and not os.path.exists("/tmp/s2")
    below = node.data / "below"
    below.mkdir()
    os.chown(below, USER, USER)
    assert node.tidegate("run", "--", "srun", "pwd", cwd=below).stdout.strip() == f"{node.mount}/below"


def test_a_static_program_does_too(node):
    source = node.work.file("cwd.c", '#include <stdio.h>\n#include <unistd.h>\n'
                                     'int main(void) { char at[4096]; puts(getcwd(at, sizeof at)); }\n')
    run("cc", "-static", "-o", node.work / "cwd", source)
    assert node.tidegate("run", "--", "srun", node.work / "cwd").stdout.strip() == str(node.mount)


def test_the_exit_code_is_the_tasks(node):
    assert node.tidegate("run", "--", "srun", "sh", "-c", "exit 7", code=7).stdout == ""


def test_srun_in_a_script_is_met(node):
    script = "srun -n 2 pwd; /usr/bin/env srun --ntasks=1 pwd; exit 5"
    done = node.tidegate("run", "--", "sh", "-c", script, code=5)
    assert done.stdout.split() == [str(node.mount)] * 3 and "going to /tmp" not in done.stderr, done


def test_srun_in_a_script_works_in_the_export_without_a_mount_that_stays(node):
    """A mount that lasts as long as the run is this user's, and the tasks begin where root's daemon can."""
    state = node.work.folder("private")
    os.chown(state, USER, USER)
    state.chmod(0o700)
    data = node.work.folder("private.data")
    os.chown(data, USER, USER)
    more = {"cwd": data, "TIDEGATE_STATE_DIR": str(state)}
    node.tidegate("up", data, "--no-mount", "--forwarders", 1, **more)
    try:
        # What the tasks find: a run of their own, and nothing of the one around.
        script = "srun sh -c 'pwd > by.task; env > environment'; pwd > by.script"
        done = node.tidegate("run", "--", "sh", "-c", script, **more)
        assert "going to /tmp" not in done.stderr, done
        places = [(data / f"by.{it}").read_text().strip() for it in ("task", "script")]
        assert all(re.fullmatch(rf"{node.home}/tidegate-run-\d+", it) for it in places), places
        assert len(set(places)) == 2, places
        # Only addresses: nobody knows which directory is exported.
        addresses = ",".join(f"unix:{it}" for it in sorted(state.glob("*.sock")))
        script = "srun sh -c 'echo $TIDEGATE_MOUNT > $TIDEGATE_MOUNT/by.address'; echo $TIDEGATE_MOUNT"
        done = node.tidegate("run", "--forwarders", addresses, "--", "sh", "-c", script, **more | {"cwd": "/"})
        assert (data / "by.address").read_text().strip() != done.stdout.strip(), done
    finally:
        node.tidegate("down", **more)


def test_a_program_with_such_a_name_is_no_command_of_slurms(node):
    for name in ("srun_case.sh", "sbatch_all", "srun"):
        script = node.data / name
        script.write_text("#!/bin/sh\necho \"$@\" $TIDEGATE_MOUNT\n")
        script.chmod(0o755)
        done = node.tidegate("run", "--", f"./{name}", "-a", 1)
        assert done.stdout.split() == ["-a", "1", str(node.mount)], done


def test_what_cannot_be_is_refused(node):
    for words in (("srun", "--multi-prog", "file"), ("srun", "true", ":", "true"), ("srun", "--bcast=/tmp/x", "true"),
                  ("sbatch", "script"), ("salloc", "true")):
        done = node.tidegate("run", "--", *words, code=2)
        assert matches("write `.*tidegate run -- PROGRAM`", done.stderr), done.stderr
    # In a script it would be too late to refuse.
    done = node.tidegate("run", "--", "sh", "-c", "srun --no-such-option=1 pwd : pwd; true")
    assert matches("go past the forwarders: .*several", done.stderr), done.stderr


def test_a_job_that_a_program_hands_in_is_not_of_the_run(node):
    script, output = node.work.file("later.sh", "#!/bin/sh\npwd; env\n"), node.home / "later.out"
    script.chmod(0o755)
    node.tidegate("run", "--", "sh", "-c", f"sbatch --wait --output {output} {script}")
    lines = output.read_text().splitlines()
    assert lines[0] == str(node.data), lines
    assert not [it for it in lines if it.startswith(("LD_PRELOAD=", "TIDEGATE_MOUNT=", "TIDEGATE_COUNTS="))], lines


def test_steps_of_a_job_are_one_application(node):
    write = "dd if=/dev/zero of=step.$SLURM_STEP_ID bs=64K count=4 status=none"
    script = f"for i in 1 2; do {TIDEGATE} run -- srun sh -c '{write}'; srun {TIDEGATE} run -- sh -c '{write}'; done"
    job, text = node.batch("steps", script)
    assert len(list(node.data.glob("step.*"))) == 4, text
    assert [it for it in node.applications() if it.startswith(f"slurm-{job}")] == [f"slurm-{job}"]
    job, text = node.batch("apart", script, TIDEGATE_STEPS="apart")
    seen = {it for it in node.applications() if it.startswith(f"slurm-{job}")}
    assert {f"slurm-{job}.{i}" for i in range(4)} <= seen, (seen, text)


@pytest.mark.parametrize("family", ["mpich", "openmpi"])
def test_ranks_of_mpi_in_a_job(node, family):
    """Their launchers start daemons by srun."""
    launcher = f"mpirun.{family}"
    if not shutil.which(launcher):
        pytest.skip(f"{launcher} is missing: run tools/need test")
    job, text = node.batch(family, f"{TIDEGATE} run -- {launcher} -n 2 sh -c 'pwd; echo x >> rank.{family}'",
                           OMPI_MCA_oob_tcp_if_include="lo")
    assert [it for it in text.splitlines() if it.startswith("/")] == [str(node.mount)] * 2, text
    assert (node.data / f"rank.{family}").read_text() == "x\nx\n", text

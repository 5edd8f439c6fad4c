"""An operation that took effect just before its forwarder was killed, unanswered, takes effect once."""
import pytest
from conftest import LONG, REPO, alive, run

ONCE = "python3", REPO / "tests/programs/src/py/once.py"
OPS = "create", "rename", "append", "unlink", "mkdir", "rmdir", "link", "symlink"
# Forwarders, at which of the operations the first of them dies, and then.
FAULTS = [(1, 5, "restart"), (4, 1, "dead")]
if LONG:
    FAULTS += [(1, 1, "restart"), (4, 2, "restart"), (2, 3, "dead")]


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("count, at, then", FAULTS)
def test_fault(forwarders, work, op, count, at, then):
    data = work.folder()
    # Prepared behind the mount, so that only the operation under test counts.
    run(*ONCE, "prepare", op, data)
    with forwarders(count, "--kill-after-effect", f"0:{op}:{at}", data=data) as up:
        victim = up.pid(0)
        again = up.restart_when_dead(0) if then == "restart" else None
        run(*ONCE, "perform", op, up.mount)
        assert not alive(victim), "the fault did not come"
        for folder in (up.mount, data):
            run(*ONCE, "check", op, folder)
        if again:
            again.join(20)

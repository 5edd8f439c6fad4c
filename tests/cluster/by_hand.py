"""A cluster that a person drives: `bed up` takes commands from its input and from `bed do`."""
import os
import shlex
import socket
import sys
import threading

from nodes import Failed

WHERE = "/run/tidegate-bed.sock"
HELP = """commands, one a line; nodes are st0 io0 io1 .. cn0 cn1 ..
  at NODE COMMAND...       run a command on a node; Tidegate is at $TIDE on cn*, the volume at $VOLUME on io*
                           (with `bed do` put it in '...': the node's shell is to see $TIDE, not yours)
  serve [STRIPE]           forwarders and mounts anew, over a new export
  kill I | restart I       the process of forwarder I, with SIGKILL
  die I | boot I           I/O node I: gone at once; back with a fresh mount of the volume, and its forwarder
  pause I | go_on I        forwarder I: SIGSTOP, SIGCONT
  kill_mount I | remount I the process that serves node I's mount of the volume
  cut A B | deaf A B       nothing between two nodes, or nothing from A to B
  heal                     ends all cuts
  stop_store | start_store SIGSTOP, SIGCONT of all daemons of the back end
  kill_part | restart_part one brick or OSD
  fill | empty             no room at the back end, room again
  end                      all ends"""


def act(c, line):
    """Performs a command and returns what to print."""
    words = shlex.split(line)
    if not words or words[0] == "help":
        return HELP
    verb, rest = words[0], words[1:]
    if verb == "at":
        return c.node(rest[0]).run("sh", "-c", " ".join(rest[1:]), timeout=600, check=False,
                                   env={"TIDE": c.tide, "VOLUME": c.volume}).rstrip()
    if verb == "serve":
        c.serve(*rest)
    elif verb in ("kill", "restart", "die", "pause", "go_on", "kill_mount", "remount"):
        getattr(c, verb)(int(rest[0]))
    elif verb == "boot":
        c.boot(int(rest[0]), serve=True)
    elif verb in ("cut", "deaf"):
        c.cut(*rest, both=verb == "cut")
    elif verb == "heal":
        c.world.heal()
    elif verb in ("stop_store", "start_store"):
        c.backend.stop() if verb == "stop_store" else c.backend.go_on()
    elif verb in ("kill_part", "restart_part", "fill", "empty"):
        getattr(c.backend, verb)()
    else:
        return f"no command {verb}; {HELP}"
    return "done"


def safely(c, line):
    try:
        return act(c, line)
    except (Failed, OSError, LookupError, TypeError, ValueError) as error:
        return f"failed: {error}"


def serve(c):
    """Takes commands until `end` or the end of input."""
    c.serve()
    turn = threading.Lock()
    # Each `bed up` replaces the last one's socket: `bed do` speaks to the last.
    if os.path.exists(WHERE):
        os.unlink(WHERE)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(WHERE)
    own = os.stat(WHERE).st_ino
    listener.listen(4)

    def answer():
        while True:
            connection, _ = listener.accept()
            with connection, turn:
                line = connection.makefile().readline()
                connection.sendall((safely(c, line) + "\n").encode())
    threading.Thread(target=answer, daemon=True).start()
    print(f"logs and configurations in {c.work}\n{HELP}", flush=True)
    for line in sys.stdin:
        if line.strip() == "end":
            break
        with turn:
            print(safely(c, line), flush=True)
    # A later `bed up` may have its own socket there by now, or have taken it away.
    if os.path.exists(WHERE) and os.stat(WHERE).st_ino == own:
        os.unlink(WHERE)


def send(line):
    """Gives a command to the last `bed up`; the exit code."""
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.connect(WHERE)
    except OSError as error:
        sys.exit(f"bed: no `bed up` answers at {WHERE}: {error}")
    connection.sendall((line + "\n").encode())
    answer = connection.makefile().read()
    print(answer, end="")
    return int(answer.startswith(("failed: ", "no command ")))

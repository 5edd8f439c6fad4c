"""A cluster that a person drives: `bed up` takes commands from its input and from `bed do`.

Each `bed up` has a socket by its name in WHERE, so that several run side by side on one machine.
"""
import os
import shlex
import socket
import sys
import threading

from nodes import Failed

WHERE = "/run/tidegate-beds"
ANSWER_S = 900      # a command on a node may take 600 s
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


def connected(name):
    """A connection to the bed of that name, or None; what a dead bed has left is removed."""
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.connect(f"{WHERE}/{name}")
        return connection
    except FileNotFoundError:
        return None
    except ConnectionRefusedError:
        os.unlink(f"{WHERE}/{name}")
        return None


def listening(name):
    """The socket of that name, which shows up when it can answer."""
    os.makedirs(WHERE, mode=0o700, exist_ok=True)
    listener, path = socket.socket(socket.AF_UNIX), f"{WHERE}/.{name}.{os.urandom(4).hex()}"
    listener.bind(path)
    listener.listen(4)
    if other := connected(name):
        other.close()
    try:
        os.link(path, f"{WHERE}/{name}")
    except FileExistsError:
        raise Failed(f"a bed named {name} is up; give this one another --name") from None
    finally:
        os.unlink(path)
    return listener


def serve(c, name):
    """Takes commands until `end` or the end of input."""
    c.serve()
    turn, listener = threading.Lock(), listening(name)

    def answer():
        while True:
            connection, _ = listener.accept()
            with connection, turn:
                line = connection.makefile().readline()
                # A connection that only asks who is there brings no line.
                if line:
                    connection.sendall((safely(c, line) + "\n").encode())
    threading.Thread(target=answer, daemon=True).start()
    try:
        print(f"logs and configurations in {c.work}; from elsewhere: bed do --name {name} COMMAND...\n{HELP}",
              flush=True)
        for line in sys.stdin:
            if line.strip() == "end":
                break
            with turn:
                print(safely(c, line), flush=True)
    finally:
        os.unlink(f"{WHERE}/{name}")


def last_first():
    """The names of beds, that which came up last first."""
    try:
        names = [name for name in os.listdir(WHERE) if not name.startswith(".")]
        return sorted(names, key=lambda name: -os.stat(f"{WHERE}/{name}").st_ctime_ns)
    except FileNotFoundError:
        return []   # none has ever been up, or one has just ended


def send(words):
    """Gives a command to the bed that is named, or to the last `bed up`; the exit code."""
    names = last_first()
    if words[:1] == ["--name"]:
        names, words = words[1:2], words[2:]
    connection = next(filter(None, map(connected, names)), None)
    if not connection:
        sys.exit(f"bed: no `bed up` answers{' to the name ' + names[0] if names else ''}; "
                 f"up are: {' '.join(last_first()) or 'none'}")
    connection.settimeout(ANSWER_S)
    connection.sendall((" ".join(words) + "\n").encode())
    try:
        answer = connection.makefile().read()
    except TimeoutError:
        answer = f"failed: no answer within {ANSWER_S} s\n"
    print(answer, end="")
    return int(answer.startswith(("failed: ", "no command ")))

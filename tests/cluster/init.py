"""Process 1 of a node: names the node, then reaps what it is left, until it is killed.

usage: init.py NAME MACHINE_ID_FILE BOOT_ID_FILE. When it dies the kernel kills all of the node.
"""
import os
import socket
import subprocess
import sys
import time

name, machine_id, boot_id = sys.argv[1:]
socket.sethostname(name)
for source, target in ((machine_id, "/etc/machine-id"), (boot_id, "/proc/sys/kernel/random/boot_id")):
    subprocess.run(["mount", "--bind", source, target], check=True)
# What a node writes for itself; the other nodes do not see it.
for folder in ("/run", "/tmp"):
    subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=1777", "node", folder], check=True)
subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
print("ready", flush=True)
while True:
    try:
        os.wait()
    except ChildProcessError:
        time.sleep(0.2)

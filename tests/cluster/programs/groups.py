"""Makes files in a folder of group 3000, in turn as a user who is in that group and who is not.

usage: groups.py FOLDER NAME COUNT. Fails with how often the wrong one was let in or refused.
"""
import os
import sys

folder, name, count = sys.argv[1], sys.argv[2], int(sys.argv[3])


def let_in(number, group):
    child = os.fork()
    if child == 0:
        os.setgroups([group])
        os.setgid(4000)
        os.setuid(4000)
        try:
            os.close(os.open(f"{folder}/{name}-{number}", os.O_CREAT | os.O_WRONLY, 0o644))
        except PermissionError:
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


refused = admitted = 0
for number in range(0, 2 * count, 2):
    admitted += let_in(number, 3001)
    refused += not let_in(number + 1, 3000)
if refused or admitted:
    sys.exit(f"of {count} tries each, a member was refused {refused} and another let in {admitted} times")

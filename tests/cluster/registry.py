"""The named checks. Each is a function of a cluster; it raises Failed, and returns a note or nothing."""
CHECKS = {}
DISTRIBUTED = ("ceph", "gluster")


class Check:
    def __init__(self, function, backends, quick, serve):
        self.function, self.backends, self.quick, self.serve = function, backends, quick, serve
        self.name, self.about = function.__name__, function.__doc__.split("\n")[0]


def check(backends=DISTRIBUTED, quick=(), serve=True):
    """Names a check: on which back ends it runs, on which of them in the short form too, and whether
    it finds forwarders and mounts over a new export."""
    def note(function):
        CHECKS[function.__name__] = Check(function, backends, quick, serve)
        return function
    return note

"""Exercises extended attributes of the user name space."""
import errno, os


def refused(call, *arguments):
    try:
        call(*arguments)
        print(call.__name__, "was allowed")
    except OSError as error:
        print(call.__name__, errno.errorcode[error.errno])


open("file", "w").close()
os.mkdir("folder")
os.symlink("file", "link")
for name in ("file", "folder"):
    os.setxattr(name, "user.small", b"value")
    os.setxattr(name, "user.empty", b"")
    os.setxattr(name, "user.bytes", bytes(range(256)))
    print(sorted(n for n in os.listxattr(name) if n.startswith("user.")))
os.setxattr("file", "user.large", b"L" * 2000)
print(len(os.getxattr("file", "user.large")), os.getxattr("link", "user.small"))
os.setxattr("file", "user.small", b"new", os.XATTR_REPLACE)
refused(os.setxattr, "file", "user.small", b"x", os.XATTR_CREATE)
refused(os.setxattr, "file", "user.none", b"x", os.XATTR_REPLACE)
refused(os.getxattr, "file", "user.none")
refused(os.removexattr, "file", "user.none")
refused(os.setxattr, "file", "unknown.name", b"x")
refused(os.setxattr, "file", "user." + "n" * 260, b"x")
refused(os.setxattr, "nothing", "user.a", b"x")
os.removexattr("file", "user.empty")
with open("file", "w") as file:
    os.setxattr(file.fileno(), "user.by-fd", b"fd")
    print(sorted(n for n in os.listxattr(file.fileno()) if n.startswith("user.")))
os.rename("file", "renamed")
print(os.getxattr("renamed", "user.by-fd"))

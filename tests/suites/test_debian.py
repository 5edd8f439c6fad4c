"""The Debian package: what its fields say, that README's first example runs from what it unpacks, that it tells
systemd of its unit files, and that nothing is left when it is removed."""
import os
import re
import shutil

import pytest
from conftest import LONG, REPO, TIDEGATE, need_fuse, run

SYSTEMCTL = '#!/bin/sh\necho "$@" >> "$TOLD"\n'


@pytest.fixture(scope="module")
def package(work):
    """A package of the programs; in the long form, the one that `make deb` makes, which has the C libraries too."""
    if not shutil.which("dpkg-deb"):
        pytest.skip("dpkg-deb is missing: this is no Debian")
    with work.part() as part:
        if LONG:
            made = run("make", "-s", "deb", cwd=REPO, timeout=3600).stdout.splitlines()[-1]
        else:
            root = part / "root"
            run(REPO / "tools/install-programs", "install", env=os.environ | {"PREFIX": "/usr", "DESTDIR": str(root)})
            # Programs are to run by their modes, whatever the umask of who makes the package.
            made = run("sh", "-c", 'umask 077; exec "$0" "$@"', REPO / "tools/debian", root, part / "made").stdout.strip()
        yield made


def test_fields_say_what_it_is_and_needs(package):
    def field(name):
        return run("dpkg-deb", "--field", package, name).stdout.strip()
    assert field("Package") == "tidegate" and field("Maintainer") and int(field("Installed-Size")) > 10_000
    assert package.endswith(f"/tidegate_{field('Version')}_{field('Architecture')}.deb")
    assert run(TIDEGATE, "--version").stdout.split()[1] == field("Version")
    needed = re.fullmatch(r"fuse3, libc6 \(>= (\d+)\.(\d+)\), libgcc-s1", field("Depends"))
    assert needed, field("Depends")
    here = run("getconf", "GNU_LIBC_VERSION").stdout.split()[1].split(".")
    assert (2, 30) <= tuple(map(int, needed.groups())) <= tuple(map(int, here))
    info = run("dpkg-deb", "--info", package).stdout
    assert all(name in info for name in ("postinst", "prerm", "postrm", "md5sums", "triggers")), info


def test_its_files_are_of_root_and_where_debian_has_them(package):
    files = {line.split()[5]: line.split() for line in run("dpkg-deb", "--contents", package).stdout.splitlines()}
    assert {words[1] for words in files.values()} == {"root/root"}
    for name, mode in (("bin/tidegate", "-rwxr-xr-x"), ("bin/tidegate-lab", "-rwxr-xr-x"), ("sbin/mount.tidegate", "lrwxrwxrwx"),
                       ("lib/libtidegate_preload.so", "-rwxr-xr-x"), ("share/man/man1/tidegate-serve.1.gz", "-rw-r--r--"),
                       ("share/man/man8/mount.tidegate.8.gz", "-rw-r--r--"), ("share/doc/tidegate/copyright", "-rw-r--r--"),
                       ("lib/systemd/system/tidegate-mount.service", "-rw-r--r--"), ("share/man/", "drwxr-xr-x")):
        assert files[f"./usr/{name}"][0] == mode, (name, files[f"./usr/{name}"])
    assert all(name.startswith("./usr/") or name == "./" for name in files)
    assert not [name for name in files if name.endswith(".debug")]


def test_readmes_first_example_runs_from_it_and_nothing_is_left(package, work):
    need_fuse()
    with work.part() as part:
        # The folders of dpkg in a new system; only root can have it make files of root.
        root = part.folder("system")
        dpkg = ("dpkg", f"--root={root}", "--force-not-root", "--force-script-chrootless", "--force-depends")
        environment = os.environ | {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
        if os.geteuid() == 0:
            for folder in ("var/lib/dpkg/info", "var/lib/dpkg/updates", "var/log"):
                (root / folder).mkdir(parents=True)
            (root / "var/lib/dpkg/status").touch()
            run(*dpkg, "--install", package, env=environment)
            assert "Status: install ok installed" in run(*dpkg, "--status", "tidegate", env=environment).stdout
        else:
            run("dpkg-deb", "--extract", package, root)
        [example] = re.findall(r"```\n(export PATH=[^\n]*)\n(.*?)```", (REPO / "README.md").read_text(), re.DOTALL)
        words = part.file("example", example[1])
        runtime = part.folder("runtime")
        runtime.chmod(0o700)
        run("bash", "-euxo", "pipefail", words, cwd=part.path, timeout=300, env=environment | {
            "PATH": f"{root}/usr/bin:/usr/bin:/bin", "HOME": str(part.path), "XDG_RUNTIME_DIR": str(runtime), "TMPDIR": str(part.path)})
        if os.geteuid() == 0:
            run(*dpkg, "--purge", "tidegate", env=environment)
            left = [path for path in root.rglob("*") if not path.is_dir() and not path.relative_to(root).parts[0] == "var"]
            assert not left and not (root / "usr").exists(), left


def test_scripts_tell_systemd_only_where_it_runs(package, work):
    with work.part() as part:
        run("dpkg-deb", "--control", package, part / "control")
        part.folder("bin"), part.file("bin/systemctl", SYSTEMCTL, 0o755)
        told = part / "told"

        def script(name, word, within=(), **more):
            told.write_text("")
            run(*within, part / "control" / name, word, env={"PATH": f"{part.path}/bin:/usr/bin:/bin", "TOLD": str(told)} | more)
            return told.read_text()

        # In the folder of another system nobody is told.
        for name, word in (("postinst", "configure"), ("prerm", "remove"), ("postrm", "remove")):
            assert script(name, word, DPKG_ROOT="/somewhere") == "", name
        if os.geteuid() != 0:
            pytest.skip("only root makes a /run in which systemd seems to run")
        within = ("unshare", "--mount", "sh", "-c", 'mount -t tmpfs none /run && mkdir -p /run/systemd/system && exec "$0" "$@"')
        assert script("postinst", "configure", within) == "daemon-reload\n"
        assert script("prerm", "remove", within) == \
            "disable --now tidegate-mount.service tidegate-metrics.service tidegate-forwarder.service\n"
        assert script("postrm", "remove", within) == "daemon-reload\n"
        # An upgrade ends nothing.
        assert script("prerm", "upgrade", within) == ""

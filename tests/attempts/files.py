"""Attempts on data, attributes and names of another user's files, by their handles."""
import os
import stat
import struct

from .scene import attempt

S_IFIFO, S_IFCHR, S_IFBLK = 0o010000, 0o020000, 0o060000
PUNCH, COLLAPSE, ZERO = 3, 8, 16


def handles(control="victim"):
    return attempt("handles", control)


def data(control="victim"):
    return attempt("data", control)


def names(control="victim"):
    return attempt("names", control)


# A handle can be guessed; it must be of no use to who cannot reach the file.

@handles()
def read_a_file_of_mode_0600(p, s):
    p.read(s.h["secret"])


@handles()
def open_and_read_a_file_of_mode_0600(p, s):
    p.open(s.h["secret"])
    p.read(s.h["secret"])


@handles()
def read_below_a_private_directory(p, s):
    p.read(s.h["dir/inner"])


@handles()
def open_below_a_private_directory(p, s):
    p.open(s.h["dir/inner"])


@handles()
def open_for_nothing_below_a_private_directory(p, s):
    p.open(s.h["dir/inner"], read=False, write=False)


@handles()
def attributes_below_a_private_directory(p, s):
    p.attr(s.h["dir/inner"])


@handles()
def set_nothing_below_a_private_directory(p, s):
    p.setattr(s.h["dir/inner"])


@handles()
def extended_attribute_below_a_private_directory(p, s):
    p.xattr(s.h["dir/inner"], "user.token")


@handles()
def extended_attribute_of_a_file_of_mode_0600(p, s):
    p.xattr(s.h["secret"], "user.token")


@handles()
def names_of_extended_attributes_below_a_private_directory(p, s):
    return b"user.token" in p.xattrs(s.h["dir/inner"])


@handles()
def readlink_below_a_private_directory(p, s):
    p.readlink(s.h["dir/link"])


@handles()
def list_a_private_directory(p, s):
    p.listing(s.h["dir"], plus=0)


@handles()
def list_a_private_directory_with_attributes(p, s):
    p.listing(s.h["dir"])


@handles()
def look_up_in_a_private_directory(p, s):
    p.lookup(s.h["dir"], "inner")


@handles()
def resolve_a_path_through_a_private_directory(p, s):
    p.resolve(s.h["dir/inner"], f"{s.name}/victim/dir/inner")


@handles()
def resolve_a_handle_below_a_private_directory(p, s):
    p.resolve(s.h["dir/inner"])


@handles()
def access_below_a_private_directory(p, s):
    return bool(p.access(s.h["dir/inner"], 4))


@handles()
def sync_below_a_private_directory(p, s):
    return bool(p.fsync(s.h["dir/inner"]))


@handles()
def seek_below_a_private_directory(p, s):
    return bool(p.seek(s.h["dir/inner"]))


@handles()
def copy_out_of_a_private_directory(p, s):
    s.path.joinpath("own/file").chmod(0o666)
    p.copy(s.h["dir/inner"], s.h["own/file"])


@handles()
def copy_out_of_a_file_of_mode_0600(p, s):
    s.path.joinpath("own/file").chmod(0o666)
    p.copy(s.h["secret"], s.h["own/file"])


@handles("root")
def link_out_of_a_private_directory(p, s):
    p.link(s.h["dir/inner"], s.h["own"], "mine")


@handles("root")
def rename_out_of_a_private_directory(p, s):
    p.rename(s.h["dir"], "inner", s.h["own"], "mine")


@handles("root")
def link_a_program_with_set_id_bits(p, s):
    # As fs.protected_hardlinks has it, or else so that the attempt has an end.
    if open("/proc/sys/fs/protected_hardlinks").read().strip() != "0":
        p.link(s.h["suid"], s.h["own"], "mine")


@handles()
def wrong_births_near_a_handle(p, s):
    inode, birth = s.h["dir/inner"][:8], int.from_bytes(s.h["dir/inner"][8:], "little")
    for by in (0, *range(-20, 21)):
        s.quietly(p.attr, inode + (birth + by).to_bytes(8, "little"))


@handles()
def a_right_that_was_closed(p, s):
    # Open to all, read, closed, and only then private.
    path = s.path / "victim/shared"
    p.open(s.h["shared"])
    p.read(s.h["shared"])
    p.close_file(s.h["shared"])
    path.write_bytes(s.token("content of a file that was closed"))
    s.world.root.setattr(s.h["shared"], mode=0o600)
    s.settle()
    p.read(s.h["shared"])


@handles()
def a_right_that_access_gave_before_the_mode_changed(p, s):
    path = s.path / "victim/shared"
    p.read(s.h["shared"])
    path.write_bytes(s.token("content of a file that became private"))
    s.world.root.setattr(s.h["shared"], mode=0o600)
    s.settle()
    p.read(s.h["shared"])


@handles()
def an_open_for_reading_only_writes(p, s):
    p.open(s.h["shared"])
    p.write(s.h["shared"])


@handles()
def an_open_of_another_file_writes(p, s):
    s.quietly(p.open, s.h["own/file"], write=True)
    p.write(s.h["shared"])


@handles()
def a_refused_open_writes(p, s):
    s.quietly(p.open, s.h["shared"], write=True)
    p.write(s.h["shared"])


# Files that all may read, and only the victim may change.

@data()
def write(p, s):
    p.write(s.h["shared"])


@data()
def open_for_writing(p, s):
    return bool(p.open(s.h["shared"], read=False, write=True))


@data()
def write_behind_the_end(p, s):
    p.write(s.h["shared"], 1 << 20)


@data()
def append(p, s):
    p.append(s.h["shared"])


@data()
def truncate(p, s):
    p.setattr(s.h["shared"], size=0)


@data()
def truncate_to_the_same_length(p, s):
    p.setattr(s.h["shared"], size=17)


@data()
def lengthen(p, s):
    p.setattr(s.h["shared"], size=1 << 20)


@data()
def allocate(p, s):
    p.allocate(s.h["shared"])


@data()
def punch_a_hole(p, s):
    p.allocate(s.h["shared"], PUNCH, 0, 4096)


@data()
def zero_a_range(p, s):
    p.allocate(s.h["shared"], ZERO, 0, 4096)


@data()
def copy_into(p, s):
    p.copy(s.h["own/file"], s.h["shared"])


@data()
def copy_with_an_open_of_both_for_reading(p, s):
    p.open(s.h["open"], number=1)
    p.open(s.h["shared"], number=2)
    p.copy(s.h["open"], s.h["shared"])


@data()
def write_below_a_private_directory(p, s):
    p.write(s.h["dir/inner"])


@data()
def append_below_a_private_directory(p, s):
    p.append(s.h["dir/inner"])


@data()
def write_two_extents_of_which_one_is_empty_space(p, s):
    p.call(81, s.h["shared"] + struct.pack("<HQQQQ", 2, 0, 4, 100, 4), b"01234567")


# Attributes.

@data()
def change_the_mode(p, s):
    p.setattr(s.h["shared"], mode=0o666)


@data()
def change_the_mode_to_the_same(p, s):
    p.setattr(s.h["shared"], mode=0o644)


@data("root")
def take_the_file(p, s):
    p.setattr(s.h["shared"], uid=s.uid)


@data("root")
def take_the_group(p, s):
    p.setattr(s.h["shared"], gid=s.uid)


@data()
def change_the_mode_of_a_private_directory(p, s):
    p.setattr(s.h["dir"], mode=0o755)


@data()
def set_a_time(p, s):
    p.setattr(s.h["shared"], mtime=1)


@data()
def set_the_time_to_now(p, s):
    p.call(33, s.h["shared"] + bytes([0b10100000]))


@data()
def set_mode_and_length_in_one(p, s):
    p.setattr(s.h["shared"], mode=0o666, size=0)


@data()
def set_an_extended_attribute(p, s):
    p.set_xattr(s.h["shared"], "user.mark", b"1")


@data()
def replace_an_extended_attribute(p, s):
    p.set_xattr(s.h["shared"], "user.token", b"1")


@data()
def remove_an_extended_attribute(p, s):
    p.remove_xattr(s.h["shared"], "user.token")


@data("root")
def give_a_file_capabilities(p, s):
    p.set_xattr(s.h["own/file"], "security.capability", bytes.fromhex("0000000201000000000000000000000000000000"))


@data("root")
def set_a_trusted_attribute(p, s):
    p.set_xattr(s.h["own/file"], "trusted.mark", b"1")


@data()
def set_an_access_list(p, s):
    nobody = 2**32 - 1
    entries = (1, 6, nobody), (2, 6, s.uid), (4, 4, nobody), (16, 6, nobody), (32, 4, nobody)
    value = b"\2\0\0\0" + b"".join(struct.pack("<HHI", *entry) for entry in entries)
    p.set_xattr(s.h["shared"], "system.posix_acl_access", value)


# Names in directories of the victim's.

@names()
def create(p, s):
    p.make(s.h["victim"], "planted")


@names()
def create_exclusively(p, s):
    p.make(s.h["victim"], "planted", exclusive=1)


@names()
def make_a_directory(p, s):
    p.mkdir(s.h["victim"], "planted")


@names()
def make_a_pipe(p, s):
    p.mknod(s.h["victim"], "planted", S_IFIFO | 0o644)


@names()
def make_a_file_by_mknod(p, s):
    p.mknod(s.h["victim"], "planted", 0o100644)


@names()
def make_a_symbolic_link(p, s):
    p.symlink(s.h["victim"], "planted", "/etc/passwd")


@names("root")
def make_another_name_of_the_own_file(p, s):
    p.link(s.h["own/file"], s.h["victim"], "planted")


@names()
def unlink(p, s):
    p.unlink(s.h["victim"], "shared")


@names()
def unlink_below_a_private_directory(p, s):
    p.unlink(s.h["dir"], "inner")


@names()
def create_below_a_private_directory(p, s):
    p.make(s.h["dir"], "planted")


@names()
def remove_a_directory(p, s):
    p.rmdir(s.h["victim"], "empty")


@names()
def rename_within(p, s):
    p.rename(s.h["victim"], "shared", s.h["victim"], "moved")


@names("root")
def rename_out(p, s):
    p.rename(s.h["victim"], "shared", s.h["own"], "mine")


@names("root")
def rename_over(p, s):
    p.rename(s.h["own"], "file", s.h["victim"], "shared")


@names("root")
def rename_in(p, s):
    p.rename(s.h["own"], "file", s.h["victim"], "planted", 1)


@names("root")
def exchange(p, s):
    p.rename(s.h["own"], "file", s.h["victim"], "shared", 2)


@names()
def rename_a_private_directory(p, s):
    p.rename(s.h["victim"], "dir", s.h["victim"], "moved")


@names()
def unlink_in_a_sticky_directory(p, s):
    p.unlink(s.h["sticky"], "kept")


@names()
def rename_in_a_sticky_directory(p, s):
    p.rename(s.h["sticky"], "kept", s.h["sticky"], "moved")


@names()
def rename_over_in_a_sticky_directory(p, s):
    p.make(s.h["sticky"], "mine")
    s.settle()
    p.rename(s.h["sticky"], "mine", s.h["sticky"], "kept")


@names()
def exchange_in_a_sticky_directory(p, s):
    p.make(s.h["sticky"], "mine")
    s.settle()
    p.rename(s.h["sticky"], "mine", s.h["sticky"], "kept", 2)


@names("root")
def move_a_scene_at_the_root(p, s):
    p.rename(p.root, s.name, p.root, s.name + "-moved")
    os.rename(s.world.data / (s.name + "-moved"), s.path)
    return "the scene was moved"


# What nobody but root may make, and what a program with set-id bits must not become.

def special(control="root"):
    return attempt("devices and set-id", control)


@special()
def make_a_block_device(p, s):
    p.mknod(s.h["own"], "device", S_IFBLK | 0o666, os.makedev(8, 0))


@special()
def make_a_character_device(p, s):
    p.mknod(s.h["own"], "device", S_IFCHR | 0o666, os.makedev(1, 3))


@special()
def make_a_device_as_a_caller(p, s):
    p.mknod(s.h["own"], "device", S_IFCHR | 0o666, os.makedev(1, 1), caller=(0, 0))


@special()
def give_a_program_to_root(p, s):
    p.setattr(s.h["own/file"], mode=0o4755)
    p.setattr(s.h["own/file"], uid=0, gid=0)


@special()
def give_a_program_to_the_victim(p, s):
    p.setattr(s.h["own/file"], mode=0o4755, uid=s.victim)


@special()
def give_a_program_to_a_foreign_group(p, s):
    p.setattr(s.h["own/file"], gid=7777)
    p.setattr(s.h["own/file"], mode=0o2755)


@special()
def make_a_program_as_root(p, s):
    p.make(s.h["own"], "program", 0o4755, caller=(0, 0))


@special()
def make_a_directory_of_a_foreign_group(p, s):
    p.mkdir(s.h["own"], "folder", 0o2777, caller=(s.uid, 7777))


def keeps_bits(s):
    assert s.before["victim/suid"][1] & stat.S_ISUID, "they were there"
    mode = os.lstat(s.path / "victim/suid").st_mode
    s.settle()
    return "the set-id bits stayed" if mode & stat.S_ISUID else None


def taken_from_all(call):
    return attempt("devices and set-id", None, why="root's own writes by the forwarder take them away, too")(call)


@taken_from_all
def write_into_a_program_with_set_id_bits(p, s):
    p.write(s.h["suid"])
    return keeps_bits(s)


@taken_from_all
def append_to_a_program_with_set_id_bits(p, s):
    p.append(s.h["suid"])
    return keeps_bits(s)


@special()
def truncate_a_program_with_set_id_bits(p, s):
    p.setattr(s.h["suid"], size=3)
    return keeps_bits(s)


@taken_from_all
def allocate_in_a_program_with_set_id_bits(p, s):
    p.allocate(s.h["suid"])
    return keeps_bits(s)


@taken_from_all
def copy_into_a_program_with_set_id_bits(p, s):
    p.copy(s.h["own/file"], s.h["suid"])
    return keeps_bits(s)

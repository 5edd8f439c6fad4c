"""Exercises shutil, tempfile, zipfile and pathlib in the working directory."""
import os, pathlib, shutil, tempfile, zipfile

fixture = os.environ["FIXTURE"] + "/"
shutil.copytree(fixture, "tree", symlinks=True)
shutil.copy2("tree/size-65537", "copy2")
shutil.copyfile("tree/size-1048575", "copyfile")
shutil.copy("tree/script", "copied-script")
shutil.copymode("tree/secret", "copyfile")
shutil.copystat("tree/read-only", "copyfile")
print(oct(os.stat("copyfile").st_mode), os.stat("copy2").st_mtime)
shutil.move("copy2", "tree/empty")
shutil.move("tree/many", "moved")
print(len(os.listdir("moved")))
try:
    shutil.copyfile("copyfile", "copyfile")
except shutil.SameFileError:
    print("SameFileError")
shutil.make_archive("archive", "zip", "moved")
with zipfile.ZipFile("archive.zip") as archive:
    print(archive.testzip(), len(archive.namelist()))
    archive.extractall("unzipped")
room = shutil.disk_usage(".")
# Some file systems do not know how large they are, and say 0.
print(room.total >= room.used, shutil.which("copied-script", path=".") is not None)
shutil.rmtree("unzipped")
os.unlink("archive.zip")

with tempfile.TemporaryDirectory(dir=".") as folder:
    with tempfile.NamedTemporaryFile(dir=folder, suffix=".x") as file:
        file.write(b"n" * 123456)
        file.flush()
        print(os.path.getsize(file.name), oct(os.stat(file.name).st_mode))
    print(os.listdir(folder))
print([name for name in os.listdir(".") if name.startswith("tmp")])
with tempfile.TemporaryFile(dir=".") as file:
    file.write(b"t" * 300000)
    file.seek(100)
    print(len(file.read()))
with tempfile.SpooledTemporaryFile(max_size=1000, dir=".") as file:
    file.write(b"s" * 5000)
    file.seek(0)
    print(len(file.read()))
handle, name = tempfile.mkstemp(dir=".")
os.close(handle)
os.unlink(name)

path = pathlib.Path("p")
(path / "q" / "r").mkdir(parents=True)
(path / "q" / "file").write_text("text\n" * 100)
(path / "q" / "file").rename(path / "other")
(path / "link").symlink_to("other")
print(sorted(str(found) for found in path.rglob("*")), (path / "link").read_text().count("\n"))
(path / "other").touch()
(path / "q" / "r").rmdir()
print((path / "link").resolve().name, (path / "other").stat().st_size, path.owner() != "")

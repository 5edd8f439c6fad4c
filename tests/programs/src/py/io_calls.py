"""Exercises io: buffered, raw, text and read-write files, odd seeks, and an imported module."""
import io, os, random, subprocess, sys

source = random.Random(7)
model = bytearray()
with open("random-access", "w+b", buffering=3000) as file:
    for step in range(400):
        offset, data = source.randrange(300000), source.randbytes(source.randrange(1, 9000))
        file.seek(offset)
        file.write(data)
        if len(model) < offset + len(data):
            model.extend(bytes(offset + len(data) - len(model)))
        model[offset:offset + len(data)] = data
        if step % 7 == 0:
            where = source.randrange(len(model))
            file.seek(where)
            assert file.read(777) == model[where:where + 777], step
        if step % 50 == 49:
            size = source.randrange(200000, 300000)
            file.truncate(size)
            model = model[:size] + bytes(max(0, size - len(model)))
assert open("random-access", "rb").read() == model
print(len(model))

with open("text", "w", encoding="utf-8", newline="\r\n") as file:
    for number in range(2000):
        print(number, "Zeile \u00e4\u65e5", file=file)
with open("text", encoding="utf-8") as file:
    file.readline()
    cookie = file.tell()
    line = file.readline()
    file.seek(cookie)
    assert file.readline() == line
    print(line.strip(), sum(1 for _ in file))

with open("raw", "wb", buffering=0) as file:
    print(file.write(b"a" * 100001), file.tell(), file.seekable())
with open("raw", "r+b") as file:
    file.seek(-1, io.SEEK_END)
    file.write(b"zz")
    file.seek(0, io.SEEK_END)
    print(file.tell())
with open("raw", "ab") as file:
    file.seek(0)
    file.write(b"end")
print(os.path.getsize("raw"), open("raw", "rb").read()[-6:])
try:
    open("raw", "xb")
except FileExistsError as error:
    print("FileExistsError", error.filename)
with open("raw", "rb") as first, open("raw", "r+b", buffering=0) as second:
    second.write(b"Q")
    print(first.read(2))

os.mkdir("package")
with open("package/__init__.py", "w") as file:
    file.write("VALUE = 42\n")
os.utime("package/__init__.py", (1000000000, 1000000000))
subprocess.run([sys.executable, "-c", "import package; print(package.VALUE)"], check=True)
cached = os.listdir("package/__pycache__")
print(len(cached), open("package/__pycache__/" + cached[0], "rb").read()[8:12].hex())
os.unlink("package/__pycache__/" + cached[0])  # it holds the absolute path of the folder

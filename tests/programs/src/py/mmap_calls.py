"""Exercises mmap: private and shared maps, between processes, mixed with read, write and truncate."""
import mmap, os

SIZE = 3 * 65536 + 1000
with open("mapped", "w+b") as file:
    file.write(bytes(range(256)) * (SIZE // 256 + 1))
    file.truncate(SIZE)
    file.flush()
    shared = mmap.mmap(file.fileno(), SIZE)
    shared[100:105] = b"hello"
    shared.seek(65530)
    shared.write(b"over a page border")
    shared.flush()
    print(os.pread(file.fileno(), 5, 100), os.pread(file.fileno(), 18, 65530))
    os.pwrite(file.fileno(), b"by write", 131072)
    print(shared[131072:131080], shared.find(b"border"), shared.rfind(b"hello"))
    child = os.fork()
    if child == 0:
        shared[0:6] = b"child!"
        os._exit(0 if shared[100:105] == b"hello" else 3)
    print("child", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    print(shared[0:6])
    private = mmap.mmap(file.fileno(), SIZE, flags=mmap.MAP_PRIVATE)
    private[200:207] = b"private"
    print(private[200:207], os.pread(file.fileno(), 3, 200))
    private.close()
    shared.move(1000, 100, 5)
    shared.flush()
    shared.close()

with open("mapped", "rb") as file:
    data = file.read()
    readable = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    print(readable[:] == data, len(readable), readable[SIZE - 1])
    try:
        readable[0] = 1
    except TypeError:
        print("read-only map")
    readable.close()

with open("mapped", "r+b") as first, open("mapped", "r+b") as second:
    one, two = mmap.mmap(first.fileno(), 0), mmap.mmap(second.fileno(), 0)
    one[5000:5003] = b"one"
    print(two[5000:5003])
    two[5000:5003] = b"two"
    print(one[5000:5003])
    one.close()
    two.close()

with open("by-map", "w+b") as file:
    os.ftruncate(file.fileno(), 2 << 20)
    whole = mmap.mmap(file.fileno(), 2 << 20)
    for offset in range(0, 2 << 20, 4096 * 3):
        whole[offset:offset + 8] = offset.to_bytes(8, "little")
    whole.close()
print(os.path.getsize("by-map"))

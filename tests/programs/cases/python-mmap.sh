# python3: mmap private and shared, also between processes, and mixed with read and write.
exec python3 "$SRC/py/mmap_calls.py"

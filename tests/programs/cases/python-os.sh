# python3: the os module on files, folders, links, times, descriptors, vectors and errors.
exec python3 "$SRC/py/os_calls.py"

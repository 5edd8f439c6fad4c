# flock, fcntl byte-range locks and open-file-description locks between processes.
exec python3 "$SRC/py/locks.py"

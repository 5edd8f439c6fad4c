# python3: shutil and tempfile in the working directory, archives and pathlib.
exec python3 "$SRC/py/shutil_calls.py"

# python3: buffered, text, raw and random-access files; an imported module and its compiled copy.
exec python3 "$SRC/py/io_calls.py"

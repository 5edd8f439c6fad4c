# copy_file_range, sendfile and splice between files, within one file and at odd offsets.
exec python3 "$SRC/py/copy_range.py"

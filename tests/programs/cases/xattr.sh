# Extended attributes of the user: set, create, replace, list, large values, removal, errors.
exec python3 "$SRC/py/xattr.py"

# The value of an extended attribute differs.
touch file
python3 -c 'import os; os.setxattr("file", "user.a", b"2" if "/second/" in os.getcwd() else b"1")'

# A folder that is removed while it is a working directory is empty, and takes no file.
mkdir folder; cd folder; rmdir ../folder; touch file 2>&1 || echo "no file in a removed folder"
ls -a 2>&1 || true
cd "$OLDPWD"; ls -A

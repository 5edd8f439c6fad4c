# A time that was set on purpose differs by a second.
touch -d '2001-01-01 00:00:00' file
if [[ $PWD == */second/* ]]; then touch -d '2001-01-01 00:00:01' file; fi

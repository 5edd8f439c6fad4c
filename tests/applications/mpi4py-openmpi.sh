# The tests of MPI-IO that mpi4py has, with Open MPI, both as the distribution has them.
. "$REPO/tests/applications/mpi/start"
tests_of mpi4py-tests
has mpirun.openmpi openmpi-bin
/usr/bin/python3 -c 'import mpi4py' 2> /dev/null || skip "mpi4py is missing: install python3-mpi4py"
TMPDIR=$PWD mpirun.openmpi -n 2 /usr/bin/python3 "$REPO/tests/applications/mpi/mpi4py_tests.py" "$theirs/test"

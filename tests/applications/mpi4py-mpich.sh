# The tests of MPI-IO that mpi4py has, with its wheel from PyPI and the distribution's MPICH.
. "$REPO/tests/applications/mpi/start"
tests_of mpi4py-tests
has mpirun.mpich mpich
library=$(ldconfig -p | sed -n 's/.*libmpich[.]so[.]12 .* => //p' | head -n 1)
# All of MPICH's ABI have this name too; Debian's has its own alone.
ln -s "$library" "$SCRATCH/libmpi.so.12"
export LD_LIBRARY_PATH=$SCRATCH MPI4PY_MPIABI=mpich MPI4PY_LIBMPI=$library
TMPDIR=$PWD mpirun.mpich -n 2 "$theirs/bin/python" "$REPO/tests/applications/mpi/mpi4py_tests.py" "$theirs/test"

# HDF5's tests of parallel I/O, with MPICH.
family=mpich
. "$REPO/tests/applications/mpi/hdf5"

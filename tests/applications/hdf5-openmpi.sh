# HDF5's tests of parallel I/O, with Open MPI's ROMIO.
family=openmpi
export OMPI_MCA_io=romio321
. "$REPO/tests/applications/mpi/hdf5"

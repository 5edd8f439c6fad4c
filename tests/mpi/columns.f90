! Collective I/O of a Fortran program: MPICH's bindings call MPI_ names, Open MPI's PMPI_ names.
program columns
  use mpi
  implicit none
  integer, parameter :: rows = 16, width = 256
  integer :: rank, ranks, ierr, file, view, bytes
  integer(kind=MPI_OFFSET_KIND) :: at
  integer :: values(rows * width), back(rows * width)
  character(len=1024) :: path
  call MPI_Init(ierr)
  call MPI_Comm_rank(MPI_COMM_WORLD, rank, ierr)
  call MPI_Comm_size(MPI_COMM_WORLD, ranks, ierr)
  call get_command_argument(1, path)
  call MPI_Type_size(MPI_INTEGER, bytes, ierr)
  call MPI_Type_vector(rows, width, width * ranks, MPI_INTEGER, view, ierr)
  call MPI_Type_commit(view, ierr)
  call MPI_File_open(MPI_COMM_WORLD, trim(path), MPI_MODE_CREATE + MPI_MODE_RDWR, &
                     MPI_INFO_NULL, file, ierr)
  if (ierr /= MPI_SUCCESS) call MPI_Abort(MPI_COMM_WORLD, 3, ierr)
  at = int(rank, MPI_OFFSET_KIND) * width * bytes
  call MPI_File_set_view(file, at, MPI_INTEGER, view, 'native', MPI_INFO_NULL, ierr)
  values = rank + 7
  back = 0
  at = 0
  call MPI_File_write_all(file, values, rows * width, MPI_INTEGER, MPI_STATUS_IGNORE, ierr)
  call MPI_File_read_at_all(file, at, back, rows * width, MPI_INTEGER, MPI_STATUS_IGNORE, ierr)
  if (any(back /= values)) call MPI_Abort(MPI_COMM_WORLD, 4, ierr)
  call MPI_File_close(file, ierr)
  call MPI_Finalize(ierr)
  if (rank == 0) print '(a)', 'all right'
end program columns

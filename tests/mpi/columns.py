"""Collective I/O of a Python program: its modules load MPI privately.

usage: columns.py FILE
"""

import sys
from mpi4py import MPI

ROWS, WIDTH = 16, 1024
comm = MPI.COMM_WORLD
rank, ranks = comm.Get_rank(), comm.Get_size()
file = MPI.File.Open(comm, sys.argv[1], MPI.MODE_CREATE | MPI.MODE_RDWR)
view = MPI.BYTE.Create_vector(ROWS, WIDTH, WIDTH * ranks)
view.Commit()
file.Set_view(rank * WIDTH, MPI.BYTE, view)
out = bytearray([65 + rank]) * (ROWS * WIDTH)
back = bytearray(ROWS * WIDTH)
file.Write_at_all(0, out)
file.Read_at_all(0, back)
file.Seek(0)
file.Iwrite_all(out).Wait()
file.Close()
assert back == out, "other bytes than were written"
if rank == 0:
    print("all right")

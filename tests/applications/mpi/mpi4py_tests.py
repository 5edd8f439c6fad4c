"""Runs mpi4py's tests of files in the folder that TMPDIR names, and prints how each ends.

usage: mpi4py_tests.py FOLDER
"""
import io
import sys
import unittest

sys.path.insert(0, sys.argv[1])
sys.dont_write_bytecode = True
from mpi4py import MPI  # noqa: E402  (it reads its settings when it is loaded)

said = io.StringIO()
tests = unittest.defaultTestLoader.loadTestsFromNames(["test_file", "test_io"])
result = unittest.TextTestRunner(stream=said, verbosity=2).run(tests)
told = MPI.COMM_WORLD.gather((result.wasSuccessful(), said.getvalue()), root=0)
for rank, (right, text) in enumerate(told or []):
    print(f"rank {rank}: {'all right' if right else text}")
    print("\n".join(sorted(line for line in text.splitlines() if " ... " in line)))

"""Writes arrays by h5py and zarr into the working directory, and reads them again."""
import os

import h5py
import numpy
import zarr

LONG = os.environ.get("MODE") == "long"
SIDE = 1500 if LONG else 200
values = numpy.random.default_rng(1).normal(size=(SIDE, SIDE))

with h5py.File("one.h5", "w") as file:
    file.create_dataset("plain", data=values)
    packed = file.create_dataset("packed", shape=(0, SIDE), maxshape=(None, SIDE), chunks=(17, 31), dtype="f8", compression="gzip",
                                 shuffle=True, fletcher32=True)
    for row in range(0, SIDE, 50):
        packed.resize(row + 50, axis=0)
        packed[row:row + 50] = values[row:row + 50]
        file.flush()
    file.attrs["side"] = SIDE
    file["soft"] = h5py.SoftLink("/packed")
with h5py.File("one.h5", "r+") as file:
    assert (file["plain"][:] == values).all() and (file["soft"][3:90:7, ::5] == values[3:90:7, ::5]).all()
    file["plain"][::3] = 0
    try:
        h5py.File("one.h5", "w")
    except OSError as error:
        print("opened twice:", type(error).__name__)
with h5py.File("swmr.h5", "w", libver="latest") as writer:
    data = writer.create_dataset("data", shape=(0,), maxshape=(None,), chunks=(64,), dtype="i8")
    writer.swmr_mode = True
    with h5py.File("swmr.h5", "r", libver="latest", swmr=True) as reader:
        for turn in range(20):
            data.resize(((turn + 1) * 100,))
            data[turn * 100:] = numpy.arange(100) + turn
            data.flush()
            reader["data"].refresh()
            assert reader["data"][-1] == 99 + turn
with h5py.File("core.h5", "w", driver="core", block_size=4096) as file:
    file["in-memory"] = numpy.arange(10000)

group = zarr.open_group("group.zarr", "w")
array = group.create_dataset("array", shape=(SIDE, SIDE), chunks=(64, 64), dtype="f8",
                             synchronizer=zarr.ProcessSynchronizer("group.sync"))
pid = os.fork()
half = SIDE // 2
if not pid:
    array[:half] = values[:half]
    os._exit(0)
array[half:] = values[half:]
assert os.waitpid(pid, 0)[1] == 0
assert (zarr.open_group("group.zarr", "r")["array"][:] == values).all()
array.append(values[:10])
print("zarr", array.shape, array.nchunks_initialized, zarr.open("group.zarr", "r").tree())
# This form of the file has times in it.
os.unlink("swmr.h5")

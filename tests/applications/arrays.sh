# Arrays of h5py and zarr, as scientific programs store them: chunked, compressed, grown, read by slices.
. "$REPO/tests/applications/start"
/usr/bin/python3 -c 'import h5py, zarr' 2> /dev/null || skip "h5py or zarr is missing: install python3-h5py and python3-zarr"
/usr/bin/python3 "$REPO/tests/applications/databases/arrays_test.py"

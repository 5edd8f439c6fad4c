# The test programs of PnetCDF, with Open MPI's ROMIO: what they say and which bytes they write.
. "$REPO/tests/applications/mpi/start"
tests_of pnetcdf-tests
has mpicc.openmpi libopenmpi-dev
[ -e /usr/include/pnetcdf.h ] || skip "PnetCDF is missing: install libpnetcdf-dev"
export OMPI_MCA_io=romio321
quick="alignment_test flexible nonblocking record test_fillvalue tst_info varn_contig interleaved"
mkdir -p "$CACHE/pnetcdf"
for source in "$theirs"/test/{testcases,nonblocking}/*.c; do
  name=$(basename "$source" .c) program=$CACHE/pnetcdf/$(basename "$source" .c)
  case $MODE:" $quick " in quick:*" $name "*|long:*) ;; *) continue;; esac
  # This one measures.
  [ "$name" != mcoll_perf ] || continue
  [ -x "$program" ] || { mpicc.openmpi -w -O1 -I"$theirs/test/common" "$source" \
    "$theirs/test/common/testutils.c" -o "$program.$$" -lpnetcdf -lm -lpthread && mv "$program.$$" "$program"; }
  code=0
  timeout -k 10 60 mpirun.openmpi -n 2 "$program" "$name.nc" > "$SCRATCH/said" 2>&1 || code=$?
  echo "$name: $code"
  # Of one that fails its code only: which rank says so first is chance.
  [ $code != 0 ] || sort "$SCRATCH/said"
  # It writes memory that it has not set.
  [ "$name" != check_type ] || rm "$name.nc"
done

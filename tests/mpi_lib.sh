# What suites with MPI programs need beside tests/lib.sh: the families of MPI, and how to start ranks.

# Ranks that a test on this machine starts: on few processors those that wait take them from the others.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
export OMPI_MCA_mpi_yield_when_idle=1
# Open MPI's own MPI-IO is not what we look at; and the name of the component is another in 5.0.
export OMPI_MCA_io=romio321

# has_mpi mpich|openmpi: whether programs for it can be built and started.
has_mpi() {
  case $1 in
    mpich) command -v mpicc.mpich && command -v mpiexec.mpich;;
    openmpi) command -v mpicc.openmpi && command -v mpirun.openmpi;;
  esac > /dev/null
}
# launcher mpich|openmpi: the command that starts ranks.
launcher() { case $1 in mpich) echo mpiexec.mpich;; openmpi) echo mpirun.openmpi;; esac; }

need_mpi() {
  local family
  for family in "$@"; do
    has_mpi "$family" || skip "$family is missing: run tools/need mpi"
  done
}

# starter FAMILY WAY: fills the array START with the words that start ranks, before their number. Ways
# are `plain` and `mount` (nothing is added), `shortcut` (no shim), `shim-mount` (the shim, data through
# the mount) and `shim` (as `tidegate run` does it, but with the short-cut for every file at once).
starter() {
  local run=("$TIDEGATE" run --state-dir "$RUN")
  case $2 in
    plain|mount) START=();;
    shortcut) START=(env TIDEGATE_SHORTCUT=eager "${run[@]}" $(without_shim) --);;
    shim-mount) START=("${run[@]}" --no-shortcut --);;
    shim) START=(env TIDEGATE_SHORTCUT=eager "${run[@]}" --);;
  esac
  START+=("$(launcher "$1")")
}
without_shim() { ! has_shim || echo --no-mpi; }
has_shim() { "$TIDEGATE" run --help | grep -q -- --no-mpi; }

# choose_ways QUICK LONG: fills the array ways with those of this mode, or with what WAYS says. A build
# without the MPI shim has fewer.
choose_ways() {
  local chosen=$1 way
  [ "$MODE" = quick ] || chosen=$2
  ways=()
  for way in ${WAYS:-$chosen}; do
    case $way in shim*) has_shim || { note "left out: $way: this build has no MPI shim"; continue; };; esac
    ways+=("$way")
  done
  [ ${#ways[@]} -gt 0 ] || ways=(shortcut)
}

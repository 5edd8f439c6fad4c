// Predicts which requests ROMIO's two-phase will issue in a collective call, from public calls.
#ifndef TIDEGATE_PREDICT_H
#define TIDEGATE_PREDICT_H

#include <mpi.h>
#include <stdint.h>

struct predictor; // of one open MPI_File

// One aggregator's requests, as this rank will issue them itself inside the coming call.
struct predicted {
    int two_phase;           // 0: ROMIO will do independent I/O: nothing is predicted
    int aggregator;          // index of this rank among the aggregators, -1: it issues no requests
    int64_t first, last;     // first and last byte that it touches; last < first: none
    int64_t step;            // requests are [first + i*step, min(first + (i+1)*step, last + 1))
    int64_t bytes;           // that its requests move
    int64_t operation_bytes; // that the whole operation moves, over all ranks
    int64_t intra, inter;    // that it exchanges with ranks on its own node, and on others
    uint32_t shuffle_us;     // the shuffle's cost for the whole domain
    // The longest shuffle of the operation's aggregators, and how many have a longer one than this:
    // known without a further exchange, so not yet at the first call of a new shape, where they are
    // this aggregator's own and 0.
    uint32_t shuffle_max_us;
    uint16_t shuffle_rank;
};

// After a successful MPI_File_open, collective over comm, which is the caller's own duplicate.
// NULL where nothing can be predicted for this file: never an error for the program.
__attribute__((weak)) struct predictor *predictor_open(MPI_File file, MPI_Comm comm);

// After a successful MPI_File_set_view or MPI_File_set_info. Local.
__attribute__((weak)) void predictor_changed(struct predictor *);

// Whether this rank's view has no data, or is not understood. MPI_File_get_position must not be called then: ROMIO 3.2.1
// (in Open MPI 4.1) never returns from it. The offset is 0 for such a view.
__attribute__((weak)) int predictor_empty(const struct predictor *);

// Collective: one small exchange. `offset` in etypes of the view; count and datatype are memory's.
// `stamp_ns`: this rank's time, afterwards rank 0's. Returns 0, or -1 on all ranks: no prediction.
__attribute__((weak)) int predictor_collective(struct predictor *, MPI_Offset offset,
                                               MPI_Count count, MPI_Datatype datatype, int is_write,
                                               uint64_t *stamp_ns, struct predicted *out);

// Before MPI_File_close.
__attribute__((weak)) void predictor_close(struct predictor *);

// --- for tests: after predictor_collective ---
// Bytes that this aggregator exchanges with that rank in the call that was predicted last.
int64_t predictor_bytes_from(const struct predictor *, int rank);
// Calls with spread data whose shape was known (one exchange), and not (one or three more).
void predictor_shapes(const struct predictor *, long *hits, long *misses);

#endif

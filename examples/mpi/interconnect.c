// An emulated interconnect, for machines that are one node: loaded into a program with LD_PRELOAD,
// it holds back messages between ranks that count as different nodes, and has ranks sleep while
// they wait.
//
// TIDEGATE_MPI_NODES=2 places rank r on node r mod 2 (2:block: the first half on the first node),
// as the MPI shim does. TIDEGATE_MPI_INTER_MBPS is the speed of a node's port, in MB/s: a message
// to another node costs its bytes over that, one message after another. Without both nothing is
// held.
//
// It works for what ROMIO sends in a collective call as well, because ROMIO calls MPI by its PMPI
// names, which the linker resolves here. A rank that waits tests and sleeps: an MPI that polls
// would take a small machine's processors from forwarders and other ranks.
#include <dlfcn.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static void sleep_ns(double ns) {
    struct timespec time = {(time_t)(ns / 1e9), (long)(ns - (double)(time_t)(ns / 1e9) * 1e9)};
    while (nanosleep(&time, &time) != 0) continue;
}

// The next function of that name; a program that has none cannot go on.
static void *next(const char *name) {
    void *found = dlsym(RTLD_NEXT, name);
    if (!found) {
        fprintf(stderr, "interconnect: no %s behind this library\n", name);
        abort();
    }
    return found;
}

static int node_of(int rank, int ranks, int nodes, int by_block) {
    return by_block ? rank / ((ranks + nodes - 1) / nodes) : rank % nodes;
}

// Holds the caller for as long as its port is busy with the message.
static void carry(int count, MPI_Datatype type, int to, MPI_Comm comm) {
    const char *placed = getenv("TIDEGATE_MPI_NODES"), *speed = getenv("TIDEGATE_MPI_INTER_MBPS");
    double mbps = speed ? atof(speed) : 0;
    int nodes = placed ? atoi(placed) : 0, rank, ranks, bytes = 0, by_block;
    if (nodes < 2 || mbps <= 0 || to < 0) return;
    by_block = strstr(placed, ":block") != NULL;
    MPI_Comm_rank(comm, &rank);
    MPI_Comm_size(comm, &ranks);
    if (to >= ranks || node_of(rank, ranks, nodes, by_block) == node_of(to, ranks, nodes, by_block))
        return;
    MPI_Type_size(type, &bytes);
    sleep_ns((double)bytes * count * 1e3 / mbps);
}

static int rest(MPI_Request *request, MPI_Status *status) {
    int done = 0, code;
    while ((code = PMPI_Test(request, &done, status)) == MPI_SUCCESS && !done) sleep_ns(30000);
    return code;
}

static int rest_all(int count, MPI_Request requests[], MPI_Status statuses[]) {
    int done = 0, code;
    while ((code = PMPI_Testall(count, requests, &done, statuses)) == MPI_SUCCESS && !done)
        sleep_ns(30000);
    return code;
}

// A blocking call is its nonblocking form, and a rest.
#define RESTED(call)                                                                               \
    MPI_Request request;                                                                           \
    int code = call;                                                                               \
    return code == MPI_SUCCESS ? rest(&request, MPI_STATUS_IGNORE) : code

// Both names of a function: programs call the one, ROMIO and some Fortran bindings the other.
#define BOTH(NAME, PARAMETERS, BODY) int MPI_##NAME PARAMETERS BODY int PMPI_##NAME PARAMETERS BODY

typedef int sending(const void *, int, MPI_Datatype, int, int, MPI_Comm);
typedef int starting(const void *, int, MPI_Datatype, int, int, MPI_Comm, MPI_Request *);

BOTH(Send, (const void *data, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm), {
    sending *send = (sending *)next("PMPI_Send");
    carry(count, type, to, comm);
    return send(data, count, type, to, tag, comm);
})

BOTH(Isend,
     (const void *data, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm,
      MPI_Request *request),
     {
         starting *start = (starting *)next("PMPI_Isend");
         carry(count, type, to, comm);
         return start(data, count, type, to, tag, comm, request);
     })

BOTH(Recv,
     (void *data, int count, MPI_Datatype type, int from, int tag, MPI_Comm comm,
      MPI_Status *status),
     {
         MPI_Request request;
         int code = PMPI_Irecv(data, count, type, from, tag, comm, &request);
         return code == MPI_SUCCESS ? rest(&request, status) : code;
     })

BOTH(Wait, (MPI_Request * request, MPI_Status *status), { return rest(request, status); })

BOTH(Waitall, (int count, MPI_Request requests[], MPI_Status statuses[]),
     { return rest_all(count, requests, statuses); })

BOTH(Barrier, (MPI_Comm comm), { RESTED(PMPI_Ibarrier(comm, &request)); })

BOTH(Bcast, (void *data, int count, MPI_Datatype type, int root, MPI_Comm comm),
     { RESTED(PMPI_Ibcast(data, count, type, root, comm, &request)); })

BOTH(Allreduce,
     (const void *data, void *result, int count, MPI_Datatype type, MPI_Op op, MPI_Comm comm),
     { RESTED(PMPI_Iallreduce(data, result, count, type, op, comm, &request)); })

BOTH(Allgather,
     (const void *data, int count, MPI_Datatype type, void *result, int counts, MPI_Datatype types,
      MPI_Comm comm),
     { RESTED(PMPI_Iallgather(data, count, type, result, counts, types, comm, &request)); })

BOTH(Alltoall,
     (const void *data, int count, MPI_Datatype type, void *result, int counts, MPI_Datatype types,
      MPI_Comm comm),
     { RESTED(PMPI_Ialltoall(data, count, type, result, counts, types, comm, &request)); })

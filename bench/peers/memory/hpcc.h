// What STREAM needs of HPCC and MPI as a separate program (stream_main.c): one rank, no messages. The peers' sources
// are not part of this project: `make bench-peers` fetches them.
#ifndef FARM_PEERS_HPCC_H
#define FARM_PEERS_HPCC_H

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct {
    const char *outFname;
    int StreamVectorSize, StreamThreads;
} HPCC_Params;

typedef int MPI_Comm;
enum { MPI_DOUBLE = sizeof(double), MPI_MIN = 0 };

static inline double MPI_Wtime(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}
static inline void MPI_Comm_size(MPI_Comm comm, int *size) {
    *size = 1;
}
static inline void MPI_Comm_rank(MPI_Comm comm, int *rank) {
    *rank = 0;
}
static inline void MPI_Barrier(MPI_Comm comm) {}
static inline void MPI_Abort(MPI_Comm comm, int status) {
    exit(status);
}
static inline void MPI_Allreduce(const void *from, void *to, int count, int bytes, int op, MPI_Comm comm) {
    memcpy(to, from, (size_t)count * (size_t)bytes);
}
static inline void MPI_Gather(const void *from, int count, int bytes, void *to, int to_count, int to_bytes, int root,
                              MPI_Comm comm) {
    memcpy(to, from, (size_t)count * (size_t)bytes);
}

#define HPCC_XMALLOC(type, count) ((type *)aligned_alloc(64, ((size_t)(count) * sizeof(type) + 63) / 64 * 64))
#define HPCC_free                 free
#define Mmin(a, b)                ((a) < (b) ? (a) : (b))
#define Mmax(a, b)                ((a) > (b) ? (a) : (b))

// Defined in stream_main.c: doubles in each array.
int HPCC_LocalVectorSize(HPCC_Params *params, int arrays, size_t size, int power_of_two);

int HPCC_Stream(HPCC_Params *params, int doIO, MPI_Comm comm, int world_rank, double *copyGBs, double *scaleGBs,
                double *addGBs, double *triadGBs, int *failure);

#endif

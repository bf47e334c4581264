// The emulator of NCCL's functions that src/learner/cuda/reduce.c calls. In its stream each device copies its numbers
// into host memory, waits for the copies of the others, and sums in the order of the devices. If a device is lost, the
// others wait until an abort. See vendor_emulator.h.
#include <stdlib.h>
#include <string.h>

#include "emulator.h"
#include "vendor_emulator.h"

struct clique;

struct ncclComm {
    struct clique *clique;
    int rank, device;
    cudaEvent_t copied;
    cudaStream_t stream; // the newest sum's
};

struct clique {
    struct ncclComm *comms;
    struct sum *sums; // unfinished sums
    int count, open;  // open: comms that exist
};

// One sum. Freed by the last device that has summed, or with the clique if a device is lost.
struct sum {
    struct sum *next;
    struct clique *clique;
    int count, open; // open: devices that have not summed yet
    size_t numbers;
    float *copies[FARM_EMULATOR_DEVICES_MAX];
};

struct part {
    struct sum *sum;
    int rank;
    float *vector;
};

static struct {
    bool open;
    int count;
    struct {
        struct ncclComm *comm;
        float *vector;
        size_t numbers;
        cudaStream_t stream;
    } calls[FARM_EMULATOR_DEVICES_MAX];
} group; // NCCL has one per thread; only the training thread uses it here

static ncclResult_t get_version(int *out) {
    *out = 22803;
    return ncclSuccess;
}

static const char *error_name(ncclResult_t result) {
    return result == ncclUnhandledCudaError ? "unhandled cuda error" : "error of the emulator";
}

static void free_sum(struct sum *sum) {
    struct sum **at = &sum->clique->sums;
    while (*at != sum) at = &(*at)->next;
    *at = sum->next;
    for (int k = 0; k < sum->count; k++) free(sum->copies[k]);
    free(sum);
}

static ncclResult_t destroy_comm(ncclComm_t comm) {
    struct clique *clique = comm->clique;
    (void)cudaSetDevice(comm->device);
    (void)cudaEventDestroy(comm->copied);
    if (--clique->open) return ncclSuccess;
    while (clique->sums) free_sum(clique->sums);
    free(clique->comms);
    free(clique);
    return ncclSuccess;
}

static ncclResult_t abort_comm(ncclComm_t comm) {
    struct clique *clique = comm->clique;
    for (int k = 0; k < clique->count; k++) { // first, because another stream may hold the events
        if (clique->comms[k].stream) farm_emulator_give_up(clique->comms[k].stream);
        clique->comms[k].stream = NULL;
    }
    return destroy_comm(comm);
}

static ncclResult_t init_all(ncclComm_t *out, int count, const int *devices) {
    if (count < 1 || count > FARM_EMULATOR_DEVICES_MAX) return ncclSystemError;
    for (int i = 0; i < count; i++)
        for (int k = 0; k < i; k++)
            if (devices[k] == devices[i]) return ncclSystemError; // "Duplicate GPU detected"
    struct clique *clique = calloc(1, sizeof *clique);
    clique->comms = calloc((size_t)count, sizeof *clique->comms);
    clique->count = clique->open = count;
    for (int i = 0; i < count; i++) {
        struct ncclComm *comm = out[i] = &clique->comms[i];
        *comm = (struct ncclComm){.clique = clique, .rank = i, .device = devices[i]};
        (void)cudaSetDevice(devices[i]);
        if (cudaEventCreateWithFlags(&comm->copied, cudaEventDisableTiming)) return ncclUnhandledCudaError;
    }
    return ncclSuccess;
}

static ncclResult_t async_error(ncclComm_t comm, ncclResult_t *error) {
    (void)comm;
    *error = ncclSuccess;
    return ncclSuccess;
}

static ncclResult_t group_start(void) {
    group.open = true;
    group.count = 0;
    return ncclSuccess;
}

static ncclResult_t all_reduce(const void *from, void *to, size_t count, ncclDataType_t type, ncclRedOp_t op,
                               ncclComm_t comm, cudaStream_t stream) {
    if (!group.open || from != to || type != ncclFloat32 || op != ncclSum) return ncclSystemError;
    group.calls[group.count].comm = comm;
    group.calls[group.count].vector = to;
    group.calls[group.count].numbers = count;
    group.calls[group.count++].stream = stream;
    return ncclSuccess;
}

static void copy_in(const void *arguments) {
    const struct part *part = arguments;
    const size_t bytes = part->sum->numbers * sizeof(float);
    farm_emulator_need(part->vector, bytes, false, "a sum's operand");
    memcpy(part->sum->copies[part->rank], part->vector, bytes);
}

static void add_up(const void *arguments) {
    const struct part *part = arguments;
    struct sum *sum = part->sum;
    farm_emulator_need(part->vector, sum->numbers * sizeof(float), true, "a sum's result");
    for (size_t i = 0; i < sum->numbers; i++) {
        float total = 0;
        for (int k = 0; k < sum->count; k++) total += sum->copies[k][i];
        part->vector[i] = total;
    }
    if (--sum->open == 0) free_sum(sum);
}

static bool is_complete_group(void) {
    for (int i = 0; i < group.count; i++)
        if (group.calls[i].comm->clique->count != group.count || group.calls[i].comm->rank != i ||
            group.calls[i].numbers != group.calls[0].numbers)
            return false;
    return group.count > 0;
}

static ncclResult_t enqueue_part(int i, bool adding, struct sum *sum) {
    const struct part part = {.sum = sum, .rank = i, .vector = group.calls[i].vector};
    cudaStream_t stream = group.calls[i].stream;
    struct ncclComm *comm = group.calls[i].comm;
    if (cudaSetDevice(comm->device)) return ncclUnhandledCudaError;
    comm->stream = stream;
    if (!adding) {
        if (farm_emulator_launch(stream, "ncclAllReduce", copy_in, &part, sizeof part)) return ncclUnhandledCudaError;
        return cudaEventRecord(comm->copied, stream) ? ncclUnhandledCudaError : ncclSuccess;
    }
    for (int k = 0; k < group.count; k++)
        if (cudaStreamWaitEvent(stream, group.calls[k].comm->copied, 0)) return ncclUnhandledCudaError;
    return farm_emulator_launch(stream, "ncclAllReduce", add_up, &part, sizeof part) ? ncclUnhandledCudaError
                                                                                     : ncclSuccess;
}

static ncclResult_t group_end(void) {
    int before;
    group.open = false;
    if (!is_complete_group()) return ncclSystemError;
    struct sum *sum = calloc(1, sizeof *sum);
    sum->count = sum->open = group.count;
    sum->numbers = group.calls[0].numbers;
    sum->clique = group.calls[0].comm->clique;
    sum->next = sum->clique->sums;
    sum->clique->sums = sum;
    for (int k = 0; k < group.count; k++) sum->copies[k] = calloc(sum->numbers, sizeof(float));
    (void)cudaGetDevice(&before);
    ncclResult_t code = ncclSuccess;
    for (int adding = 0; adding < 2; adding++)
        for (int i = 0; i < group.count && !code; i++) code = enqueue_part(i, adding, sum);
    (void)cudaSetDevice(before);
    return code;
}

struct farm_nccl farm_emulator_nccl_table(void) {
    return (struct farm_nccl){get_version, error_name,  init_all,  destroy_comm, abort_comm,
                              async_error, group_start, group_end, all_reduce};
}

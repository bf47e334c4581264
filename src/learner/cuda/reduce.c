// See reduce.h.
#include "learner/cuda/reduce.h"

#include "base/log.h"

static enum farm_status report_failure(const struct farm_cuda_reduce *reduce, ncclResult_t code, const char *call,
                                       struct farm_error *err) {
    return farm_fail(err, FARM_E_IO,
                     "%s: %s (%d): the GPUs' gradients cannot be added up; NCCL_DEBUG=WARN prints more (if memory is "
                     "short: a smaller --mirror)",
                     call, reduce->nccl.GetErrorString(code), (int)code);
}

enum farm_status farm_cuda_reduce_open(const int *devices, uint32_t count, struct farm_cuda_reduce *out,
                                       struct farm_error *err) {
    *out = (struct farm_cuda_reduce){0};
    const enum farm_status status = farm_cuda_nccl_open(&out->nccl, err);
    if (status) return status;
    const ncclResult_t code = out->nccl.CommInitAll(out->comms, (int)count, devices);
    if (code) return report_failure(out, code, "ncclCommInitAll", err);
    out->count = count;
    int version = 0;
    (void)out->nccl.GetVersion(&version);
    farm_log_info("%u GPUs add up their gradients by NCCL %d.%d.%d", count, version / 10000, version / 100 % 100,
                  version % 100);
    return FARM_OK;
}

void farm_cuda_reduce_close(struct farm_cuda_reduce *reduce) {
    for (uint32_t k = 0; k < reduce->count; k++)
        if (reduce->comms[k]) (void)reduce->nccl.CommDestroy(reduce->comms[k]);
    reduce->count = 0;
}

enum farm_status farm_cuda_reduce_sum(struct farm_cuda_reduce *reduce, float *const *vectors, size_t count,
                                      struct CUstream_st *const *streams, struct farm_error *err) {
    const struct farm_nccl *nccl = &reduce->nccl;
    ncclResult_t code = nccl->GroupStart();
    if (code) return report_failure(reduce, code, "ncclGroupStart", err);
    for (uint32_t k = 0; k < reduce->count && !code; k++)
        code = nccl->AllReduce(vectors[k], vectors[k], count, ncclFloat32, ncclSum, reduce->comms[k], streams[k]);
    const ncclResult_t ended = nccl->GroupEnd();
    if (code) return report_failure(reduce, code, "ncclAllReduce", err);
    return ended ? report_failure(reduce, ended, "ncclGroupEnd", err) : FARM_OK;
}

enum farm_status farm_cuda_reduce_check(const struct farm_cuda_reduce *reduce, struct farm_error *err) {
    for (uint32_t k = 0; k < reduce->count; k++) {
        ncclResult_t error = ncclSuccess;
        const ncclResult_t code = reduce->nccl.CommGetAsyncError(reduce->comms[k], &error);
        if (code) return report_failure(reduce, code, "ncclCommGetAsyncError", err);
        if (error && error != ncclInProgress) return report_failure(reduce, error, "ncclAllReduce", err);
    }
    return FARM_OK;
}

void farm_cuda_reduce_abort(struct farm_cuda_reduce *reduce) {
    for (uint32_t k = 0; k < reduce->count; k++) {
        if (reduce->comms[k]) (void)reduce->nccl.CommAbort(reduce->comms[k]);
        reduce->comms[k] = NULL;
    }
    reduce->count = 0;
}

// V-trace: a thread walks one column (kernels/vtrace.h). Neighbouring threads have neighbouring columns, so that reads
// of a time step are coalesced; small blocks spread few columns over many multiprocessors.
#include "kernels/cuda/common.cuh"

enum { THREADS = 32 };

static __global__ void __launch_bounds__(THREADS)
    vtrace(const struct farm_vtrace_config config, const struct farm_vtrace_batch batch) {
    const int column = (int)(blockIdx.x * THREADS + threadIdx.x);
    if (column < batch.columns) farm_vtrace_column(&config, &batch, column);
}

enum farm_status farm_cuda_vtrace(struct CUstream_st *stream, const struct farm_vtrace_config *config,
                                  const struct farm_vtrace_batch *batch, struct farm_error *err) {
    if (batch->columns == 0) return FARM_OK;
    if (batch->steps < 1 || batch->columns < 0)
        return farm_fail(err, FARM_E_INVALID, "V-trace over %d steps of %d columns", batch->steps, batch->columns);
    const unsigned blocks = farm_cuda_blocks((size_t)batch->columns, THREADS);
    return farm_cuda_launch({"vtrace", stream, blocks, THREADS}, err, vtrace, *config, *batch);
}

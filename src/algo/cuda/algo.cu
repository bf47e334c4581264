// Algorithms on a GPU: a thread prepares one row, walks one column, computes one row's gradients and terms, by the
// inline functions of NAME.h. Neighbouring threads have neighbouring columns, so reads of a time step are coalesced;
// small blocks spread few columns over many multiprocessors. Terms are summed per block, then over blocks, in a fixed
// order without atomics.
#include "kernels/cuda/common.cuh"

extern "C" {
#include "algo/all.h"
#include "algo/cuda/algo.h"
}

enum { COLUMN_THREADS = 32, ROW_THREADS = 128, TERMS = FARM_ALGO_TERMS_MAX };

// The functions of one algorithm.
#define CODE(table, name)                                                                                              \
    struct code_##table {                                                                                              \
        static __device__ void prepare(const struct farm_algo_rows *rows, int row) {                                   \
            farm_##name##_prepare(rows, row);                                                                          \
        }                                                                                                              \
        static __device__ void column(const struct farm_algo_rows *rows, int column) {                                 \
            farm_##name##_column(rows, column);                                                                        \
        }                                                                                                              \
        static __device__ void row(const struct farm_algo_rows *rows, int row, float *terms) {                         \
            farm_##name##_row(rows, row, terms);                                                                       \
        }                                                                                                              \
    };
FARM_ALGO_LIST(CODE)

template <class code>
static __global__ void __launch_bounds__(ROW_THREADS) prepare_rows(const struct farm_algo_rows rows) {
    const int row = (int)(blockIdx.x * ROW_THREADS + threadIdx.x);
    const int count = farm_algo_row_count(&rows);
    if (row < count + rows.bootstrap) farm_algo_mask(&rows, row);
    if (row < count) code::prepare(&rows, row);
}

template <class code>
static __global__ void __launch_bounds__(COLUMN_THREADS) walk_columns(const struct farm_algo_rows rows) {
    const int column = (int)(blockIdx.x * COLUMN_THREADS + threadIdx.x);
    if (column < rows.columns) code::column(&rows, column);
}

// part: [TERMS][gridDim.x], one sum per block. Rows after the trained ones bootstrap.
template <class code>
static __global__ void __launch_bounds__(ROW_THREADS)
    differentiate_rows(const struct farm_algo_rows rows, double *part) {
    const int row = (int)(blockIdx.x * ROW_THREADS + threadIdx.x), count = farm_algo_row_count(&rows);
    float term[TERMS] = {0};
    if (row < count) {
        farm_algo_mask(&rows, row);
        code::row(&rows, row, term);
    } else if (row < count + rows.bootstrap)
        farm_algo_no_gradient(&rows, row);
#pragma unroll
    for (int k = 0; k < TERMS; k++) {
        const double sum = farm_cuda_block_sum<ROW_THREADS>(term[k]);
        if (threadIdx.x == 0) part[(size_t)k * gridDim.x + blockIdx.x] = sum;
    }
}

// One warp per term.
static __global__ void __launch_bounds__(TERMS * 32) sum_terms(const double *part, uint32_t blocks, double *terms) {
    const uint32_t lane = threadIdx.x % 32, k = threadIdx.x / 32;
    double sum = 0;
    for (uint32_t b = lane; b < blocks; b += 32) sum += part[(size_t)k * blocks + b];
    sum = farm_cuda_warp_sum(sum);
    if (lane == 0) terms[k] += sum;
}

template <class code>
static enum farm_status differentiate(struct CUstream_st *stream, const struct farm_algo_rows *rows, bool targets,
                                      void *scratch, double *terms, struct farm_error *err) {
    const size_t count = (size_t)farm_algo_row_count(rows), columns = (size_t)rows->columns;
    const unsigned blocks = farm_cuda_blocks(count + (size_t)rows->bootstrap, ROW_THREADS);
    enum farm_status status = FARM_OK;
    if (targets)
        status = farm_cuda_launch({"prepare_rows", stream, blocks, ROW_THREADS}, err, prepare_rows<code>, *rows);
    if (!status && targets)
        status = farm_cuda_launch({"walk_columns", stream, farm_cuda_blocks(columns, COLUMN_THREADS), COLUMN_THREADS},
                                  err, walk_columns<code>, *rows);
    if (!status)
        status = farm_cuda_launch({"differentiate_rows", stream, blocks, ROW_THREADS}, err, differentiate_rows<code>,
                                  *rows, (double *)scratch);
    if (status) return status;
    return farm_cuda_launch({"sum_terms", stream, 1, TERMS * 32}, err, sum_terms, (const double *)scratch, blocks,
                            terms);
}

enum farm_status farm_cuda_algo_check(const char *name, struct farm_error *err) {
#define KNOWN(known, code)                                                                                             \
    if (strcmp(name, #known) == 0) return FARM_OK;
    FARM_ALGO_LIST(KNOWN)
    return farm_fail(err, FARM_E_UNSUPPORTED, "algorithm %s does not run on a GPU (src/algo/all.h lists those that do)",
                     name);
}

size_t farm_cuda_algo_scratch_bytes(int rows) {
    return rows > 0 ? TERMS * sizeof(double) * farm_cuda_blocks((size_t)rows, ROW_THREADS) : 0;
}

enum farm_status farm_cuda_algo_differentiate(struct CUstream_st *stream, const char *name,
                                              const struct farm_algo_rows *rows, bool targets, void *scratch,
                                              double *terms, struct farm_error *err) {
    if (rows->columns == 0) return FARM_OK;
    if (rows->steps < 1 || rows->columns < 0 || rows->head.outputs < 1)
        return farm_fail(err, FARM_E_INVALID, "%s over %d steps of %d columns of %d numbers", name, rows->steps,
                         rows->columns, rows->head.outputs);
#define RUN(known, code)                                                                                               \
    if (strcmp(name, #known) == 0) return differentiate<code_##known>(stream, rows, targets, scratch, terms, err);
    FARM_ALGO_LIST(RUN)
    return farm_cuda_algo_check(name, err);
}

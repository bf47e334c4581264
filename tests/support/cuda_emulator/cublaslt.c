// The emulator of cuBLASLt. See vendor_emulator.h.
#include "vendor_arrays.h"

struct cublasLtContext {
    void *memory; // on the device, unused
};
struct farm_cublaslt_matmul {
    int32_t transpose[2]; // a, b
    uint32_t epilogue;
    const void *bias;
};
struct farm_cublaslt_layout {
    cudaDataType_t type;
    uint64_t rows, columns;
    int64_t leading;
};
struct farm_cublaslt_preference {
    size_t workspace_bytes;
    uint32_t alignment[3]; // for b, c, d; 0: the default
};

static size_t cublaslt_version(void) {
    return 130100;
}
static const char *cublaslt_status_name(cublasStatus_t status) {
    return status == CUBLAS_STATUS_NOT_SUPPORTED  ? "CUBLAS_STATUS_NOT_SUPPORTED"
           : status == CUBLAS_STATUS_ALLOC_FAILED ? "CUBLAS_STATUS_ALLOC_FAILED"
                                                  : "CUBLAS_STATUS_INVALID_VALUE";
}
static cublasStatus_t cublaslt_create(cublasLtHandle_t *handle) {
    void *memory;
    if (!allocate_handle(&memory)) return CUBLAS_STATUS_ALLOC_FAILED;
    *handle = make_descriptor(sizeof **handle);
    (*handle)->memory = memory;
    return CUBLAS_STATUS_SUCCESS;
}
static cublasStatus_t cublaslt_destroy(cublasLtHandle_t handle) {
    (void)cudaFree(handle->memory);
    destroy_descriptor(handle);
    return CUBLAS_STATUS_SUCCESS;
}
DESTROY(cublasStatus_t, cublasLtMatmulDesc_t, matmul)
DESTROY(cublasStatus_t, cublasLtMatrixLayout_t, layout)
CREATE_AND_DESTROY(cublasStatus_t, cublasLtMatmulPreference_t, preference)
static cublasStatus_t create_matmul(cublasLtMatmulDesc_t *matmul, cublasComputeType_t compute, cudaDataType_t scale) {
    if (compute != CUBLAS_COMPUTE_32F || scale != CUDA_R_32F) return CUBLAS_STATUS_INVALID_VALUE;
    *matmul = make_descriptor(sizeof **matmul);
    (*matmul)->epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    return CUBLAS_STATUS_SUCCESS;
}
static cublasStatus_t set_matmul(cublasLtMatmulDesc_t matmul, cublasLtMatmulDescAttributes_t attribute,
                                 const void *value, size_t bytes) {
    void *const fields[] = {&matmul->transpose[0], &matmul->transpose[1], &matmul->epilogue, &matmul->bias};
    static const cublasLtMatmulDescAttributes_t attributes[] = {
        CUBLASLT_MATMUL_DESC_TRANSA, CUBLASLT_MATMUL_DESC_TRANSB, CUBLASLT_MATMUL_DESC_EPILOGUE,
        CUBLASLT_MATMUL_DESC_BIAS_POINTER};
    static const size_t sizes[] = {4, 4, 4, 8};
    for (int i = 0; i < 4; i++)
        if (attribute == attributes[i] && bytes == sizes[i]) {
            memcpy(fields[i], value, bytes);
            return CUBLAS_STATUS_SUCCESS;
        }
    return CUBLAS_STATUS_INVALID_VALUE;
}
static cublasStatus_t create_layout(cublasLtMatrixLayout_t *layout, cudaDataType_t type, uint64_t rows,
                                    uint64_t columns, int64_t leading) {
    if (leading < (int64_t)rows) return CUBLAS_STATUS_INVALID_VALUE;
    *layout = make_descriptor(sizeof **layout);
    **layout = (struct farm_cublaslt_layout){type, rows, columns, leading};
    return CUBLAS_STATUS_SUCCESS;
}
static cublasStatus_t set_preference(cublasLtMatmulPreference_t preference,
                                     cublasLtMatmulPreferenceAttributes_t attribute, const void *value, size_t bytes) {
    const bool workspace = attribute == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES;
    void *field = workspace ? (void *)&preference->workspace_bytes
                            : &preference->alignment[attribute - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES];
    if (bytes != (workspace ? sizeof preference->workspace_bytes : sizeof *preference->alignment))
        return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(field, value, bytes);
    return CUBLAS_STATUS_SUCCESS;
}

struct product {
    struct farm_cublaslt_matmul matmul;
    struct farm_cublaslt_layout a, b, d;
    uint64_t m, n, k;
    uint32_t alignment; // for b, c, d
    const void *left, *right;
    void *out;
    float beta;
    void *workspace;
    size_t workspace_bytes;
};

static cublasStatus_t check_product(struct product *p, const struct farm_cublaslt_layout *c) {
    const bool a_t = p->matmul.transpose[0] == CUBLAS_OP_T, b_t = p->matmul.transpose[1] == CUBLAS_OP_T;
    p->m = a_t ? p->a.columns : p->a.rows;
    p->k = a_t ? p->a.rows : p->a.columns;
    p->n = b_t ? p->b.rows : p->b.columns;
    if ((b_t ? p->b.columns : p->b.rows) != p->k || p->d.rows != p->m || p->d.columns != p->n ||
        memcmp(c, &p->d, sizeof *c) != 0)
        return CUBLAS_STATUS_INVALID_VALUE;
    if (p->a.type != p->b.type || (p->d.type != p->a.type && p->d.type != CUDA_R_32F))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    if (p->matmul.epilogue == CUBLASLT_EPILOGUE_DEFAULT) return CUBLAS_STATUS_SUCCESS;
    // The bias has the result's type, which must be the operands'.
    if (farm_emulator_vendor.no_epilogue || p->d.type != p->a.type) return CUBLAS_STATUS_NOT_SUPPORTED;
    const bool known_epilogue =
        p->matmul.epilogue == CUBLASLT_EPILOGUE_BIAS || p->matmul.epilogue == CUBLASLT_EPILOGUE_RELU_BIAS;
    return known_epilogue && is_aligned(p->matmul.bias, 16) ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
}

// An algorithm holds the product for which it was chosen, so another product cannot run it.
static cublasLtMatmulAlgo_t algorithm_of(const struct product *p) {
    return (cublasLtMatmulAlgo_t){{p->m, p->n, p->k, p->matmul.epilogue | (uint64_t)p->alignment << 32,
                                   (uint64_t)p->a.type, (uint64_t)p->d.type, (uint64_t)p->matmul.transpose[0],
                                   (uint64_t)p->matmul.transpose[1]}};
}

static cublasStatus_t heuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t matmul, cublasLtMatrixLayout_t a,
                                cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                cublasLtMatmulPreference_t preference, int requested,
                                cublasLtMatmulHeuristicResult_t *results, int *returned) {
    struct product p = {.matmul = *matmul, .a = *a, .b = *b, .d = *d};
    const cublasStatus_t status = check_product(&p, c);
    *returned = 0;
    if (status != CUBLAS_STATUS_SUCCESS) return status;
    if (requested < 1 || farm_emulator_vendor.workspace_bytes > preference->workspace_bytes)
        return CUBLAS_STATUS_NOT_SUPPORTED;
    const uint32_t *alignment = preference->alignment;
    if (alignment[0] != alignment[1] || alignment[0] != alignment[2]) return CUBLAS_STATUS_NOT_SUPPORTED;
    p.alignment = alignment[0] ? alignment[0] : 256; // the default
    *returned = 1;
    results[0] = (cublasLtMatmulHeuristicResult_t){.algo = algorithm_of(&p),
                                                   .workspaceSize = farm_emulator_vendor.workspace_bytes};
    return CUBLAS_STATUS_SUCCESS;
}

enum { TOGETHER = 8 };

// A column's products with up to TOGETHER rows of the left side, each summed in the order of k: one sum alone would
// wait for its last addition.
static void add_products(const float *left, size_t rows, size_t next_row, size_t next_left, const float *right,
                         size_t next_right, size_t depth, double sums[TOGETHER]) {
    const float *row[TOGETHER];
    double sum[TOGETHER] = {0};
    for (size_t r = 0; r < TOGETHER; r++) row[r] = left + (r < rows ? r : rows - 1) * next_row;
    for (size_t k = 0; k < depth; k++)
#pragma GCC unroll 8
        for (size_t r = 0; r < TOGETHER; r++) sum[r] += (double)(row[r][k * next_left] * right[k * next_right]);
    memcpy(sums, sum, sizeof sum);
}

static void run_product(const void *arguments) {
    const struct product *p = arguments;
    const bool bf16 = p->a.type == CUDA_R_16BF, result_bf16 = p->d.type == CUDA_R_16BF;
    const bool a_t = p->matmul.transpose[0] == CUBLAS_OP_T, b_t = p->matmul.transpose[1] == CUBLAS_OP_T;
    const size_t a_ld = (size_t)p->a.leading, b_ld = (size_t)p->b.leading, d_ld = (size_t)p->d.leading;
    farm_emulator_need(p->left, a_ld * p->a.columns * size_of(bf16), false, "a product's left side");
    farm_emulator_need(p->right, b_ld * p->b.columns * size_of(bf16), false, "a product's right side");
    farm_emulator_need(p->out, d_ld * p->d.columns * size_of(result_bf16), true, "a product's result");
    const void *bias = p->matmul.epilogue == CUBLASLT_EPILOGUE_DEFAULT ? NULL : p->matmul.bias;
    if (bias) farm_emulator_need(bias, p->m * size_of(result_bf16), false, "a product's bias");
    overwrite_workspace(p->workspace, p->workspace_bytes);
    float *left = numbers_of(p->left, bf16, a_ld * p->a.columns),
          *right = numbers_of(p->right, bf16, b_ld * p->b.columns);
    const size_t a_i = a_t ? a_ld : 1, a_k = a_t ? 1 : a_ld, b_j = b_t ? 1 : b_ld, b_k = b_t ? b_ld : 1;
    double sums[TOGETHER];
    for (size_t j = 0; j < p->n; j++)
        for (size_t i = 0; i < p->m; i++) {
            if (i % TOGETHER == 0) add_products(left + i * a_i, p->m - i, a_i, a_k, right + j * b_j, b_k, p->k, sums);
            double sum = sums[i % TOGETHER];
            if (p->beta != 0) sum += (double)p->beta * read_number(p->out, result_bf16, j * d_ld + i);
            if (bias) sum += read_number(bias, result_bf16, i);
            if (p->matmul.epilogue == CUBLASLT_EPILOGUE_RELU_BIAS && !(sum > 0)) sum = 0; // NaN too, as cuBLASLt does
            write_number(p->out, result_bf16, j * d_ld + i, sum);
        }
    free(left);
    free(right);
}

static cublasStatus_t matmul_run(cublasLtHandle_t handle, cublasLtMatmulDesc_t matmul, const void *alpha, const void *a,
                                 cublasLtMatrixLayout_t a_layout, const void *b, cublasLtMatrixLayout_t b_layout,
                                 const void *beta, const void *c, cublasLtMatrixLayout_t c_layout, void *d,
                                 cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t *algo, void *workspace,
                                 size_t workspace_bytes, cudaStream_t stream) {
    struct product p = {.matmul = *matmul,
                        .a = *a_layout,
                        .b = *b_layout,
                        .d = *d_layout,
                        .left = a,
                        .right = b,
                        .out = d,
                        .beta = *(const float *)beta,
                        .workspace = workspace,
                        .workspace_bytes = farm_emulator_vendor.workspace_bytes};
    const cublasStatus_t status = check_product(&p, c_layout);
    if (status != CUBLAS_STATUS_SUCCESS) return status;
    p.alignment = (uint32_t)(algo->data[3] >> 32);
    const cublasLtMatmulAlgo_t expected = algorithm_of(&p);
    if (*(const float *)alpha != 1 || memcmp(algo, &expected, sizeof expected) != 0 || c != d || !is_aligned(a, 256) ||
        !is_aligned(b, p.alignment) || !is_aligned(d, p.alignment) ||
        workspace_bytes < farm_emulator_vendor.workspace_bytes || !is_aligned(workspace, 256))
        return CUBLAS_STATUS_INVALID_VALUE;
    return farm_emulator_launch(stream, "cublasLtMatmul", run_product, &p, sizeof p) == cudaSuccess
               ? CUBLAS_STATUS_SUCCESS
               : CUBLAS_STATUS_NOT_INITIALIZED;
}

struct farm_cublaslt farm_emulator_cublaslt_table(void) {
    return (struct farm_cublaslt){
        cublaslt_version,   cublaslt_status_name, cublaslt_create, cublaslt_destroy, create_matmul,
        destroy_matmul,     set_matmul,           create_layout,   destroy_layout,   create_preference,
        destroy_preference, set_preference,       heuristic,       matmul_run};
}

// See product.h. cuBLASLt's matrices are column-major: a row-major matrix [a][b] is its b x a.
#include "nn/cuda/product.h"

static enum farm_status fail(const struct farm_cublaslt *cublaslt, struct farm_error *err, cublasStatus_t status,
                             const char *call) {
    const enum farm_status kind = status == CUBLAS_STATUS_NOT_SUPPORTED  ? FARM_E_UNSUPPORTED
                                  : status == CUBLAS_STATUS_ALLOC_FAILED ? FARM_E_LIMIT
                                                                         : FARM_E_IO;
    return farm_fail(err, kind, "cublasLt%s: %s (%d)", call, cublaslt->GetStatusString(status), (int)status);
}

// Calls a function of cuBLASLt; returns from the calling function if it fails.
#define TRY(cublaslt, function, ...)                                                                                   \
    do {                                                                                                               \
        const cublasStatus_t farm_code = (cublaslt)->function(__VA_ARGS__);                                            \
        if (farm_code != CUBLAS_STATUS_SUCCESS) return fail(cublaslt, err, farm_code, #function);                      \
    } while (0)

// Column-major shapes as they lie in memory, and whether the product reads them transposed.
struct shapes {
    int left[2], right[2], result[2];
    cublasOperation_t left_op, right_op;
};

static struct shapes shapes_of(const struct farm_cuda_product_config *c) {
    switch (c->kind) {
    case FARM_CUDA_PRODUCT_FORWARD:
        return (struct shapes){{c->in, c->out}, {c->in, c->rows}, {c->out, c->rows}, CUBLAS_OP_T, CUBLAS_OP_N};
    case FARM_CUDA_PRODUCT_DATA:
        return (struct shapes){{c->in, c->out}, {c->out, c->rows}, {c->in, c->rows}, CUBLAS_OP_N, CUBLAS_OP_N};
    default:
        return (struct shapes){{c->in, c->rows}, {c->out, c->rows}, {c->in, c->out}, CUBLAS_OP_N, CUBLAS_OP_T};
    }
}

static enum farm_status make_layout(const struct farm_cublaslt *cublaslt, cudaDataType_t type, const int *shape,
                                    cublasLtMatrixLayout_t *out, struct farm_error *err) {
    TRY(cublaslt, MatrixLayoutCreate, out, type, (uint64_t)shape[0], (uint64_t)shape[1], shape[0]);
    return FARM_OK;
}

static enum farm_status set_attributes(const struct farm_cuda_product *p, const struct shapes *shapes,
                                       struct farm_error *err) {
    const struct farm_cublaslt *cublaslt = p->config.cublaslt;
    const int32_t left = shapes->left_op, right = shapes->right_op;
    const uint32_t epilogue = p->config.epilogue;
    TRY(cublaslt, MatmulDescSetAttribute, p->matmul, CUBLASLT_MATMUL_DESC_TRANSA, &left, sizeof left);
    TRY(cublaslt, MatmulDescSetAttribute, p->matmul, CUBLASLT_MATMUL_DESC_TRANSB, &right, sizeof right);
    TRY(cublaslt, MatmulDescSetAttribute, p->matmul, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue);
    if (p->config.bias != NULL)
        TRY(cublaslt, MatmulDescSetAttribute, p->matmul, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &p->config.bias,
            sizeof p->config.bias);
    return FARM_OK;
}

static enum farm_status query_heuristic(struct farm_cuda_product *p, cublasLtMatmulPreference_t preference,
                                        struct farm_error *err) {
    const struct farm_cuda_product_config *c = &p->config;
    cublasLtMatmulHeuristicResult_t result;
    int count = 0;
    TRY(c->cublaslt, MatmulPreferenceSetAttribute, preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
        &c->workspace_bytes, sizeof c->workspace_bytes);
    static const cublasLtMatmulPreferenceAttributes_t alignments[] = {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
                                                                      CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
                                                                      CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES};
    for (int i = 0; i < 3 && c->alignment; i++)
        TRY(c->cublaslt, MatmulPreferenceSetAttribute, preference, alignments[i], &c->alignment, sizeof c->alignment);
    const cublasStatus_t status = c->cublaslt->MatmulAlgoGetHeuristic(
        c->handle, p->matmul, p->left, p->right, p->result, p->result, preference, 1, &result, &count);
    if (status != CUBLAS_STATUS_SUCCESS && status != CUBLAS_STATUS_NOT_SUPPORTED)
        return fail(c->cublaslt, err, status, "MatmulAlgoGetHeuristic");
    if (status != CUBLAS_STATUS_SUCCESS || count < 1 || result.state != CUBLAS_STATUS_SUCCESS)
        return farm_fail(err, FARM_E_UNSUPPORTED,
                         "cuBLASLt has no algorithm for a product of %d rows, %d inputs, %d outputs, %s, epilogue %d",
                         c->rows, c->in, c->out, c->bf16 ? "bf16" : "f32", (int)c->epilogue);
    p->algorithm = result.algo;
    return FARM_OK;
}

static enum farm_status choose_algorithm(struct farm_cuda_product *p, struct farm_error *err) {
    cublasLtMatmulPreference_t preference;
    TRY(p->config.cublaslt, MatmulPreferenceCreate, &preference);
    const enum farm_status status = query_heuristic(p, preference, err);
    p->config.cublaslt->MatmulPreferenceDestroy(preference);
    return status;
}

enum farm_status farm_cuda_product_make(const struct farm_cuda_product_config *config, struct farm_cuda_product *out,
                                        struct farm_error *err) {
    const struct farm_cublaslt *cublaslt = config->cublaslt;
    const struct shapes shapes = shapes_of(config);
    const cudaDataType_t type = config->bf16 ? CUDA_R_16BF : CUDA_R_32F;
    const bool f32 = config->kind == FARM_CUDA_PRODUCT_WEIGHT || config->result_f32;
    out->config = *config;
    TRY(cublaslt, MatmulDescCreate, &out->matmul, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    enum farm_status status = make_layout(cublaslt, type, shapes.left, &out->left, err);
    if (status == FARM_OK) status = make_layout(cublaslt, type, shapes.right, &out->right, err);
    if (status == FARM_OK) status = make_layout(cublaslt, f32 ? CUDA_R_32F : type, shapes.result, &out->result, err);
    if (status == FARM_OK) status = set_attributes(out, &shapes, err);
    return status == FARM_OK ? choose_algorithm(out, err) : status;
}

void farm_cuda_product_drop(struct farm_cuda_product *p) {
    const struct farm_cublaslt *cublaslt = p->config.cublaslt;
    if (p->matmul != NULL) cublaslt->MatmulDescDestroy(p->matmul);
    if (p->left != NULL) cublaslt->MatrixLayoutDestroy(p->left);
    if (p->right != NULL) cublaslt->MatrixLayoutDestroy(p->right);
    if (p->result != NULL) cublaslt->MatrixLayoutDestroy(p->result);
    *p = (struct farm_cuda_product){0};
}

enum farm_status farm_cuda_product_run(const struct farm_cuda_product *p, cudaStream_t stream, const void *left,
                                       const void *right, const void *bias, bool add, void *result, void *workspace,
                                       struct farm_error *err) {
    const struct farm_cuda_product_config *c = &p->config;
    const float one = 1, factor = add ? 1 : 0;
    if (bias != NULL)
        TRY(c->cublaslt, MatmulDescSetAttribute, p->matmul, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof bias);
    TRY(c->cublaslt, Matmul, c->handle, p->matmul, &one, left, p->left, right, p->right, &factor, result, p->result,
        result, p->result, &p->algorithm, workspace, c->workspace_bytes, stream);
    return FARM_OK;
}

// See training.h.
#include "learner/cuda/training.h"

#include <stdlib.h>
#include <string.h>

#include "algo/cuda/algo.h"
#include "kernels/cuda/check.h"
#include "learner/cuda/memory.h"
#include "learner/cuda/stream.h"
#include "learner/gather.h"

enum { FRAME_ROWS = 1024, FLAT_ROWS = 16384, ALIGNMENT = 256 }; // rows of a pass; bytes of the arrays of its inputs

// What the host gathers for an update, as offsets into a block of pinned memory that is copied to the device whole.
// Rows lie chunk after chunk, within a chunk time-major: row (t, c) = t * columns + c, t in [0, T].
struct inputs {
    size_t frames;    // void *[rows * stack]; flat observations in the mirror: [rows]
    size_t pulls;     // mode WINDOW: void *[batch * (T + stack)], where the windows' frames lie in the rings
    size_t flat;      // f32 [rows of a chunk][io.flat], flat_chunk bytes per chunk, if the mirror does not hold them
    size_t behaviour; // f32 [rows][outputs]
    size_t behaviour_value, reward; // f32 [rows]
    size_t action;                  // u8 [rows][action_bytes]
    size_t flags;                   // u8 [rows]
    size_t bytes, flat_chunk;
};

// Results, in pinned memory.
struct results {
    double terms[FARM_ALGO_TERMS_MAX];
    struct farm_cuda_optimiser_control control;
    float learning_rate; // of the newest step
};

// One of two iterations: the host gathers for one while the GPU computes the other.
struct slot {
    struct farm_column *columns; // [share]
    uint32_t column_count;
    char *block;                  // pinned: the gathered inputs
    char *bounce, *bounce_mapped; // pinned, mode WINDOW without registration: the windows' frames
    cudaGraphExec_t gradients;
    uint64_t bus_bytes; // of observations that cross the bus for it
};

struct farm_cuda_training {
    struct farm_cuda_context *context;
    struct farm_cuda_executor *executor;
    cudaStream_t stream;
    cudaEvent_t done;
    struct slot slots[FARM_BACKEND_SLOTS], *slot; // slot: the one whose gradients were begun last
    cudaGraphExec_t step;
    uint32_t chunk;             // columns of a pass
    const uint32_t *order;      // of the pass whose gradients were begun last: its columns; NULL: all
    uint32_t pass_count, total; // columns of it: here, and in all shards
    uint64_t bus_bytes;         // of the pass whose step was begun last
    struct inputs inputs;
    const void **frames; // [stack]
    // pinned
    struct results *results;
    // device
    char *device_block;
    char *windows;           // mode WINDOW: [chunk][T + stack] frames of a pass
    void **windows_to;       // [chunk * (T + stack)]
    float *flat;             // flat observations out of the mirror: [chunk rows][io.flat]
    void **flat_to;          // [chunk rows]
    float *policy, *dpolicy; // [chunk rows][outputs]
    float *value, *dvalue;   // [chunk rows]
    float *scratch;          // [algorithm's scratch][chunk rows]
    void *sums;              // farm_cuda_algo_scratch_bytes
    double *terms;           // [FARM_ALGO_TERMS_MAX]
    uint64_t bus_bytes_total;
};

// ---- sizes ----

static uint32_t window_steps(const struct farm_cuda_context *context) {
    return context->plan->shape.length;
}

// Windows of one forward and backward pass: micro_batch, or as many as keep the GPU busy.
static uint32_t chunk_windows(const struct farm_cuda_context *context) {
    uint32_t chunk = context->learner->micro_batch;
    if (!chunk) chunk = (uint32_t)(farm_cuda_is_flat(context) ? FLAT_ROWS : FRAME_ROWS) / window_steps(context);
    if (chunk > farm_cuda_share(context)) chunk = farm_cuda_share(context);
    return chunk ? chunk : 1;
}

// Frames of one window: its steps, and the earlier ones in its first step's stack.
static uint32_t window_frames(const struct farm_cuda_context *context) {
    return window_steps(context) - 1 + (uint32_t)context->net->io.stack;
}

static struct inputs lay_out_inputs(const struct farm_cuda_context *context, enum farm_mirror mode) {
    const size_t batch = farm_cuda_share(context), rows = batch * window_steps(context);
    const bool window = mode == FARM_MIRROR_WINDOW && !farm_cuda_is_flat(context);
    const bool gathered = mode != FARM_MIRROR_FULL && farm_cuda_is_flat(context);
    struct inputs inputs = {0};
    size_t at = 0;
    inputs.frames = farm_cuda_reserve(&at, rows * (size_t)context->net->io.stack * sizeof(void *), ALIGNMENT);
    inputs.pulls = farm_cuda_reserve(&at, (window ? batch * window_frames(context) : 0) * sizeof(void *), ALIGNMENT);
    const size_t chunk = chunk_windows(context);
    (void)farm_cuda_reserve(&inputs.flat_chunk, chunk * window_steps(context) * context->obs_bytes,
                            ALIGNMENT); // of each chunk
    inputs.flat = farm_cuda_reserve(&at, (gathered ? (batch + chunk - 1) / chunk : 0) * inputs.flat_chunk, ALIGNMENT);
    inputs.behaviour = farm_cuda_reserve(&at, rows * (size_t)context->head.outputs * sizeof(float), ALIGNMENT);
    inputs.behaviour_value = farm_cuda_reserve(&at, rows * sizeof(float), ALIGNMENT);
    inputs.reward = farm_cuda_reserve(&at, rows * sizeof(float), ALIGNMENT);
    inputs.action = farm_cuda_reserve(&at, rows * (size_t)context->head.action_bytes, ALIGNMENT);
    inputs.flags = farm_cuda_reserve(&at, rows, ALIGNMENT);
    inputs.bytes = at;
    return inputs;
}

size_t farm_cuda_training_bytes(const struct farm_cuda_context *context, enum farm_mirror mode) {
    const struct farm_cuda_executor_config config =
        farm_cuda_executor_config(context, chunk_windows(context) * window_steps(context), true);
    const size_t chunk = chunk_windows(context), rows = (size_t)config.batch_max;
    size_t bytes = farm_cuda_executor_bytes(&config) + lay_out_inputs(context, mode).bytes;
    bytes +=
        rows * sizeof(float) * (2 * (size_t)context->head.outputs + 2 + (size_t)context->learner->algo.algo->scratch);
    if (farm_cuda_is_flat(context) && mode == FARM_MIRROR_FULL) bytes += rows * (context->obs_bytes + sizeof(void *));
    if (!farm_cuda_is_flat(context) && mode == FARM_MIRROR_WINDOW)
        bytes += chunk * window_frames(context) * (farm_cuda_slot_bytes(context->obs_bytes) + sizeof(void *));
    return bytes;
}

// ---- memory ----

static enum farm_status allocate_array(size_t count, size_t bytes, void *out, struct farm_error *err) {
    return farm_cuda_device_memory(count * bytes, "training needs", "micro-batch", out, err);
}

static enum farm_status allocate_on_device(struct farm_cuda_training *t, struct farm_error *err) {
    const struct farm_cuda_context *context = t->context;
    const size_t rows = (size_t)t->chunk * window_steps(context), outputs = (size_t)context->head.outputs;
    enum farm_status status = allocate_array(1, t->inputs.bytes, &t->device_block, err);
    if (!status) status = allocate_array(rows * outputs, sizeof(float), &t->policy, err);
    if (!status) status = allocate_array(rows * outputs, sizeof(float), &t->dpolicy, err);
    if (!status) status = allocate_array(rows, sizeof(float), &t->value, err);
    if (!status) status = allocate_array(rows, sizeof(float), &t->dvalue, err);
    if (!status && context->learner->algo.algo->scratch)
        status = allocate_array(rows * (size_t)context->learner->algo.algo->scratch, sizeof(float), &t->scratch, err);
    if (!status) status = allocate_array(1, farm_cuda_algo_scratch_bytes((int)rows), &t->sums, err);
    if (!status) status = allocate_array(FARM_ALGO_TERMS_MAX, sizeof *t->terms, &t->terms, err);
    return status;
}

// A list in device memory of `count` places, `stride` bytes apart.
static enum farm_status list_places(char *start, size_t stride, size_t count, void ***out, struct farm_error *err) {
    enum farm_status status = allocate_array(count, sizeof **out, out, err);
    for (size_t i = 0; i < count && !status; i++) {
        const void *place = start + i * stride;
        FARM_CUDA_TRY(cudaMemcpy(*out + i, &place, sizeof place, cudaMemcpyHostToDevice));
    }
    return status;
}

// Memory for observations on their way from the rings or the mirror to the network.
static enum farm_status allocate_observations(struct farm_cuda_training *t, struct farm_error *err) {
    const struct farm_cuda_context *context = t->context;
    const size_t rows = (size_t)t->chunk * window_steps(context), frames = (size_t)t->chunk * window_frames(context);
    const size_t slot = farm_cuda_slot_bytes(context->obs_bytes);
    if (farm_cuda_is_flat(context)) {
        if (context->mirror.mode != FARM_MIRROR_FULL) return FARM_OK;
        const enum farm_status status = allocate_array(rows, context->obs_bytes, &t->flat, err);
        return status ? status : list_places((char *)t->flat, context->obs_bytes, rows, &t->flat_to, err);
    }
    if (context->mirror.mode != FARM_MIRROR_WINDOW) return FARM_OK;
    enum farm_status status = allocate_array(frames, slot, &t->windows, err);
    if (!status) status = list_places(t->windows, slot, frames, &t->windows_to, err);
    if (status || context->direct) return status;
    const size_t all = (size_t)farm_cuda_share(context) * window_frames(context);
    for (int k = 0; k < 2 && !status; k++) {
        status = farm_cuda_host_memory(all * slot, "the windows need", "batch", &t->slots[k].bounce, err);
        if (!status) status = farm_cuda_mapped(t->slots[k].bounce, &t->slots[k].bounce_mapped, err);
    }
    return status;
}

static enum farm_status allocate_on_host(struct farm_cuda_training *t, struct farm_error *err) {
    enum farm_status status = farm_cuda_host_memory(sizeof *t->results, "training needs", NULL, &t->results, err);
    for (int k = 0; k < 2 && !status; k++) {
        status = farm_cuda_host_memory(t->inputs.bytes, "training needs", "batch", &t->slots[k].block, err);
        t->slots[k].columns = calloc(farm_cuda_share(t->context) + 1u, sizeof *t->slots[k].columns);
        if (!t->slots[k].columns) status = farm_fail(err, FARM_E_LIMIT, "no memory for an update's list");
    }
    t->frames = calloc((size_t)t->context->net->io.stack, sizeof *t->frames);
    if (!status && !t->frames) status = farm_fail(err, FARM_E_LIMIT, "no memory for an update's list");
    return status;
}

// ---- an update's work ----

static void *device_input(const struct farm_cuda_training *t, size_t array, size_t row, size_t bytes) {
    return t->device_block + array + row * bytes;
}

// Brings flat observations from the mirror into rows for the first product.
static enum farm_status enqueue_flat_pull(struct farm_cuda_training *t, uint32_t first, uint32_t columns,
                                          struct farm_error *err) {
    if (!t->flat) return FARM_OK;
    const struct farm_cuda_pull pull = {
        .from = device_input(t, t->inputs.frames, (size_t)first * window_steps(t->context), sizeof(void *)),
        .to = t->flat_to,
        .count = columns * window_steps(t->context),
        .bytes = t->context->obs_bytes,
        .blocks = 16};
    return farm_cuda_pull(t->stream, FARM_CUDA_PULL_LOADS, &pull, err);
}

static struct farm_sequence sequence_of(const struct farm_cuda_training *t, uint32_t columns) {
    return (struct farm_sequence){.steps = (int)window_steps(t->context), .columns = (int)columns};
}

static enum farm_status enqueue_forward(struct farm_cuda_training *t, uint32_t first, uint32_t columns,
                                        struct farm_error *err) {
    const struct farm_cuda_context *context = t->context;
    const size_t row = (size_t)first * window_steps(context), stack = (size_t)context->net->io.stack;
    struct farm_cuda_input input = {0};
    if (!farm_cuda_is_flat(context))
        input.frames = device_input(t, t->inputs.frames, row * stack, sizeof(void *));
    else
        input.flat = t->flat ? t->flat : device_input(t, t->inputs.flat, first / t->chunk, t->inputs.flat_chunk);
    return farm_cuda_executor_forward(t->executor, t->stream, farm_cuda_parameters_trained(&context->parameters),
                                      &input, sequence_of(t, columns), t->policy, t->value, err);
}

static enum farm_status enqueue_backward(struct farm_cuda_training *t, uint32_t columns, struct farm_error *err) {
    return farm_cuda_executor_backward(t->executor, t->stream, farm_cuda_parameters_trained(&t->context->parameters),
                                       t->dpolicy, t->dvalue, sequence_of(t, columns), t->context->parameters.gradients,
                                       err);
}

// The algorithm's kernels, after forward.
static enum farm_status enqueue_algorithm(struct farm_cuda_training *t, uint32_t first, uint32_t columns,
                                          struct farm_error *err) {
    const struct farm_algo_config *algo = &t->context->learner->algo;
    const size_t row = (size_t)first * window_steps(t->context);
    struct farm_algo_rows rows = {
        .head = t->context->head,
        .steps = (int)window_steps(t->context) - 1,
        .columns = (int)columns,
        .policy = t->policy,
        .value = t->value,
        .behaviour = device_input(t, t->inputs.behaviour, row * (size_t)t->context->head.outputs, sizeof(float)),
        .behaviour_value = device_input(t, t->inputs.behaviour_value, row, sizeof(float)),
        .action = device_input(t, t->inputs.action, row, (size_t)t->context->head.action_bytes),
        .reward = device_input(t, t->inputs.reward, row, sizeof(float)),
        .flags = device_input(t, t->inputs.flags, row, 1),
        .scratch = t->scratch,
        .dpolicy = t->dpolicy,
        .dvalue = t->dvalue,
    };
    memcpy(rows.option, algo->option, sizeof rows.option);
    return farm_cuda_algo_differentiate(t->stream, algo->algo->recipe.name, &rows, t->sums, t->terms, err);
}

static enum farm_status enqueue_window_pull(struct farm_cuda_training *t, uint32_t first, uint32_t columns,
                                            struct farm_error *err) {
    if (!t->windows) return FARM_OK;
    const struct farm_cuda_obs_path *obs_path = &t->context->obs_path; // batches of copies cannot be captured
    const struct farm_cuda_pull pull = {
        .from = device_input(t, t->inputs.pulls, (size_t)first * window_frames(t->context), sizeof(void *)),
        .to = t->windows_to,
        .count = columns * window_frames(t->context),
        .bytes = t->context->obs_bytes,
        .blocks = obs_path->blocks};
    return farm_cuda_pull(t->stream, obs_path->copies ? FARM_CUDA_PULL_LOADS : obs_path->way, &pull, err);
}

static enum farm_status enqueue_chunk(struct farm_cuda_training *t, uint32_t first, uint32_t columns,
                                      struct farm_error *err) {
    enum farm_status status = enqueue_window_pull(t, first, columns, err);
    if (!status) status = enqueue_flat_pull(t, first, columns, err);
    if (!status) status = enqueue_forward(t, first, columns, err);
    if (!status) status = enqueue_algorithm(t, first, columns, err);
    if (!status) status = enqueue_backward(t, columns, err);
    return status;
}

static enum farm_status enqueue_inputs(struct farm_cuda_training *t, struct farm_error *err) {
    const struct farm_cuda_parameters *p = &t->context->parameters;
    FARM_CUDA_TRY(cudaMemcpyAsync(t->device_block, t->slot->block, t->inputs.bytes, cudaMemcpyHostToDevice, t->stream));
    FARM_CUDA_TRY(cudaMemsetAsync(p->gradients, 0, p->count * sizeof(float), t->stream));
    FARM_CUDA_TRY(cudaMemsetAsync(t->terms, 0, FARM_ALGO_TERMS_MAX * sizeof *t->terms, t->stream));
    return FARM_OK;
}

// The gradients of `columns` windows, added up.
static enum farm_status enqueue_gradients(struct farm_cuda_training *t, uint32_t columns, struct farm_error *err) {
    enum farm_status status = enqueue_inputs(t, err);
    for (uint32_t first = 0; first < columns && !status; first += t->chunk)
        status = enqueue_chunk(t, first, columns - first < t->chunk ? columns - first : t->chunk, err);
    return status;
}

// The step along the gradients of `total` windows.
static enum farm_status enqueue_step(struct farm_cuda_training *t, uint32_t total, struct farm_error *err) {
    struct farm_cuda_parameters *p = &t->context->parameters;
    enum farm_status status = FARM_OK;
    FARM_CUDA_TRY(cudaMemcpyAsync(&p->optimiser.control->learning_rate, &t->results->learning_rate, sizeof(float),
                                  cudaMemcpyHostToDevice, t->stream));
    if (!t->context->learner->algo.loss_sum)
        status = farm_cuda_scale(t->stream, p->gradients, p->count,
                                 1.0f / (float)(total * (window_steps(t->context) - 1)), err);
    if (!status) status = farm_cuda_optimiser_step(t->stream, &p->optimiser, err);
    if (status) return status;
    FARM_CUDA_TRY(
        cudaMemcpyAsync(t->results->terms, t->terms, sizeof t->results->terms, cudaMemcpyDeviceToHost, t->stream));
    FARM_CUDA_TRY(cudaMemcpyAsync(&t->results->control, p->optimiser.control, sizeof t->results->control,
                                  cudaMemcpyDeviceToHost, t->stream));
    return FARM_OK;
}

// Fills the lists with an observation of zeros.
static void list_zeros(struct farm_cuda_training *t) {
    const struct farm_cuda_context *context = t->context;
    const size_t batch = farm_cuda_share(context);
    void **frames = (void **)(void *)(t->slot->block + t->inputs.frames),
         **pulls = (void **)(void *)(t->slot->block + t->inputs.pulls);
    for (size_t i = 0; i < batch * window_steps(context) && t->flat; i++) frames[i] = context->zeros;
    for (size_t i = 0; i < batch * window_frames(context) && t->windows; i++) pulls[i] = context->zeros;
}

// Runs an update on zeros, which chooses algorithms and loads kernels; restores the parameters; captures the graphs.
static enum farm_status capture_graphs(struct farm_cuda_training *t, struct farm_error *err) {
    const uint32_t share = farm_cuda_share(t->context), batch = t->context->columns_max;
    list_zeros(t);
    enum farm_status status = enqueue_gradients(t, share, err);
    if (!status) status = enqueue_step(t, batch, err);
    if (status) return status;
    FARM_CUDA_TRY(cudaStreamSynchronize(t->stream));
    status = farm_cuda_parameters_upload(&t->context->parameters, t->stream, err);
    for (int k = 0; k < 2 && !status; k++) {
        t->slot = &t->slots[k];
        FARM_CUDA_TRY(cudaStreamBeginCapture(t->stream, cudaStreamCaptureModeThreadLocal));
        status = farm_cuda_stream_end_capture(t->stream, enqueue_gradients(t, share, err), &t->slot->gradients, err);
    }
    if (status) return status;
    FARM_CUDA_TRY(cudaStreamBeginCapture(t->stream, cudaStreamCaptureModeThreadLocal));
    return farm_cuda_stream_end_capture(t->stream, enqueue_step(t, batch, err), &t->step, err);
}

enum farm_status farm_cuda_training_make(struct farm_cuda_context *context, struct farm_cuda_training **out,
                                         struct farm_error *err) {
    struct farm_cuda_training *t = calloc(1, sizeof *t);
    if (!t) return farm_fail(err, FARM_E_LIMIT, "no memory for training");
    t->context = context;
    t->slot = &t->slots[0];
    t->chunk = chunk_windows(context);
    t->inputs = lay_out_inputs(context, context->mirror.mode);
    const struct farm_cuda_executor_config config =
        farm_cuda_executor_config(context, chunk_windows(context) * window_steps(context), true);
    enum farm_status status = farm_cuda_stream_make(false, &t->stream, &t->done, err);
    if (!status) status = allocate_on_host(t, err);
    if (!status) status = allocate_on_device(t, err);
    if (!status) status = allocate_observations(t, err);
    if (!status && farm_cuda_executor_create(&config, &t->executor, err))
        status = farm_fail_in(err, err ? err->status : FARM_E_LIMIT, "training (a smaller --micro-batch)");
    if (!status) status = capture_graphs(t, err);
    if (status) {
        farm_cuda_training_free(t);
        return status;
    }
    *out = t;
    return FARM_OK;
}

void farm_cuda_training_free(struct farm_cuda_training *t) {
    if (!t) return;
    if (t->stream) (void)cudaStreamSynchronize(t->stream);
    for (int k = 0; k < 2; k++) {
        if (t->slots[k].gradients) (void)cudaGraphExecDestroy(t->slots[k].gradients);
        (void)cudaFreeHost(t->slots[k].block);
        (void)cudaFreeHost(t->slots[k].bounce);
        free(t->slots[k].columns);
    }
    if (t->step) (void)cudaGraphExecDestroy(t->step);
    farm_cuda_executor_destroy(t->executor);
    void *const device[] = {t->device_block, t->windows, t->windows_to, t->flat,    t->flat_to, t->policy,
                            t->dpolicy,      t->value,   t->dvalue,     t->scratch, t->sums,    t->terms};
    for (size_t k = 0; k < sizeof device / sizeof *device; k++) (void)cudaFree(device[k]);
    (void)cudaFreeHost(t->results);
    if (t->done) (void)cudaEventDestroy(t->done);
    if (t->stream) (void)cudaStreamDestroy(t->stream);
    free(t->frames);
    free(t);
}

struct CUstream_st *farm_cuda_training_stream(const struct farm_cuda_training *t) {
    return t->stream;
}

uint64_t farm_cuda_training_bus_bytes(const struct farm_cuda_training *t) {
    return t->bus_bytes_total;
}

// ---- gathering, on the host ----

static void *host_input(const struct farm_cuda_training *t, size_t array, size_t index, size_t bytes) {
    return t->slot->block + array + index * bytes;
}

// Frame `index` (0: the oldest of its first step's stack) of the window of column `c` of its chunk.
static void *window_frame(const struct farm_cuda_training *t, uint32_t c, uint32_t index) {
    return t->windows + ((size_t)c * window_frames(t->context) + index) * farm_cuda_slot_bytes(t->context->obs_bytes);
}

// Windows are pulled with all their frames; steps before the first are zeros.
static uint64_t gather_pulls(struct farm_cuda_training *t, const struct farm_column *column, uint32_t number) {
    const struct farm_cuda_context *context = t->context;
    const uint32_t history = (uint32_t)context->net->io.stack - 1;
    uint64_t pulled = 0;
    for (uint32_t k = 0; k < window_frames(context); k++) {
        const size_t at = (size_t)number * window_frames(context) + k;
        const void *from = context->zeros;
        if (column->start + k >= history) {
            const void *frame = farm_lane_obs(column->lane, 0, column->start + k - history, column->env);
            if (context->direct) {
                from = farm_cuda_up(context, column->lane_id, frame);
            } else {
                const size_t offset = at * farm_cuda_slot_bytes(context->obs_bytes);
                memcpy(t->slot->bounce + offset, frame, context->obs_bytes);
                from = t->slot->bounce_mapped + offset;
            }
            pulled++;
        }
        memcpy(host_input(t, t->inputs.pulls, at, sizeof from), &from, sizeof from);
    }
    return pulled * context->obs_bytes;
}

// Lists the frames of the network's input at this step. Returns the bytes that cross the bus for them.
static uint64_t gather_frames(struct farm_cuda_training *t, const struct farm_column *column, uint32_t c, uint32_t step,
                              size_t row) {
    const struct farm_cuda_context *context = t->context;
    const uint32_t stack = (uint32_t)context->net->io.stack;
    const uint64_t n = column->start + step;
    uint64_t bytes = 0;
    farm_lane_stack(column->lane, 0, n, column->env, stack, t->frames);
    for (uint32_t k = 0; k < stack; k++) {
        const void *frame = t->frames[k];
        if (frame && context->mirror.mode == FARM_MIRROR_FULL)
            frame = farm_cuda_mirror_at(&context->mirror, column->lane_id, n - (stack - 1 - k), column->env);
        else if (frame && context->mirror.mode == FARM_MIRROR_WINDOW)
            frame = window_frame(t, c, step + k);
        else if (frame) {
            frame = farm_cuda_up(context, column->lane_id, frame);
            bytes += context->obs_bytes;
        }
        memcpy(host_input(t, t->inputs.frames, row * stack + k, sizeof frame), &frame, sizeof frame);
    }
    return bytes;
}

static uint64_t gather_flat(struct farm_cuda_training *t, const struct farm_column *column, uint64_t n, size_t row) {
    const struct farm_cuda_context *context = t->context;
    if (context->mirror.mode == FARM_MIRROR_FULL) {
        const void *place = farm_cuda_mirror_at(&context->mirror, column->lane_id, n, column->env);
        memcpy(host_input(t, t->inputs.frames, row, sizeof place), &place, sizeof place);
        return 0;
    }
    const size_t chunk_rows = (size_t)t->chunk * window_steps(context);
    char *chunk = host_input(t, t->inputs.flat, row / chunk_rows, t->inputs.flat_chunk);
    memcpy(chunk + row % chunk_rows * context->obs_bytes, farm_lane_obs(column->lane, 0, n, column->env),
           context->obs_bytes);
    return context->obs_bytes;
}

// The host's arrays of the rows.
static struct farm_gathered host_arrays(const struct farm_cuda_training *t) {
    return (struct farm_gathered){.behaviour = host_input(t, t->inputs.behaviour, 0, 1),
                                  .behaviour_value = host_input(t, t->inputs.behaviour_value, 0, 1),
                                  .reward = host_input(t, t->inputs.reward, 0, 1),
                                  .action = host_input(t, t->inputs.action, 0, 1),
                                  .flags = host_input(t, t->inputs.flags, 0, 1)};
}

static const struct farm_column *column_at(const struct farm_cuda_training *t, uint32_t i) {
    return &t->slot->columns[t->order ? t->order[i] : i];
}

static uint64_t gather_pass(struct farm_cuda_training *t) {
    const struct farm_gathered to = host_arrays(t);
    const uint32_t length = window_steps(t->context);
    uint64_t bytes = 0;
    for (uint32_t first = 0; first < t->pass_count; first += t->chunk) {
        const uint32_t left = t->pass_count - first, columns = left < t->chunk ? left : t->chunk;
        for (uint32_t step = 0; step < length; step++)
            for (uint32_t c = 0; c < columns; c++) {
                const struct farm_column *column = column_at(t, first + c);
                const size_t row = (size_t)first * length + (size_t)step * columns + c;
                farm_gather_step(&t->context->learner->algo, column, step, &to, row);
                bytes += farm_cuda_is_flat(t->context) ? gather_flat(t, column, column->start + step, row)
                                                       : gather_frames(t, column, c, step, row);
            }
    }
    for (uint32_t c = 0; c < t->pass_count && t->windows; c++) bytes += gather_pulls(t, column_at(t, c), c);
    return bytes;
}

// ---- a pass ----

enum farm_status farm_cuda_training_list(struct farm_cuda_training *t, uint32_t slot, const struct farm_window *windows,
                                         uint32_t count, struct farm_error *err) {
    const struct farm_cuda_context *context = t->context;
    t->slots[slot].column_count =
        farm_columns_list(windows, count, t->slots[slot].columns, farm_cuda_share(t->context));
    for (uint32_t i = 0; i < count && context->plan->sync && context->mirror.mode == FARM_MIRROR_FULL; i++) {
        const struct farm_window *w = &windows[i];
        const uint64_t last = w->start + context->plan->shape.length - 1;
        FARM_CUDA_TRY(cudaMemcpyAsync(farm_cuda_mirror_at(&context->mirror, w->lane_id, last, w->env_from),
                                      farm_lane_obs(w->lane, 0, last, w->env_from), w->env_count * context->obs_bytes,
                                      cudaMemcpyHostToDevice, t->stream));
    }
    return FARM_OK;
}

uint32_t farm_cuda_training_listed(const struct farm_cuda_training *t, uint32_t slot) {
    return t->slots[slot].column_count;
}

// Whether the pass is the captured one.
static bool is_captured(const struct farm_cuda_training *t) {
    return t->pass_count == farm_cuda_share(t->context) && t->total == t->context->columns_max;
}

enum farm_status farm_cuda_training_gradients(struct farm_cuda_training *t, uint32_t slot, const uint32_t *order,
                                              uint32_t count, uint32_t total, struct farm_error *err) {
    t->slot = &t->slots[slot];
    t->order = order;
    t->pass_count = count;
    t->total = total;
    t->slot->bus_bytes = gather_pass(t);
    if (!is_captured(t)) return enqueue_gradients(t, count, err);
    FARM_CUDA_TRY(cudaGraphLaunch(t->slot->gradients, t->stream));
    return FARM_OK;
}

enum farm_status farm_cuda_training_step(struct farm_cuda_training *t, double learning_rate, struct farm_error *err) {
    t->bus_bytes = t->slot->bus_bytes;
    t->results->learning_rate = (float)learning_rate;
    if (!is_captured(t)) return enqueue_step(t, t->total, err);
    FARM_CUDA_TRY(cudaGraphLaunch(t->step, t->stream));
    return FARM_OK;
}

enum farm_status farm_cuda_training_mark(struct farm_cuda_training *t, struct farm_error *err) {
    FARM_CUDA_TRY(cudaEventRecord(t->done, t->stream));
    return FARM_OK;
}

enum farm_status farm_cuda_training_ended(struct farm_cuda_training *t, bool *ended, struct farm_error *err) {
    const cudaError_t code = cudaEventQuery(t->done);
    *ended = code == cudaSuccess;
    if (code != cudaErrorNotReady) return code ? farm_cuda_fail(err, code, "training", __FILE__, __LINE__) : FARM_OK;
    (void)cudaGetLastError(); // clears "not ready"
    return FARM_OK;
}

void farm_cuda_training_harvest(struct farm_cuda_training *t, struct farm_pass_stats *stats) {
    for (int k = 0; k < FARM_ALGO_TERMS_MAX; k++) stats->terms[k] += t->results->terms[k];
    stats->grad_norm = (double)(float)t->results->control.norm;
    t->bus_bytes_total += t->bus_bytes;
    farm_stats_add(&t->context->learner->stats->bus_train_bytes, t->bus_bytes);
}

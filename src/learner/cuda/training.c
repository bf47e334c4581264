// See training.h.
#include "learner/cuda/training.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "algo/cuda/algo.h"
#include "kernels/cuda/check.h"
#include "learner/cuda/memory.h"
#include "nn/inputs.h"
#include "policy/observation.h"

// Rows of a pass; fewest columns of a recurrent net's products; bytes of the arrays of a pass's inputs.
enum { FRAME_ROWS = 1024, FLAT_ROWS = 16384, COLUMNS_LEAST = 8, ALIGNMENT = 256 };

// What the host gathers for an update, as offsets into a block of pinned memory that is copied to the device whole.
// Rows lie chunk after chunk, within a chunk time-major: row (t, c) = t * columns + c, the early ones before the
// unit's. Early rows have a forward pass before the unit's: the burn-in's, or the one after a sparse plan's horizon.
// The small arrays have a row for each step, which are the network's rows unless the plan is sparse. If targets are
// computed once, the host gathers them and the sums too (learner/iteration.h).
struct inputs {
    size_t frames; // void *[rows * images * stack]
    size_t pulls;  // mode WINDOW: void *[units * images * (rows - 1 + stack)], where the units' frames lie in the rings
    size_t states; // f32 [units][net->state] before their first rows
    size_t flat;   // f32 [rows of a chunk][io.flat], flat_chunk bytes per chunk; flat_early of them are the early rows'
    size_t target_flat;             // the same by the first set's statistics, if it has some
    size_t weight;                  // replay: f32 [units]
    size_t behaviour;               // f32 [rows][outputs]
    size_t behaviour_value, reward; // f32 [rows]
    size_t action;                  // u8 [rows][action_bytes]
    size_t flags;                   // u8 [rows]
    size_t scratch;                 // targets once: f32 of each chunk [algorithm's scratch][its rows, no burn-in]
    size_t sums;                    // targets once: double [2][FARM_ALGO_SUMS_MAX], of the pass, of the iteration
    size_t bytes, flat_chunk, flat_early;
};

// Results, in pinned memory.
struct results {
    double terms[FARM_ALGO_TERMS_MAX];
    struct farm_cuda_optimiser_control control;
    float learning_rate; // the newest step's
};

// When the stream reaches and leaves a pass's gradients, then its step.
enum moment { GRADIENTS_BEGIN, GRADIENTS_END, STEP_BEGIN, STEP_END, MOMENTS };

// One of two iterations: the host gathers for one while the GPU computes the other.
struct slot {
    cudaEvent_t moments[MOMENTS];
    char *block;                  // pinned: the gathered inputs
    char *bounce, *bounce_mapped; // pinned, mode WINDOW without registration: the windows' frames
    cudaGraphExec_t gradients;
    uint64_t bus_bytes;         // observations that cross the bus for it
    struct farm_cuda_pass pass; // whose gradients were begun last
};

struct farm_cuda_training {
    struct farm_cuda_context *context;
    struct farm_cuda_executor *executor;
    cudaStream_t stream;
    cudaEvent_t done;
    struct slot slots[FARM_BACKEND_SLOTS], *slot; // slot: the one whose gradients were begun last
    struct slot *stepped;                         // the one whose step was begun last
    cudaEvent_t start;                            // the first gradients
    double busy_ms, all_ms;                       // the stream's time since then: with gradients or steps, in all
    cudaGraphExec_t step;
    uint32_t chunk;             // units of one forward and backward pass
    struct farm_cuda_pass pass; // whose gradients were begun last
    uint64_t bus_bytes;         // the pass's whose step was begun last
    struct inputs inputs;
    const void **frames; // [stack]
    // pinned
    struct results *results;
    float *values;     // [chunk] bootstrap values, and their [chunk][outputs]; only if targets are computed once
    float *priorities; // replay: [units]
    // device
    char *device_block;
    char *windows;           // mode WINDOW: [chunk][images][rows - 1 + stack] frames of a pass
    void **windows_to;       // [chunk * images * (rows - 1 + stack)]
    float *policy, *dpolicy; // [chunk rows][outputs]
    float *value, *dvalue;   // [chunk rows]
    float *target_policy, *target_value;
    float *priority; // replay: [units]
    float *scratch;  // [algorithm's scratch][chunk rows]
    float *states;   // [chunk][net->state] after the burn-in
    void *sums;      // farm_cuda_algo_scratch_bytes
    double *terms;   // [FARM_ALGO_TERMS_MAX]
    uint64_t bus_bytes_total;
};

// ---- sizes ----

// Steps of a unit's burn-in.
static uint32_t burn_in_steps(const struct farm_cuda_context *context) {
    return context->plan->recurrent ? context->plan->shape.burn_in : 0;
}

// A unit's early rows, and the others.
static uint32_t early_rows(const struct farm_cuda_context *context) {
    return context->plan->sparse ? 1 : burn_in_steps(context);
}
static uint32_t unit_rows(const struct farm_cuda_context *context) {
    return context->plan->sparse ? 1 : farm_algo_unit_rows(context->plan);
}
static uint32_t all_rows(const struct farm_cuda_context *context) {
    return early_rows(context) + unit_rows(context);
}
static uint32_t all_steps(const struct farm_cuda_context *context) {
    return burn_in_steps(context) + farm_algo_unit_steps(context->plan);
}

// Rows of one forward pass of a unit.
static uint32_t pass_rows(const struct farm_cuda_context *context) {
    return unit_rows(context) > early_rows(context) ? unit_rows(context) : early_rows(context);
}

// Rows of a unit for which an algorithm has outputs and gradients.
static uint32_t output_rows(const struct farm_cuda_context *context) {
    return context->plan->sparse ? 2 : pass_rows(context);
}

static bool has_target(const struct farm_cuda_context *context) {
    return farm_algo_sets(context->plan) > 0;
}

static size_t state_floats(const struct farm_cuda_context *context) {
    return (size_t)context->net->state;
}

static size_t scratch_arrays(const struct farm_cuda_context *context) {
    return (size_t)context->learner->algo.algo->scratch;
}

// Units of one forward and backward pass: micro_batch windows, or as many as keep the GPU busy.
static uint32_t chunk_units(const struct farm_cuda_context *context) {
    const uint32_t windows = context->learner->training.micro_batch, rows = context->images ? FRAME_ROWS : FLAT_ROWS;
    uint32_t chunk = windows ? farm_algo_units(context->plan, windows) : rows / pass_rows(context);
    if (context->plan->recurrent && chunk < COLUMNS_LEAST && !windows) chunk = COLUMNS_LEAST;
    if (chunk > farm_cuda_pass_units(context)) chunk = farm_cuda_pass_units(context);
    return chunk ? chunk : 1;
}

// Frames of an image that a unit's `rows` rows read, the earlier ones of the first row's stack too; and of all images.
static uint32_t image_frames(const struct farm_cuda_context *context, uint32_t rows) {
    return (uint32_t)context->net->io.stack + (context->plan->sparse ? context->plan->bootstrap : rows - 1);
}
static uint32_t unit_frames(const struct farm_cuda_context *context, uint32_t rows) {
    return context->images * image_frames(context, rows);
}

// Frames of a row.
static size_t row_frames(const struct farm_cuda_context *context) {
    return (size_t)context->images * (size_t)context->net->io.stack;
}

static struct inputs lay_out_inputs(const struct farm_cuda_context *context, enum farm_mirror mode) {
    const size_t batch = farm_cuda_pass_units(context), rows = batch * all_rows(context),
                 steps = batch * all_steps(context);
    const size_t pulled = mode == FARM_MIRROR_WINDOW ? batch * unit_frames(context, all_rows(context)) : 0;
    struct inputs inputs = {0};
    size_t at = 0;
    inputs.frames = farm_cuda_reserve(&at, rows * row_frames(context) * sizeof(void *), ALIGNMENT);
    inputs.pulls = farm_cuda_reserve(&at, pulled * sizeof(void *), ALIGNMENT);
    inputs.states = farm_cuda_reserve(&at, batch * state_floats(context) * sizeof(float), ALIGNMENT);
    const size_t chunk = chunk_units(context);
    (void)farm_cuda_reserve(&inputs.flat_early, chunk * early_rows(context) * context->flat_bytes, ALIGNMENT);
    inputs.flat_chunk = inputs.flat_early;
    (void)farm_cuda_reserve(&inputs.flat_chunk, chunk * unit_rows(context) * context->flat_bytes, ALIGNMENT);
    const size_t flat = (batch + chunk - 1) / chunk * inputs.flat_chunk;
    inputs.flat = farm_cuda_reserve(&at, flat, ALIGNMENT);
    inputs.target_flat = inputs.flat;
    if (farm_cuda_target_scales(context->net, context->plan))
        inputs.target_flat = farm_cuda_reserve(&at, flat, ALIGNMENT);
    inputs.weight = farm_cuda_reserve(&at, context->plan->replay ? batch * sizeof(float) : 0, ALIGNMENT);
    inputs.behaviour = farm_cuda_reserve(&at, steps * (size_t)context->head.outputs * sizeof(float), ALIGNMENT);
    inputs.behaviour_value = farm_cuda_reserve(&at, steps * sizeof(float), ALIGNMENT);
    inputs.reward = farm_cuda_reserve(&at, steps * sizeof(float), ALIGNMENT);
    inputs.action = farm_cuda_reserve(&at, steps * (size_t)context->head.action_bytes, ALIGNMENT);
    inputs.flags = farm_cuda_reserve(&at, steps, ALIGNMENT);
    const bool once = context->plan->targets_once;
    inputs.scratch = farm_cuda_reserve(
        &at, once ? batch * unit_rows(context) * scratch_arrays(context) * sizeof(float) : 0, ALIGNMENT);
    inputs.sums = farm_cuda_reserve(&at, once ? 2 * FARM_ALGO_SUMS_MAX * sizeof(double) : 0, ALIGNMENT);
    inputs.bytes = at;
    return inputs;
}

size_t farm_cuda_training_bytes(const struct farm_cuda_context *context, enum farm_mirror mode) {
    const struct farm_cuda_executor_config config =
        farm_cuda_executor_config(context, chunk_units(context) * pass_rows(context), true);
    const size_t chunk = chunk_units(context), rows = chunk * output_rows(context);
    const size_t outputs = (has_target(context) ? 3 : 2) * ((size_t)context->head.outputs + 1);
    size_t bytes = farm_cuda_executor_bytes(&config) + lay_out_inputs(context, mode).bytes;
    bytes += sizeof(float) * (rows * (outputs + scratch_arrays(context)) + chunk * state_floats(context));
    if (mode == FARM_MIRROR_WINDOW)
        bytes += chunk * unit_frames(context, all_rows(context)) *
                 (farm_cuda_slot_bytes(context->frame_bytes) + sizeof(void *));
    return bytes;
}

// ---- memory ----

static enum farm_status allocate_array(size_t count, size_t bytes, void *out, struct farm_error *err) {
    return farm_cuda_device_memory(count * bytes, "training needs", "micro-batch", out, err);
}

static enum farm_status allocate_on_device(struct farm_cuda_training *t, struct farm_error *err) {
    const struct farm_cuda_context *context = t->context;
    const size_t rows = (size_t)t->chunk * output_rows(context), outputs = (size_t)context->head.outputs;
    enum farm_status status = allocate_array(1, t->inputs.bytes, &t->device_block, err);
    if (!status && has_target(context)) status = allocate_array(rows * outputs, sizeof(float), &t->target_policy, err);
    if (!status && has_target(context)) status = allocate_array(rows, sizeof(float), &t->target_value, err);
    if (!status && context->plan->replay)
        status = allocate_array(farm_cuda_pass_units(context), sizeof(float), &t->priority, err);
    if (!status) status = allocate_array(rows * outputs, sizeof(float), &t->policy, err);
    if (!status) status = allocate_array(rows * outputs, sizeof(float), &t->dpolicy, err);
    if (!status) status = allocate_array(rows, sizeof(float), &t->value, err);
    if (!status) status = allocate_array(rows, sizeof(float), &t->dvalue, err);
    if (!status && context->learner->algo.algo->scratch)
        status = allocate_array(rows * (size_t)context->learner->algo.algo->scratch, sizeof(float), &t->scratch, err);
    if (!status && state_floats(context))
        status = allocate_array(t->chunk * state_floats(context), sizeof(float), &t->states, err);
    if (!status) status = allocate_array(1, farm_cuda_algo_scratch_bytes((int)rows), &t->sums, err);
    if (!status) status = allocate_array(FARM_ALGO_TERMS_MAX, sizeof *t->terms, &t->terms, err);
    return status;
}

// Memory for frames on their way from the rings to the network.
static enum farm_status allocate_windows(struct farm_cuda_training *t, struct farm_error *err) {
    const struct farm_cuda_context *context = t->context;
    const size_t frames = (size_t)t->chunk * unit_frames(context, all_rows(context)),
                 slot = farm_cuda_slot_bytes(context->frame_bytes);
    if (context->mirror.mode != FARM_MIRROR_WINDOW || !context->images) return FARM_OK;
    enum farm_status status = allocate_array(frames, slot, &t->windows, err);
    if (!status)
        status = farm_cuda_places(t->windows, slot, frames, "training needs", "micro-batch", &t->windows_to, err);
    if (status || context->direct) return status;
    const size_t all = (size_t)farm_cuda_pass_units(context) * unit_frames(context, all_rows(context));
    for (int k = 0; k < 2 && !status; k++) {
        status = farm_cuda_host_memory(all * slot, "the windows need", "batch", &t->slots[k].bounce, err);
        if (!status) status = farm_cuda_mapped(t->slots[k].bounce, &t->slots[k].bounce_mapped, err);
    }
    return status;
}

static enum farm_status make_moments(struct farm_cuda_training *t, struct farm_error *err) {
    FARM_CUDA_TRY(cudaEventCreate(&t->start));
    for (int k = 0; k < FARM_BACKEND_SLOTS; k++)
        for (int m = 0; m < MOMENTS; m++) FARM_CUDA_TRY(cudaEventCreate(&t->slots[k].moments[m]));
    return FARM_OK;
}

static enum farm_status allocate_on_host(struct farm_cuda_training *t, struct farm_error *err) {
    const size_t outputs = (size_t)t->context->head.outputs;
    enum farm_status status = farm_cuda_host_memory(sizeof *t->results, "training needs", NULL, &t->results, err);
    if (!status && t->context->plan->targets_once)
        status = farm_cuda_host_memory(t->chunk * (outputs + 1) * sizeof *t->values, "training needs", "minibatch",
                                       &t->values, err);
    if (!status && t->context->plan->replay)
        status = farm_cuda_host_memory(farm_cuda_pass_units(t->context) * sizeof *t->priorities, "training needs",
                                       "batch", &t->priorities, err);
    for (int k = 0; k < 2 && !status; k++) {
        status = farm_cuda_host_memory(t->inputs.bytes, "training needs", "batch", &t->slots[k].block, err);
    }
    t->frames = calloc((size_t)t->context->net->io.stack, sizeof *t->frames);
    if (!status && !t->frames) status = farm_fail(err, FARM_E_LIMIT, "no memory for an update's list");
    return status;
}

// ---- an update's work ----

// A unit of the present pass: its early rows and the others; its steps, of which the first `burn_in` only warm up the
// state. A bootstrap value has one of each.
struct extent {
    uint32_t early, rows, burn_in, steps;
};
static struct extent extent_of(const struct farm_cuda_training *t) {
    const struct farm_cuda_context *context = t->context;
    if (t->pass.bootstrap) return (struct extent){0, 1, 0, 1};
    return (struct extent){early_rows(context), unit_rows(context), burn_in_steps(context), all_steps(context)};
}
static uint32_t rows_of(const struct farm_cuda_training *t) {
    return extent_of(t).early + extent_of(t).rows;
}

// Where the targets of the chunk that begins with unit `first` lie.
static size_t scratch_place(const struct farm_cuda_context *context, uint32_t first) {
    return (size_t)first * farm_algo_unit_transitions(context->plan) * scratch_arrays(context);
}

static void *device_input(const struct farm_cuda_training *t, size_t array, size_t row, size_t bytes) {
    return t->device_block + array + row * bytes;
}

// The rows of the chunk that begins with unit `first`: the early ones, or those after them; and its steps, of the
// burn-in or after it.
static size_t first_row(const struct farm_cuda_training *t, uint32_t first, uint32_t columns, bool early) {
    return (size_t)first * rows_of(t) + (early ? 0 : (size_t)extent_of(t).early * columns);
}
static size_t first_step(const struct farm_cuda_training *t, uint32_t first, uint32_t columns, bool burn_in) {
    return (size_t)first * extent_of(t).steps + (burn_in ? 0 : (size_t)extent_of(t).burn_in * columns);
}

static struct farm_sequence sequence_of(const struct farm_cuda_training *t, uint32_t first, uint32_t columns,
                                        bool early) {
    const struct extent e = extent_of(t);
    struct farm_sequence sequence = {.steps = (int)(early ? e.early : e.rows), .columns = (int)columns};
    if (!state_floats(t->context)) return sequence;
    sequence.flags = device_input(t, t->inputs.flags, first_step(t, first, columns, early), 1);
    sequence.state_in = device_input(t, t->inputs.states, first, state_floats(t->context) * sizeof(float));
    if (early) sequence.state_out = t->states;
    if (!early && e.early) sequence.state_in = t->states;
    return sequence;
}

// Where the flat input of the chunk that begins with unit `first` lies, in t->inputs.flat or target_flat.
static size_t flat_place(const struct farm_cuda_training *t, size_t array, uint32_t first, bool early) {
    return array + first / t->chunk * t->inputs.flat_chunk + (early ? 0 : t->inputs.flat_early);
}

// target: by the first set. A sparse plan's early row bootstraps, so its outputs lie behind the trained row's.
static enum farm_status enqueue_forward(struct farm_cuda_training *t, uint32_t first, uint32_t columns, bool early,
                                        bool target, struct farm_error *err) {
    const struct farm_cuda_context *context = t->context;
    const struct farm_cuda_parameters *p = &context->parameters;
    const size_t row = first_row(t, first, columns, early), to = context->plan->sparse && early ? columns : 0;
    struct farm_cuda_input input = {.scale = target ? p->target.scale : p->scale};
    if (context->images) input.frames = device_input(t, t->inputs.frames, row * row_frames(context), sizeof(void *));
    if (context->flat_bytes)
        input.flat =
            device_input(t, flat_place(t, target ? t->inputs.target_flat : t->inputs.flat, first, early), 0, 0);
    return farm_cuda_executor_forward(t->executor, t->stream,
                                      target ? farm_cuda_parameters_target(p) : farm_cuda_parameters_trained(p), &input,
                                      sequence_of(t, first, columns, early),
                                      (target ? t->target_policy : t->policy) + to * (size_t)context->head.outputs,
                                      (target ? t->target_value : t->value) + to, err);
}

static enum farm_status enqueue_backward(struct farm_cuda_training *t, uint32_t first, uint32_t columns,
                                         struct farm_error *err) {
    return farm_cuda_executor_backward(t->executor, t->stream, farm_cuda_parameters_trained(&t->context->parameters),
                                       t->dpolicy, t->dvalue, sequence_of(t, first, columns, false),
                                       t->context->parameters.gradients, err);
}

// The small arrays, in the host's or the device's block, of the steps after the burn-in of the chunk that begins with
// unit `first` and has `units`.
static struct farm_gathered arrays_in(const struct farm_cuda_training *t, char *block, uint32_t first, uint32_t units) {
    const size_t row = first_step(t, first, units, false), outputs = (size_t)t->context->head.outputs;
    const struct inputs *in = &t->inputs;
    return (struct farm_gathered){.behaviour = (float *)(void *)(block + in->behaviour) + row * outputs,
                                  .behaviour_value = (float *)(void *)(block + in->behaviour_value) + row,
                                  .reward = (float *)(void *)(block + in->reward) + row,
                                  .action = (uint8_t *)block + in->action + row * (size_t)t->context->head.action_bytes,
                                  .flags = (uint8_t *)block + in->flags + row,
                                  .scratch = (float *)(void *)(block + in->scratch) + scratch_place(t->context, first),
                                  .scratch_stride = (size_t)units * farm_algo_unit_transitions(t->context->plan)};
}

// The algorithm's kernels, after forward.
static enum farm_status enqueue_algorithm(struct farm_cuda_training *t, uint32_t first, uint32_t columns,
                                          struct farm_error *err) {
    const struct farm_cuda_context *context = t->context;
    const struct farm_algo_config *algo = &context->learner->algo;
    const bool once = context->plan->targets_once;
    const struct farm_gathered gathered = arrays_in(t, t->device_block, first, columns);
    struct farm_algo_rows rows =
        farm_gathered_rows(&gathered, algo, context->head, farm_algo_unit_transitions(context->plan), columns);
    rows.tail = once ? 0 : (int)context->plan->bootstrap;
    rows.bootstrap = context->plan->sparse ? (int)columns : rows.tail * (int)columns;
    rows.sparse = context->plan->sparse;
    rows.policy = t->policy;
    rows.value = t->value;
    rows.target_policy = t->target_policy;
    rows.target_value = t->target_value;
    if (t->priority) rows.weight = device_input(t, t->inputs.weight, first, sizeof(float));
    if (t->priority) rows.priority = t->priority + first;
    if (!once) rows.scratch = t->scratch;
    rows.pass_sums = device_input(t, t->inputs.sums, 0, sizeof(double));
    rows.iteration_sums = device_input(t, t->inputs.sums, FARM_ALGO_SUMS_MAX, sizeof(double));
    rows.dpolicy = t->dpolicy;
    rows.dvalue = t->dvalue;
    return farm_cuda_algo_differentiate(t->stream, algo->algo->recipe.name, &rows, !once, t->sums, t->terms, err);
}

static enum farm_status enqueue_window_pull(struct farm_cuda_training *t, uint32_t first, uint32_t columns,
                                            struct farm_error *err) {
    if (!t->windows) return FARM_OK;
    const uint32_t frames = unit_frames(t->context, rows_of(t));
    const struct farm_cuda_obs_path *obs_path = &t->context->obs_path; // batches of copies cannot be captured
    const struct farm_cuda_pull pull = {.from =
                                            device_input(t, t->inputs.pulls, (size_t)first * frames, sizeof(void *)),
                                        .to = t->windows_to,
                                        .count = columns * frames,
                                        .bytes = t->context->frame_bytes,
                                        .blocks = obs_path->blocks};
    return farm_cuda_pull(t->stream, obs_path->copies ? FARM_CUDA_PULL_LOADS : obs_path->way, &pull, err);
}

static enum farm_status enqueue_chunk(struct farm_cuda_training *t, uint32_t first, uint32_t columns,
                                      struct farm_error *err) {
    enum farm_status status = enqueue_window_pull(t, first, columns, err);
    // The first set's passes come first, because a backward pass follows its forward pass.
    for (int target = has_target(t->context); target >= 0; target--) {
        if (!status && extent_of(t).early) status = enqueue_forward(t, first, columns, true, target, err);
        if (!status && !(target && t->context->plan->sparse))
            status = enqueue_forward(t, first, columns, false, target, err);
    }
    if (!status) status = enqueue_algorithm(t, first, columns, err);
    if (!status) status = enqueue_backward(t, first, columns, err);
    return status;
}

static enum farm_status enqueue_inputs(struct farm_cuda_training *t, struct farm_error *err) {
    const struct farm_cuda_parameters *p = &t->context->parameters;
    FARM_CUDA_TRY(cudaMemcpyAsync(t->device_block, t->slot->block, t->inputs.bytes, cudaMemcpyHostToDevice, t->stream));
    FARM_CUDA_TRY(cudaMemsetAsync(p->gradients, 0, p->count * sizeof(float), t->stream));
    FARM_CUDA_TRY(cudaMemsetAsync(t->terms, 0, FARM_ALGO_TERMS_MAX * sizeof *t->terms, t->stream));
    return FARM_OK;
}

// The gradients of `count` units, added up.
static enum farm_status enqueue_gradients(struct farm_cuda_training *t, uint32_t units, struct farm_error *err) {
    enum farm_status status = enqueue_inputs(t, err);
    for (uint32_t first = 0; first < units && !status; first += t->chunk)
        status = enqueue_chunk(t, first, units - first < t->chunk ? units - first : t->chunk, err);
    return status;
}

// The step along the gradients of `total` units.
static enum farm_status enqueue_step(struct farm_cuda_training *t, uint32_t total, struct farm_error *err) {
    struct farm_cuda_parameters *p = &t->context->parameters;
    const bool mean = !t->context->learner->algo.loss_sum;
    const float rows = (float)(total * farm_algo_unit_transitions(t->context->plan));
    enum farm_status status = FARM_OK;
    FARM_CUDA_TRY(cudaMemcpyAsync(&p->optimiser.control->learning_rate, &t->results->learning_rate, sizeof(float),
                                  cudaMemcpyHostToDevice, t->stream));
    if (mean || p->trainable)
        status = farm_cuda_scale(t->stream, p->gradients, p->count, mean ? 1.0f / rows : 1, p->trainable, err);
    if (!status) status = farm_cuda_optimiser_step(t->stream, &p->optimiser, err);
    if (status) return status;
    FARM_CUDA_TRY(
        cudaMemcpyAsync(t->results->terms, t->terms, sizeof t->results->terms, cudaMemcpyDeviceToHost, t->stream));
    if (t->priority)
        FARM_CUDA_TRY(cudaMemcpyAsync(t->priorities, t->priority,
                                      farm_cuda_pass_units(t->context) * sizeof *t->priorities, cudaMemcpyDeviceToHost,
                                      t->stream));
    FARM_CUDA_TRY(cudaMemcpyAsync(&t->results->control, p->optimiser.control, sizeof t->results->control,
                                  cudaMemcpyDeviceToHost, t->stream));
    return FARM_OK;
}

// Fills the list of frames to pull with zeros; frames of the input are NULL, which means zeros.
static void list_zeros(struct farm_cuda_training *t) {
    const struct farm_cuda_context *context = t->context;
    const size_t batch = farm_cuda_pass_units(context);
    void **pulls = (void **)(void *)(t->slot->block + t->inputs.pulls);
    for (size_t i = 0; i < batch * unit_frames(context, all_rows(context)) && t->windows; i++)
        pulls[i] = context->zeros;
}

// Units of the captured pass in all shards.
static uint32_t captured_total(const struct farm_cuda_context *context) {
    return context->plan->targets_once ? farm_cuda_pass_units(context) : context->columns_max;
}

// Runs an update on zeros, which chooses algorithms and loads kernels; restores the parameters; captures the graphs.
static enum farm_status capture_graphs(struct farm_cuda_training *t, struct farm_error *err) {
    const uint32_t share = farm_cuda_pass_units(t->context), batch = captured_total(t->context);
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
    t->chunk = chunk_units(context);
    t->inputs = lay_out_inputs(context, context->mirror.mode);
    const struct farm_cuda_executor_config config =
        farm_cuda_executor_config(context, chunk_units(context) * pass_rows(context), true);
    enum farm_status status = farm_cuda_stream_make(false, &t->stream, &t->done, err);
    if (!status) status = make_moments(t, err);
    if (!status) status = allocate_on_host(t, err);
    if (!status) status = allocate_on_device(t, err);
    if (!status) status = allocate_windows(t, err);
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
        for (int m = 0; m < MOMENTS; m++)
            if (t->slots[k].moments[m]) (void)cudaEventDestroy(t->slots[k].moments[m]);
        (void)cudaFreeHost(t->slots[k].block);
        (void)cudaFreeHost(t->slots[k].bounce);
    }
    if (t->step) (void)cudaGraphExecDestroy(t->step);
    farm_cuda_executor_destroy(t->executor);
    void *const device[] = {t->device_block, t->windows,       t->windows_to,   t->policy,  t->dpolicy,
                            t->value,        t->dvalue,        t->scratch,      t->sums,    t->terms,
                            t->states,       t->target_policy, t->target_value, t->priority};
    for (size_t k = 0; k < sizeof device / sizeof *device; k++) (void)cudaFree(device[k]);
    (void)cudaFreeHost(t->results);
    (void)cudaFreeHost(t->values);
    (void)cudaFreeHost(t->priorities);
    if (t->done) (void)cudaEventDestroy(t->done);
    if (t->start) (void)cudaEventDestroy(t->start);
    if (t->stream) (void)cudaStreamDestroy(t->stream);
    free(t->frames);
    free(t);
}

struct CUstream_st *farm_cuda_training_stream(const struct farm_cuda_training *t) {
    return t->stream;
}

// ---- gathering, on the host ----

static void *host_input(const struct farm_cuda_training *t, size_t array, size_t index, size_t bytes) {
    return t->slot->block + array + index * bytes;
}

// Frame `index` (0: the oldest of its first row's stack) of an image of unit `c` of its chunk.
static void *unit_frame(const struct farm_cuda_training *t, uint32_t c, uint32_t image, uint32_t index) {
    const size_t at =
        (size_t)c * unit_frames(t->context, rows_of(t)) + image * image_frames(t->context, rows_of(t)) + index;
    return t->windows + at * farm_cuda_slot_bytes(t->context->frame_bytes);
}

// The pass's unit number `i`. The place of its row `row`, an early one's below 0; for bootstrap values, the column's
// last step.
static uint32_t unit_at(const struct farm_cuda_training *t, uint32_t i) {
    return t->pass.order ? t->pass.order[i] : t->pass.first + i;
}
static struct farm_place place_at(const struct farm_cuda_training *t, uint32_t i, int row) {
    const struct farm_iteration *it = t->pass.iteration;
    if (t->pass.bootstrap) return farm_iteration_last(it, unit_at(t, i));
    if (it->plan->sparse && row < 0) return farm_iteration_net_place(it, unit_at(t, i), 1);
    return farm_iteration_place(it, unit_at(t, i), row);
}

// Units are pulled with all their frames; steps before a lane's first are zeros. Returns the bytes that cross the bus.
static uint64_t gather_pulls(struct farm_cuda_training *t, const struct farm_place *first, uint32_t number) {
    const struct farm_cuda_context *context = t->context;
    const uint32_t history = (uint32_t)context->net->io.stack - 1, steps = image_frames(context, rows_of(t)),
                   frames = unit_frames(context, rows_of(t));
    uint64_t pulled = 0;
    for (uint32_t k = 0; k < frames; k++) {
        const size_t at = (size_t)number * frames + k;
        const uint64_t step = first->n + k % steps; // plus `history`
        const void *from = context->zeros;
        if (step >= history) {
            const void *frame = farm_cuda_frame(&context->mirror, first->lane, k / steps, step - history, first->env);
            if (context->direct) {
                from = farm_cuda_up(context, first->lane_id, frame);
            } else {
                const size_t offset = at * farm_cuda_slot_bytes(context->frame_bytes);
                memcpy(t->slot->bounce + offset, frame, context->frame_bytes);
                from = t->slot->bounce_mapped + offset;
            }
            pulled++;
        }
        memcpy(host_input(t, t->inputs.pulls, at, sizeof from), &from, sizeof from);
    }
    return pulled * context->frame_bytes;
}

// Lists the frames of an image of the network's input at this place of unit `c` of its chunk, of which the stack begins
// with pulled frame number `pulled`. Returns the bytes that cross the bus for them.
static uint64_t gather_frames(struct farm_cuda_training *t, const struct farm_place *at, uint32_t c, uint32_t pulled,
                              uint32_t image, size_t row) {
    const struct farm_cuda_context *context = t->context;
    const uint32_t stack = (uint32_t)context->net->io.stack;
    const size_t first = row * row_frames(context) + image * stack;
    uint64_t bytes = 0;
    farm_lane_stack(at->lane, (uint32_t)context->net->io.image_source[image], at->n, at->env, stack, t->frames);
    for (uint32_t k = 0; k < stack; k++) {
        const void *frame = t->frames[k];
        if (frame && context->mirror.mode == FARM_MIRROR_FULL)
            frame = farm_cuda_mirror_at(&context->mirror, at->lane_id, image, at->n - (stack - 1 - k), at->env);
        else if (frame && context->mirror.mode == FARM_MIRROR_WINDOW)
            frame = unit_frame(t, c, image, pulled + k);
        else if (frame) {
            frame = farm_cuda_up(context, at->lane_id, frame);
            bytes += context->frame_bytes;
        }
        memcpy(host_input(t, t->inputs.frames, first + k, sizeof frame), &frame, sizeof frame);
    }
    return bytes;
}

// Writes the flat input at this place, row `row` of those of the chunk that begins with unit `first`. Returns the bytes
// that cross the bus for it.
static uint64_t gather_flat(struct farm_cuda_training *t, const struct farm_place *at, uint32_t first, bool early,
                            size_t row) {
    const struct farm_cuda_context *context = t->context;
    if (!context->flat_bytes) return 0;
    const struct farm_cuda_parameters *p = &context->parameters;
    const struct farm_cuda_published *newest = &p->copies[p->newest];
    const void *parts[FARM_NET_INPUTS_MAX];
    farm_observation_parts(context->net, at->lane, at->n, at->env, parts);
    farm_inputs_write(&context->net->io, newest->mean, newest->inverse, parts,
                      host_input(t, flat_place(t, t->inputs.flat, first, early), row, context->flat_bytes));
    if (!p->target.mean) return context->flat_bytes;
    farm_inputs_write(&context->net->io, p->target.mean, p->target.inverse, parts,
                      host_input(t, flat_place(t, t->inputs.target_flat, first, early), row, context->flat_bytes));
    return 2 * context->flat_bytes;
}

// The observation of row `row`, an early one below 0, of unit `c` of the chunk of `units` that begins with unit
// `first`. Returns the bytes that cross the bus for it.
static uint64_t gather_observation(struct farm_cuda_training *t, uint32_t first, uint32_t units, int row, uint32_t c) {
    const bool early = row < 0;
    const size_t to = (size_t)(row + (early ? (int)extent_of(t).early : 0)) * units + c;
    const struct farm_place at = place_at(t, first + c, row);
    const uint32_t pulled = (uint32_t)(at.n - place_at(t, first + c, -(int)extent_of(t).burn_in).n);
    const bool target = has_target(t->context) && !t->pass.bootstrap && (early || !t->context->plan->sparse);
    uint64_t bytes = 0;
    for (uint32_t image = 0; image < t->context->images; image++)
        bytes += gather_frames(t, &at, c, pulled, image, first_row(t, first, units, early) + to);
    return gather_flat(t, &at, first, early, to) + (target ? 2 : 1) * bytes; // two forward passes read its frames
}

// The small arrays of step `step` of the same unit: of the burn-in, below 0, and for bootstrap values its flags.
static void gather_step(struct farm_cuda_training *t, uint32_t first, uint32_t units, int step, uint32_t c) {
    const struct extent e = extent_of(t);
    const bool burn_in = step < 0;
    const size_t row = (size_t)(step + (burn_in ? (int)e.burn_in : 0)) * units + c;
    const struct farm_gathered to = arrays_in(t, t->slot->block, first, units);
    if (burn_in || t->pass.bootstrap) {
        const struct farm_place at = place_at(t, first + c, step);
        *(uint8_t *)host_input(t, t->inputs.flags, first_step(t, first, units, burn_in) + row, 1) =
            farm_lane_flags(at.lane, at.n)[at.env];
    } else {
        farm_iteration_row(t->pass.iteration, unit_at(t, first + c), (uint32_t)step, &to, row);
    }
}

static uint64_t gather_pass(struct farm_cuda_training *t) {
    const struct farm_cuda_pass *pass = &t->pass;
    const struct extent e = extent_of(t);
    const size_t state_bytes = state_floats(t->context) * sizeof(float);
    uint64_t bytes = 0;
    for (uint32_t first = 0; first < pass->count; first += t->chunk) {
        const uint32_t left = pass->count - first, units = left < t->chunk ? left : t->chunk;
        for (int row = -(int)e.early; row < (int)e.rows; row++)
            for (uint32_t c = 0; c < units; c++) bytes += gather_observation(t, first, units, row, c);
        for (int step = -(int)e.burn_in; step < (int)(e.steps - e.burn_in); step++)
            for (uint32_t c = 0; c < units; c++) gather_step(t, first, units, step, c);
    }
    for (uint32_t i = 0; i < pass->count && t->priority; i++)
        *(float *)host_input(t, t->inputs.weight, i, sizeof(float)) = pass->iteration->columns[unit_at(t, i)].weight;
    for (uint32_t i = 0; i < pass->count && (t->windows || state_bytes); i++) {
        const struct farm_place at = place_at(t, i, -(int)e.burn_in);
        if (t->windows) bytes += gather_pulls(t, &at, i);
        if (state_bytes)
            memcpy(host_input(t, t->inputs.states, i, state_bytes),
                   farm_lane_answer_at(at.lane, at.lane->state, at.n, at.env), state_bytes);
    }
    if (t->context->plan->targets_once) {
        double *sums = host_input(t, t->inputs.sums, 0, 1);
        memcpy(sums, pass->iteration->pass_sums, sizeof pass->iteration->pass_sums);
        memcpy(sums + FARM_ALGO_SUMS_MAX, pass->iteration->iteration_sums, sizeof pass->iteration->iteration_sums);
    }
    return bytes;
}

// ---- a pass ----

enum farm_status farm_cuda_training_bring(struct farm_cuda_training *t, const struct farm_window *windows,
                                          uint32_t count, struct farm_error *err) {
    const struct farm_cuda_context *context = t->context;
    const bool needed = context->plan->sync && context->mirror.mode == FARM_MIRROR_FULL;
    for (uint32_t i = 0; i < count * context->images && needed; i++) {
        const struct farm_window *w = &windows[i / context->images];
        const uint64_t last = w->start + context->plan->shape.length - 1;
        const uint32_t image = i % context->images;
        FARM_CUDA_TRY(cudaMemcpyAsync(farm_cuda_mirror_at(&context->mirror, w->lane_id, image, last, w->env_from),
                                      farm_cuda_frame(&context->mirror, w->lane, image, last, w->env_from),
                                      w->env_count * context->frame_bytes, cudaMemcpyHostToDevice, t->stream));
    }
    return FARM_OK;
}

uint32_t farm_cuda_training_values_most(const struct farm_cuda_training *t) {
    return t->chunk;
}

enum farm_status farm_cuda_training_values(struct farm_cuda_training *t, uint32_t slot,
                                           const struct farm_iteration *iteration, uint32_t first, uint32_t count,
                                           struct farm_error *err) {
    t->slot = &t->slots[slot];
    t->pass = (struct farm_cuda_pass){.iteration = iteration, .first = first, .count = count, .bootstrap = true};
    t->bus_bytes_total += gather_pass(t);
    enum farm_status status = enqueue_inputs(t, err);
    if (!status) status = enqueue_window_pull(t, 0, count, err);
    if (!status) status = enqueue_forward(t, 0, count, false, false, err);
    if (status) return status;
    FARM_CUDA_TRY(cudaMemcpyAsync(t->values, t->value, count * sizeof *t->values, cudaMemcpyDeviceToHost, t->stream));
    FARM_CUDA_TRY(cudaMemcpyAsync(t->values + t->chunk, t->policy,
                                  count * (size_t)t->context->head.outputs * sizeof *t->values, cudaMemcpyDeviceToHost,
                                  t->stream));
    return farm_cuda_training_mark(t, err);
}

float *farm_cuda_training_take_values(const struct farm_cuda_training *t) {
    return t->values;
}

// Whether the pass is the captured one.
static bool is_captured(const struct farm_cuda_training *t) {
    return t->pass.count == farm_cuda_pass_units(t->context) && t->pass.total == captured_total(t->context);
}

enum farm_status farm_cuda_training_gradients(struct farm_cuda_training *t, uint32_t slot,
                                              const struct farm_cuda_pass *pass, struct farm_error *err) {
    t->slot = &t->slots[slot];
    t->pass = t->slot->pass = *pass;
    t->slot->bus_bytes = gather_pass(t);
    if (!t->stepped) FARM_CUDA_TRY(cudaEventRecord(t->start, t->stream));
    FARM_CUDA_TRY(cudaEventRecord(t->slot->moments[GRADIENTS_BEGIN], t->stream));
    if (is_captured(t)) {
        FARM_CUDA_TRY(cudaGraphLaunch(t->slot->gradients, t->stream));
    } else {
        const enum farm_status status = enqueue_gradients(t, pass->count, err);
        if (status) return status;
    }
    FARM_CUDA_TRY(cudaEventRecord(t->slot->moments[GRADIENTS_END], t->stream));
    return FARM_OK;
}

enum farm_status farm_cuda_training_step(struct farm_cuda_training *t, double learning_rate, struct farm_error *err) {
    t->bus_bytes = t->slot->bus_bytes;
    t->results->learning_rate = (float)learning_rate;
    t->stepped = t->slot;
    FARM_CUDA_TRY(cudaEventRecord(t->slot->moments[STEP_BEGIN], t->stream));
    if (is_captured(t)) {
        FARM_CUDA_TRY(cudaGraphLaunch(t->step, t->stream));
    } else {
        const enum farm_status status = enqueue_step(t, t->pass.total, err);
        if (status) return status;
    }
    FARM_CUDA_TRY(cudaEventRecord(t->slot->moments[STEP_END], t->stream));
    return farm_cuda_training_mark(t, err);
}

// Of the last step, which has ended. What the device cannot tell is left out.
static void add_times(struct farm_cuda_training *t) {
    const cudaEvent_t *at = t->stepped->moments;
    float gradients_ms, step_ms, all_ms;
    if (cudaEventElapsedTime(&gradients_ms, at[GRADIENTS_BEGIN], at[GRADIENTS_END]) ||
        cudaEventElapsedTime(&step_ms, at[STEP_BEGIN], at[STEP_END]) ||
        cudaEventElapsedTime(&all_ms, t->start, at[STEP_END])) {
        (void)cudaGetLastError();
        return;
    }
    t->busy_ms += (double)gradients_ms + (double)step_ms;
    t->all_ms = (double)all_ms;
}

void farm_cuda_training_account(const struct farm_cuda_training *t, double *busy_s, double *all_s,
                                uint64_t *bus_bytes) {
    *busy_s += t->busy_ms * 1e-3;
    *all_s += t->all_ms * 1e-3;
    *bus_bytes += t->bus_bytes_total;
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
    if (isfinite(stats->grad_norm)) stats->grad_norm = (double)(float)t->results->control.norm;
    if (!isfinite(stats->grad_norm)) stats->bad_step = t->results->control.step;
    const struct farm_cuda_pass *pass = &t->stepped->pass;
    for (uint32_t i = 0; i < pass->count && t->priority; i++)
        pass->iteration->priority[pass->order ? pass->order[i] : pass->first + i] = t->priorities[i];
    if (t->priority) stats->priorities = pass->iteration->priority;
    add_times(t);
    t->bus_bytes_total += t->bus_bytes;
    farm_stats_add(&t->context->learner->stats->bus_train_bytes, t->bus_bytes);
}

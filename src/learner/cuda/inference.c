// See inference.h.
#include "learner/cuda/inference.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/atomics.h"
#include "base/time.h"
#include "kernels/cuda/check.h"
#include "kernels/random.h"
#include "learner/cuda/memory.h"
#include "nn/inputs.h"
#include "policy/observation.h"

enum { RUNGS_MAX = FARM_CUDA_EXECUTOR_ROWS_MAX, SPINS_PER_CHECK = 1024, ALIGNMENT = 16, SMALL_LISTS = 64 << 10 };

// What changes between replays, as offsets into one block: the host fills the pinned block, the graph's first kernel
// pulls it into the device's block.
struct lists {
    size_t from, to;        // void *[rows * images] pieces: frame, its place in the mirror
    size_t inputs;          // void *[rows * images * stack] frames in the mirror
    size_t flat;            // f32 [rows][io.flat]
    size_t streams, counts; // u64 [rows]
    size_t lanes;           // struct farm_cuda_answer_lane[lanes]
    size_t masks;           // u8 [rows][outputs] action masks
    size_t flags, carries;  // a recurrent policy's: u8 [rows]; void *[rows] states before the step
    size_t sequence;        // u64
    size_t bytes;
};

struct rung {
    uint32_t rows, lanes;
    struct lists lists;
    cudaGraphExec_t graphs[2]; // one per copy of the parameters
};

struct farm_cuda_inference {
    struct farm_cuda_context *context;
    struct farm_cuda_executor *executor;
    cudaStream_t stream;
    struct rung rungs[RUNGS_MAX];
    uint32_t rung_count, rows_max, lanes_max;
    // pinned, with their device addresses
    char *lists, *lists_mapped;
    char *bounce, *bounce_mapped; // [rows_max * images] slots, if frames are not read in place
    uint64_t *flag, *flag_mapped; // sequence number of the last completed replay
    struct {
        uint8_t *action;       // [rows_max][action_bytes]
        uint8_t *sample;       // the same for a head that samples
        float *policy;         // [rows_max][outputs]
        float *value;          // [rows_max]
        uint64_t *version;     // [lanes_max]
        float *states[2];      // [rows_max][state] before and after the step
    } bounced, bounced_mapped; // answers, if `down` is not registered
    // device
    char *device_lists;
    void **block_from, **block_to; // the lists, as one piece
    float *policy, *value;
    uint8_t *action, *sample;
    float *states;    // [rows_max + 1][state] before the step, then after it; the last one is zeros, for padding rows
    void **states_to; // [rows_max]
    struct farm_cuda_answer_lane discard; // the target of padding rows' answers
    void *discard_memory;
    size_t *copy_bytes;  // [rows_max * images] for the copy engines
    const void **frames; // [stack]
    uint64_t sequence, rows_answered, bus_bytes;
};

// ---- the ladder ----

// 1, 2, 4, 8, 16, 24, 32, 48, 64, 96, ..., and last the largest batch.
static void build_ladder(struct farm_cuda_inference *inference) {
    for (uint32_t rows = 1; inference->rung_count < RUNGS_MAX;) {
        const bool last = rows >= inference->rows_max || inference->rung_count == RUNGS_MAX - 1;
        if (last) rows = inference->rows_max;
        inference->rungs[inference->rung_count++] = (struct rung){
            .rows = rows,
            .lanes = rows < inference->context->lanes->lane_count ? rows : inference->context->lanes->lane_count};
        if (last) break;
        const bool power = (rows & (rows - 1)) == 0;
        rows = rows < 16 ? 2 * rows : power ? rows + rows / 2 : rows / 3 * 4;
    }
}

static struct lists lay_out_lists(const struct farm_cuda_context *context, uint32_t rows, uint32_t lanes) {
    const size_t frames = (size_t)rows * context->images,
                 choices = context->head.mask_field ? (size_t)context->head.outputs : 0;
    struct lists lists;
    size_t at = 0;
    lists.from = farm_cuda_reserve(&at, frames * sizeof(void *), ALIGNMENT);
    lists.to = farm_cuda_reserve(&at, frames * sizeof(void *), ALIGNMENT);
    lists.inputs = farm_cuda_reserve(&at, frames * (size_t)context->net->io.stack * sizeof(void *), ALIGNMENT);
    lists.flat = farm_cuda_reserve(&at, rows * context->flat_bytes, ALIGNMENT);
    lists.streams = farm_cuda_reserve(&at, rows * sizeof(uint64_t), ALIGNMENT);
    lists.counts = farm_cuda_reserve(&at, rows * sizeof(uint64_t), ALIGNMENT);
    lists.lanes = farm_cuda_reserve(&at, lanes * sizeof(struct farm_cuda_answer_lane), ALIGNMENT);
    lists.masks = farm_cuda_reserve(&at, rows * choices, ALIGNMENT);
    lists.flags = farm_cuda_reserve(&at, context->net->state ? rows : 0, ALIGNMENT);
    lists.carries = farm_cuda_reserve(&at, context->net->state ? rows * sizeof(void *) : 0, ALIGNMENT);
    lists.sequence = farm_cuda_reserve(&at, sizeof(uint64_t), ALIGNMENT);
    lists.bytes = at;
    return lists;
}

// ---- memory ----

// Of an environment.
static size_t state_bytes(const struct farm_cuda_context *context) {
    return (size_t)context->net->state * sizeof(float);
}

size_t farm_cuda_inference_bytes(const struct farm_cuda_context *context) {
    const struct farm_cuda_executor_config config =
        farm_cuda_executor_config(context, context->learner->inference.batch_max, false);
    const size_t rows = context->learner->inference.batch_max, outputs = (size_t)context->head.outputs;
    const struct lists lists = lay_out_lists(context, (uint32_t)rows, (uint32_t)rows);
    return farm_cuda_executor_bytes(&config) + lists.bytes +
           rows * (sizeof(float) * (outputs + 1) + 2 * (size_t)context->head.action_bytes) +
           (rows + 1) * state_bytes(context) + rows * sizeof(void *);
}

static enum farm_status allocate_array(size_t count, size_t bytes, void *out, struct farm_error *err) {
    return farm_cuda_device_memory(count * bytes, "inference needs", "infer-batch-max", out, err);
}

// Pinned memory and its device address.
static enum farm_status allocate_pinned_array(size_t count, size_t bytes, void *out, void *mapped,
                                              struct farm_error *err) {
    void *memory;
    const enum farm_status status =
        farm_cuda_host_memory(count * bytes, "inference needs", "infer-batch-max", &memory, err);
    memcpy(out, &memory, sizeof memory);
    return status ? status : farm_cuda_mapped(memory, mapped, err);
}

static enum farm_status allocate_pinned(struct farm_cuda_inference *i, struct farm_error *err) {
    const size_t rows = i->rows_max, frames = rows * i->context->images;
    const size_t slot = farm_cuda_slot_bytes(i->context->frame_bytes);
    enum farm_status status =
        allocate_pinned_array(1, i->rungs[i->rung_count - 1].lists.bytes, &i->lists, &i->lists_mapped, err);
    if (!status) status = allocate_pinned_array(1, sizeof *i->flag, &i->flag, &i->flag_mapped, err);
    if (!status && !i->context->direct)
        status = allocate_pinned_array(frames, slot, &i->bounce, &i->bounce_mapped, err);
    if (status || !i->context->registered.bounced[FARM_CUDA_DOWN]) return status;
    const struct farm_head *head = &i->context->head;
    status =
        allocate_pinned_array(rows, (size_t)head->action_bytes, &i->bounced.action, &i->bounced_mapped.action, err);
    if (!status && head->samples)
        status =
            allocate_pinned_array(rows, (size_t)head->action_bytes, &i->bounced.sample, &i->bounced_mapped.sample, err);
    if (!status)
        status = allocate_pinned_array(rows * (size_t)head->outputs, sizeof(float), &i->bounced.policy,
                                       &i->bounced_mapped.policy, err);
    if (!status) status = allocate_pinned_array(rows, sizeof(float), &i->bounced.value, &i->bounced_mapped.value, err);
    if (!status)
        status =
            allocate_pinned_array(i->lanes_max, sizeof(uint64_t), &i->bounced.version, &i->bounced_mapped.version, err);
    for (int k = 0; k < 2 && !status && state_bytes(i->context); k++)
        status = allocate_pinned_array(rows, state_bytes(i->context), &i->bounced.states[k],
                                       &i->bounced_mapped.states[k], err);
    return status;
}

// The policy's offset in discard_memory, which holds version, value, action, policy.
static size_t discard_policy_offset(const struct farm_cuda_inference *i) {
    return 32 + ((size_t)i->context->head.action_bytes + 15) / 16 * 16;
}

// Fills the constant lists and the target of padding rows' answers.
static enum farm_status fill_constants(struct farm_cuda_inference *i, struct farm_error *err) {
    enum farm_status status = farm_cuda_upload(i->block_from, &i->lists_mapped, sizeof(void *), err);
    if (!status) status = farm_cuda_upload(i->block_to, &i->device_lists, sizeof(void *), err);
    char *at = i->discard_memory;
    i->discard = (struct farm_cuda_answer_lane){.version = (uint64_t *)(void *)at,
                                                .value = (float *)(void *)(at + 16),
                                                .action = (uint8_t *)(at + 32),
                                                .sample = (uint8_t *)(at + 32),
                                                .policy = (float *)(void *)(at + discard_policy_offset(i)),
                                                .count = 1};
    return status;
}

static enum farm_status allocate_states(struct farm_cuda_inference *i, struct farm_error *err) {
    const size_t rows = i->rows_max, bytes = state_bytes(i->context);
    if (!bytes) return FARM_OK;
    enum farm_status status = allocate_array(rows + 1, bytes, &i->states, err);
    if (status) return status;
    return farm_cuda_places(i->states, bytes, rows, "inference needs", "infer-batch-max", &i->states_to, err);
}

static enum farm_status allocate_on_device(struct farm_cuda_inference *i, struct farm_error *err) {
    const size_t rows = i->rows_max, outputs = (size_t)i->context->head.outputs;
    enum farm_status status = allocate_array(1, i->rungs[i->rung_count - 1].lists.bytes, &i->device_lists, err);
    if (!status) status = allocate_array(1, sizeof(void *), &i->block_from, err);
    if (!status) status = allocate_array(1, sizeof(void *), &i->block_to, err);
    if (!status) status = allocate_array(rows * outputs, sizeof(float), &i->policy, err);
    if (!status) status = allocate_array(rows, sizeof(float), &i->value, err);
    if (!status) status = allocate_array(rows, (size_t)i->context->head.action_bytes, &i->action, err);
    if (!status && i->context->head.samples)
        status = allocate_array(rows, (size_t)i->context->head.action_bytes, &i->sample, err);
    if (!status)
        status = allocate_array(1, discard_policy_offset(i) + outputs * sizeof(float), &i->discard_memory, err);
    if (!status) status = allocate_states(i, err);
    if (!status) status = fill_constants(i, err);
    return status;
}

static enum farm_status allocate_lists(struct farm_cuda_inference *i, struct farm_error *err) {
    const size_t frames = (size_t)i->rows_max * i->context->images;
    i->copy_bytes = calloc(frames + 1, sizeof *i->copy_bytes);
    i->frames = calloc((size_t)i->context->net->io.stack, sizeof *i->frames);
    if (!i->copy_bytes || !i->frames)
        return farm_fail(err, FARM_E_LIMIT, "no memory for lists of %u observations", i->rows_max);
    for (size_t k = 0; k < frames; k++) i->copy_bytes[k] = i->context->frame_bytes;
    return FARM_OK;
}

// ---- a graph's work ----

static enum farm_status enqueue_forward(struct farm_cuda_inference *i, const struct rung *rung,
                                        const struct farm_cuda_published *copy, struct farm_error *err) {
    struct farm_cuda_input input = {.scale = copy->scale};
    if (i->context->images) input.frames = (const void *const *)(i->device_lists + rung->lists.inputs);
    if (i->context->flat_bytes) input.flat = (const float *)(const void *)(i->device_lists + rung->lists.flat);
    struct farm_sequence sequence = farm_sequence_rows((int)rung->rows);
    if (i->states) {
        sequence.flags = (const uint8_t *)(i->device_lists + rung->lists.flags);
        sequence.state_in = sequence.state_out = i->states;
    }
    return farm_cuda_executor_forward(i->executor, i->stream, copy->params, &input, sequence, i->policy, i->value, err);
}

static enum farm_status enqueue_state_pull(struct farm_cuda_inference *i, const struct rung *rung,
                                           struct farm_error *err) {
    const struct farm_cuda_pull pull = {.from = (const void *const *)(i->device_lists + rung->lists.carries),
                                        .to = i->states_to,
                                        .count = rung->rows,
                                        .bytes = state_bytes(i->context)};
    return i->states ? farm_cuda_pull(i->stream, FARM_CUDA_PULL_LOADS, &pull, err) : FARM_OK;
}

// Pulls the lists, then states and frames (unless the copy engines have brought these).
static enum farm_status enqueue_pulls(struct farm_cuda_inference *i, const struct rung *rung, struct farm_error *err) {
    const struct farm_cuda_context *context = i->context;
    const struct farm_cuda_pull lists = {.from = (const void *const *)i->block_from,
                                         .to = i->block_to,
                                         .count = 1,
                                         .bytes = rung->lists.bytes,
                                         .blocks = rung->lists.bytes > SMALL_LISTS ? FARM_CUDA_PULL_BLOCKS : 1};
    enum farm_status status = farm_cuda_pull(i->stream, FARM_CUDA_PULL_LOADS, &lists, err);
    if (!status) status = enqueue_state_pull(i, rung, err);
    const struct farm_cuda_pull pull = {.from = (const void *const *)(i->device_lists + rung->lists.from),
                                        .to = (void *const *)(i->device_lists + rung->lists.to),
                                        .count = rung->rows * context->images,
                                        .bytes = context->frame_bytes,
                                        .blocks = context->obs_path.blocks};
    if (status || context->obs_path.copies) return status;
    return farm_cuda_pull(i->stream, context->obs_path.way, &pull, err);
}

static enum farm_status enqueue_all(struct farm_cuda_inference *i, const struct rung *rung, uint32_t copy,
                                    struct farm_error *err) {
    const struct farm_cuda_context *context = i->context;
    enum farm_status status = enqueue_pulls(i, rung, err);
    if (!status) status = enqueue_forward(i, rung, &context->parameters.copies[copy], err);
    const struct farm_cuda_sample sample = {
        .head = context->head,
        .sampler = context->sampler,
        .rows = rung->rows,
        .stream = (const uint64_t *)(void *)(i->device_lists + rung->lists.streams),
        .counter = (const uint64_t *)(void *)(i->device_lists + rung->lists.counts),
        .mask = context->head.mask_field ? (const uint8_t *)(i->device_lists + rung->lists.masks) : NULL,
        .version = context->parameters.copies[copy].version,
        .policy = i->policy,
        .value = i->value,
        .action = i->action,
        .sample = i->sample};
    if (!status) status = farm_cuda_sample(i->stream, &sample, err);
    const struct farm_cuda_answer answer = {
        .lanes = (const struct farm_cuda_answer_lane *)(void *)(i->device_lists + rung->lists.lanes),
        .lane_count = rung->lanes,
        .head = context->head,
        .action = i->action,
        .sample = i->sample,
        .policy = i->policy,
        .value = i->value,
        .version = context->parameters.copies[copy].version,
        .states = i->states,
        .state = (uint32_t)context->net->state,
        .word = i->flag_mapped,
        .word_value = (const uint64_t *)(void *)(i->device_lists + rung->lists.sequence)};
    return status ? status : farm_cuda_answer(i->stream, &answer, err);
}

static enum farm_status capture_graph(struct farm_cuda_inference *i, struct rung *rung, uint32_t copy,
                                      struct farm_error *err) {
    FARM_CUDA_TRY(cudaStreamBeginCapture(i->stream, cudaStreamCaptureModeThreadLocal));
    const enum farm_status status =
        farm_cuda_stream_end_capture(i->stream, enqueue_all(i, rung, copy, err), &rung->graphs[copy], err);
    if (status) return status;
    FARM_CUDA_TRY(cudaGraphUpload(rung->graphs[copy], i->stream));
    return FARM_OK;
}

// Padding rows: a frame of zeros goes to the sink; frames of the input are NULL, which means zeros.
static void pad_lists(struct farm_cuda_inference *i, const struct rung *rung, uint32_t rows, uint32_t lanes) {
    const struct farm_cuda_context *context = i->context;
    const size_t first = (size_t)rows * context->images, end = (size_t)rung->rows * context->images;
    const size_t stack = (size_t)context->net->io.stack;
    for (size_t k = first; k < end; k++) {
        ((void **)(void *)(i->lists + rung->lists.from))[k] = context->zeros;
        ((void **)(void *)(i->lists + rung->lists.to))[k] = context->sink;
    }
    memset(i->lists + rung->lists.inputs + first * stack * sizeof(void *), 0, (end - first) * stack * sizeof(void *));
    memset(i->lists + rung->lists.flat + rows * context->flat_bytes, 0, (rung->rows - rows) * context->flat_bytes);
    for (uint32_t row = rows; row < rung->rows; row++) {
        ((uint64_t *)(void *)(i->lists + rung->lists.streams))[row] = 0;
        ((uint64_t *)(void *)(i->lists + rung->lists.counts))[row] = 0;
        if (!i->states) continue;
        i->lists[rung->lists.flags + row] = 0;
        ((void **)(void *)(i->lists + rung->lists.carries))[row] =
            (char *)i->states + i->rows_max * state_bytes(context);
    }
    for (uint32_t k = lanes; k < rung->lanes; k++)
        ((struct farm_cuda_answer_lane *)(void *)(i->lists + rung->lists.lanes))[k] = i->discard;
}

// Runs each size once with padding rows, which chooses algorithms and loads kernels; then captures it.
static enum farm_status capture_all(struct farm_cuda_inference *i, struct farm_error *err) {
    for (uint32_t r = 0; r < i->rung_count; r++) {
        pad_lists(i, &i->rungs[r], 0, 0);
        enum farm_status status = enqueue_all(i, &i->rungs[r], 0, err);
        if (status) return status;
        FARM_CUDA_TRY(cudaStreamSynchronize(i->stream)); // the work reads the lists
        for (uint32_t copy = 0; copy < 2 && !status; copy++) status = capture_graph(i, &i->rungs[r], copy, err);
        if (status) return status;
    }
    FARM_CUDA_TRY(cudaStreamSynchronize(i->stream));
    return FARM_OK;
}

enum farm_status farm_cuda_inference_make(struct farm_cuda_context *context, struct farm_cuda_inference **out,
                                          struct farm_error *err) {
    struct farm_cuda_inference *i = calloc(1, sizeof *i);
    if (!i) return farm_fail(err, FARM_E_LIMIT, "no memory for inference");
    i->context = context;
    i->rows_max = context->learner->inference.batch_max;
    build_ladder(i);
    for (uint32_t r = 0; r < i->rung_count; r++)
        i->rungs[r].lists = lay_out_lists(context, i->rungs[r].rows, i->rungs[r].lanes);
    i->lanes_max = i->rungs[i->rung_count - 1].lanes;
    const struct farm_cuda_executor_config config =
        farm_cuda_executor_config(context, context->learner->inference.batch_max, false);
    enum farm_status status = farm_cuda_stream_make(true, &i->stream, NULL, err);
    if (!status) status = allocate_lists(i, err);
    if (!status) status = allocate_pinned(i, err);
    if (!status) status = allocate_on_device(i, err);
    if (!status && farm_cuda_executor_create(&config, &i->executor, err))
        status = farm_fail_in(err, err ? err->status : FARM_E_LIMIT, "inference (a smaller --infer-batch-max)");
    if (!status) status = capture_all(i, err);
    if (status) {
        farm_cuda_inference_free(i);
        return status;
    }
    *out = i;
    return FARM_OK;
}

void farm_cuda_inference_free(struct farm_cuda_inference *i) {
    if (!i) return;
    if (i->stream) (void)cudaStreamSynchronize(i->stream);
    for (uint32_t r = 0; r < i->rung_count; r++)
        for (int copy = 0; copy < 2; copy++)
            if (i->rungs[r].graphs[copy]) (void)cudaGraphExecDestroy(i->rungs[r].graphs[copy]);
    farm_cuda_executor_destroy(i->executor);
    void *const device[] = {i->device_lists, i->block_from, i->block_to,       i->policy, i->value,
                            i->action,       i->sample,     i->discard_memory, i->states, i->states_to};
    void *const pinned[] = {
        i->lists,         i->bounce,          i->flag,           i->bounced.action,    i->bounced.policy,
        i->bounced.value, i->bounced.version, i->bounced.sample, i->bounced.states[0], i->bounced.states[1]};
    for (size_t k = 0; k < sizeof device / sizeof *device; k++) (void)cudaFree(device[k]);
    for (size_t k = 0; k < sizeof pinned / sizeof *pinned; k++) (void)cudaFreeHost(pinned[k]);
    free(i->copy_bytes);
    free(i->frames);
    if (i->stream) (void)cudaStreamDestroy(i->stream);
    free(i);
}

// ---- one inference ----

// The device address from which the GPU reads frame `number` of the batch, of an image at step n, for place `to`.
static const void *frame_source(struct farm_cuda_inference *i, const struct farm_policy_rows *item, uint32_t image,
                                uint32_t env, size_t number, const void *to) {
    const void *frame = farm_cuda_frame(&i->context->mirror, item->lane, image, item->n, env);
    if (i->context->direct) return farm_cuda_up(i->context, item->lane_id, frame);
    const size_t at = number * farm_cuda_slot_bytes(i->context->frame_bytes) + ((uintptr_t)to & 15);
    memcpy(i->bounce + at, frame, i->context->frame_bytes);
    return i->bounce_mapped + at;
}

// Lists an image's frame of step n, and the mirror's addresses of the network's input, oldest frame first.
static void list_image(struct farm_cuda_inference *i, const struct lists *lists, const struct farm_policy_rows *item,
                       uint32_t image, uint32_t env, size_t number) {
    const struct farm_cuda_mirror *mirror = &i->context->mirror;
    const uint32_t stack = (uint32_t)mirror->io->stack;
    void *to = farm_cuda_mirror_at(mirror, item->lane_id, image, item->n, env);
    void **inputs = (void **)(void *)(i->lists + lists->inputs) + number * stack;
    ((const void **)(void *)(i->lists + lists->from))[number] = frame_source(i, item, image, env, number, to);
    ((void **)(void *)(i->lists + lists->to))[number] = to;
    farm_lane_stack(item->lane, (uint32_t)mirror->io->image_source[image], item->n, env, stack, i->frames);
    for (uint32_t k = 0; k < stack; k++)
        inputs[stack - 1 - k] =
            i->frames[stack - 1 - k] ? farm_cuda_mirror_at(mirror, item->lane_id, image, item->n - k, env) : NULL;
}

// Of a recurrent policy: the step's flags, and where the GPU reads the state before it.
static void list_state(struct farm_cuda_inference *i, const struct lists *lists, const struct farm_policy_rows *item,
                       uint32_t env, uint32_t row) {
    const struct farm_lane *lane = item->lane;
    const void *carry = farm_lane_answer_at(lane, lane->state + 1, item->n, env);
    const void **from = (const void **)(void *)(i->lists + lists->carries) + row;
    i->lists[lists->flags + row] = (char)farm_lane_flags(lane, item->n)[env];
    if (!i->context->registered.bounced[FARM_CUDA_DOWN]) {
        *from = farm_cuda_down(i->context, item->lane_id, carry);
        return;
    }
    const size_t bytes = state_bytes(i->context);
    memcpy((char *)i->bounced.states[0] + row * bytes, carry, bytes);
    *from = (char *)i->bounced_mapped.states[0] + row * bytes;
}

// `copy`: the parameters that answer, whose statistics normalise the flat input.
static void list_row(struct farm_cuda_inference *i, const struct lists *lists, const struct farm_policy_rows *item,
                     uint32_t env, uint32_t row, const struct farm_cuda_published *copy) {
    const struct farm_cuda_context *context = i->context;
    const void *parts[FARM_NET_INPUTS_MAX];
    for (uint32_t image = 0; image < context->images; image++)
        list_image(i, lists, item, image, env, (size_t)row * context->images + image);
    farm_observation_parts(context->net, item->lane, item->n, env, parts);
    farm_inputs_write(&context->net->io, copy->mean, copy->inverse, parts,
                      (float *)(void *)(i->lists + lists->flat + row * context->flat_bytes));
    ((uint64_t *)(void *)(i->lists + lists->streams))[row] = farm_random_stream(item->lane_id, env);
    ((uint64_t *)(void *)(i->lists + lists->counts))[row] = item->n;
    if (i->states) list_state(i, lists, item, env, row);
    const size_t choices = (size_t)i->context->head.outputs, mask = (size_t)i->context->head.mask_field;
    if (mask)
        memcpy(i->lists + lists->masks + row * choices, farm_lane_obs(item->lane, (uint32_t)mask - 1, item->n, env),
               choices);
}

// The targets of the answers to this part of a step; `acted` only for the last part.
static struct farm_cuda_answer_lane answer_target(const struct farm_cuda_inference *i,
                                                  const struct farm_policy_rows *item, uint32_t k, uint32_t row) {
    const struct farm_cuda_context *context = i->context;
    struct farm_cuda_answer_lane answer = {.row = row, .count = item->env_count, .acted_value = item->n + 1};
    if (context->registered.bounced[FARM_CUDA_DOWN]) {
        answer.action = i->bounced_mapped.action + (size_t)row * (size_t)context->head.action_bytes;
        if (context->head.samples)
            answer.sample = i->bounced_mapped.sample + (size_t)row * (size_t)context->head.action_bytes;
        answer.policy = i->bounced_mapped.policy + (size_t)row * (size_t)context->head.outputs;
        answer.value = i->bounced_mapped.value + row;
        answer.version = i->bounced_mapped.version + k;
        if (i->states) answer.carry = i->bounced_mapped.states[1] + (size_t)row * (size_t)context->net->state;
        return answer;
    }
    const struct farm_lane *lane = item->lane;
    const uint32_t id = item->lane_id, env = item->env_from;
    answer.action = farm_cuda_down(context, id, farm_lane_action(lane, item->n, env));
    if (context->head.samples)
        answer.sample = farm_cuda_down(context, id, farm_lane_answer_at(lane, FARM_ANSWER_SAMPLE, item->n, env));
    answer.policy = farm_cuda_down(context, id, farm_lane_policy(lane, item->n, env));
    answer.value = farm_cuda_down(context, id, farm_lane_value(lane, item->n) + env);
    answer.version = farm_cuda_down(context, id, farm_lane_version(lane, item->n));
    if (i->states)
        answer.carry = farm_cuda_down(context, id, farm_lane_answer_at(lane, lane->state + 1, item->n + 1, env));
    if (env + item->env_count == lane->width) answer.acted = farm_cuda_down(context, id, &lane->down->acted);
    return answer;
}

static const struct rung *find_rung(const struct farm_cuda_inference *i, uint32_t rows) {
    uint32_t r = 0;
    while (i->rungs[r].rows < rows) r++;
    return &i->rungs[r];
}

// Detects a GPU that is lost or hangs.
static enum farm_status check_stream(struct farm_cuda_inference *i, uint64_t start_ns, struct farm_error *err) {
    const cudaError_t code = cudaStreamQuery(i->stream);
    (void)cudaGetLastError(); // clears "not ready"
    if (code == cudaErrorNotReady) return farm_cuda_wait_expired(i->context, start_ns, "inference", err);
    if (code) return farm_cuda_fail(err, code, "inference", __FILE__, __LINE__);
    if (farm_load_acquire(i->flag) != i->sequence)
        return farm_fail(err, FARM_E_IO, "inference has ended without its signal to the host");
    return FARM_OK;
}

// Waits for the replay's sequence number; checks the stream now and then.
static enum farm_status wait_for_end(struct farm_cuda_inference *i, struct farm_error *err) {
    const bool sleeps = i->context->learner->inference.spin_ns == 0; // other threads need the CPU
    const uint64_t start_ns = farm_now_ns();
    for (uint32_t spins = 1; farm_load_acquire(i->flag) != i->sequence; spins++) {
        if (sleeps) {
            farm_cuda_nap(start_ns);
        } else {
            farm_cpu_relax();
            if (spins % SPINS_PER_CHECK) continue;
        }
        const enum farm_status status = check_stream(i, start_ns, err);
        if (status) return status;
    }
    return FARM_OK;
}

// Copies answers from pinned memory into lanes that the GPU cannot write. Pair A.
static void copy_answers(struct farm_cuda_inference *i, const struct farm_policy_rows *items, uint32_t count) {
    const size_t outputs = (size_t)i->context->head.outputs, action_bytes = (size_t)i->context->head.action_bytes;
    for (uint32_t k = 0, row = 0; k < count; row += items[k++].env_count) {
        const struct farm_policy_rows *item = &items[k];
        memcpy(farm_lane_action(item->lane, item->n, item->env_from), i->bounced.action + row * action_bytes,
               item->env_count * action_bytes);
        if (i->context->head.samples)
            memcpy(farm_lane_answer_at(item->lane, FARM_ANSWER_SAMPLE, item->n, item->env_from),
                   i->bounced.sample + row * action_bytes, item->env_count * action_bytes);
        memcpy(farm_lane_policy(item->lane, item->n, item->env_from), i->bounced.policy + row * outputs,
               item->env_count * outputs * sizeof(float));
        memcpy(farm_lane_value(item->lane, item->n) + item->env_from, i->bounced.value + row,
               item->env_count * sizeof(float));
        if (i->states)
            memcpy(farm_lane_answer_at(item->lane, item->lane->state + 1, item->n + 1, item->env_from),
                   (char *)i->bounced.states[1] + row * state_bytes(i->context),
                   item->env_count * state_bytes(i->context));
        *farm_lane_version(item->lane, item->n) = i->bounced.version[k];
        if (item->env_from + item->env_count == item->lane->width) farm_lane_answer(item->lane, item->n);
    }
}

static enum farm_status launch_and_wait(struct farm_cuda_inference *i, const struct rung *rung, uint32_t rows,
                                        uint32_t copy, struct farm_error *err) {
    if (i->context->obs_path.copies) {
        const enum farm_status status = farm_cuda_obs_path_copy(
            i->stream, (const void *const *)(i->lists + rung->lists.from), (void *const *)(i->lists + rung->lists.to),
            i->copy_bytes, rows * i->context->images, err);
        if (status) return status;
    }
    FARM_CUDA_TRY(cudaGraphLaunch(rung->graphs[copy], i->stream));
    return wait_for_end(i, err);
}

enum farm_status farm_cuda_infer(struct farm_cuda_inference *i, const struct farm_policy_rows *items, uint32_t count,
                                 struct farm_error *err) {
    uint32_t rows = 0;
    for (uint32_t k = 0; k < count; k++) rows += items[k].env_count;
    assert(rows > 0 && rows <= i->rows_max && count <= i->lanes_max);
    struct farm_cuda_parameters *parameters = &i->context->parameters;
    const uint32_t copy = farm_cuda_parameters_use(parameters);
    const struct rung *rung = find_rung(i, rows);
    struct farm_cuda_answer_lane *answers = (struct farm_cuda_answer_lane *)(void *)(i->lists + rung->lists.lanes);
    for (uint32_t k = 0, row = 0; k < count; k++) {
        answers[k] = answer_target(i, &items[k], k, row);
        for (uint32_t e = 0; e < items[k].env_count; e++, row++)
            list_row(i, &rung->lists, &items[k], items[k].env_from + e, row, &parameters->copies[copy]);
    }
    pad_lists(i, rung, rows, count);
    i->sequence++;
    memcpy(i->lists + rung->lists.sequence, &i->sequence, sizeof i->sequence);
    const enum farm_status status = launch_and_wait(i, rung, rows, copy, err);
    farm_cuda_parameters_unuse(parameters);
    if (status) return status;
    if (i->context->registered.bounced[FARM_CUDA_DOWN]) copy_answers(i, items, count);
    i->rows_answered += rows;
    i->bus_bytes += (uint64_t)rows * i->context->obs_bytes;
    farm_stats_add(&i->context->learner->stats->bus_infer_bytes, (uint64_t)rows * i->context->obs_bytes);
    return FARM_OK;
}

void farm_cuda_inference_account(const struct farm_cuda_inference *i, uint64_t *rows, uint64_t *bytes) {
    *rows = i->rows_answered;
    *bytes = i->bus_bytes;
}

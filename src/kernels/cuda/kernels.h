// The CUDA kernels of actorfarm, one function per operation, for C17 and CUDA C++, without CUDA's headers. The
// arithmetic is that of src/kernels/*.h, which the CPU uses too. Runs in the learner, on the calling thread's current
// device; any thread may call, because there is no state. docs/CUDA.md has the memory order.
//
// A call enqueues work in `stream` (NULL: the default stream) and returns. It copies configurations; arrays must live
// until the work is done. It neither allocates nor waits, so a graph can capture it. Arrays lie in device memory, or,
// if the comment says "mapped", in host memory that cudaHostRegister made portable and mapped, given by its device
// address. A call with count or rows 0 launches nothing.
//
// Errors: FARM_E_INVALID for invalid sizes (before a launch), FARM_E_UNSUPPORTED for operations that the device or
// driver lacks, FARM_E_LIMIT for memory, FARM_E_IO for every other CUDA error. The message names call, code and place.
// An error of a running kernel shows at a later call.
#ifndef FARM_KERNELS_CUDA_KERNELS_H
#define FARM_KERNELS_CUDA_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#include "base/status.h"
#include "kernels/gather.h"
#include "kernels/head.h"
#include "kernels/norm.h"
#include "kernels/optimiser.h"

struct CUstream_st; // what cudaStream_t points to

// ---- pull: observations cross the bus ----

enum farm_cuda_pull_way {
    FARM_CUDA_PULL_LOADS, // 16-byte loads, 8 in flight per thread; any device
    FARM_CUDA_PULL_BULK,  // bulk copies through shared memory; compute capability 9.0 and newer
};

enum { FARM_CUDA_PULL_BLOCKS = 4 }; // the default: multiprocessors of a pull

// Pieces may start at any address and have any length. A piece whose `from` and `to` leave the same remainder by 16, as
// in a mirror of a ring, is fast; another one is copied byte by byte.
struct farm_cuda_pull {
    const void *const *from; // [count] addresses of mapped memory (or of device memory)
    void *const *to;         // [count] addresses of device memory; no two pieces may overlap
    uint32_t count;          // pieces
    size_t bytes;            // size of each piece, >= 1
    uint32_t blocks;         // thread blocks, one per multiprocessor; 0: FARM_CUDA_PULL_BLOCKS
};

enum farm_status farm_cuda_pull(struct CUstream_st *stream, enum farm_cuda_pull_way way,
                                const struct farm_cuda_pull *pull, struct farm_error *err);

// Whether the current device has that way.
enum farm_status farm_cuda_pull_supported(enum farm_cuda_pull_way way, struct farm_error *err);

// ---- stack: frames of the mirror become the network's input ----

enum farm_cuda_type { FARM_CUDA_F32, FARM_CUDA_BF16 };

// Channel s * channels + c of the input is channel c of frame s, as in kernels/conv_u8.h; numbers are x / 255, or
// normalised (kernels/pixels.h), rounded to the nearest bf16 if requested.
struct farm_cuda_stack {
    const void *const *frames; // [rows][stack] device addresses of u8 [channels][height][width]; NULL: zeros
    uint32_t rows, stack;      // stack >= 1
    uint32_t channels, height, width;
    bool interleaved; // frames are [height][width][channels]
    enum farm_cuda_type type;
    const int16_t *scale; // [2][images * channels * height * width] of farm_inputs_scale_pixels; NULL: x / 255
    uint32_t images;      // with scale: the stack is `images` stacks, one image's after another's
    void *out;            // [rows][height][width][stack * channels], 16-byte aligned
};

enum farm_status farm_cuda_stack(struct CUstream_st *stream, const struct farm_cuda_stack *stack,
                                 struct farm_error *err);

// ---- layers: what a network needs besides convolutions and products (nn/cuda/executor.h), all in device memory ----
//
// Arrays of `type` are 16-byte aligned, except biases. Pictures are NHWC: rows * height * width rows of channels.

// out[i] = activation(in[i]); out may be in. With dy, the gradient: dy[i] times the derivative at in[i]. ReLU's is
// ADDED to out, because another layer reads the numbers too; its `in` may be the result.
enum farm_status farm_cuda_activate(struct CUstream_st *stream, enum farm_activation kind, enum farm_cuda_type type,
                                    const void *in, const void *dy, void *out, size_t count, struct farm_error *err);

// x = activation(x + bias), x [rows][channels], bias [channels], both of `type`.
enum farm_status farm_cuda_bias_activate(struct CUstream_st *stream, enum farm_activation kind,
                                         enum farm_cuda_type type, const void *bias, void *x, size_t rows, int channels,
                                         struct farm_error *err);

// Backward through activation and bias: dy becomes the gradient of the sums, whose columns are ADDED to bias_gradient,
// in an order that depends on the sizes alone.
struct farm_cuda_slope_gradient {
    enum farm_activation kind; // RELU, TANH or NONE
    enum farm_cuda_type type;
    size_t rows;
    int channels;
    const void *y;        // [rows][channels] the activation's output; not read where it is FARM_ACTIVATION_NONE
    void *dy;             // [rows][channels] in and out
    float *bias_gradient; // [channels]
    void *scratch;        // farm_cuda_slope_gradient_scratch_bytes, 4-byte aligned, free again when the work is done
};
enum farm_status farm_cuda_slope_gradient(struct CUstream_st *stream, const struct farm_cuda_slope_gradient *gradient,
                                          struct farm_error *err);
size_t farm_cuda_slope_gradient_scratch_bytes(size_t rows, int channels);

// Layer normalisation of rows and an activation (kernels/norm.h).
struct farm_cuda_norm {
    enum farm_activation activation;
    enum farm_cuda_type type; // the type of all arrays
    size_t rows;
    int channels;
    const void *x, *weight, *bias; // [rows][channels], [channels], [channels]
    // [rows][channels] y: out. dy: NULL, or the gradient by y for that by x, dx (NULL: not needed); y and dy then
    // become numbers whose sums by columns are the gradients of weight and bias.
    void *y, *dy, *dx;
};
enum farm_status farm_cuda_norm(struct CUstream_st *stream, const struct farm_cuda_norm *norm, struct farm_error *err);

// Maxima of `rows` pictures. where: their places [rows][out_height][out_width][channels], 16-byte aligned, or NULL.
enum farm_status farm_cuda_pool(struct CUstream_st *stream, const struct farm_pool *pool, enum farm_cuda_type type,
                                size_t rows, const void *in, void *out, uint8_t *where, struct farm_error *err);
enum farm_status farm_cuda_pool_gradient(struct CUstream_st *stream, const struct farm_pool *pool,
                                         enum farm_cuda_type type, size_t rows, const void *dy, const uint8_t *where,
                                         void *dx, struct farm_error *err);

// out[i] = bf16(in[i]).
enum farm_status farm_cuda_round(struct CUstream_st *stream, const float *in, uint16_t *out, size_t count,
                                 struct farm_error *err);

// sum[i] += x[i].
enum farm_status farm_cuda_add_bf16(struct CUstream_st *stream, const uint16_t *x, float *sum, size_t count,
                                    struct farm_error *err);

// Splits the heads' product, f32 [rows][pitch] with actions + 1 used columns, into logits and value, and adds the bias;
// joins their gradients for the products of backward, zeros from column actions + 1 on.
struct farm_cuda_heads {
    enum farm_cuda_type type; // type of bias and joined
    uint32_t rows;
    int actions, pitch; // pitch > actions
};
enum farm_status farm_cuda_heads_split(struct CUstream_st *stream, const struct farm_cuda_heads *heads,
                                       const float *product, const void *bias, float *logits, float *value,
                                       struct farm_error *err);
enum farm_status farm_cuda_heads_join(struct CUstream_st *stream, const struct farm_cuda_heads *heads,
                                      const float *dlogits, const float *dvalue, void *joined, struct farm_error *err);

// A flat input beside features (FARM_NET_OP_JOIN, nn/join.h): y = [x, relu(weight . numbers + bias)].
struct farm_cuda_join {
    enum farm_cuda_type type; // type of x, y, weight [units][flat] and bias [units]
    uint32_t rows;
    int features, units, flat;
    const float *numbers; // [rows][flat]
};
enum farm_status farm_cuda_join(struct CUstream_st *stream, const struct farm_cuda_join *join, const void *x,
                                const void *weight, const void *bias, void *y, struct farm_error *err);
// dy as y: writes dx as x, and ADDS to weight_gradient and bias_gradient, in an order that depends on rows alone.
enum farm_status farm_cuda_join_gradient(struct CUstream_st *stream, const struct farm_cuda_join *join, const void *y,
                                         const void *dy, void *dx, float *weight_gradient, float *bias_gradient,
                                         struct farm_error *err);

// sum[i] += the sum of part[0][i], part[1][i], ..., in an order that depends on the sizes alone. part: [slabs][count].
enum farm_status farm_cuda_add_slabs(struct CUstream_st *stream, const float *part, uint32_t slabs, uint32_t count,
                                     float *sum, struct farm_error *err);

// ---- convolutions of few channels, in bf16 with f32 sums; pictures and weights [out][kh][kw][in] are NHWC ----

struct farm_cuda_conv {
    int rows, height, width, channels;       // x's shape
    int out_height, out_width, out_channels; // y's shape
    int kernel, stride, top, left;           // top, left: zeros before the first row and column
};
enum farm_cuda_conv_part {
    FARM_CUDA_CONV_FORWARD, // y = weight * x
    FARM_CUDA_CONV_DATA,    // dx: the gradient by x
    FARM_CUDA_CONV_WEIGHT,  // the gradient by weight
    FARM_CUDA_CONV_PARTS
};

// Whether there is a kernel for this size: 3x3 at stride 1 of 4 to 16, 16 to 16 or 32, and 32 to 32 channels; 8x8 at
// stride 4 of 4 to 16 or 32 (without DATA).
bool farm_cuda_conv_has(const struct farm_cuda_conv *conv, enum farm_cuda_conv_part part);

// y = weight * x + bias, plus what y held if `add`, then ReLU if `relu`. bias: [out_channels] or NULL.
// Arrays are 16-byte aligned.
enum farm_status farm_cuda_conv_forward(struct CUstream_st *stream, const struct farm_cuda_conv *conv, const void *x,
                                        const void *weight, const void *bias, bool add, bool relu, void *y,
                                        struct farm_error *err);
enum farm_status farm_cuda_conv_data_gradient(struct CUstream_st *stream, const struct farm_cuda_conv *conv,
                                              const void *weight, const void *dy, void *dx, struct farm_error *err);
// ADDS to gradient [out][kh][kw][in], in an order given by the sizes. scratch: farm_cuda_conv_scratch_bytes.
enum farm_status farm_cuda_conv_weight_gradient(struct CUstream_st *stream, const struct farm_cuda_conv *conv,
                                                const void *x, const void *dy, float *gradient, void *scratch,
                                                struct farm_error *err);
size_t farm_cuda_conv_scratch_bytes(const struct farm_cuda_conv *conv);

// ---- LSTM: one step of all columns (kernels/lstm.h); its products are the caller's ----

struct farm_cuda_lstm {
    enum farm_cuda_type type;       // what products read: h and the gradients by sums
    uint32_t columns, units, state; // state: floats of a column's state, in which this layer has h, then c
    bool last;                      // there is no next step
    const uint8_t *flags;           // [columns] FARM_STEP_* of the step, then, unless it is the last, of the next one
    float *gates;                   // [columns][4][units]
    float *cells;                   // [2][columns][units] c before the step, without FIRST's reset, and after it
    void *before; // [2][columns][units] h before the step and, unless it is the last, before the next: 0 at FIRST
};

// Before the first step: cells[0] and before[0] from the state.
enum farm_status farm_cuda_lstm_enter(struct CUstream_st *stream, const struct farm_cuda_lstm *lstm, const float *state,
                                      struct farm_error *err);
// gates: sums without the biases [4][units]; become the gates. Writes h into out [columns][units], cells[1], before[1],
// and after the last step the state, unless it is NULL.
enum farm_status farm_cuda_lstm_forward(struct CUstream_st *stream, const struct farm_cuda_lstm *lstm,
                                        const void *bias_ih, const void *bias_hh, void *out, float *state,
                                        struct farm_error *err);
// The gradient by the sums, [columns][4][units]. dout: by h [columns][units], and dh_after: by before[1]. dcells
// [columns][units]: by c after the step; becomes that by c before. The last step reads neither dh_after nor dcells.
enum farm_status farm_cuda_lstm_backward(struct CUstream_st *stream, const struct farm_cuda_lstm *lstm,
                                         const void *dout, const float *dh_after, float *dcells, void *dgates,
                                         struct farm_error *err);

// ---- sampling ----

struct farm_cuda_sample {
    struct farm_head head;
    struct farm_sampler sampler;
    uint32_t rows;
    const uint64_t *stream;  // [rows] farm_random_stream(lane, environment); may be mapped
    const uint64_t *counter; // [rows] the step's number; may be mapped
    const uint8_t *mask;     // [rows][outputs] action masks; NULL: everything is permitted
    const uint64_t *version; // one word, of the parameters, which each replay of a graph reads; NULL: the sampler's
    float *policy;           // [rows][outputs] out: -INFINITY for forbidden choices, finished (farm_head_finish)
    float *value;            // [rows] finished too; only a greedy_q head reads it
    uint8_t *action;         // [rows][action_bytes] out, 4-byte aligned
    uint8_t *sample;         // the same for a head that samples
};

enum farm_status farm_cuda_sample(struct CUstream_st *stream, const struct farm_cuda_sample *sample,
                                  struct farm_error *err);

// ---- optimiser: farm_optimiser_begin and _update over vectors in device memory ----

// In device memory, so that a captured graph can be replayed: the host copies the rate in, and the outcome out.
struct farm_cuda_optimiser_control {
    uint64_t step;                         // updates made; the caller sets it at the start
    double norm;                           // out: of the gradient, before clipping; INFINITY if nothing changed
    float learning_rate;                   // in
    uint32_t applied;                      // out: 1, or 0 if nothing changed
    struct farm_optimiser_factors factors; // out: the update's factors
};

struct farm_cuda_optimiser {
    struct farm_optimiser_config config;
    size_t count;           // parameters
    const float *gradients; // [count]
    float *params;          // [count]
    float *first;           // [count] Adam's; NULL for RMSProp
    float *second;          // [count]
    uint16_t *params_bf16;  // [count] out: the new parameters rounded to bf16; may be NULL
    struct farm_cuda_optimiser_control *control;
    void *scratch; // FARM_CUDA_OPTIMISER_SCRATCH_BYTES, 8-byte aligned
};

enum { FARM_CUDA_OPTIMISER_BLOCKS = 512, FARM_CUDA_OPTIMISER_SCRATCH_BYTES = FARM_CUDA_OPTIMISER_BLOCKS * 8 };

// One update: a norm that is not finite, or too large after clipping, changes neither parameters nor moments nor step.
// The norm is summed in an order that depends on `count` alone.
enum farm_status farm_cuda_optimiser_step(struct CUstream_st *stream, const struct farm_cuda_optimiser *optimiser,
                                          struct farm_error *err);

// ---- answer: actions go straight into the lanes ----

// The answers to `count` environments of one lane's step. All pointers into `down` segments: mapped.
struct farm_cuda_answer_lane {
    uint8_t *action;      // [count][action_bytes], 4-byte aligned
    uint8_t *sample;      // the same for a head that samples
    float *policy;        // [count][outputs]
    float *value;         // [count]
    float *carry;         // [count][state]; NULL: the state is discarded
    uint64_t *version;    // the step's
    uint64_t *acted;      // the lane's counter; NULL: stays as it is, the last part of a step's answer will store it
    uint64_t acted_value; // stored with release at system scope, after all else of this lane
    uint32_t row;         // its first row
    uint32_t count;       // >= 1
};

struct farm_cuda_answer {
    const struct farm_cuda_answer_lane *lanes; // [lane_count], may be mapped
    uint32_t lane_count;
    struct farm_head head;
    const uint8_t *action;   // [rows][action_bytes]
    const uint8_t *sample;   // the same for a head that samples
    const float *policy;     // [rows][outputs]
    const float *value;      // [rows]
    const uint64_t *version; // one word: of the parameters
    const float *states;     // [rows][state] of a recurrent policy, after the step
    uint32_t state;
    uint64_t *word;             // NULL, or signalled after all answers, if there are any, as by farm_cuda_signal
    const uint64_t *word_value; // NULL, or what it becomes
};

// Parts of a step with `acted` NULL must be enqueued in the same stream before its last part.
enum farm_status farm_cuda_answer(struct CUstream_st *stream, const struct farm_cuda_answer *answer,
                                  struct farm_error *err);

// *word = *value with release at system scope, after all earlier work of the stream: a host thread that acquires the
// word sees that work. word: mapped; value: may be mapped.
enum farm_status farm_cuda_signal(struct CUstream_st *stream, uint64_t *word, const uint64_t *value,
                                  struct farm_error *err);

// x[i] *= factor; 0 where mask is 0, whatever x holds. mask: [count], or NULL.
enum farm_status farm_cuda_scale(struct CUstream_st *stream, float *x, size_t count, float factor, const float *mask,
                                 struct farm_error *err);

#ifdef __cplusplus
}
#endif
#endif

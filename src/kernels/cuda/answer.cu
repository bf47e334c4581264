// Writes answers into the lanes' `down` segments, in host memory, then `acted`. One block per lane.
//
// The order that the actor relies on (pair A of ring/lane.h, across the bus): its acquire load of `acted` that returns
// acted_value sees every store of this lane's answer.
//   1. Each thread's payload stores come before the barrier in program order; the barrier synchronises the block's
//      threads, so these stores come before thread 0's next store.
//   2. Thread 0's st.release.sys is cumulative: earlier stores, also of other threads, come before it for all
//      observers in the system, host threads too. A __threadfence_system() would add a wait for the bus, and no order.
//   3. `acted` is one aligned word of 8 bytes with one writer: never torn. No read-modify-write touches host memory.
//   4. The actor loads `acted` with acquire: release and acquire on one word synchronise, so 1 and 2 come before the
//      actor's next loads.
// The host's word is a second release after `acted`: by the same thread if there is one lane, else by the next kernel.
#include "kernels/cuda/common.cuh"

enum { THREADS = 128 };

static __global__ void __launch_bounds__(THREADS) answer_lanes(const struct farm_cuda_answer a) {
    const struct farm_cuda_answer_lane lane = a.lanes[blockIdx.x];
    const uint32_t outputs = (uint32_t)a.head.outputs, words = (uint32_t)a.head.action_bytes / 4;
    const float *policy = a.policy + (size_t)lane.row * outputs;
    const uint32_t *action = (const uint32_t *)(const void *)a.action + (size_t)lane.row * words;
    for (uint32_t i = threadIdx.x; i < lane.count * outputs; i += THREADS) lane.policy[i] = policy[i];
    for (uint32_t i = threadIdx.x; i < lane.count * words; i += THREADS)
        ((uint32_t *)(void *)lane.action)[i] = action[i];
    for (uint32_t i = threadIdx.x; i < lane.count * words && a.head.samples; i += THREADS)
        ((uint32_t *)(void *)lane.sample)[i] = ((const uint32_t *)(const void *)a.sample)[(size_t)lane.row * words + i];
    for (uint32_t i = threadIdx.x; i < lane.count; i += THREADS) lane.value[i] = a.value[lane.row + i];
    for (uint32_t i = threadIdx.x; i < lane.count * a.state && lane.carry; i += THREADS)
        lane.carry[i] = a.states[(size_t)lane.row * a.state + i];
    if (threadIdx.x == 0) *lane.version = *a.version;
    __syncthreads();
    if (threadIdx.x > 0) return;
    if (lane.acted) farm_cuda_store_release_system(lane.acted, lane.acted_value);
    if (a.word) farm_cuda_store_release_system(a.word, *a.word_value); // the only lane
}

static __global__ void signal_host(uint64_t *word, const uint64_t *value) {
    farm_cuda_store_release_system(word, *value);
}

enum farm_status farm_cuda_signal(struct CUstream_st *stream, uint64_t *word, const uint64_t *value,
                                  struct farm_error *err) {
    return farm_cuda_launch({"signal_host", stream, 1, 1}, err, signal_host, word, value);
}

enum farm_status farm_cuda_answer(struct CUstream_st *stream, const struct farm_cuda_answer *answer,
                                  struct farm_error *err) {
    if (answer->lane_count == 0) return FARM_OK;
    if (answer->lane_count > INT32_MAX || answer->head.outputs < 1 || answer->head.action_bytes % 4)
        return farm_fail(err, FARM_E_INVALID, "answers of %d numbers and %d bytes to %u lanes", answer->head.outputs,
                         answer->head.action_bytes, answer->lane_count);
    // One lane needs no kernel of its own for the signal, which would wait for all blocks.
    struct farm_cuda_answer lanes = *answer;
    if (lanes.lane_count > 1) lanes.word = NULL;
    const enum farm_status status =
        farm_cuda_launch({"answer_lanes", stream, lanes.lane_count, THREADS}, err, answer_lanes, lanes);
    return status || lanes.word == answer->word ? status
                                                : farm_cuda_signal(stream, answer->word, answer->word_value, err);
}

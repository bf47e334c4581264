// Allocates device memory and pinned host memory, with messages that name the purpose and the size, and fills device
// memory; creates streams of the current device and graphs of captured work. Runs in the learner; no state.
#ifndef FARM_LEARNER_CUDA_MEMORY_H
#define FARM_LEARNER_CUDA_MEMORY_H

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"

// Zeroed memory of the current device, or of the host: pinned, and mapped for every device. bytes 0 gives a valid
// pointer. out: the address of a pointer to any type; NULL on errors. `what` ("training needs") and `key` (a recipe key
// that makes it smaller, or NULL) go into the message of FARM_E_LIMIT.
enum farm_status farm_cuda_device_memory(size_t bytes, const char *what, const char *key, void *out,
                                         struct farm_error *err);
enum farm_status farm_cuda_host_memory(size_t bytes, const char *what, const char *key, void *out,
                                       struct farm_error *err);

// Copies from any host memory, and waits until the bytes have arrived: cudaMemcpy returns before they do if the memory
// is pageable, and streams that do not wait for the default stream would read what was there.
enum farm_status farm_cuda_upload(void *to, const void *from, size_t bytes, struct farm_error *err);

// A list in device memory of `count` places, `stride` bytes apart from `start` on. The caller frees *out with cudaFree;
// valid or NULL on errors too. what, key: as above.
enum farm_status farm_cuda_places(void *start, size_t stride, size_t count, const char *what, const char *key,
                                  void ***out, struct farm_error *err);

// Reserves bytes of a block at *at, rounded up to the alignment. Returns their offset.
static inline size_t farm_cuda_reserve(size_t *at, size_t bytes, size_t alignment) {
    const size_t start = *at;
    *at += (bytes + alignment - 1) / alignment * alignment;
    return start;
}

// The current device's address of such host memory.
enum farm_status farm_cuda_mapped(void *host, void *out, struct farm_error *err);

// A non-blocking stream of the device's highest or lowest priority, and an event for marks in it (done NULL: no event).
enum farm_status farm_cuda_stream_make(bool highest, cudaStream_t *stream, cudaEvent_t *done, struct farm_error *err);

// Makes a graph of the work captured since cudaStreamBeginCapture. `status`: the result of that work's calls; an error
// ends the capture and is returned.
enum farm_status farm_cuda_stream_end_capture(cudaStream_t stream, enum farm_status status, cudaGraphExec_t *out,
                                              struct farm_error *err);

#endif

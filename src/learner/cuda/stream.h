// Creates streams of the current device for inference and training, and graphs of captured work. Runs in the learner;
// no state.
#ifndef FARM_LEARNER_CUDA_STREAM_H
#define FARM_LEARNER_CUDA_STREAM_H

#include <cuda_runtime_api.h>
#include <stdbool.h>

#include "base/status.h"

// A non-blocking stream of the device's highest or lowest priority, and an event for marks in it (done NULL: no event).
enum farm_status farm_cuda_stream_make(bool highest, cudaStream_t *stream, cudaEvent_t *done, struct farm_error *err);

// Makes a graph of the work captured since cudaStreamBeginCapture. `status`: the result of that work's calls; an error
// ends the capture and is returned.
enum farm_status farm_cuda_stream_end_capture(cudaStream_t stream, enum farm_status status, cudaGraphExec_t *out,
                                              struct farm_error *err);

#endif

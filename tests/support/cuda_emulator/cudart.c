// Work of the emulated GPUs: streams, events, graphs, copies. See state.h.
#include "state.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void (*farm_emulator_before_launch)(void);

static struct CUstream_st *stream_or_default(struct CUstream_st *stream) {
    return stream ? stream : &gpu.standard;
}

static void run_stream(struct CUstream_st *stream, const struct CUevent_st *until, uint64_t ticket);

// The queues of a device that hangs stay as they are.
static bool is_hanging(int device) {
    return farm_emulator.hang_after >= 0 && gpu.account.works >= (uint64_t)farm_emulator.hang_after &&
           device == (int)farm_emulator.hang_device;
}

void run_everything(void) {
    run_stream(&gpu.standard, NULL, 0);
    for (struct CUstream_st *s = gpu.streams; s; s = s->next) {
        run_stream(s, NULL, 0);
        if (s->first && is_hanging(s->first->device)) abort_misuse("a wait without end for a GPU that hangs", s, 0, "");
    }
}

// ---- running ----

static void complete_event(struct CUevent_st *event, uint64_t ticket) {
    if (ticket > event->done) event->done = ticket;
    clock_gettime(CLOCK_MONOTONIC, &event->time);
}

static void run_graph(const struct CUgraphExec_st *graph);

static void run_work(const struct item *item) {
    if (gpu.lost[gpu.running_device]) return;
    if (farm_emulator.fall_off_after >= 0 && gpu.account.works >= (uint64_t)farm_emulator.fall_off_after &&
        gpu.running_device == (int)farm_emulator.fall_off_device) {
        gpu.lost[gpu.running_device] = cudaErrorLaunchFailure;
        return;
    }
    gpu.account.works++;
    gpu.running_stream->works++;
    if (farm_emulator.slow_loads && strcmp(item->name, "pull_loads") == 0) usleep((useconds_t)farm_emulator.slow_loads);
    if (farm_emulator.slow_bulk && strcmp(item->name, "pull_bulk") == 0) usleep((useconds_t)farm_emulator.slow_bulk);
    item->work(item->arguments);
}

// Returns false if the item waits for another device, which is lost or hangs.
static bool run_item(const struct item *item) {
    if (item->work) {
        open_memory();
        run_work(item);
        close_memory();
    } else if (item->graph) {
        open_memory();
        run_graph(item->graph);
        close_memory();
    } else if (item->record && !gpu.lost[item->device]) {
        complete_event(item->record, item->ticket);
    } else if (item->wait && item->wait->done < item->ticket && item->wait->where && !gpu.lost[item->device]) {
        const int device = item->wait->where->device;
        run_stream(item->wait->where, item->wait, item->ticket);
        return item->wait->done >= item->ticket || !(gpu.lost[device] || is_hanging(device)) || gpu.lost[item->device];
    }
    return true;
}

static void run_graph(const struct CUgraphExec_st *graph) {
    for (const struct item *item = graph->first; item; item = item->next)
        if (item->work) run_work(item);
}

static void drop_first(struct CUstream_st *stream) {
    struct item *item = stream->first;
    stream->first = item->next;
    if (!stream->first) stream->last = &stream->first;
    free(item);
}

// Runs the first item. Returns false if the item stays because its wait has no end.
static bool run_first(struct CUstream_st *stream) {
    const int before = gpu.running_device;
    struct CUstream_st *const stream_before = gpu.running_stream;
    if (is_hanging(stream->first->device)) return false;
    gpu.running_device = stream->first->device;
    gpu.running_stream = stream;
    const bool done = run_item(stream->first);
    gpu.running_device = before;
    gpu.running_stream = stream_before;
    if (done) drop_first(stream);
    return done;
}

// Runs a stream to its end, or until the event's record is done.
static void run_stream(struct CUstream_st *stream, const struct CUevent_st *until, uint64_t ticket) {
    open_memory();
    bool going = true;
    while (going && stream->first && !(until && until->done >= ticket)) going = run_first(stream);
    close_memory();
}

// As run_stream; aborts if the wait has no end.
static void wait_for(struct CUstream_st *stream, const struct CUevent_st *until, uint64_t ticket) {
    run_stream(stream, until, ticket);
    if (stream->first && !(until && until->done >= ticket))
        abort_misuse("a wait without end for a GPU that is lost or hangs", stream, 0, "");
}

void farm_emulator_give_up(cudaStream_t stream) {
    lock_gpu();
    while (run_stream(stream, NULL, 0), stream->first) drop_first(stream);
    (void)end_call(cudaSuccess);
}

void free_items(struct item *item) {
    while (item) {
        struct item *next = item->next;
        free(item);
        item = next;
    }
}

static struct item *new_item(size_t bytes) {
    struct item *item = calloc(1, sizeof *item + bytes);
    if (!item) abort_misuse("no memory", NULL, bytes, "emulator");
    item->bytes = bytes;
    return item;
}

static cudaError_t enqueue(struct CUstream_st *stream, struct item *item) {
    stream = stream_or_default(stream);
    cudaError_t code = check_device();
    item->device = stream == &gpu.standard ? current_device : stream->device;
    if (code) {
        free(item);
        return code;
    }
    if (stream->capture) {
        *stream->capture->last = item;
        stream->capture->last = &item->next;
        return cudaSuccess;
    }
    *stream->last = item;
    stream->last = &item->next;
    if (farm_emulator.eager) run_stream(stream, NULL, 0);
    return cudaSuccess;
}

static cudaError_t enqueue_work(struct CUstream_st *stream, const char *name, void (*work)(const void *arguments),
                                const void *arguments, size_t bytes) {
    struct item *item = new_item(bytes);
    item->name = name;
    item->work = work;
    memcpy(item->arguments, arguments, bytes);
    return enqueue(stream, item);
}

cudaError_t farm_emulator_launch(cudaStream_t stream, const char *name, void (*work)(const void *arguments),
                                 const void *arguments, size_t bytes) {
    lock_gpu();
    if (stream && stream->device != current_device) return end_call(cudaErrorInvalidResourceHandle);
    return end_call(enqueue_work(stream, name, work, arguments, bytes));
}

// ---- copies ----

struct copy {
    void *to;
    const void *from;
    size_t bytes;
    int value;
};

static void count_copy(const struct copy *copy) {
    const struct block *to = find_block(copy->to, copy->bytes), *from = find_block(copy->from, copy->bytes);
    if (from && from->kind == DEVICE && !(to && to->kind == DEVICE)) gpu.account.device_to_host_bytes += copy->bytes;
    if (from && from->kind == REGISTERED) farm_emulator_count_read(FARM_EMULATOR_COPIES, copy->bytes);
}

static void run_copy(const void *arguments) {
    const struct copy *copy = arguments;
    const struct block *to = find_block(copy->to, copy->bytes);
    if (to && to->read_only) abort_misuse("a copy into memory registered read-only", copy->to, copy->bytes, "copy");
    count_copy(copy);
    memcpy(copy->to, copy->from, copy->bytes);
}

static void run_set(const void *arguments) {
    const struct copy *copy = arguments;
    memset(copy->to, copy->value, copy->bytes);
}

// An end may be any memory of the host; in device memory it must be allocated.
static void check_end(const void *address, size_t bytes, const char *call) {
    if (is_in_arena(address) && !find_block(address, bytes))
        abort_misuse("outside all device memory", address, bytes, call);
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t stream) {
    (void)kind;
    lock_gpu();
    check_end(to, bytes, "cudaMemcpyAsync, to");
    check_end(from, bytes, "cudaMemcpyAsync, from");
    struct copy copy = {.to = to, .from = from, .bytes = bytes};
    const struct block *block = find_block(from, bytes);
    const bool pageable = !block && !(stream && stream->capture);
    if (block && block->kind == DEVICE && !find_block(to, bytes)) gpu.account.device_to_pageable_bytes += bytes;
    cudaError_t code = enqueue_work(stream, "cudaMemcpyAsync", run_copy, &copy, sizeof copy);
    if (!code && pageable) wait_for(stream_or_default(stream), NULL, 0); // the call returns when it has read the memory
    return end_call(code);
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind) {
    cudaError_t code = cudaMemcpyAsync(to, from, bytes, kind, NULL);
    return code ? code : cudaStreamSynchronize(NULL);
}

cudaError_t cudaMemcpyBatchAsync(void *const *to, const void *const *from, const size_t *bytes, size_t count,
                                 struct cudaMemcpyAttributes *attributes, size_t *indices, size_t attribute_count,
                                 cudaStream_t stream) {
    lock_gpu();
    const bool valid = attributes && indices && attribute_count == 1 && indices[0] == 0 && count > 0 && stream &&
                       attributes[0].srcAccessOrder == cudaMemcpySrcAccessOrderStream;
    if (!valid) return end_call(cudaErrorInvalidValue);
    if (farm_emulator.no_batches) return end_call(cudaErrorNotSupported);
    if (stream->capture) {
        stream->capture->broken = true;
        return end_call(cudaErrorStreamCaptureUnsupported);
    }
    pthread_mutex_unlock(&gpu.lock);
    cudaError_t code = cudaSuccess;
    for (size_t i = 0; i < count && !code; i++)
        code = cudaMemcpyAsync(to[i], from[i], bytes[i], cudaMemcpyDefault, stream);
    return code;
}

cudaError_t cudaMemcpyPeerAsync(void *to, int to_device, const void *from, int from_device, size_t bytes,
                                cudaStream_t stream) {
    lock_gpu();
    const struct block *target = find_block(to, bytes), *source = find_block(from, bytes);
    if (!target || target->kind != DEVICE || target->device != to_device)
        abort_misuse("not memory of that device", to, bytes, "cudaMemcpyPeerAsync, to");
    if (!source || source->kind != DEVICE || source->device != from_device)
        abort_misuse("not memory of that device", from, bytes, "cudaMemcpyPeerAsync, from");
    pthread_mutex_unlock(&gpu.lock);
    return cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream);
}

cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t stream) {
    lock_gpu();
    if (!find_block(to, bytes)) abort_misuse("outside all device memory", to, bytes, "cudaMemsetAsync");
    struct copy copy = {.to = to, .bytes = bytes, .value = value};
    return end_call(enqueue_work(stream, "cudaMemsetAsync", run_set, &copy, sizeof copy));
}

cudaError_t cudaMemset(void *to, int value, size_t bytes) {
    return cudaMemsetAsync(to, value, bytes, NULL);
}

// ---- streams ----

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *out, unsigned flags, int priority) {
    LOCK_USABLE();
    if (flags != cudaStreamNonBlocking || priority > 0 || priority < -5) return end_call(cudaErrorInvalidValue);
    struct CUstream_st *stream = calloc(1, sizeof *stream);
    stream->last = &stream->first;
    stream->device = current_device;
    stream->priority = priority;
    stream->flags = flags;
    stream->next = gpu.streams;
    gpu.streams = stream;
    *out = stream;
    return end_call(cudaSuccess);
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned flags) {
    return cudaStreamCreateWithPriority(out, flags, 0);
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
    *least = 0;
    *greatest = -5;
    return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    lock_gpu();
    struct CUstream_st **at = &gpu.streams;
    while (*at && *at != stream) at = &(*at)->next;
    if (!*at) abort_misuse("no such stream, or destroyed twice", stream, 0, "cudaStreamDestroy");
    run_stream(stream, NULL, 0);
    *at = stream->next;
    for (struct CUevent_st *event = gpu.events; event; event = event->next)
        if (event->where == stream) event->where = NULL;
    free(stream);
    return end_call(cudaSuccess);
}

static cudaError_t refuse_while_capturing(struct CUstream_st *stream) {
    if (!stream || !stream->capture) return cudaSuccess;
    stream->capture->broken = true;
    return cudaErrorStreamCaptureUnsupported;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    lock_gpu();
    cudaError_t code = refuse_while_capturing(stream);
    if (!code) wait_for(stream_or_default(stream), NULL, 0);
    return end_call(code);
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
    lock_gpu();
    stream = stream_or_default(stream);
    cudaError_t code = refuse_while_capturing(stream);
    if (!code && stream->first) {
        (void)run_first(stream);
        code = cudaErrorNotReady;
    }
    return end_call(gpu.lost[stream->device] ? gpu.lost[stream->device] : code);
}

cudaError_t cudaDeviceSynchronize(void) {
    lock_gpu();
    cudaError_t code = check_device();
    if (!code) run_everything();
    return end_call(code);
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags) {
    lock_gpu();
    if (flags) return end_call(cudaErrorInvalidValue);
    if (event->capture) { // joins the capture of the stream that recorded it
        if (stream->capture && stream->capture != event->capture) return end_call(cudaErrorStreamCaptureMerge);
        if (!stream->capture) {
            if (event->capture->joined_count == JOINED_MAX) abort_misuse("too many streams", stream, 0, "capture");
            event->capture->joined[event->capture->joined_count++] = stream;
        }
        stream->capture = event->capture;
        return end_call(cudaSuccess);
    }
    if (stream->capture) {
        stream->capture->broken = true;
        return end_call(cudaErrorStreamCaptureIsolation);
    }
    struct item *item = new_item(0);
    item->wait = event;
    item->ticket = event->recorded;
    return end_call(enqueue(stream, item));
}

// ---- events ----

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned flags) {
    LOCK_USABLE();
    struct CUevent_st *event = calloc(1, sizeof *event);
    event->timing = !(flags & cudaEventDisableTiming);
    event->next = gpu.events;
    gpu.events = event;
    *out = event;
    return end_call(cudaSuccess);
}

cudaError_t cudaEventCreate(cudaEvent_t *out) {
    return cudaEventCreateWithFlags(out, cudaEventDefault);
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
    lock_gpu();
    struct CUevent_st **at = &gpu.events;
    while (*at && *at != event) at = &(*at)->next;
    if (!*at) abort_misuse("no such event, or destroyed twice", event, 0, "cudaEventDestroy");
    run_everything(); // queued work points to it
    *at = event->next;
    free(event);
    return end_call(cudaSuccess);
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    lock_gpu();
    stream = stream_or_default(stream);
    event->capture = stream->capture;
    if (stream->capture) return end_call(cudaSuccess);
    struct item *item = new_item(0);
    item->record = event;
    item->ticket = ++event->recorded;
    event->where = stream;
    return end_call(enqueue(stream, item));
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
    lock_gpu();
    const cudaError_t lost = event->where ? gpu.lost[event->where->device] : cudaSuccess;
    if (event->done < event->recorded && event->where && event->where->first && !lost) (void)run_first(event->where);
    cudaError_t code = event->done < event->recorded ? cudaErrorNotReady : cudaSuccess;
    return end_call(lost ? lost : code);
}

cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t start, cudaEvent_t end) {
    lock_gpu();
    if (!start->timing || !end->timing || !start->done || !end->done) return end_call(cudaErrorInvalidResourceHandle);
    *milliseconds = (float)(end->time.tv_sec - start->time.tv_sec) * 1e3f +
                    (float)(end->time.tv_nsec - start->time.tv_nsec) * 1e-6f;
    if (*milliseconds < 1e-3f) *milliseconds = 1e-3f;
    return end_call(cudaSuccess);
}

// ---- graphs ----

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode) {
    (void)mode;
    lock_gpu();
    if (!stream || stream->capture) return end_call(cudaErrorIllegalState);
    struct CUgraph_st *graph = calloc(1, sizeof *graph);
    graph->last = &graph->first;
    graph->origin = stream;
    stream->capture = graph;
    gpu.account.graphs++;
    return end_call(cudaSuccess);
}

static void end_capture(const struct CUgraph_st *graph) {
    for (struct CUstream_st *s = gpu.streams; s; s = s->next)
        if (s->capture == graph) s->capture = NULL;
    for (struct CUevent_st *event = gpu.events; event; event = event->next)
        if (event->capture == graph) event->capture = NULL;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *out) {
    lock_gpu();
    struct CUgraph_st *graph = stream->capture;
    *out = NULL;
    if (!graph || graph->origin != stream) return end_call(cudaErrorIllegalState);
    end_capture(graph);
    if (graph->broken || gpu.lost[stream->device]) {
        free_items(graph->first);
        free(graph);
        gpu.account.graphs--;
        return end_call(cudaErrorStreamCaptureInvalidated);
    }
    *out = graph;
    return end_call(cudaSuccess);
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *out, cudaGraph_t graph, unsigned long long flags) {
    lock_gpu();
    if (flags) return end_call(cudaErrorInvalidValue);
    struct CUgraphExec_st *exec = calloc(1, sizeof *exec);
    struct item **last = &exec->first;
    for (const struct item *item = graph->first; item; item = item->next) {
        struct item *copy = new_item(item->bytes);
        memcpy(copy, item, sizeof *item + item->bytes);
        copy->next = NULL;
        *last = copy;
        last = &copy->next;
    }
    gpu.account.graph_execs++;
    *out = exec;
    return end_call(cudaSuccess);
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
    lock_gpu();
    free_items(graph->first);
    free(graph);
    gpu.account.graphs--;
    return end_call(cudaSuccess);
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
    lock_gpu();
    run_everything();
    free_items(exec->first);
    free(exec);
    gpu.account.graph_execs--;
    return end_call(cudaSuccess);
}

cudaError_t cudaGraphUpload(cudaGraphExec_t exec, cudaStream_t stream) {
    (void)exec;
    (void)stream;
    lock_gpu();
    return end_call(check_device());
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
    if (farm_emulator_before_launch) farm_emulator_before_launch();
    lock_gpu();
    if (stream && stream->device != current_device) return end_call(cudaErrorInvalidResourceHandle);
    struct item *item = new_item(0);
    item->name = "cudaGraphLaunch";
    item->graph = exec;
    gpu.account.graph_launches++;
    return end_call(enqueue(stream, item));
}

// Settings, devices, peers and errors of the emulated GPUs; the account for tests. See state.h.
#include "state.h"

#include "grid.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEFAULTS                                                                                                       \
    { .devices = 1, .driver = 13000, .major = 9, .memory = 1 << 30, .fall_off_after = -1, .hang_after = -1 }
struct farm_emulator_settings farm_emulator = DEFAULTS;
struct gpu gpu = {.lock = PTHREAD_MUTEX_INITIALIZER};
_Thread_local int current_device;

static _Thread_local cudaError_t last_error;

void lock_gpu(void) {
    pthread_mutex_lock(&gpu.lock);
    if (!gpu.standard.last) gpu.standard.last = &gpu.standard.first;
}

cudaError_t end_call(cudaError_t code) {
    if (code == cudaSuccess) code = gpu.lost[current_device];
    if (code != cudaSuccess) last_error = code; // "not ready" too, as in CUDA
    pthread_mutex_unlock(&gpu.lock);
    return code;
}

void abort_misuse(const char *what, const void *address, size_t bytes, const char *where) {
    fprintf(stderr, "CUDA emulator: %s: %p, %zu bytes (%s)\n", what, address, bytes, where);
    abort();
}

// The settings' names, in the order of their structure; vendor_open.c reads the last two.
static const char *const settings[] = {
    "devices",          "driver",       "major",       "memory",     "eager",        "refuse_registration",
    "refuse_read_only", "refuse_peers", "no_batches",  "slow_loads", "slow_bulk",    "fall_off_after",
    "fall_off_device",  "hang_after",   "hang_device", "no_start",   "no_libraries", "no_nccl"};
enum { SETTINGS = sizeof farm_emulator / sizeof(int64_t), NAMES = sizeof settings / sizeof *settings };
_Static_assert(NAMES == SETTINGS + 2, "a setting without a name");

__attribute__((constructor)) static void read_environment(void) {
    const char *text = getenv("FARM_CUDA_EMULATOR");
    for (const char *at = text; at && *at; at += strspn(at, " ")) {
        const size_t length = strcspn(at, "=");
        size_t k = 0;
        while (k < NAMES && (strlen(settings[k]) != length || strncmp(at, settings[k], length) != 0)) k++;
        if (k == NAMES) {
            fprintf(stderr, "CUDA emulator: FARM_CUDA_EMULATOR: no such setting: %s\n", at);
            abort();
        }
        if (k < SETTINGS) ((int64_t *)&farm_emulator)[k] = strtoll(at + length + 1, NULL, 10);
        at += strcspn(at, " ");
    }
}

cudaError_t check_device(void) {
    if (gpu.lost[current_device]) return gpu.lost[current_device];
    if (farm_emulator.driver < CUDART_VERSION) return cudaErrorInsufficientDriver;
    return farm_emulator.devices > 0 ? cudaSuccess : cudaErrorNoDevice;
}

// ---- devices ----

cudaError_t cudaGetDeviceCount(int *count) {
    lock_gpu();
    cudaError_t code = farm_emulator.no_start ? (cudaError_t)farm_emulator.no_start : check_device();
    *count = code ? 0 : (int)farm_emulator.devices;
    return end_call(code);
}

cudaError_t cudaSetDevice(int device) {
    lock_gpu();
    if (farm_emulator.driver < CUDART_VERSION || farm_emulator.devices < 1) return end_call(check_device());
    if (device < 0 || device >= farm_emulator.devices) return end_call(cudaErrorInvalidDevice);
    current_device = device; // also from a lost device to another one
    return end_call(check_device());
}

cudaError_t cudaGetDevice(int *device) {
    lock_gpu();
    *device = current_device;
    return end_call(check_device());
}

cudaError_t cudaDriverGetVersion(int *version) {
    *version = (int)farm_emulator.driver;
    return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *version) {
    *version = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device) {
    LOCK_USABLE();
    if (device < 0 || device >= farm_emulator.devices) return end_call(cudaErrorInvalidDevice);
    const struct {
        enum cudaDeviceAttr attribute;
        int value;
    } known[] = {{cudaDevAttrComputeCapabilityMajor, (int)farm_emulator.major},
                 {cudaDevAttrMultiProcessorCount, 8},
                 {cudaDevAttrHostRegisterReadOnlySupported, !farm_emulator.refuse_read_only}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (known[i].attribute == attribute) {
            *value = known[i].value;
            return end_call(cudaSuccess);
        }
    return end_call(cudaErrorInvalidValue);
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *properties, int device) {
    memset(properties, 0, sizeof *properties);
    cudaError_t code = cudaDeviceGetAttribute(&properties->major, cudaDevAttrComputeCapabilityMajor, device);
    if (code) return code;
    snprintf(properties->name, sizeof properties->name, "CUDA emulator (a CPU, for tests)");
    properties->multiProcessorCount = 8;
    properties->totalGlobalMem = (size_t)farm_emulator.memory;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetByPCIBusId(int *device, const char *bus) {
    unsigned domain, number;
    LOCK_USABLE();
    if (sscanf(bus, "%x:%x:", &domain, &number) != 2 || number >= (unsigned)farm_emulator.devices)
        return end_call(cudaErrorInvalidValue);
    *device = (int)number;
    return end_call(cudaSuccess);
}

cudaError_t cudaDeviceGetPCIBusId(char *bus, int bytes, int device) {
    LOCK_USABLE();
    if (device < 0 || device >= farm_emulator.devices) return end_call(cudaErrorInvalidDevice);
    snprintf(bus, (size_t)bytes, "0000:%02x:00.0", (unsigned)device);
    return end_call(cudaSuccess);
}

// ---- peers ----

cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer) {
    lock_gpu();
    cudaError_t code = check_device();
    const int64_t devices = farm_emulator.devices;
    if (!code && (device < 0 || peer < 0 || device >= devices || peer >= devices)) code = cudaErrorInvalidDevice;
    *can = !code && device != peer && !farm_emulator.refuse_peers;
    return end_call(code);
}

cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags) {
    LOCK_USABLE();
    if (flags || peer < 0 || peer >= farm_emulator.devices || peer == current_device || farm_emulator.refuse_peers)
        return end_call(cudaErrorInvalidDevice);
    if (gpu.peers[current_device][peer]) return end_call(cudaErrorPeerAccessAlreadyEnabled);
    gpu.peers[current_device][peer] = true;
    gpu.account.peers++;
    return end_call(cudaSuccess);
}

cudaError_t cudaDeviceDisablePeerAccess(int peer) {
    LOCK_USABLE();
    if (peer < 0 || peer >= farm_emulator.devices || !gpu.peers[current_device][peer])
        return end_call(cudaErrorPeerAccessNotEnabled);
    gpu.peers[current_device][peer] = false;
    gpu.account.peers--;
    return end_call(cudaSuccess);
}

// ---- errors ----

cudaError_t cudaFuncSetAttribute(const void *kernel, enum cudaFuncAttribute attribute, int value) {
    const bool known = kernel && attribute == cudaFuncAttributeMaxDynamicSharedMemorySize && value >= 0;
    lock_gpu();
    return end_call(known && farm_emulator_allow(kernel, (unsigned)value) ? cudaSuccess : cudaErrorInvalidValue);
}

cudaError_t cudaGetLastError(void) {
    cudaError_t code = gpu.lost[current_device] ? gpu.lost[current_device] : last_error;
    last_error = cudaSuccess;
    return code;
}

const char *cudaGetErrorName(cudaError_t code) {
#define NAME(error)                                                                                                    \
    case error:                                                                                                        \
        return #error
    switch ((int)code) {
        NAME(cudaErrorInvalidValue);
        NAME(cudaErrorMemoryAllocation);
        NAME(cudaErrorInsufficientDriver);
        NAME(cudaErrorNoDevice);
        NAME(cudaErrorInvalidDevice);
        NAME(cudaErrorInvalidConfiguration);
        NAME(cudaErrorLaunchFailure);
        NAME(cudaErrorNotSupported);
    default:
        return "an error that the emulator does not name";
    }
}

const char *cudaGetErrorString(cudaError_t code) {
    (void)code;
    return "no description in the emulator";
}

// ---- for tests ----

struct farm_emulator_account farm_emulator_account(void) {
    lock_gpu();
    struct farm_emulator_account account = gpu.account;
    for (size_t i = 0; i < gpu.block_count; i++) {
        const struct block *block = &gpu.blocks[i];
        uint64_t *const counts[] = {&account.allocations, &account.pinned, &account.registered};
        uint64_t *const bytes[] = {&account.device_bytes, &account.pinned_bytes, &account.registered_bytes};
        ++*counts[block->kind];
        *bytes[block->kind] += block->bytes;
    }
    for (const struct CUstream_st *s = gpu.streams; s; s = s->next) account.streams++;
    for (const struct CUevent_st *event = gpu.events; event; event = event->next) account.events++;
    pthread_mutex_unlock(&gpu.lock);
    return account;
}

size_t farm_emulator_streams(struct farm_emulator_stream *out, size_t most) {
    size_t count = 0;
    lock_gpu();
    for (const struct CUstream_st *s = gpu.streams; s && count + 1 < most; s = s->next)
        out[count++] = (struct farm_emulator_stream){s->device, s->priority, s->flags, s->works};
    if (count < most) out[count++] = (struct farm_emulator_stream){.works = gpu.standard.works};
    pthread_mutex_unlock(&gpu.lock);
    return count;
}

unsigned farm_emulator_registration(const void *address) {
    lock_gpu();
    const struct block *block = find_block(address, 1);
    const unsigned flags = block && block->kind == REGISTERED ? block->flags : 0;
    pthread_mutex_unlock(&gpu.lock);
    return flags;
}

void farm_emulator_reset(void) {
    lock_gpu();
    for (size_t i = 0; i < gpu.block_count; i++)
        if (gpu.blocks[i].kind == PINNED) free(gpu.blocks[i].start);
    for (struct CUstream_st *stream = gpu.streams, *next; stream; stream = next) {
        next = stream->next;
        free_items(stream->first);
        free(stream);
    }
    for (struct CUevent_st *event = gpu.events, *next; event; event = next) {
        next = event->next;
        free(event);
    }
    free_items(gpu.standard.first);
    gpu.block_count = 0;
    gpu.streams = NULL;
    gpu.events = NULL;
    gpu.standard = (struct CUstream_st){.last = &gpu.standard.first};
    gpu.account = (struct farm_emulator_account){0};
    memset(gpu.peers, 0, sizeof gpu.peers);
    memset(gpu.lost, 0, sizeof gpu.lost);
    farm_emulator = (struct farm_emulator_settings)DEFAULTS;
    farm_emulator_before_launch = NULL;
    last_error = cudaSuccess;
    current_device = 0;
    pthread_mutex_unlock(&gpu.lock);
}

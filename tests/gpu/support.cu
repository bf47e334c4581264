// See support.cuh.
#include "support.cuh"

#include <sched.h>
#include <sys/mman.h>
#include <sys/utsname.h>
#include <unistd.h>

static uint8_t *map(int fd, size_t bytes, int protection) {
    void *memory = mmap(NULL, bytes, protection, MAP_SHARED | MAP_POPULATE, fd, 0);
    if (memory == MAP_FAILED) {
        perror("FAIL mmap of a memfd");
        exit(1);
    }
    return (uint8_t *)memory;
}

struct segment segment_make(size_t bytes, bool read_only) {
    struct segment segment = {};
    int device, supported = 0;
    CUDA(cudaGetDevice(&device));
    CUDA(cudaDeviceGetAttribute(&supported, cudaDevAttrHostRegisterReadOnlySupported, device));
    const int fd = memfd_create("farm-gpu-test", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, (off_t)bytes)) {
        perror("FAIL memfd");
        exit(1);
    }
    segment.bytes = bytes;
    segment.read_only = read_only && supported;
    segment.host = map(fd, bytes, PROT_READ | PROT_WRITE);
    segment.registered = map(fd, bytes, segment.read_only ? PROT_READ : PROT_READ | PROT_WRITE);
    close(fd);
    CUDA(cudaHostRegister(segment.registered, bytes,
                          cudaHostRegisterPortable | cudaHostRegisterMapped |
                              (segment.read_only ? cudaHostRegisterReadOnly : 0)));
    CUDA(cudaHostGetDevicePointer((void **)&segment.device, segment.registered, 0));
    return segment;
}

void segment_free(struct segment *segment) {
    CUDA(cudaHostUnregister(segment->registered));
    munmap(segment->registered, segment->bytes);
    munmap(segment->host, segment->bytes);
}

void print_machine(void) {
    struct cudaDeviceProp device;
    struct utsname system;
    cpu_set_t cpus;
    int runtime = 0, driver = 0, read_only = 0;
    CUDA(cudaGetDeviceProperties(&device, 0));
    CUDA(cudaRuntimeGetVersion(&runtime));
    CUDA(cudaDriverGetVersion(&driver));
    CUDA(cudaDeviceGetAttribute(&read_only, cudaDevAttrHostRegisterReadOnlySupported, 0));
    if (uname(&system)) strcpy(system.release, "unknown");
    const int cores = sched_getaffinity(0, sizeof cpus, &cpus) ? 1 : CPU_COUNT(&cpus);
    printf("{\"cpu\": null, \"cores\": %d, \"nodes\": null, \"kernel\": \"%s\", \"gpu\": \"%s\", "
           "\"multiprocessors\": %d, \"compute_capability\": \"%d.%d\", \"cuda_runtime\": %d, \"cuda_of_driver\": %d, "
           "\"registers_read_only_memory\": %s}",
           cores, system.release, device.name, device.multiProcessorCount, device.major, device.minor, runtime, driver,
           read_only ? "true" : "false");
}

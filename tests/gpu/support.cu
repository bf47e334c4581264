// See support.cuh.
#include "support.cuh"

#include <sys/mman.h>
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

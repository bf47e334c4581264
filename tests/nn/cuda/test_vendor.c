// Where cuDNN and cuBLASLt are searched, in which order, and the errors if they are missing. Linked with
// --wrap=dlopen,dlerror,dlsym: the linker finds what the test names.
#include "nn/cuda/vendor.h"

#include <criterion/criterion.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static struct farm_error err;

enum { TRIED_MAX = 256 };
static char tried[TRIED_MAX][512];
static int tried_count;
static const char *present[4];     // paths that open
static const char *broken;         // an existing path that does not open
static const char *missing_symbol; // absent from an open library
static char last_error[600];

void *__wrap_dlopen(const char *path, int flags);
char *__wrap_dlerror(void);
void *__wrap_dlsym(void *handle, const char *name);

void *__wrap_dlopen(const char *path, int flags) {
    cr_assert_eq(flags, RTLD_NOW | RTLD_GLOBAL);
    cr_assert_lt(tried_count, TRIED_MAX);
    snprintf(tried[tried_count++], sizeof tried[0], "%s", path);
    for (size_t i = 0; i < sizeof present / sizeof *present; i++)
        if (present[i] && strcmp(path, present[i]) == 0) return &present[i];
    if (broken && strcmp(path, broken) == 0)
        snprintf(last_error, sizeof last_error, "%s: file too short", path);
    else
        snprintf(last_error, sizeof last_error, "%s: cannot open shared object file: No such file or directory", path);
    return NULL;
}
char *__wrap_dlerror(void) {
    return last_error;
}

static size_t version(void) {
    return 91900;
}
void *__wrap_dlsym(void *handle, const char *name) {
    if (missing_symbol && strcmp(name, missing_symbol) == 0) return NULL;
    void *address;
    size_t (*function)(void) = version;
    memcpy(&address, &function, sizeof address);
    return address;
}

static int when_tried(const char *path) {
    for (int i = 0; i < tried_count; i++)
        if (strcmp(tried[i], path) == 0) return i;
    return -1;
}

static void setup(void) {
    static const char *const names[] = {"FARM_CUDA_LIBS", "VIRTUAL_ENV", "CONDA_PREFIX", "HOME", "PATH"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) unsetenv(names[i]);
}

TestSuite(vendor, .init = setup);

Test(vendor, names_the_places_searched_and_what_to_install) {
    struct farm_cuda_vendor vendor;
    setenv("FARM_CUDA_LIBS", "/nowhere/a:/nowhere/b", 1);
    cr_expect_eq(farm_cuda_vendor_open(&vendor, &err), FARM_E_NOT_FOUND);
    static const char *const parts[] = {"cuBLASLt is missing",
                                        "libcublasLt.so.13 or libcublasLt.so.12",
                                        "/nowhere/a",
                                        "/nowhere/b",
                                        "the dynamic linker's places",
                                        "nvidia-cublas",
                                        "FARM_CUDA_LIBS"};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        cr_expect(strstr(err.message, parts[i]) != NULL, "\"%s\" is not in: %s", parts[i], err.message);
    present[0] = "libcublasLt.so.13";
    cr_expect_eq(farm_cuda_vendor_open(&vendor, &err), FARM_E_NOT_FOUND);
    cr_expect(strstr(err.message, "cuDNN 9 is missing (libcudnn.so.9)") != NULL, "%s", err.message);
    cr_expect(strstr(err.message, "nvidia-cudnn-cu13") != NULL, "%s", err.message);
}

// Makes or removes folders below `prefix`, each inside the one before it or beside it.
static void make_folders(const char *prefix, const char *const *folders, int count, bool make) {
    char path[256];
    for (int i = 0; i < count; i++) {
        snprintf(path, sizeof path, "%s%s", prefix, folders[make ? i : count - 1 - i]);
        cr_assert_eq(make ? mkdir(path, 0700) : rmdir(path), 0);
    }
}

Test(vendor, named_folders_go_before_the_linker_and_the_linker_before_wheels) {
    char prefix[] = "/tmp/farm-vendor-XXXXXX", path[256];
    static const char *const folders[] = {"/lib", "/lib/python3.11", "/lib/python3.11/site-packages"};
    struct farm_cuda_vendor vendor;
    cr_assert_not_null(mkdtemp(prefix));
    make_folders(prefix, folders, 3, true);
    setenv("FARM_CUDA_LIBS", "/nowhere/a:/nowhere/b", 1);
    setenv("VIRTUAL_ENV", prefix, 1);
    farm_cuda_vendor_open(&vendor, &err);
    make_folders(prefix, folders, 3, false);
    rmdir(prefix);
    snprintf(path, sizeof path, "%s/lib/python3.11/site-packages/nvidia/cu13/lib/libcublasLt.so.13", prefix);
    const char *const order[] = {"/nowhere/a/libcublasLt.so.13",
                                 "/nowhere/a/nvidia/cu13/lib/libcublasLt.so.13",
                                 "/nowhere/a/nvidia/cublas/lib/libcublasLt.so.12",
                                 "/nowhere/b/libcublasLt.so.12",
                                 "libcublasLt.so.13",
                                 "libcublasLt.so.12",
                                 path};
    for (size_t i = 0; i < sizeof order / sizeof *order; i++) {
        cr_expect_geq(when_tried(order[i]), 0, "%s was not tried", order[i]);
        if (i > 0) cr_expect_lt(when_tried(order[i - 1]), when_tried(order[i]), "%s comes too early", order[i]);
    }
}

Test(vendor, searches_beside_the_python_of_the_path) {
    char prefix[] = "/tmp/farm-vendor-XXXXXX", python[64], path[256];
    static const char *const folders[] = {"/bin", "/lib", "/lib/python3.12", "/lib/python3.12/site-packages"};
    struct farm_cuda_vendor vendor;
    cr_assert_not_null(mkdtemp(prefix));
    make_folders(prefix, folders, 4, true);
    snprintf(python, sizeof python, "%s/bin/python3", prefix);
    cr_assert_eq(symlink("/bin/true", python), 0);
    snprintf(path, sizeof path, "/nowhere:%s/bin::bin", prefix);
    setenv("PATH", path, 1);
    setenv("VIRTUAL_ENV", ".", 1);
    cr_assert_eq(chdir(prefix), 0);
    farm_cuda_vendor_open(&vendor, NULL);
    unlink(python);
    make_folders(prefix, folders, 4, false);
    rmdir(prefix);
    snprintf(path, sizeof path, "%s/bin/../lib/python3.12/site-packages/nvidia/cublas/lib/libcublasLt.so.12", prefix);
    cr_expect_geq(when_tried(path), 0, "%s was not tried", path);
    for (int i = 0; i < tried_count; i++)
        cr_expect(tried[i][0] == '/' || !strchr(tried[i], '/'), "%s is of the current folder", tried[i]);
}

Test(vendor, fills_the_whole_table_and_describes_it) {
    present[0] = "/nowhere/a/nvidia/cublas/lib/libcublasLt.so.12";
    present[1] = "/nowhere/a/nvidia/cudnn/lib/libcudnn.so.9";
    setenv("FARM_CUDA_LIBS", "/nowhere/a", 1);
    struct farm_cuda_vendor vendor;
    memset(&vendor, 0, sizeof vendor);
    cr_assert_eq(farm_cuda_vendor_open(&vendor, &err), FARM_OK, "%s", err.message);
    void *functions[sizeof vendor / sizeof(void *)];
    memcpy(functions, &vendor, sizeof vendor);
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) cr_expect_not_null(functions[i], "entry %zu", i);
    char text[200];
    farm_cuda_vendor_describe(&vendor, text, sizeof text);
    cr_expect(strstr(text, "cuDNN 9.19.0 of ") != NULL, "%s", text);
}

Test(vendor, names_the_function_that_a_library_lacks) {
    present[0] = "libcublasLt.so.13";
    present[1] = "libcudnn.so.9";
    missing_symbol = "cudnnConvolutionBackwardFilter";
    struct farm_cuda_vendor vendor;
    cr_expect_eq(farm_cuda_vendor_open(&vendor, &err), FARM_E_UNSUPPORTED);
    cr_expect(strstr(err.message, missing_symbol) != NULL, "%s", err.message);
}

Test(vendor, the_linkers_reason_for_a_broken_library_is_in_the_message) {
    setenv("FARM_CUDA_LIBS", "/nowhere/a", 1);
    broken = "/nowhere/a/libcublasLt.so.13";
    struct farm_cuda_vendor vendor;
    cr_expect_eq(farm_cuda_vendor_open(&vendor, &err), FARM_E_NOT_FOUND);
    cr_expect(strstr(err.message, "file too short") != NULL, "%s", err.message);
}

// See vendor.h.
#include "nn/cuda/vendor.h"

#include <dlfcn.h>
#include <glob.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PLACES_MAX = 64, SEARCHED_MAX = 420 };

// A function, and where its address goes in the library's table.
struct symbol {
    const char *name;
    size_t offset;
};
#define CUDNN(result, name, parameters)    {"cudnn" #name, offsetof(struct farm_cudnn, name)},
#define CUBLASLT(result, name, parameters) {"cublasLt" #name, offsetof(struct farm_cublaslt, name)},
#define NCCL(result, name, parameters)     {"nccl" #name, offsetof(struct farm_nccl, name)},
static const struct symbol cudnn_symbols[] = {FARM_CUDNN_FUNCTIONS(CUDNN){0}};
static const struct symbol cublaslt_symbols[] = {FARM_CUBLASLT_FUNCTIONS(CUBLASLT){0}};
static const struct symbol nccl_symbols[] = {FARM_NCCL_FUNCTIONS(NCCL){0}};

struct library {
    const char *title;
    const char *names[3];         // its file's, newest first
    const char *wheel_folders[3]; // where NVIDIA's wheels keep it below site-packages
    const char *wheel;            // that pip installs
    const char *without;          // the option that does not need it
    const struct symbol *symbols; // until a name is NULL
};
static const struct library cublaslt = {"cuBLASLt",
                                        {"libcublasLt.so.13", "libcublasLt.so.12"},
                                        {"nvidia/cu13/lib", "nvidia/cublas/lib"},
                                        "nvidia-cublas",
                                        "--device cpu",
                                        cublaslt_symbols};
static const struct library cudnn = {"cuDNN 9",           {"libcudnn.so.9"}, {"nvidia/cudnn/lib"},
                                     "nvidia-cudnn-cu13", "--device cpu",    cudnn_symbols};
static const struct library nccl = {"NCCL",     {"libnccl.so.2"}, {"nvidia/nccl/lib"}, "nvidia-nccl-cu13",
                                    "--gpus 1", nccl_symbols};

// ---- places: folders on the heap; "" is the dynamic linker's own search ----

struct places {
    int count;
    struct place {
        char *folder;
        bool wheels; // a site-packages folder
    } at[PLACES_MAX];
};

static void add_place(struct places *places, const char *folder, size_t length, bool wheels) {
    char *copy = places->count < PLACES_MAX ? strndup(folder, length) : NULL;
    if (copy) places->at[places->count++] = (struct place){copy, wheels};
}

// Adds the folders that match "<prefix><pattern>"; none without a prefix, or below the current folder.
static void add_matches(struct places *places, const char *prefix, const char *pattern, bool wheels) {
    char path[PATH_MAX];
    glob_t found;
    if (!prefix || prefix[0] != '/' || snprintf(path, sizeof path, "%s%s", prefix, pattern) >= (int)sizeof path) return;
    if (glob(path, 0, NULL, &found) != 0) return;
    for (size_t i = 0; i < found.gl_pathc; i++) add_place(places, found.gl_pathv[i], strlen(found.gl_pathv[i]), wheels);
    globfree(&found);
}

// Returns the next folder of a list separated by colons and moves *list behind it; NULL at its end.
static const char *next_folder(const char **list, size_t *length) {
    if (!*list) return NULL;
    const char *folder = *list + strspn(*list, ":");
    *length = strcspn(folder, ":");
    *list = folder + *length;
    return *length > 0 ? folder : NULL;
}

// Adds the site-packages beside the python3 of each folder in `path`.
static void add_pythons(struct places *places, const char *path) {
    char prefix[PATH_MAX];
    size_t length;
    for (const char *folder; (folder = next_folder(&path, &length)) != NULL;) {
        if (snprintf(prefix, sizeof prefix, "%.*s/python3", (int)length, folder) >= (int)sizeof prefix) continue;
        if (access(prefix, X_OK) != 0) continue;
        prefix[length] = '\0';
        add_matches(places, prefix, "/../lib/python3*/site-packages", true);
    }
}

static void find_places(struct places *places) {
    static const char *const packages = "/lib/python3*/site-packages";
    const char *named = getenv("FARM_CUDA_LIBS");
    size_t length;
    places->count = 0;
    for (const char *folder; (folder = next_folder(&named, &length)) != NULL;) {
        add_place(places, folder, length, false);
        add_place(places, folder, length, true);
    }
    add_place(places, "", 0, false);
    add_matches(places, "/usr/local/cuda", "/lib64", false);
    add_matches(places, getenv("VIRTUAL_ENV"), packages, true);
    add_matches(places, getenv("CONDA_PREFIX"), packages, true);
    add_pythons(places, getenv("PATH"));
    add_matches(places, getenv("HOME"), "/.local/lib/python3*/site-packages", true);
    add_matches(places, "/usr/local", packages, true);
    add_matches(places, "/usr/local", "/lib/python3*/dist-packages", true);
    add_matches(places, "/usr", "/lib/python3/dist-packages", true);
}

// ---- opening ----

// What an error reports: places, and the linker's reason for a library that exists but does not load.
struct search {
    char places[SEARCHED_MAX], reason[160];
};

// A place that does not fit becomes "...".
static void note_place(struct search *search, const char *folder) {
    const size_t used = strlen(search->places), left = sizeof search->places - used;
    if (used + strlen(folder) + 3 <= sizeof search->places)
        snprintf(search->places + used, left, "%s%s", used > 0 ? ", " : "", folder);
    else if (left >= 5 && strcmp(search->places + used - 3, "...") != 0)
        strcpy(search->places + used, " ...");
}

// RTLD_GLOBAL because cuDNN looks for cuBLASLt by name among the loaded libraries.
static void *open_file(const char *folder, const char *below, const char *name, struct search *search) {
    char path[PATH_MAX];
    if (snprintf(path, sizeof path, "%s%s%s%s%s", folder, *below ? "/" : "", below, *folder ? "/" : "", name) >=
        (int)sizeof path)
        return NULL;
    void *handle = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
    const char *reason = handle ? NULL : dlerror();
    if (reason && !*search->reason && !strstr(reason, "cannot open shared object file: No such file"))
        snprintf(search->reason, sizeof search->reason, "; %s", reason);
    return handle;
}

static void *open_at(const struct library *library, const struct place *place, struct search *search) {
    static const char *const itself[] = {"", NULL};
    for (const char *const *below = place->wheels ? library->wheel_folders : itself; *below; below++)
        for (const char *const *name = library->names; *name; name++) {
            void *handle = open_file(place->folder, *below, *name, search);
            if (handle) return handle;
        }
    return NULL;
}

// Opens the library and fills its table.
static enum farm_status open_library(const struct library *library, void *table, struct farm_error *err) {
    struct places places;
    struct search search = {.places = ""};
    void *handle = NULL;
    find_places(&places);
    for (int p = 0; p < places.count && !handle; p++) {
        const char *folder = places.at[p].folder;
        handle = open_at(library, &places.at[p], &search);
        if (p == 0 || strcmp(folder, places.at[p - 1].folder) != 0)
            note_place(&search, *folder ? folder : "the dynamic linker's places");
    }
    for (int p = 0; p < places.count; p++) free(places.at[p].folder);
    if (!handle)
        return farm_fail(
            err, FARM_E_NOT_FOUND,
            "%s is missing (%s%s%s); searched: %s%s. Install it (PyTorch brings it; or: pip install %s) and put its "
            "folder or site-packages into FARM_CUDA_LIBS, or use %s",
            library->title, library->names[0], library->names[1] ? " or " : "",
            library->names[1] ? library->names[1] : "", search.places, search.reason, library->wheel, library->without);
    for (const struct symbol *symbol = library->symbols; symbol->name; symbol++) {
        void *const address = dlsym(handle, symbol->name);
        if (!address)
            return farm_fail(err, FARM_E_UNSUPPORTED, "this %s lacks the function %s; install another version",
                             library->title, symbol->name);
        memcpy((char *)table + symbol->offset, &address, sizeof address);
    }
    return FARM_OK;
}

enum farm_status farm_cuda_vendor_open(struct farm_cuda_vendor *out, struct farm_error *err) {
    const enum farm_status status = open_library(&cublaslt, &out->cublaslt, err);
    return status ? status : open_library(&cudnn, &out->cudnn, err);
}

enum farm_status farm_cuda_nccl_open(struct farm_nccl *out, struct farm_error *err) {
    return open_library(&nccl, out, err);
}

// The file that holds a function.
static const char *file_of(size_t (*function)(void)) {
    void *address;
    Dl_info info;
    memcpy(&address, &function, sizeof address);
    return dladdr(address, &info) != 0 && info.dli_fname ? info.dli_fname : "?";
}

void farm_cuda_vendor_describe(const struct farm_cuda_vendor *vendor, char *text, size_t size) {
    const size_t dnn = vendor->cudnn.GetVersion(), blas = vendor->cublaslt.GetVersion();
    snprintf(text, size, "cuDNN %zu.%zu.%zu of %s, cuBLASLt %zu.%zu.%zu of %s", dnn / 10000, dnn / 100 % 100, dnn % 100,
             file_of(vendor->cudnn.GetVersion), blas / 10000, blas / 100 % 100, blas % 100,
             file_of(vendor->cublaslt.GetVersion));
}

// See vendor.h. Names of places are made, tried in order, and listed where none has the library.
#include "nn/cuda/vendor.h"

#include <dlfcn.h>
#include <glob.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PLACES_MAX = 64, NAMES_MAX = 2, TRIED_MAX = 420 };

// A library: its names, newest first, and where NVIDIA's wheels keep it below site-packages.
struct library {
    const char *title;
    const char *names[NAMES_MAX + 1];
    const char *wheel_folders[NAMES_MAX + 2];
    const char *wheels;  // what pip installs
    const char *without; // what does without it
};
static const struct library cublaslt_library = {
    .title = "cuBLASLt",
    .names = {"libcublasLt.so.13", "libcublasLt.so.12"},
    .wheel_folders = {"nvidia/cu13/lib", "nvidia/cublas/lib"},
    .wheels = "nvidia-cublas",
    .without = "--device cpu",
};
static const struct library cudnn_library = {
    .title = "cuDNN 9",
    .names = {"libcudnn.so.9"},
    .wheel_folders = {"nvidia/cudnn/lib"},
    .wheels = "nvidia-cudnn-cu13",
    .without = "--device cpu",
};
static const struct library nccl_library = {
    .title = "NCCL",
    .names = {"libnccl.so.2"},
    .wheel_folders = {"nvidia/nccl/lib"},
    .wheels = "nvidia-nccl-cu13",
    .without = "--gpus 1",
};

// One function of a library and where its address goes.
struct symbol {
    const char *name;
    size_t offset;
};
#define CUDNN(name)                                                                                                    \
    { "cudnn" #name, offsetof(struct farm_cudnn, name) }
static const struct symbol cudnn_symbols[] = {
    CUDNN(GetVersion),
    CUDNN(GetErrorString),
    CUDNN(GetLastErrorString),
    CUDNN(Create),
    CUDNN(Destroy),
    CUDNN(SetStream),
    CUDNN(CreateTensorDescriptor),
    CUDNN(SetTensor4dDescriptor),
    CUDNN(DestroyTensorDescriptor),
    CUDNN(CreateFilterDescriptor),
    CUDNN(SetFilter4dDescriptor),
    CUDNN(DestroyFilterDescriptor),
    CUDNN(CreateConvolutionDescriptor),
    CUDNN(SetConvolution2dDescriptor),
    CUDNN(SetConvolutionMathType),
    CUDNN(DestroyConvolutionDescriptor),
    CUDNN(CreateActivationDescriptor),
    CUDNN(SetActivationDescriptor),
    CUDNN(DestroyActivationDescriptor),
    CUDNN(GetConvolutionForwardAlgorithm_v7),
    CUDNN(GetConvolutionBackwardDataAlgorithm_v7),
    CUDNN(GetConvolutionBackwardFilterAlgorithm_v7),
    CUDNN(GetConvolutionForwardWorkspaceSize),
    CUDNN(GetConvolutionBackwardDataWorkspaceSize),
    CUDNN(GetConvolutionBackwardFilterWorkspaceSize),
    CUDNN(ConvolutionForward),
    CUDNN(ConvolutionBiasActivationForward),
    CUDNN(ConvolutionBackwardData),
    CUDNN(ConvolutionBackwardFilter),
};
_Static_assert(sizeof cudnn_symbols / sizeof *cudnn_symbols * sizeof(void *) == sizeof(struct farm_cudnn), "all");
#define CUBLASLT(name)                                                                                                 \
    { "cublasLt" #name, offsetof(struct farm_cublaslt, name) }
static const struct symbol cublaslt_symbols[] = {
    CUBLASLT(GetVersion),
    CUBLASLT(GetStatusString),
    CUBLASLT(Create),
    CUBLASLT(Destroy),
    CUBLASLT(MatmulDescCreate),
    CUBLASLT(MatmulDescDestroy),
    CUBLASLT(MatmulDescSetAttribute),
    CUBLASLT(MatrixLayoutCreate),
    CUBLASLT(MatrixLayoutDestroy),
    CUBLASLT(MatmulPreferenceCreate),
    CUBLASLT(MatmulPreferenceDestroy),
    CUBLASLT(MatmulPreferenceSetAttribute),
    CUBLASLT(MatmulAlgoGetHeuristic),
    CUBLASLT(Matmul),
};
_Static_assert(sizeof cublaslt_symbols / sizeof *cublaslt_symbols * sizeof(void *) == sizeof(struct farm_cublaslt),
               "all");

#define NCCL(name)                                                                                                     \
    { "nccl" #name, offsetof(struct farm_nccl, name) }
static const struct symbol nccl_symbols[] = {
    NCCL(GetVersion),        NCCL(GetErrorString), NCCL(CommInitAll), NCCL(CommDestroy), NCCL(CommAbort),
    NCCL(CommGetAsyncError), NCCL(GroupStart),     NCCL(GroupEnd),    NCCL(AllReduce),
};
_Static_assert(sizeof nccl_symbols / sizeof *nccl_symbols * sizeof(void *) == sizeof(struct farm_nccl), "all");

// ---- places: folders, on the heap; "" is the dynamic linker's own search ----

struct places {
    int count;
    bool wheels[PLACES_MAX]; // a site-packages folder
    char *folder[PLACES_MAX];
};

static void add(struct places *places, const char *folder, size_t length, bool wheels) {
    if (places->count == PLACES_MAX) return;
    char *copy = strndup(folder, length);
    if (copy == NULL) return;
    places->wheels[places->count] = wheels;
    places->folder[places->count++] = copy;
}

// What matches "<prefix><pattern>"; an empty or missing prefix is no place.
static void add_matches(struct places *places, const char *prefix, const char *pattern, bool wheels) {
    char path[PATH_MAX];
    glob_t found;
    if (prefix == NULL || snprintf(path, sizeof path, "%s%s", prefix, pattern) >= (int)sizeof path) return;
    if (glob(path, 0, NULL, &found) == 0) {
        for (size_t i = 0; i < found.gl_pathc; i++) add(places, found.gl_pathv[i], strlen(found.gl_pathv[i]), wheels);
        globfree(&found);
    }
}

// The next folder of a list with colons, or NULL at its end.
static const char *next_folder(const char **list, size_t *length) {
    while (*list != NULL && **list == ':') (*list)++;
    if (*list == NULL || **list == '\0') return NULL;
    const char *folder = *list;
    *length = strcspn(folder, ":");
    *list += *length;
    return folder;
}

// Beside the python3 of each folder of PATH.
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

static struct places find_places(void) {
    static const char *const in_prefix = "/lib/python3*/site-packages";
    struct places places = {.count = 0};
    const char *named = getenv("FARM_CUDA_LIBS");
    size_t length;
    for (const char *folder; (folder = next_folder(&named, &length)) != NULL;) {
        add(&places, folder, length, false);
        add(&places, folder, length, true);
    }
    add(&places, "", 0, false);
    add_matches(&places, "/usr/local/cuda", "/lib64", false);
    add_matches(&places, getenv("VIRTUAL_ENV"), in_prefix, true);
    add_matches(&places, getenv("CONDA_PREFIX"), in_prefix, true);
    add_pythons(&places, getenv("PATH"));
    add_matches(&places, getenv("HOME"), "/.local/lib/python3*/site-packages", true);
    add_matches(&places, "/usr/local", in_prefix, true);
    add_matches(&places, "/usr/local", "/lib/python3*/dist-packages", true);
    add_matches(&places, "/usr", "/lib/python3/dist-packages", true);
    return places;
}

static void free_places(struct places *places) {
    for (int i = 0; i < places->count; i++) free(places->folder[i]);
}

// ---- opening ----

// What was tried, for the message; what does not fit is left out.
struct tried {
    char text[TRIED_MAX];
};
static void note(struct tried *tried, const char *what) {
    const size_t used = strlen(tried->text);
    if (used + strlen(what) + 3 <= sizeof tried->text)
        snprintf(tried->text + used, sizeof tried->text - used, "%s%s", used > 0 ? ", " : "", what);
    else if (used + 5 <= sizeof tried->text && strcmp(tried->text + used - 3, "...") != 0)
        strcpy(tried->text + used, " ...");
}

// RTLD_GLOBAL, because cuDNN looks for cuBLASLt by name among what is loaded. `why` keeps the linker's words about a
// library that is there but does not load.
static void *open_at(const char *folder, const char *name, char *why, size_t why_size) {
    char path[PATH_MAX];
    if (snprintf(path, sizeof path, "%s%s%s", folder, *folder != '\0' ? "/" : "", name) >= (int)sizeof path)
        return NULL;
    void *handle = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
    if (handle != NULL) return handle;
    const char *reason = dlerror();
    if (reason != NULL && strstr(reason, "cannot open shared object file: No such file") == NULL && *why == '\0')
        snprintf(why, why_size, "; %s", reason);
    return NULL;
}

static void *open_library(const struct library *library, const struct places *places, struct farm_error *err) {
    struct tried tried = {.text = ""};
    char why[160] = "", folder[PATH_MAX];
    for (int p = 0; p < places->count; p++) {
        const char *place = places->folder[p];
        for (int f = 0; places->wheels[p] ? library->wheel_folders[f] != NULL : f == 0; f++) {
            const char *below = places->wheels[p] ? library->wheel_folders[f] : "";
            if (snprintf(folder, sizeof folder, "%s%s%s", place, *below != '\0' ? "/" : "", below) >=
                (int)sizeof folder)
                continue;
            for (int n = 0; library->names[n] != NULL; n++) {
                void *handle = open_at(folder, library->names[n], why, sizeof why);
                if (handle != NULL) return handle;
            }
        }
        if (!places->wheels[p] || p == 0 || strcmp(place, places->folder[p - 1]) != 0)
            note(&tried, *place != '\0' ? place : "the dynamic linker's places");
    }
    farm_fail(
        err, FARM_E_NOT_FOUND,
        "%s is missing (%s%s%s), looked for in: %s%s. Install it (PyTorch brings it; or: pip install %s) and name "
        "the folder or its site-packages in FARM_CUDA_LIBS, or take %s",
        library->title, library->names[0], library->names[1] != NULL ? " or " : "",
        library->names[1] != NULL ? library->names[1] : "", tried.text, why, library->wheels, library->without);
    return NULL;
}

static enum farm_status read_symbols(void *handle, const struct library *library, const struct symbol *symbols,
                                     size_t count, void *table, struct farm_error *err) {
    for (size_t i = 0; i < count; i++) {
        void *const address = dlsym(handle, symbols[i].name);
        if (address == NULL)
            return farm_fail(err, FARM_E_UNSUPPORTED, "this %s has no function %s: another version is needed",
                             library->title, symbols[i].name);
        memcpy((char *)table + symbols[i].offset, &address, sizeof address);
    }
    return FARM_OK;
}

enum farm_status farm_cuda_vendor_open(struct farm_cuda_vendor *out, struct farm_error *err) {
    struct places places = find_places();
    void *cublaslt = open_library(&cublaslt_library, &places, err);
    void *cudnn = cublaslt != NULL ? open_library(&cudnn_library, &places, err) : NULL;
    free_places(&places);
    if (cudnn == NULL) return FARM_E_NOT_FOUND;
    const enum farm_status status =
        read_symbols(cublaslt, &cublaslt_library, cublaslt_symbols, sizeof cublaslt_symbols / sizeof *cublaslt_symbols,
                     &out->cublaslt, err);
    if (status != FARM_OK) return status;
    return read_symbols(cudnn, &cudnn_library, cudnn_symbols, sizeof cudnn_symbols / sizeof *cudnn_symbols, &out->cudnn,
                        err);
}

enum farm_status farm_cuda_nccl_open(struct farm_nccl *out, struct farm_error *err) {
    struct places places = find_places();
    void *nccl = open_library(&nccl_library, &places, err);
    free_places(&places);
    if (nccl == NULL) return FARM_E_NOT_FOUND;
    return read_symbols(nccl, &nccl_library, nccl_symbols, sizeof nccl_symbols / sizeof *nccl_symbols, out, err);
}

// The file that a function lies in.
static const char *file_of(const void *function_pointer) {
    void *address;
    Dl_info info;
    memcpy(&address, function_pointer, sizeof address);
    return dladdr(address, &info) != 0 && info.dli_fname != NULL ? info.dli_fname : "?";
}

void farm_cuda_vendor_describe(const struct farm_cuda_vendor *vendor, char *text, size_t size) {
    const size_t cudnn = vendor->cudnn.GetVersion(), cublaslt = vendor->cublaslt.GetVersion();
    snprintf(text, size, "cuDNN %zu.%zu.%zu of %s, cuBLASLt %zu.%zu.%zu of %s", cudnn / 10000, cudnn / 100 % 100,
             cudnn % 100, file_of(&vendor->cudnn.GetVersion), cublaslt / 10000, cublaslt / 100 % 100, cublaslt % 100,
             file_of(&vendor->cublaslt.GetVersion));
}

// The pictures of `farm bw --svg`: python/actorfarm/plot_bw.py draws them with matplotlib from the JSON document. See
// bw.h.
#include <errno.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/format.h"
#include "base/json.h"
#include "base/paths.h"
#include "tools/bw/bw.h"

extern char **environ;

enum { PATH_BYTES = 4096 };

// `python -m actorfarm.plot_bw [DOCUMENT FOLDER]`; without arguments it only loads matplotlib.
static enum farm_status run_plot(const char *document, const char *folder, struct farm_error *err) {
    char python[PATH_BYTES], package[PATH_BYTES], module[PATH_BYTES + 32];
    pid_t pid;
    int exit_status;
    if (!farm_path_python(python, sizeof python, package, sizeof package))
        return farm_fail(err, FARM_E_UNSUPPORTED, "--svg needs Python with matplotlib: run `make deps`");
    snprintf(module, sizeof module, "%s/actorfarm/plot_bw.py", package);
    char *const arguments[] = {python, module, (char *)(uintptr_t)document, (char *)(uintptr_t)folder, NULL};
    const int code = posix_spawn(&pid, python, NULL, NULL, arguments, environ);
    if (code) return farm_fail(err, FARM_E_LIMIT, "--svg: cannot start %s: %s", python, strerror(code));
    pid_t ended;
    while ((ended = waitpid(pid, &exit_status, 0)) < 0 && errno == EINTR) continue;
    if (ended == pid && exit_status == 0) return FARM_OK;
    if (document) return farm_fail(err, FARM_E_IO, "--svg: no pictures in %s; the figures are in %s", folder, document);
    return farm_fail(err, FARM_E_UNSUPPORTED,
                     "--svg needs matplotlib: run `make deps`, or %s -m pip install matplotlib",
                     farm_format_word(python).text);
}

enum farm_status farm_bw_check_pictures(struct farm_error *err) {
    return run_plot(NULL, NULL, err);
}

enum farm_status farm_bw_draw_pictures(const json_t *document, const char *folder, struct farm_error *err) {
    char path[PATH_BYTES];
    snprintf(path, sizeof path, "%s/bw.json", folder);
    FILE *file = fopen(path, "we");
    if (!file) return farm_fail_errno(err, FARM_E_IO, "--svg: %s", path);
    enum farm_status status = farm_json_print(document, file, err);
    if (fclose(file) && !status) status = farm_fail_errno(err, FARM_E_IO, "--svg: writing %s", path);
    return status ? status : run_plot(path, folder, err);
}

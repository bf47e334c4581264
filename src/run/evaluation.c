// See evaluation.h.
#include "run/evaluation.h"

#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/file.h"
#include "base/format.h"
#include "base/json.h"

enum { NICE = 10, DOCUMENT_BYTES_MAX = 16384 };

// ---- making ----

enum farm_status farm_run_evaluation_open(struct farm_run_evaluation *evaluation, bool resume, struct farm_error *err) {
    const struct farm_run_workers *workers = evaluation->workers;
    const uint64_t every = (uint64_t)workers->plan->recipe.eval_every, before = workers->learner.before.frames;
    struct farm_appended *lines = &evaluation->lines;
    if (!every) return FARM_OK;
    farm_run_dir_file(workers->run_path, "evals.jsonl", lines->path, sizeof lines->path);
    const enum farm_status status = farm_file_open_own(lines->path, O_RDWR | O_CREAT | O_APPEND, &lines->fd, err);
    if (status) return status;
    if (farm_appended_keep(lines, resume) < 0) return farm_fail_errno(err, FARM_E_IO, "%s", lines->path);
    evaluation->document_fd = memfd_create("evaluation", MFD_CLOEXEC);
    if (evaluation->document_fd < 0) return farm_fail_errno(err, FARM_E_LIMIT, "no memory for evaluations");
    evaluation->due_frames = before - before % every;
    return FARM_OK;
}

static void close_checkpoint(struct farm_run_evaluation *evaluation) {
    if (evaluation->checkpoint_fd >= 0) close(evaluation->checkpoint_fd);
    evaluation->checkpoint_fd = -1;
}

void farm_run_evaluation_free(struct farm_run_evaluation *evaluation) {
    close_checkpoint(evaluation);
    if (evaluation->document_fd >= 0) close(evaluation->document_fd);
    if (evaluation->lines.fd >= 0) close(evaluation->lines.fd);
    evaluation->lines.fd = evaluation->document_fd = -1;
}

// ---- the worker ----

// In the child. Its standard output is the document.
static int become_eval(void *context, struct farm_error *err) {
    const struct farm_run_evaluation *evaluation = context;
    char program[PATH_MAX];
    const ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
    (void)!nice(NICE); // raising it cannot fail
    if (dup2(evaluation->document_fd, STDOUT_FILENO) < 0 || length < 0)
        return (int)farm_fail_errno(err, FARM_E_IO, "cannot start");
    program[length] = 0;
    execv(program, evaluation->argv);
    execv("/proc/self/exe", evaluation->argv); // the file has been replaced meanwhile
    return (int)farm_fail_errno(err, FARM_E_IO, "%s", program);
}

// The checkpoint is this process's open file: its name may be removed before the evaluation reads it.
static void fill_command(struct farm_run_evaluation *evaluation) {
    static const char *const quiet[] = {"--json",          "--quiet", "--device", "cpu",   "--actors", "1",
                                        "--infer-threads", "1",       "--wait",   "sleep", "--no-pin", "--no-numa",
                                        "--no-huge-pages"};
    const struct farm_recipe *recipe = &evaluation->workers->plan->recipe;
    snprintf(evaluation->texts[0], sizeof *evaluation->texts, "/proc/%ld/fd/%d", (long)getpid(),
             evaluation->checkpoint_fd);
    snprintf(evaluation->texts[1], sizeof *evaluation->texts, "%" PRId64, recipe->eval_episodes);
    snprintf(evaluation->texts[2], sizeof *evaluation->texts, "%" PRId64, recipe->seed);
    const char *const words[] = {
        "farm", "eval", evaluation->texts[0], "--episodes", evaluation->texts[1], "--seed", evaluation->texts[2]};
    size_t used = 0;
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) evaluation->argv[used++] = (char *)words[i];
    for (size_t i = 0; i < sizeof quiet / sizeof *quiet; i++) evaluation->argv[used++] = (char *)quiet[i];
    evaluation->argv[used] = NULL;
}

static enum farm_status start(struct farm_run_evaluation *evaluation, struct farm_error *err) {
    struct farm_run_workers *workers = evaluation->workers;
    const struct farm_worker_spec spec = {.name = "evaluation",
                                          .body = become_eval,
                                          .context = evaluation,
                                          .keep = &evaluation->document_fd,
                                          .keep_count = 1,
                                          .memory_node = -1,
                                          .expendable = true,
                                          .once = true,
                                          .stop_phase = FARM_RUN_PHASE_LEARNER};
    char path[FARM_RUN_PATH_MAX + 64];
    snprintf(path, sizeof path, "%s/checkpoints/%012" PRIu64 ".safetensors", workers->run_path,
             evaluation->point.frames);
    evaluation->checkpoint_fd = open(path, O_RDONLY | O_CLOEXEC);
    if (evaluation->checkpoint_fd < 0) return farm_fail_errno(err, FARM_E_IO, "%s", path);
    if (ftruncate(evaluation->document_fd, 0) < 0 || lseek(evaluation->document_fd, 0, SEEK_SET) < 0)
        return farm_fail_errno(err, FARM_E_IO, "its output");
    fill_command(evaluation);
    return farm_supervisor_enlist(workers->supervisor, evaluation->number, &spec, err);
}

// ---- what it says ----

// Warnings pass, the last error is the cause of a failure, and notes are dropped.
static bool read_line(void *owner, uint32_t i, const char *line) {
    static const char warning[] = "farm: warning: ", error[] = "farm eval: ";
    struct farm_run_evaluation *evaluation = owner;
    if (strncmp(line, warning, strlen(warning)) == 0) {
        farm_run_warn(evaluation->workers->caller, "evaluation: %s", line + strlen(warning));
    } else if (strncmp(line, error, strlen(error)) == 0) {
        snprintf(evaluation->said, sizeof evaluation->said, "%s", line + strlen(error));
    }
    return true;
}

static enum farm_status read_document(int fd, json_t **document, struct farm_error *err) {
    char text[DOCUMENT_BYTES_MAX];
    const ssize_t length = pread(fd, text, sizeof text, 0);
    if (length < 0) return farm_fail_errno(err, FARM_E_IO, "its output");
    *document = farm_json_parse(text, (size_t)length, "its output", err);
    if (!*document) return err->status;
    if (json_is_real(json_object_get(*document, "return_mean")) &&
        json_is_false(json_object_get(*document, "interrupted")))
        return FARM_OK;
    json_decref(*document);
    return farm_fail(err, FARM_E_INTERRUPTED, "it was interrupted");
}

static void write_line(struct farm_run_evaluation *evaluation, const json_t *document) {
    static const char *const keys[] = {
        "episodes",      "return_mean", "return_std", "length_mean_steps", "human_normalised", "normalised_score",
        "normalised_to", "seed",        NULL};
    json_t *object = farm_json_object(false);
    size_t bytes;
    farm_json_set_int(object, "due_frames", evaluation->point.due_frames);
    farm_json_set_int(object, "frames", evaluation->point.frames);
    farm_json_set_real(object, "wall_s", evaluation->point.wall_s);
    farm_json_copy(object, document, keys);
    farm_json_set_real(object, "eval_wall_s", json_number_value(json_object_get(document, "wall_s")));
    char *line = farm_json_line(object, &bytes);
    struct farm_error note;
    if (farm_appended_write(&evaluation->lines, line, bytes, &note))
        farm_run_warn(evaluation->workers->caller, "%s", note.message);
    free(line);
    json_decref(object);
}

static enum farm_status take_result(struct farm_run_evaluation *evaluation, struct farm_error *err) {
    json_t *document;
    enum farm_status status = read_document(evaluation->document_fd, &document, err);
    if (status) return status;
    evaluation->frames = evaluation->point.frames;
    evaluation->return_mean = json_number_value(json_object_get(document, "return_mean"));
    evaluation->return_std = json_number_value(json_object_get(document, "return_std"));
    write_line(evaluation, document);
    json_decref(document);
    return FARM_OK;
}

// failure NULL: it has ended.
static void finish(void *owner, uint32_t i, const char *failure) {
    struct farm_run_evaluation *evaluation = owner;
    struct farm_error err;
    evaluation->running = false;
    close_checkpoint(evaluation);
    if (failure && evaluation->said[0]) failure = evaluation->said;
    if (!failure && take_result(evaluation, &err)) failure = err.message;
    if (failure)
        farm_run_warn(evaluation->workers->caller, "the evaluation at %s frames failed: %s",
                      farm_format_count((double)evaluation->point.due_frames).text, failure);
}

// ---- during the run ----

static void ended(void *owner, uint32_t i) {
    finish(owner, i, NULL);
}

static bool skip_death(void *owner, uint32_t i, const struct farm_death *death) {
    return true; // `loss` reports it
}

enum farm_status farm_run_evaluation_add(struct farm_run_evaluation *evaluation, struct farm_error *err) {
    static const struct farm_run_worker_ops ops = {
        .name = "evaluation", .line = read_line, .death = skip_death, .end = ended, .loss = finish};
    if (evaluation->lines.fd < 0) return FARM_OK;
    return farm_run_workers_reserve(evaluation->workers, &ops, evaluation, 1, &evaluation->number, err);
}

void farm_run_evaluation_tick(struct farm_run_evaluation *evaluation, double wall_s) {
    if (evaluation->lines.fd < 0) return;
    const struct farm_run_workers *workers = evaluation->workers;
    const uint64_t every = (uint64_t)workers->plan->recipe.eval_every,
                   frames = farm_load_acquire(&workers->rings->stats->checkpoint_frames),
                   due_frames = frames - frames % every;
    struct farm_error err;
    if (due_frames <= evaluation->due_frames) return;
    evaluation->due_frames = due_frames;
    if (evaluation->running) {
        if (!evaluation->skipped)
            farm_run_warn(workers->caller,
                          "no evaluation at %s frames, because the one at %s still plays: raise --eval-every or lower "
                          "--eval-episodes (reported once)",
                          farm_format_count((double)due_frames).text,
                          farm_format_count((double)evaluation->point.due_frames).text);
        evaluation->skipped = true;
        return;
    }
    evaluation->point.due_frames = due_frames;
    evaluation->point.frames = frames;
    evaluation->point.wall_s = wall_s;
    evaluation->said[0] = 0;
    evaluation->running = true;
    if (start(evaluation, &err)) finish(evaluation, 0, err.message);
}

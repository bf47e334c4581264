// The supervisor starts worker processes, watches them, restarts the dead and ends them in order. It is one thread with
// one poll loop, and forks before any library has opened a GPU. Workers are functions run in a forked child, or
// programs. The supervisor does not know what they do: the functions below connect it to its user.
//
// A worker can rely on this: it dies when the supervisor dies in any way; its signals are as after exec
// (nothing blocked, nothing caught); no descriptors but 0 (/dev/null), 1 and 2 (a pipe to the supervisor, which passes
// every line on with control characters as blanks, and keeps the last ones as "last words"; a worker that writes more
// than about 1.3 MB/s waits in its writes; lines beyond 96 in a second, with the farm's errors 100, are only counted;
// frames of a crash report become lines of source, which nothing waits for) and those of its spec, under the same
// numbers; a process group of its own, so that Ctrl-C in the terminal reaches the supervisor alone.
#ifndef FARM_SUPERVISOR_SUPERVISOR_H
#define FARM_SUPERVISOR_SUPERVISOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/status.h"
#include "supervisor/death.h"
#include "supervisor/worker.h"

enum farm_supervisor_turn { FARM_TURN_ON, FARM_TURN_STOP };

struct farm_supervisor_config {
    void *context;
    // All may be NULL. Called from farm_supervisor_run alone.
    // Once a life, even if its start fails and is tried again. starts: how often it was started before
    void (*before_start)(void *context, size_t worker, uint64_t starts);
    void (*on_line)(void *context, size_t worker, const char *line); // a line the worker wrote; NULL: to stderr
    void (*on_death)(void *context, size_t worker, const struct farm_death *death);
    void (*on_end)(void *context, size_t worker);                   // one that may end, or was dismissed, has ended
    void (*on_loss)(void *context, size_t worker, const char *why); // an expendable one cannot be kept alive
    void (*on_signal)(void *context, int number); // SIGUSR1, SIGUSR2; NULL: they do what they did before
    // The first signal that ends the run: true if the workers that may end will do so soon; until then, or until
    // another signal a second or more later, the run goes on. NULL: false.
    bool (*on_interrupt)(void *context);
    void (*before_stop)(void *context, int phase); // before the SIGTERM of this phase
    enum farm_supervisor_turn (*on_tick)(void *context);
    uint64_t (*progress)(void *context, size_t worker); // grows while the worker makes progress; NULL: never

    // Descriptors that end a wait when they can be read: on_readable is called at once with the number of each, even
    // while workers are being stopped, and again until it has been read empty. The array is the caller's and read anew
    // at each wait, so a descriptor may change; -1: none.
    const int *watched;
    size_t watched_count;
    void (*on_readable)(void *context, size_t number);

    const char *root;         // holds /proc and the control groups, for a recorded machine; NULL: the running system's
    uint32_t tick_ms;         // 0: 250
    uint32_t grace_ms;        // from SIGTERM to SIGKILL; 0: 10,000
    uint32_t healthy_ms;      // a life of this length makes up for the deaths before; 0: 10,000
    uint32_t backoff_max_ms;  // the first restart is immediate, then 10 ms, doubling up to this; 0: 2,000
    uint32_t deaths_max;      // short lives in a row without progress that end the run; 0: 5
    uint32_t short_lives_max; // short lives in a row, progress or not, that end the run; 0: 100
};

struct farm_supervisor;

// Blocks SIGINT, SIGTERM, SIGHUP and SIGPIPE in the caller and takes the first three over: from here on they reach
// farm_supervisor_run, even if they came before it. Copies config and specs. FARM_E_INVALID, FARM_E_LIMIT, FARM_E_IO.
enum farm_status farm_supervisor_make(const struct farm_supervisor_config *config, struct farm_supervisor **out,
                                      struct farm_error *err);

// Before run. The worker's number is the order of adding, from 0.
enum farm_status farm_supervisor_add(struct farm_supervisor *supervisor, const struct farm_worker_spec *spec,
                                     struct farm_error *err);
// Before run: a number without a worker, for a later one.
enum farm_status farm_supervisor_reserve(struct farm_supervisor *supervisor, struct farm_error *err);

// Before run or from a callback: a worker for a free number; it starts at the next turn. FARM_E_BUSY: it has a worker.
enum farm_status farm_supervisor_enlist(struct farm_supervisor *supervisor, size_t number,
                                        const struct farm_worker_spec *spec, struct farm_error *err);
// From a callback: SIGTERM (and SIGCONT) now, SIGKILL after grace_ms, and no restart; on_end follows its end.
void farm_supervisor_dismiss(struct farm_supervisor *supervisor, size_t worker);

// From a callback: SIGKILL now, and another start as after any death. why: a few words for the death's description.
void farm_supervisor_kill(struct farm_supervisor *supervisor, size_t worker, const char *why);

// Before add and run, while this process's memory is small: workers that are `apart` are forked from what it is now.
enum farm_status farm_supervisor_fork_apart(struct farm_supervisor *supervisor, struct farm_error *err);

// Whether a signal that ends the run is pending; for long preparations.
bool farm_supervisor_interrupted(struct farm_supervisor *supervisor);

// Starts all workers, watches them until on_tick returns FARM_TURN_STOP, a signal comes, all workers that may end have
// ended, or one cannot be kept alive; then stops them phase by phase: SIGTERM (and SIGCONT, for stopped processes), up
// to grace_ms, SIGKILL. A second signal a second or more after the first cuts the grace short. When it returns no
// worker is left, nor any process of a worker's group; all may be enlisted again for another run. FARM_OK: ended as
// wanted, also by a signal (*signal_number says which, else 0; may be NULL). FARM_E_DEAD: a crash loop or a final
// error, with the worker's last words. FARM_E_IO, FARM_E_LIMIT: a process could not be started.
enum farm_status farm_supervisor_run(struct farm_supervisor *supervisor, int *signal_number, struct farm_error *err);

pid_t farm_supervisor_pid(const struct farm_supervisor *supervisor, size_t worker); // 0: not running

// Restores the caller's signal mask. Call after run (or without it).
void farm_supervisor_free(struct farm_supervisor *supervisor);

#endif

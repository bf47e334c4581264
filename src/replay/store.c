// See store.h. Files are little endian, as all machines are that this program runs on.
#include "replay/store.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <lz4.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include "base/crc32c.h"
#include "base/file.h"
#include "base/log.h"
#include "base/thread.h"
#include "base/time.h"

static const uint64_t MAGIC = 0x31304c5052524741; // "AGRRPL01"
enum {
    RECORD_STEPS = 8,     // compressed together
    CHUNK_STEPS_MIN = 64, // in one file; a ring has
    CHUNKS = 16,          // such files, or more
    PATH_BYTES = 4096,
    THREADS_MAX = 32,
    LOOK_NS = 10000000,   // between two looks for new steps
    RETRY_NS = 2000000000 // after an error
};

// Before its compressed bytes.
struct record {
    uint32_t crc; // covers layout, lane, origin, the rest and the compressed bytes
    uint32_t bytes, steps, reserved;
    uint64_t first;
};

// A file of this, lanes [rings * lanes] and leaves f32 [rings * lanes][leaf_slots][W].
struct manifest {
    uint64_t magic;
    uint32_t crc; // covers the rest of the file
    uint32_t shape[5];
    uint64_t layout, inserted, sampled, highest, saved_bytes; // stats' words of these names
    struct manifest_lane {
        uint64_t consumed, end; // counters; end: produced and acted
        uint64_t bytes;         // length of the file that takes step `end`, before it
        uint64_t origin;        // differs from lane to lane in one place
    } lane[];
};
static const char *const SHAPE[] = {"actors", "lanes an actor", "environments a lane", "steps a ring",
                                    "steps from window to window"};

// What follows from a place, and memory for one record.
struct format {
    const struct farm_replay_place *place;
    uint64_t layout;
    uint32_t shape[5], lanes, chunk_steps;
    size_t leaves, manifest_bytes, raw_max; // leaves: of a lane; raw_max: bytes of a record's values
    char *raw, *packed;                     // one block; packed: a struct record and its compressed bytes
};

static enum farm_status format_make(const struct farm_replay_place *place, struct format *format,
                                    struct farm_error *err) {
    const struct farm_ring_spec *spec = place->spec;
    struct farm_ring_layout layout;
    const enum farm_status status = farm_ring_layout_make(spec, &layout, err);
    if (status) return status;
    size_t step = spec->width * (sizeof(float) + 1);
    for (uint32_t f = 0; f < spec->env.obs_count; f++) step += spec->width * layout.obs_bytes[f];
    for (uint32_t f = 0; f < spec->answer_count; f++) step += farm_answer_rows(spec, f) * layout.answer_bytes[f];
    const uint32_t steps = spec->steps / CHUNKS / RECORD_STEPS * RECORD_STEPS;
    *format = (struct format){.place = place,
                              .layout = layout.hash,
                              .shape = {place->rings, spec->lanes, spec->width, spec->steps, spec->leaf_every},
                              .lanes = place->rings * spec->lanes,
                              .chunk_steps = steps < CHUNK_STEPS_MIN ? CHUNK_STEPS_MIN : steps,
                              .leaves = (size_t)farm_leaf_slots(spec) * spec->width};
    format->manifest_bytes =
        sizeof(struct manifest) + format->lanes * (sizeof(struct manifest_lane) + format->leaves * sizeof(float));
    format->raw_max = RECORD_STEPS * step;
    if (format->raw_max > LZ4_MAX_INPUT_SIZE)
        return farm_fail(err, FARM_E_INVALID, "steps of %zu bytes cannot be saved: --replay-save false", step);
    format->raw = malloc(format->raw_max + sizeof(struct record) + (size_t)LZ4_compressBound((int)format->raw_max));
    format->packed = format->raw + format->raw_max;
    return format->raw ? FARM_OK : farm_fail(err, FARM_E_LIMIT, "no memory for the saved replay");
}

// ---- records ----

static char *move(char *value, void *slot, size_t bytes, bool out) {
    memcpy(out ? value : slot, out ? slot : value, bytes);
    return value + bytes;
}

// Between a lane and a record's values; returns their bytes. An environment's observations lie side by side, because
// they resemble one another. Answers are those that came with a step (farm_lane_answer_with).
static size_t move_values(const struct format *format, const struct farm_lane *lane, uint64_t first, uint32_t steps,
                          bool out) {
    char *at = format->raw;
    for (uint32_t f = 0; f < lane->obs_count; f++)
        for (uint32_t e = 0; e < lane->width; e++)
            for (uint64_t n = first; n < first + steps; n++)
                at = move(at, farm_lane_obs(lane, f, n, e), lane->obs_bytes[f], out);
    for (uint64_t n = first; n < first + steps; n++) {
        at = move(at, farm_lane_reward(lane, n), lane->width * sizeof(float), out);
        at = move(at, farm_lane_flags(lane, n), lane->width, out);
    }
    for (uint32_t f = 0; f < lane->answer_count; f++) {
        const struct farm_answer_array *answer = &lane->answer[f];
        for (uint64_t n = first, of = n; n < first + steps && answer->every; of = ++n)
            if (lane->local ? farm_lane_answer_with(lane, f, n, &of) : n % answer->every == 0)
                at = move(at, farm_lane_answer_at(lane, f, of, 0), answer->rows * answer->bytes, out);
    }
    return (size_t)(at - format->raw);
}

static uint32_t sum_record(const struct format *format, uint32_t lane, uint64_t origin, const struct record *record) {
    const uint64_t of[3] = {format->layout, lane, origin};
    return farm_crc32c(farm_crc32c(0, of, sizeof of), format->packed + sizeof record->crc,
                       sizeof *record - sizeof record->crc + record->bytes);
}

// Whether training may read what the learner answered. (It checks actors' steps and answers again.)
static bool answers_sensible(const struct format *format, const struct farm_lane *lane, const struct record *record) {
    const struct farm_ring_spec *spec = format->place->spec;
    const size_t actions = (size_t)lane->width * spec->env.action.dims;
    bool good = true;
    for (uint64_t n = record->first; !lane->local && good && n < record->first + record->steps; n++) {
        good = farm_action_find_invalid(&spec->env.action, farm_lane_action(lane, n, 0), lane->width) == actions;
        for (uint32_t f = FARM_ANSWER_POLICY; f < lane->answer_count; f++) {
            const float *values = farm_lane_answer_at(lane, f, n, 0);
            const size_t count = (size_t)lane->answer[f].rows * lane->answer[f].values;
            for (size_t i = 0; spec->answer[f].dtype == FARM_F32 && lane->answer[f].every && i < count; i++)
                good &= isfinite(values[i]) || (f == FARM_ANSWER_POLICY && values[i] == -INFINITY);
        }
    }
    return good;
}

// ---- files ----

static const char *chunk_path(const struct format *format, uint32_t lane, uint64_t step, char path[PATH_BYTES]) {
    snprintf(path, PATH_BYTES, "%s/lane-%" PRIu32 ".%" PRIu64, format->place->folder, lane, step / format->chunk_steps);
    return path;
}

// "FRAMES-CRC.manifest", the latter of 8 hexadecimal digits. *frames: digits of the former.
static bool is_manifest(const char *name, size_t *frames) {
    *frames = strspn(name, "0123456789");
    return *frames && name[*frames] == '-' && strspn(name + *frames + 1, "0123456789abcdef") == 8 &&
           strcmp(name + *frames + 9, ".manifest") == 0 && strlen(name) < FARM_REPLAY_NAME_BYTES;
}

static uint32_t sum_manifest(const struct manifest *manifest, size_t bytes) {
    const size_t skip = offsetof(struct manifest, shape);
    return farm_crc32c(0, (const char *)manifest + skip, bytes - skip);
}

static const float *leaves_of(const struct format *format, const struct manifest *manifest) {
    return (const float *)(manifest->lane + format->lanes);
}

static enum farm_status check_manifest(const struct format *format, const struct manifest *manifest, size_t bytes,
                                       const char *path, struct farm_error *err) {
    static const char remedy[] = "keep what the run began with, or leave its replay behind with --replay-save false";
    if (bytes < sizeof *manifest || manifest->magic != MAGIC || manifest->crc != sum_manifest(manifest, bytes))
        return farm_fail(err, FARM_E_FORMAT, "%s: corrupt: it does not match its checksum", path);
    for (size_t i = 0; i < sizeof SHAPE / sizeof *SHAPE; i++)
        if (manifest->shape[i] != format->shape[i])
            return farm_fail(err, FARM_E_USAGE, "%s: the saved replay has %u %s, this run has %u: %s", path,
                             manifest->shape[i], SHAPE[i], format->shape[i], remedy);
    if (manifest->layout != format->layout)
        return farm_fail(err, FARM_E_USAGE,
                         "%s: its steps have other observations, actions or answers (--inference): %s", path, remedy);
    bool sound = bytes == format->manifest_bytes;
    for (uint32_t l = 0; l < format->lanes && sound; l++) {
        const struct manifest_lane *lane = &manifest->lane[l];
        sound = lane->consumed <= lane->end && lane->end <= INT64_MAX &&
                lane->end - lane->consumed <= format->place->spec->steps;
    }
    for (size_t i = 0; i < format->lanes * format->leaves && sound; i++)
        sound = leaves_of(format, manifest)[i] >= 0 && isfinite(leaves_of(format, manifest)[i]);
    return sound ? FARM_OK : farm_fail(err, FARM_E_FORMAT, "%s: corrupt: impossible counters", path);
}

static enum farm_status read_manifest(const struct format *format, const char *name, struct manifest **manifest,
                                      struct farm_error *err) {
    char path[PATH_BYTES];
    size_t bytes, frames;
    int fd;
    *manifest = NULL;
    if (!is_manifest(name, &frames)) return farm_fail(err, FARM_E_FORMAT, "'%.80s' is no manifest's name", name);
    snprintf(path, sizeof path, "%s/%s", format->place->folder, name);
    enum farm_status status = farm_file_open_own(path, O_RDONLY, &fd, err);
    if (!status)
        close(fd), status = farm_file_read(path, format->manifest_bytes + (1 << 20), (char **)manifest, &bytes, err);
    if (!status) status = check_manifest(format, *manifest, bytes, path, err);
    if (!status && (*manifest)->crc != strtoul(name + frames + 1, NULL, 16))
        status = farm_fail(err, FARM_E_FORMAT, "%s: corrupt: another manifest has this name", path);
    if (status) free(*manifest), *manifest = NULL;
    return status;
}

// ---- reading ----

struct reading {
    const struct farm_replay_place *place;
    const struct manifest *manifest;
    struct farm_ring *rings; // NULL: only verifies
    uint32_t next, failed;   // lane; 1: one thread has written err
    struct farm_error err;
};

static const struct farm_lane *lane_of(const struct reading *reading, uint32_t l) {
    const uint32_t lanes = reading->place->spec->lanes;
    return reading->rings ? &reading->rings[l / lanes].lanes[l % lanes] : NULL;
}

// The record at `at`, into format->packed. False: damaged.
static bool read_record(const struct format *format, uint32_t lane, uint64_t origin, int fd, uint64_t at,
                        struct record *record) {
    const size_t head = sizeof *record;
    if (pread(fd, format->packed, head, (off_t)at) != (ssize_t)head) return false;
    memcpy(record, format->packed, head);
    return record->bytes <= (uint32_t)LZ4_compressBound((int)format->raw_max) && record->steps >= 1 &&
           record->steps <= RECORD_STEPS &&
           pread(fd, format->packed + head, record->bytes, (off_t)(at + head)) == record->bytes &&
           record->crc == sum_record(format, lane, origin, record);
}

// After an error the lane may have any values.
static bool unpack(const struct format *format, const struct farm_lane *lane, const struct record *record) {
    const int bytes =
        LZ4_decompress_safe(format->packed + sizeof *record, format->raw, (int)record->bytes, (int)format->raw_max);
    return bytes == (int)move_values(format, lane, record->first, record->steps, false) &&
           answers_sensible(format, lane, record);
}

// Reads a file's records up to step `end`. *n: the step before which the lane has been read; UINT64_MAX: nothing, and
// the first record begins at `consumed` or before. *at: of the damaged record.
static bool read_chunk(const struct reading *reading, const struct format *format, uint32_t l, int fd, uint64_t end,
                       uint64_t *n, uint64_t *at) {
    const struct farm_lane *lane = lane_of(reading, l);
    const struct manifest_lane *saved = &reading->manifest->lane[l];
    struct record record;
    while (*n == UINT64_MAX || *n < end) {
        if (!read_record(format, l, saved->origin, fd, *at, &record)) return false;
        if (*n == UINT64_MAX && record.first <= saved->consumed) *n = record.first;
        if (record.first != *n || record.steps > end - *n) return false;
        *n += record.steps;
        if (lane && *n > saved->consumed && !unpack(format, lane, &record)) return false;
        *at += sizeof record + record.bytes;
    }
    return true;
}

// Counters last.
static enum farm_status read_lane(const struct reading *reading, const struct format *format, uint32_t l,
                                  struct farm_error *err) {
    const struct manifest_lane *saved = &reading->manifest->lane[l];
    const struct farm_lane *lane = lane_of(reading, l);
    char path[PATH_BYTES];
    for (uint64_t n = UINT64_MAX, at_step = saved->consumed; at_step < saved->end; at_step = n) {
        const uint64_t border = (at_step / format->chunk_steps + 1) * format->chunk_steps,
                       end = border < saved->end ? border : saved->end;
        uint64_t at = 0;
        int fd;
        const enum farm_status status = farm_file_open_own(chunk_path(format, l, at_step, path), O_RDONLY, &fd, err);
        if (status) return status;
        const bool whole = read_chunk(reading, format, l, fd, end, &n, &at);
        close(fd);
        if (!whole) return farm_fail(err, FARM_E_FORMAT, "%s: corrupt at byte %" PRIu64, path, at);
    }
    if (!lane) return FARM_OK;
    memcpy(lane->leaf, leaves_of(format, reading->manifest) + l * format->leaves, format->leaves * sizeof(float));
    farm_store_release(&lane->down->consumed, saved->consumed);
    farm_store_release(&lane->down->acted, saved->end);
    farm_store_release(&lane->up->produced, saved->end);
    return FARM_OK;
}

static void *read_lanes(void *context) {
    struct reading *reading = context;
    struct format format = {0};
    struct farm_error err;
    enum farm_status status = format_make(reading->place, &format, &err);
    while (!status && !__atomic_load_n(&reading->failed, __ATOMIC_RELAXED)) {
        const uint32_t l = __atomic_fetch_add(&reading->next, 1, __ATOMIC_RELAXED);
        if (l >= format.lanes) break;
        status = read_lane(reading, &format, l, &err);
    }
    if (status && !__atomic_exchange_n(&reading->failed, 1, __ATOMIC_RELAXED)) reading->err = err;
    free(format.raw);
    return NULL;
}

static enum farm_status read_all(struct reading *reading, uint32_t lanes, struct farm_error *err) {
    pthread_t threads[THREADS_MAX];
    const int cpus = get_nprocs();
    int count = 0;
    while (count + 1 < cpus && count < THREADS_MAX && (uint32_t)count + 1 < lanes &&
           !farm_thread_start(&threads[count], "replay", (uint32_t)count, read_lanes, reading))
        count++;
    read_lanes(reading);
    while (count) pthread_join(threads[--count], NULL);
    for (uint32_t l = 0; reading->failed && reading->rings && l < lanes; l++) {
        const struct farm_lane *lane = lane_of(reading, l);
        lane->down->consumed = lane->down->acted = lane->up->produced = 0;
    }
    if (reading->failed && err) *err = reading->err;
    return reading->err.status;
}

enum farm_status farm_replay_load(const struct farm_replay_place *place, const char *name, bool chunks,
                                  struct farm_ring *rings, struct farm_stats *stats, struct farm_error *err) {
    struct manifest *manifest = NULL;
    struct format format = {0};
    enum farm_status status = format_make(place, &format, err);
    if (!status) status = read_manifest(&format, name, &manifest, err);
    struct reading reading = {.place = place, .manifest = manifest, .rings = rings};
    if (!status && (chunks || rings)) status = read_all(&reading, format.lanes, err);
    if (!status && rings) {
        farm_store_relaxed(&stats->replay_inserted, manifest->inserted);
        farm_store_relaxed(&stats->replay_sampled, manifest->sampled);
        farm_store_relaxed(&stats->replay_highest, manifest->highest);
        farm_store_relaxed(&stats->replay_saved_bytes, manifest->saved_bytes);
    }
    free(manifest);
    free(format.raw);
    return status;
}

// ---- writing ----

struct saved_lane {
    uint64_t first, next; // steps [first, next) are in the files
    uint64_t bytes;       // length of the file that takes step `next`, before it
    uint64_t origin;
    uint64_t own;                 // the files from this step on are no manifest's
    uint64_t released;            // steps before it can be in no later manifest
    const struct farm_lane *lane; // NULL: absent
};

struct farm_replay_store {
    struct farm_replay_store_config config;
    struct format format;
    struct saved_lane *lanes;
    struct manifest *copy;
    uint64_t retry_ns;
    pthread_t thread;
    bool threaded, failing;  // failing: reported
    pthread_mutex_t reading; // guards `lane` of lanes; farm_replay_copy, which admit and forget exclude, does without
    pthread_mutex_t lock;    // guards copy->lane and, never for long,
    bool copied;             // no step after the copy is written, until farm_replay_write has what it needs
    uint64_t busy, stop;     // busy: with work(context)
    void (*work)(void *context);
    void *context;
};

static uint64_t next_file(const struct farm_replay_store *store, uint64_t step) {
    return (step + store->format.chunk_steps - 1) / store->format.chunk_steps * store->format.chunk_steps;
}

// Steps before it are lost. A new file begins, because manifests may need what this one has.
static void begin_at(const struct farm_replay_store *store, struct saved_lane *saved, uint64_t step) {
    saved->first = saved->next = next_file(store, step);
    saved->bytes = 0;
}

// How many steps can be written next, in one record; without `tail` only whole ones.
static uint32_t next_steps(struct farm_replay_store *store, uint32_t l, bool tail) {
    struct saved_lane *saved = &store->lanes[l];
    uint64_t end = 0, consumed = 0;
    pthread_mutex_lock(&store->reading);
    pthread_mutex_lock(&store->lock);
    if (saved->lane) {
        consumed = farm_lane_consumed(saved->lane);
        end = store->copied ? store->copy->lane[l].end : farm_lane_acted(saved->lane);
        saved->released = store->copied ? store->copy->lane[l].consumed : consumed;
    }
    pthread_mutex_unlock(&store->lock);
    pthread_mutex_unlock(&store->reading);
    if (saved->next < consumed) begin_at(store, saved, consumed);
    const uint64_t left = store->format.chunk_steps - saved->next % store->format.chunk_steps,
                   most = left < RECORD_STEPS ? left : RECORD_STEPS, held = end > saved->next ? end - saved->next : 0;
    return held >= most ? (uint32_t)most : tail ? (uint32_t)held : 0;
}

// Appends steps, unless the lane has released them or left. The actor may write over them meanwhile, which `consumed`
// shows.
static enum farm_status append(struct farm_replay_store *store, uint32_t l, int fd, uint32_t steps,
                               struct farm_error *err) {
    const struct format *format = &store->format;
    struct saved_lane *saved = &store->lanes[l];
    struct record record = {.first = saved->next, .steps = steps};
    size_t bytes = 0;
    pthread_mutex_lock(&store->reading);
    if (saved->lane) bytes = move_values(format, saved->lane, record.first, steps, true);
    __atomic_thread_fence(__ATOMIC_ACQUIRE); // these loads stay above that of `consumed`, which precedes such a write
    const bool held = saved->lane && farm_lane_consumed(saved->lane) <= record.first;
    pthread_mutex_unlock(&store->reading);
    if (!held) return FARM_OK;
    record.bytes = (uint32_t)LZ4_compress_default(format->raw, format->packed + sizeof record, (int)bytes,
                                                  LZ4_compressBound((int)format->raw_max));
    memcpy(format->packed, &record, sizeof record);
    record.crc = sum_record(format, l, saved->origin, &record);
    memcpy(format->packed, &record.crc, sizeof record.crc);
    bytes = sizeof record + record.bytes;
    errno = ENOSPC; // if only a part fits
    if (pwrite(fd, format->packed, bytes, (off_t)saved->bytes) != (ssize_t)bytes)
        return farm_fail_errno(err, FARM_E_IO, "writing %s/lane-%u", format->place->folder, l);
    farm_stats_add(&store->config.stats->replay_saved_bytes, bytes);
    saved->next += steps;
    saved->bytes = saved->next % format->chunk_steps ? saved->bytes + bytes : 0;
    return FARM_OK;
}

// Writes the steps that the lane has and no file. With `tail`, and at the end of each file, they are on the disk. First
// removes files that the lane has released since and no manifest has: a full disk recovers.
static enum farm_status save_lane(struct farm_replay_store *store, uint32_t l, bool tail, struct farm_error *err) {
    struct saved_lane *saved = &store->lanes[l];
    const uint64_t each = store->format.chunk_steps;
    uint32_t steps = next_steps(store, l, tail);
    char path[PATH_BYTES];
    for (; saved->own + each <= saved->released && saved->own + each <= saved->next; saved->own += each)
        unlink(chunk_path(&store->format, l, saved->own, path));
    while (steps || (tail && saved->bytes)) {
        const uint64_t chunk = saved->next / each;
        int fd;
        enum farm_status status =
            farm_file_open_own(chunk_path(&store->format, l, saved->next, path), O_WRONLY | O_CREAT, &fd, err);
        if (status) return status;
        for (; steps && !status && saved->next / each == chunk; steps = next_steps(store, l, tail))
            status = append(store, l, fd, steps, err);
        if (!status && (steps || tail || !saved->bytes) && farm_file_sync(fd)) {
            status = farm_fail_errno(err, FARM_E_IO, "fsync of %s", path);
            begin_at(store, saved, saved->next);
        }
        close(fd);
        if (status || !steps) return status;
    }
    return FARM_OK;
}

// ---- the thread ----

// Saves new steps. Reports an error once, and again only after a success.
static void save_lanes(struct farm_replay_store *store) {
    struct farm_error err;
    enum farm_status status = FARM_OK;
    if (farm_now_ns() < store->retry_ns) return;
    for (uint32_t l = 0; l < store->format.lanes && !farm_replay_is_busy(store); l++)
        if (save_lane(store, l, false, &err)) status = err.status;
    store->retry_ns = status ? farm_now_ns() + RETRY_NS : 0;
    if (status && !store->failing) farm_log_warn("%s: the replay is not saved; training continues", err.message);
    store->failing = status;
}

static void *serve(void *context) {
    struct farm_replay_store *store = context;
    while (!farm_load_acquire(&store->stop) || farm_replay_is_busy(store))
        if (farm_replay_is_busy(store)) {
            store->work(store->context);
            farm_store_release(&store->busy, 0);
        } else {
            save_lanes(store);
            nanosleep(&(struct timespec){.tv_nsec = LOOK_NS}, NULL);
        }
    return NULL;
}

bool farm_replay_is_busy(const struct farm_replay_store *store) {
    return farm_load_acquire(&store->busy);
}

void farm_replay_post(struct farm_replay_store *store, void (*work)(void *context), void *context) {
    store->work = work;
    store->context = context;
    if (store->threaded)
        farm_store_release(&store->busy, 1);
    else
        work(context);
}

// ---- a moment ----

void farm_replay_admit(struct farm_replay_store *store, const struct farm_lane *lane, uint32_t lane_id) {
    pthread_mutex_lock(&store->reading);
    if (lane_id < store->format.lanes && store->lanes[lane_id].origin &&
        farm_lane_acted(lane) + store->format.chunk_steps >= store->lanes[lane_id].next) // not a new ring in its place
        store->lanes[lane_id].lane = lane;
    pthread_mutex_unlock(&store->reading);
}

void farm_replay_forget(struct farm_replay_store *store, uint32_t lane_id) {
    if (lane_id >= store->format.lanes) return;
    pthread_mutex_lock(&store->reading);
    pthread_mutex_lock(&store->lock);
    store->lanes[lane_id].lane = NULL;
    store->lanes[lane_id].origin = 0; // for good
    if (store->copied) store->copy->lane[lane_id] = (struct manifest_lane){0};
    pthread_mutex_unlock(&store->lock);
    pthread_mutex_unlock(&store->reading);
}

void farm_replay_copy(struct farm_replay_store *store) {
    const struct farm_stats *stats = store->config.stats;
    struct manifest *copy = store->copy;
    float *leaves = (float *)(copy->lane + store->format.lanes);
    pthread_mutex_lock(&store->lock);
    for (uint32_t l = 0; l < store->format.lanes; l++, leaves += store->format.leaves) {
        const struct farm_lane *lane = store->lanes[l].lane;
        copy->lane[l] = (struct manifest_lane){.origin = store->lanes[l].origin};
        if (lane) copy->lane[l].consumed = farm_lane_consumed(lane);
        if (lane) copy->lane[l].end = farm_lane_acted(lane);
        if (lane) memcpy(leaves, lane->leaf, store->format.leaves * sizeof *leaves);
        if (!lane) memset(leaves, 0, store->format.leaves * sizeof *leaves);
    }
    copy->inserted = farm_load_relaxed(&stats->replay_inserted);
    copy->sampled = farm_load_relaxed(&stats->replay_sampled);
    copy->highest = farm_load_relaxed(&stats->replay_highest);
    store->copied = true;
    pthread_mutex_unlock(&store->lock);
}

enum farm_status farm_replay_write(struct farm_replay_store *store, const char *stem, char name[FARM_REPLAY_NAME_BYTES],
                                   struct farm_error *err) {
    struct manifest *copy = store->copy;
    char path[PATH_BYTES];
    enum farm_status status = FARM_OK;
    for (uint32_t l = 0; l < store->format.lanes && !status; l++) status = save_lane(store, l, true, err);
    pthread_mutex_lock(&store->lock);
    for (uint32_t l = 0; l < store->format.lanes; l++) {
        struct saved_lane *saved = &store->lanes[l];
        struct manifest_lane *lane = &copy->lane[l];
        const bool whole = saved->next == lane->end;
        if (!whole || lane->consumed < saved->first) lane->consumed = whole ? saved->first : lane->end;
        lane->bytes = whole ? saved->bytes : 0;
        if (whole) saved->own = next_file(store, lane->end);
    }
    store->copied = false;
    pthread_mutex_unlock(&store->lock);
    copy->saved_bytes = farm_load_relaxed(&store->config.stats->replay_saved_bytes) + store->format.manifest_bytes;
    copy->crc = sum_manifest(copy, store->format.manifest_bytes);
    snprintf(name, FARM_REPLAY_NAME_BYTES, "%.40s-%08" PRIx32 ".manifest", stem, copy->crc);
    snprintf(path, sizeof path, "%s/%s", store->config.place.folder, name);
    if (!status) status = farm_file_replace_own(path, copy, store->format.manifest_bytes, true, err);
    if (!status) farm_store_relaxed(&store->config.stats->replay_saved_bytes, copy->saved_bytes);
    return status;
}

// Whether a manifest stays beside the newest, `name`: an earlier one that has its checkpoint.
static bool is_needed(const struct farm_replay_store *store, const char *entry, size_t frames, const char *name) {
    char path[PATH_BYTES];
    snprintf(path, sizeof path, "%s/%.*s.safetensors", store->config.checkpoints, (int)frames, entry);
    return strcmp(entry, name) == 0 ||
           (strtoull(entry, NULL, 10) < strtoull(name, NULL, 10) && access(path, F_OK) == 0);
}

void farm_replay_clean(struct farm_replay_store *store, const char *name) {
    char oldest[FARM_REPLAY_NAME_BYTES] = ""; // manifest: counters only grow
    struct manifest *manifest = NULL;
    DIR *folder = opendir(store->config.place.folder);
    uint64_t chunk;
    uint32_t lane;
    size_t frames;
    for (struct dirent *entry; folder && (entry = readdir(folder));) {
        const bool whole = is_manifest(entry->d_name, &frames);
        if (strstr(entry->d_name, ".manifest.tmp.") || (whole && !is_needed(store, entry->d_name, frames, name)))
            unlinkat(dirfd(folder), entry->d_name, 0);
        else if (whole && (!oldest[0] || strtoull(entry->d_name, NULL, 10) < strtoull(oldest, NULL, 10)))
            snprintf(oldest, sizeof oldest, "%.63s", entry->d_name);
    }
    if (oldest[0] && read_manifest(&store->format, oldest, &manifest, NULL) == FARM_E_FORMAT)
        unlinkat(dirfd(folder), oldest, 0);
    if (folder) rewinddir(folder);
    for (struct dirent *entry; folder && (manifest || !oldest[0]) && (entry = readdir(folder));)
        if (sscanf(entry->d_name, "lane-%" SCNu32 ".%" SCNu64, &lane, &chunk) == 2 &&
            (!manifest || lane >= store->format.lanes ||
             chunk < manifest->lane[lane].consumed / store->format.chunk_steps))
            unlinkat(dirfd(folder), entry->d_name, 0);
    if (folder) closedir(folder);
    free(manifest);
}

// ---- start and end ----

// The rings hold the steps of this manifest, and perhaps later ones.
static enum farm_status take_base(struct farm_replay_store *store, struct farm_error *err) {
    struct manifest *base = NULL;
    enum farm_status status = FARM_OK;
    if (store->config.base) status = read_manifest(&store->format, store->config.base, &base, err);
    for (uint32_t l = 0; l < store->format.lanes && !status; l++) {
        const struct manifest_lane held = base ? base->lane[l] : (struct manifest_lane){0};
        struct saved_lane *saved = &store->lanes[l];
        *saved = (struct saved_lane){.first = held.consumed, .next = held.end, .bytes = held.bytes};
        saved->origin = held.origin;
        saved->own = next_file(store, held.end);
        if (held.consumed == held.end) begin_at(store, saved, held.end);
        if (!held.end) saved->origin = store->config.deterministic ? 1 : farm_now_ns() | 1;
    }
    free(base);
    return status;
}

enum farm_status farm_replay_store_make(const struct farm_replay_store_config *config, struct farm_replay_store **out,
                                        struct farm_error *err) {
    struct farm_replay_store *store = calloc(1, sizeof *store);
    if (!store) return farm_fail(err, FARM_E_LIMIT, "no memory to save the replay");
    store->config = *config;
    pthread_mutex_init(&store->reading, NULL);
    pthread_mutex_init(&store->lock, NULL);
    enum farm_status status = farm_folder_make(config->place.folder, err);
    if (!status) status = format_make(&store->config.place, &store->format, err);
    store->lanes = status ? NULL : calloc(store->format.lanes, sizeof *store->lanes);
    store->copy = status ? NULL : calloc(1, store->format.manifest_bytes);
    if (!status && !(store->lanes && store->copy))
        status = farm_fail(err, FARM_E_LIMIT, "no memory to save the replay");
    if (!status) status = take_base(store, err);
    if (!status) {
        store->copy->magic = MAGIC;
        memcpy(store->copy->shape, store->format.shape, sizeof store->copy->shape);
        store->copy->layout = store->format.layout;
        farm_replay_clean(store, config->base ? config->base : "");
        errno = config->deterministic ? 0 : farm_thread_start(&store->thread, "replay", 0, serve, store);
        store->threaded = !config->deterministic && !errno;
        if (errno)
            status = farm_fail_errno(err, FARM_E_LIMIT, "the thread that saves the replay does not start (ulimit -u)");
    }
    *out = store;
    if (status) farm_replay_store_free(store), *out = NULL;
    return status;
}

void farm_replay_store_free(struct farm_replay_store *store) {
    if (!store) return;
    farm_store_release(&store->stop, 1);
    if (store->threaded) pthread_join(store->thread, NULL);
    pthread_mutex_destroy(&store->reading);
    pthread_mutex_destroy(&store->lock);
    free(store->format.raw);
    free(store->lanes);
    free(store->copy);
    free(store);
}

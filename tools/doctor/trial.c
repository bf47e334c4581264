// See farm_doctor_trial.h.
#include "tools/doctor/trial.h"

#include <link.h>
#include <math.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include "actor/actor.h"
#include "base/atomics.h"
#include "envs/native/native.h"
#include "kernels/random.h"
#include "ring/spec.h"

enum {
    GUARD_BYTES = 1 << 20, // on each side of a field
    SIGNAL_STACK_BYTES = 64 << 10,
    CONTINUOUS_CHOICES = 5, // low, high, middle and a quarter from each
    SIGNALS = 5,
};
static const float ENDLESS = 10; // how far from its other bound, or from 0, an infinite one is tried

const char *trial_call_name(enum trial_call call) {
    static const char *const names[] = {"the loading", "farm_env_at()", "spec()",   "create()",
                                        "reset()",     "step()",        "destroy()"};
    return names[call];
}

bool trial_answer_legal(uint32_t answer) {
    const uint32_t ends = FARM_STEP_TERMINATED | FARM_STEP_TRUNCATED;
    return answer == 0 || (answer & ends && !(answer & ~(ends | FARM_STEP_GAME_END)));
}

void trial_say(struct trial *trial, enum trial_grade grade, const char *mend, const char *format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(trial->report->found, sizeof trial->report->found, format, args);
    va_end(args);
    snprintf(trial->report->mend, sizeof trial->report->mend, "%s", mend ? mend : "");
    trial->report->grade = grade;
}

void trial_enter(struct trial *trial, enum trial_call call, uint64_t number) {
    trial->report->doing = call;
    trial->report->number = number;
}

void trial_leave(struct trial *trial) {
    farm_store_relaxed(&trial->report->calls, trial->report->calls + 1);
}

// ---- faults ----

// A signal handler has no argument of ours: where it finds the report and the memory that is watched.
static struct {
    struct trial_report *report;
    const struct trial_player *players[TRIAL_FAULTS_FROM];
    uintptr_t object, object_end; // where the plug-in lies
} watched;

static bool look_up(const struct trial_player *player, const uint8_t *address, struct trial_report *report) {
    for (uint32_t s = 0; s < player->slots; s++)
        for (uint32_t f = 0; f < player->trial->field_count; f++) {
            const struct trial_area *area = &player->area[s][f];
            if (!area->map || address < area->map || address >= area->map + area->map_bytes) continue;
            report->fault_field = f;
            if (s != player->slot) {
                report->fault = TRIAL_OLD_FIELD;
            } else if (address >= area->data + area->bytes) {
                report->fault = TRIAL_PAST_FIELD;
                report->fault_bytes = address - (area->data + area->bytes);
            } else if (address < area->data) {
                report->fault = TRIAL_BEFORE_FIELD;
                report->fault_bytes = area->data - address;
            } else {
                report->fault = f == player->trial->action ? TRIAL_WRITES_ACTION : TRIAL_SIGNAL;
            }
            return true;
        }
    return false;
}

static void on_fault(int number, siginfo_t *info, void *context) {
    struct trial_report *report = watched.report;
    report->fault_signal = number;
    report->fault = TRIAL_SIGNAL;
#if defined(__x86_64__)
    const ucontext_t *machine = context;
    const uint64_t pc = (uint64_t)machine->uc_mcontext.gregs[REG_RIP];
    report->fault_writes = machine->uc_mcontext.gregs[REG_ERR] & 2;
    report->fault_reads = !report->fault_writes;
#elif defined(__aarch64__)
    const uint64_t pc = ((const ucontext_t *)context)->uc_mcontext.pc;
#else
    const uint64_t pc = 0;
#endif
    if (pc >= watched.object && pc < watched.object_end) report->fault_pc = pc - watched.object;
    for (size_t i = 0; number == SIGSEGV && i < TRIAL_FAULTS_FROM; i++)
        if (watched.players[i] && look_up(watched.players[i], info->si_addr, report)) break;
    _exit(1);
}

void trial_watch_faults(struct trial_report *report) {
    static const int numbers[SIGNALS] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};
    watched.report = report;
    stack_t stack = {.ss_sp =
                         mmap(NULL, SIGNAL_STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0),
                     .ss_size = SIGNAL_STACK_BYTES}; // an endless recursion leaves none of its own
    if (stack.ss_sp != MAP_FAILED) sigaltstack(&stack, NULL);
    for (size_t i = 0; i < SIGNALS; i++) {
        struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_ONSTACK};
        sigaction(numbers[i], &action, NULL);
    }
}

static void watch_player(const struct trial_player *player, bool watch) {
    for (size_t i = 0; i < TRIAL_FAULTS_FROM; i++)
        if (watched.players[i] == (watch ? NULL : player)) {
            watched.players[i] = watch ? player : NULL;
            return;
        }
}

// ---- opening ----

// Notes where the object that holds this function lies.
static int note_object(struct dl_phdr_info *info, size_t bytes, void *function) {
    uintptr_t low = UINTPTR_MAX, high = 0;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        if (info->dlpi_phdr[i].p_type != PT_LOAD) continue;
        const uintptr_t start = info->dlpi_addr + info->dlpi_phdr[i].p_vaddr, end = start + info->dlpi_phdr[i].p_memsz;
        low = start < low ? start : low;
        high = end > high ? end : high;
    }
    if ((uintptr_t)function < low || (uintptr_t)function >= high) return 0;
    watched.object = info->dlpi_addr;
    watched.object_end = high;
    return 1;
}

static enum farm_status open_environment(struct trial *trial, struct farm_error *err) {
    const struct trial_request *request = trial->request;
    if (request->path) {
        enum farm_status status = farm_plugin_open(request->path, request->name, &trial->plugin, err);
        void *function = NULL;
        if (status) return status;
        memcpy(&function, &trial->plugin.api->step, sizeof function);
        dl_iterate_phdr(note_object, function);
        return FARM_OK;
    }
    trial->plugin.api = farm_native_env_find(request->name);
    return trial->plugin.api ? FARM_OK : farm_fail(err, FARM_E_NOT_FOUND, "%s is not built in", request->name);
}

static void name_fields(struct trial *trial) {
    struct trial_report *report = trial->report;
    trial->reward = trial->spec.obs_count;
    trial->action = trial->reward + 1;
    trial->field_count = trial->reward + 2;
    for (uint32_t f = 0; f < trial->reward; f++) {
        trial->bytes[f] = farm_field_bytes(&trial->spec.obs[f]);
        memcpy(report->field_names[f], trial->spec.obs[f].name, FARM_FIELD_NAME_MAX);
    }
    trial->bytes[trial->reward] = sizeof(float);
    trial->bytes[trial->action] = trial->spec.action.dims * sizeof(float);
    snprintf(report->field_names[trial->reward], FARM_FIELD_NAME_MAX, "reward");
    snprintf(report->field_names[trial->action], FARM_FIELD_NAME_MAX, "action");
    for (uint32_t f = 0; f < trial->field_count; f++) report->field_bytes[f] = trial->bytes[f];
}

bool trial_open(struct trial *trial, const struct trial_request *request, struct trial_report *report) {
    struct farm_error err;
    *trial = (struct trial){.request = request, .report = report};
    trial_enter(trial, TRIAL_OPEN, 0);
    if (open_environment(trial, &err)) {
        trial_say(trial, TRIAL_BROKEN, NULL, "%s", err.message);
        return false;
    }
    trial_enter(trial, TRIAL_SPEC, 0);
    const enum farm_status status =
        farm_plugin_spec(trial->plugin.api, request->options, request->option_count, &trial->spec, &err);
    trial_leave(trial);
    if (status) {
        trial_say(trial, TRIAL_BROKEN,
                  status == FARM_E_USAGE ? "give options that it takes: --option key=value"
                                         : "spec() must fill *spec as farm/env.h says",
                  "%s%.400s", status == FARM_E_USAGE ? "spec() refuses: " : "", err.message);
        return false;
    }
    name_fields(trial);
    return true;
}

// ---- memory ----

// A field behind which (or before which) memory begins that is not to be touched. Aborts without memory: the doctor
// tells that the check ended.
static struct trial_area area_make(size_t bytes, enum trial_memory kind) {
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), inner = (bytes + page - 1) / page * page;
    const bool guarded = kind != TRIAL_PLAIN;
    struct trial_area area = {.map_bytes = inner + 2 * GUARD_BYTES, .inner_bytes = inner, .bytes = bytes};
    area.map = mmap(NULL, area.map_bytes, guarded ? PROT_NONE : PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (area.map == MAP_FAILED) abort();
    area.data = area.map + GUARD_BYTES + (kind == TRIAL_GUARD_BEFORE ? 0 : inner - bytes);
    return area;
}

static void area_allow(const struct trial_area *area, int protection) {
    if (mprotect(area->map + GUARD_BYTES, area->inner_bytes, protection)) abort();
}

// Makes the slot's fields usable or forbids them, with what lies around them where that is not looked at.
static void slot_allow(struct trial_player *player, uint32_t slot, bool usable) {
    const int protection = usable ? PROT_READ | PROT_WRITE : PROT_NONE;
    for (uint32_t f = 0; f < player->trial->field_count; f++) {
        const struct trial_area *area = &player->area[slot][f];
        area_allow(area, protection);
        if (player->trial->request->untidy && mprotect(area->map, area->map_bytes, protection)) abort();
    }
}

static void memory_make(struct trial_player *player) {
    const struct trial *trial = player->trial;
    player->slots = player->kind == TRIAL_MOVING ? TRIAL_SLOTS_MAX : 1;
    for (uint32_t s = 0; s < player->slots; s++)
        for (uint32_t f = 0; f < trial->field_count; f++) player->area[s][f] = area_make(trial->bytes[f], player->kind);
    if (player->kind != TRIAL_PLAIN) slot_allow(player, 0, true);
}

// Elsewhere, where this kind of memory moves; and what lay there, where it is to be filled.
static void memory_next(struct trial_player *player) {
    const struct trial *trial = player->trial;
    if (player->kind == TRIAL_MOVING) {
        const uint32_t next = (player->slot + 1) % player->slots;
        slot_allow(player, player->slot, false);
        slot_allow(player, next, true);
        player->slot = next;
    }
    for (uint32_t f = 0; player->fill >= 0 && f <= trial->reward; f++)
        memset(player->area[player->slot][f].data, player->fill, trial->bytes[f]);
}

uint8_t *trial_player_field(struct trial_player *player, uint32_t field) {
    return player->area[player->slot][field].data;
}

// ---- actions ----

static uint64_t draw(struct trial_player *player) {
    return farm_random_mix(player->draws += 0x9E3779B97F4A7C15u);
}

uint32_t trial_choices(const struct farm_action_spec *action, uint32_t dim) {
    return action->kind == FARM_ACTION_CONTINUOUS ? CONTINUOUS_CHOICES : action->sizes[dim];
}

// Finite bounds to try between.
static void bounds(const struct farm_action_spec *action, uint32_t dim, float *low, float *high) {
    *low = action->low[dim];
    *high = action->high[dim];
    if (isinf(*low) && isinf(*high)) *low = -ENDLESS, *high = ENDLESS;
    if (isinf(*low)) *low = *high - ENDLESS;
    if (isinf(*high)) *high = *low + ENDLESS;
}

static float between(float low, float high, float share) {
    const float value = low + (high - low) * share;
    return value < low ? low : value > high ? high : value;
}

static void write_choice(struct trial_player *player, uint32_t dim, uint32_t value) {
    static const float shares[CONTINUOUS_CHOICES] = {0, 1, 0.5f, 0.25f, 0.75f};
    const struct farm_action_spec *action = &player->trial->spec.action;
    uint8_t *place = trial_player_field(player, player->trial->action) + 4 * (size_t)dim;
    if (action->kind == FARM_ACTION_CONTINUOUS) {
        float low, high;
        bounds(action, dim, &low, &high);
        const float chosen = between(low, high, shares[value]);
        memcpy(place, &chosen, sizeof chosen);
    } else {
        const int32_t chosen = (int32_t)value;
        memcpy(place, &chosen, sizeof chosen);
    }
}

void trial_player_draw(struct trial_player *player) {
    const struct farm_action_spec *action = &player->trial->spec.action;
    uint8_t *place = trial_player_field(player, player->trial->action);
    for (uint32_t d = 0; d < action->dims; d++) {
        const uint32_t bits = (uint32_t)(draw(player) >> 32);
        if (action->kind == FARM_ACTION_CONTINUOUS) {
            float low, high;
            bounds(action, d, &low, &high);
            const float chosen = between(low, high, farm_random_unit(bits));
            memcpy(place + 4 * (size_t)d, &chosen, sizeof chosen);
        } else {
            const int32_t chosen = (int32_t)((uint64_t)bits * action->sizes[d] >> 32);
            memcpy(place + 4 * (size_t)d, &chosen, sizeof chosen);
        }
    }
    player->chosen = true;
}

void trial_player_choose(struct trial_player *player, uint32_t dim, uint32_t value) {
    trial_player_draw(player);
    write_choice(player, dim, value);
}

// ---- playing ----

static bool create(struct trial_player *player, uint64_t seed) {
    struct trial *trial = player->trial;
    char why[256] = "it gave no reason";
    const struct farm_env_config config = {
        .seed = seed, .options = trial->request->options, .option_count = trial->request->option_count};
    trial_enter(trial, TRIAL_CREATE, 0);
    player->env = trial->plugin.api->create(&config, why, sizeof why);
    trial_leave(trial);
    player->fresh = true;
    if (player->env) return true;
    why[sizeof why - 1] = 0;
    trial_say(trial, TRIAL_BROKEN,
              "actors hold many instances in one process; what create() cannot make, spec() should refuse",
              "create() gives NULL: %.250s", why);
    return false;
}

static void destroy(struct trial_player *player) {
    trial_enter(player->trial, TRIAL_DESTROY, player->calls);
    player->trial->plugin.api->destroy(player->env);
    trial_leave(player->trial);
    player->env = NULL;
}

bool trial_player_make(struct trial_player *player, struct trial *trial, enum trial_memory kind, uint64_t seed,
                       uint64_t action_seed) {
    *player = (struct trial_player){.trial = trial, .kind = kind, .fill = -1, .draws = farm_random_mix(action_seed)};
    if (!create(player, seed)) return false;
    memory_make(player);
    watch_player(player, true);
    return true;
}

bool trial_player_renew(struct trial_player *player, uint64_t seed) {
    destroy(player);
    return create(player, seed);
}

void trial_player_free(struct trial_player *player) {
    if (!player->trial) return;
    if (player->env) destroy(player);
    watch_player(player, false);
    for (uint32_t s = 0; s < player->slots; s++)
        for (uint32_t f = 0; f < player->trial->field_count; f++)
            munmap(player->area[s][f].map, player->area[s][f].map_bytes);
    *player = (struct trial_player){0};
}

static void player_step(struct trial_player *player, void *const *obs) {
    struct trial *trial = player->trial;
    const struct trial_area *action = &player->area[player->slot][trial->action];
    float *reward = (float *)(void *)trial_player_field(player, trial->reward);
    if (!player->chosen) trial_player_draw(player);
    player->chosen = false;
    const bool guarded = player->kind != TRIAL_PLAIN && !trial->request->untidy;
    if (guarded) area_allow(action, PROT_READ);
    trial_enter(trial, TRIAL_STEP, player->calls);
    player->answer = trial->plugin.api->step(player->env, action->data, obs, reward);
    trial_leave(trial);
    if (guarded) area_allow(action, PROT_READ | PROT_WRITE);
    memcpy(&player->reward, reward, sizeof player->reward);
    player->in_episode++;
    player->fresh = player->answer != 0;
    player->episodes += player->fresh;
}

void trial_player_call(struct trial_player *player) {
    struct trial *trial = player->trial;
    void *obs[FARM_OBS_FIELDS_MAX];
    memory_next(player);
    for (uint32_t f = 0; f < trial->reward; f++) obs[f] = trial_player_field(player, f);
    player->was_reset = player->fresh;
    if (player->fresh) {
        trial_enter(trial, TRIAL_RESET, player->calls);
        trial->plugin.api->reset(player->env, obs);
        trial_leave(trial);
        player->fresh = false;
        player->answer = 0;
        player->reward = 0;
        player->in_episode = 0;
    } else {
        player_step(player, obs);
    }
    player->calls++;
}

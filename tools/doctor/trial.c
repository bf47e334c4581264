// See trial.h.
#include "tools/doctor/trial.h"

#include <link.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include "actor/group.h"
#include "base/atomics.h"
#include "base/thread.h"
#include "base/time.h"
#include "envs/native/native.h"
#include "kernels/head.h"
#include "kernels/random.h"
#include "ring/spec.h"
#include "tools/doctor/python.h"

enum {
    GUARD_BYTES = 1 << 20,  // on each side of a field
    CONTINUOUS_CHOICES = 5, // low, high, middle and a quarter from each end
    CALLS_MIN = 16,         // in a pass, whatever time they take
};

const char *trial_call_name(enum trial_call call) {
    static const char *const names[] = {"the loading", "farm_env_at()", "spec()",   "create()",
                                        "reset()",     "step()",        "destroy()"};
    return names[call];
}

void trial_report_finding(struct trial_report *report, enum trial_grade grade, const char *mend, const char *format,
                          ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(report->found, sizeof report->found, format, args);
    va_end(args);
    snprintf(report->mend, sizeof report->mend, "%s", mend ? mend : "");
    report->grade = grade;
}

void trial_enter(struct trial *trial, enum trial_call call, uint64_t number) {
    trial->report->call = call;
    trial->report->number = number;
}

void trial_leave(struct trial *trial) {
    farm_store_relaxed(&trial->report->calls, trial->report->calls + 1);
}

// ---- faults ----

// A signal handler has no context argument: it finds the report and the watched memory here.
static struct {
    struct trial_report *report;
    const struct trial_player *player; // whose memory is guarded; NULL: none
    uintptr_t object, object_end;      // load address of the plug-in
} watched;

static void locate_fault(const struct trial_player *player, const uint8_t *address, struct trial_report *report) {
    const struct trial *trial = player->trial;
    for (uint32_t s = 0; s < player->slots; s++)
        for (uint32_t f = 0; f < trial->field_count; f++) {
            const struct trial_area *area = &player->area[s][f];
            const int64_t offset = address - area->data, bytes = (int64_t)trial->bytes[f];
            if (address < area->map || address >= area->map + area->map_bytes) continue;
            report->fault_field = f;
            report->fault_bytes = offset < 0 ? -offset : offset - bytes;
            report->fault = s != player->slot    ? TRIAL_OLD_FIELD
                            : offset >= bytes    ? TRIAL_PAST_FIELD
                            : offset < 0         ? TRIAL_BEFORE_FIELD
                            : f == trial->action ? TRIAL_WRITES_ACTION
                                                 : TRIAL_SIGNAL;
        }
}

static void on_fault(int number, siginfo_t *info, void *context) {
    struct trial_report *report = watched.report;
    report->fault_signal = number;
    report->fault = TRIAL_SIGNAL;
    const char *access = "touches";
#if defined(__x86_64__)
    const ucontext_t *machine = context;
    const uint64_t pc = (uint64_t)machine->uc_mcontext.gregs[REG_RIP];
    access = machine->uc_mcontext.gregs[REG_ERR] & 2 ? "writes" : "reads";
#elif defined(__aarch64__)
    const uint64_t pc = ((const ucontext_t *)context)->uc_mcontext.pc;
#else
    const uint64_t pc = 0;
#endif
    strcpy(report->fault_access, access);
    if (pc >= watched.object && pc < watched.object_end) report->fault_pc = pc - watched.object;
    if (number == SIGSEGV && watched.player) locate_fault(watched.player, info->si_addr, report);
    _exit(1);
}

void trial_catch_faults(struct trial_report *report) {
    static const int numbers[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};
    watched.report = report;
    farm_thread_use_signal_stack();
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        sigaction(numbers[i], &(struct sigaction){.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_ONSTACK}, NULL);
}

// ---- opening ----

// dl_iterate_phdr's callback: notes the address range of the object that holds this function.
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
    if (request->python) {
        trial->plugin.api = &farm_doctor_python_api;
        return FARM_OK;
    }
    if (!request->path) {
        trial->plugin.api = farm_native_env_find(request->name);
        return trial->plugin.api ? FARM_OK : farm_fail(err, FARM_E_NOT_FOUND, "%s is not built in", request->name);
    }
    enum farm_status status = farm_plugin_open(request->path, request->name, &trial->plugin, err);
    void *function = NULL;
    if (status) return status;
    memcpy(&function, &trial->plugin.api->reset, sizeof function); // step may be missing
    dl_iterate_phdr(note_object, function);
    return FARM_OK;
}

static void describe_fields(struct trial *trial) {
    struct trial_report *report = trial->report;
    if (farm_head_mask_field(&trial->spec, &trial->mask, NULL)) trial->mask = -1; // the check "trains" says why
    trial->reward = trial->spec.obs_count;
    trial->action = trial->reward + 1;
    trial->field_count = trial->reward + 2;
    for (uint32_t f = 0; f < trial->reward; f++) {
        trial->bytes[f] = farm_field_bytes(&trial->spec.obs[f]) * trial->spec.agents;
        memcpy(report->field_names[f], trial->spec.obs[f].name, FARM_FIELD_NAME_MAX);
    }
    trial->bytes[trial->reward] = trial->spec.agents * sizeof(float);
    trial->bytes[trial->action] = trial->spec.action.dims * trial->bytes[trial->reward];
    snprintf(report->field_names[trial->reward], FARM_FIELD_NAME_MAX, "reward");
    snprintf(report->field_names[trial->action], FARM_FIELD_NAME_MAX, "action");
    for (uint32_t f = 0; f < trial->field_count; f++) report->field_bytes[f] = trial->bytes[f];
}

bool trial_open(struct trial *trial, const struct trial_request *request, struct trial_report *report) {
    struct farm_error err;
    *trial = (struct trial){.request = request, .report = report};
    trial_enter(trial, TRIAL_LOAD, 0);
    if (open_environment(trial, &err)) {
        trial_report_finding(report, TRIAL_BROKEN, NULL, "%s", err.message);
        return false;
    }
    trial_enter(trial, TRIAL_SPEC, 0);
    const enum farm_status status =
        farm_plugin_spec(trial->plugin.api, request->options, request->option_count, &trial->spec, &err);
    const bool refused = status == FARM_E_USAGE;
    trial_leave(trial);
    if (!status) report->figures.spec = trial->spec;
    if (!status) describe_fields(trial);
    if (status)
        trial_report_finding(report, TRIAL_BROKEN,
                             refused ? "give options that it takes: --option key=value"
                                     : "spec() must fill *spec as farm/env.h describes",
                             "%s%.400s", refused ? "spec() refuses: " : "", err.message);
    return !status;
}

// ---- memory ----

// Out of memory aborts: the doctor then reports how the check ended.
static struct trial_area make_area(size_t bytes, enum trial_memory kind) {
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), inner = (bytes + page - 1) / page * page;
    const bool guarded = kind == TRIAL_GUARD_BEHIND || kind == TRIAL_GUARD_BEFORE;
    struct trial_area area = {.map_bytes = inner + 2 * GUARD_BYTES, .data_bytes = inner};
    area.map = mmap(NULL, area.map_bytes, guarded ? PROT_NONE : PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (area.map == MAP_FAILED) abort();
    area.data = area.map + GUARD_BYTES + (kind == TRIAL_GUARD_BEFORE ? 0 : inner - bytes);
    return area;
}

static void protect_area(const struct trial_area *area, int protection) {
    if (mprotect(area->map + GUARD_BYTES, area->data_bytes, protection)) abort();
}

static void protect_slot(struct trial_player *player, uint32_t slot, int protection) {
    for (uint32_t f = 0; f < player->trial->field_count; f++) protect_area(&player->area[slot][f], protection);
}

static void make_memory(struct trial_player *player) {
    const struct trial *trial = player->trial;
    player->slots = player->kind == TRIAL_MOVING ? TRIAL_SLOTS_MAX : 1;
    if (trial->mask >= 0) player->mask = make_area(trial->bytes[trial->mask], TRIAL_PLAIN).data;
    for (uint32_t s = 0; s < player->slots; s++) {
        for (uint32_t f = 0; f < trial->field_count; f++) player->area[s][f] = make_area(trial->bytes[f], player->kind);
        protect_slot(player, s, s == player->slot ? PROT_READ | PROT_WRITE : PROT_NONE);
    }
}

static void prepare_memory(struct trial_player *player) {
    const struct trial *trial = player->trial;
    if (player->kind == TRIAL_MOVING) {
        protect_slot(player, player->slot, PROT_NONE);
        player->slot = (player->slot + 1) % player->slots;
        protect_slot(player, player->slot, PROT_READ | PROT_WRITE);
    }
    for (uint32_t f = 0; player->fill >= 0 && f <= trial->reward; f++)
        memset(trial_player_field(player, f), player->fill, trial->bytes[f]);
}

uint8_t *trial_player_field(struct trial_player *player, uint32_t field) {
    return player->area[player->slot][field].data;
}

// ---- actions ----

uint32_t trial_choices(const struct farm_action_spec *action, uint32_t dim) {
    return action->kind == FARM_ACTION_CONTINUOUS ? CONTINUOUS_CHOICES : action->sizes[dim];
}

static void draw_action(struct trial_player *player) {
    uint8_t *action = trial_player_field(player, player->trial->action);
    farm_random_actions_draw(&player->actions, player->trial->spec.agents, action);
    if (player->mask) farm_random_actions_permit(&player->actions, player->trial->spec.agents, player->mask, action);
}

void trial_player_choose(struct trial_player *player, uint32_t dim, uint32_t value) {
    static const float shares[CONTINUOUS_CHOICES] = {0, 1, 0.5f, 0.25f, 0.75f};
    const struct farm_random_actions *range = &player->actions;
    uint8_t *place = trial_player_field(player, player->trial->action) + sizeof(float) * (size_t)dim;
    draw_action(player);
    player->chosen = true;
    if (range->kind != FARM_ACTION_CONTINUOUS) {
        const uint8_t *mask = player->mask;
        for (uint32_t d = 0; d < dim && mask; d++) mask += range->sizes[d];
        if (!mask || mask[value]) memcpy(place, &value, sizeof value);
        return;
    }
    const float high = player->trial->spec.action.high[dim], real = range->low[dim] + range->span[dim] * shares[value];
    memcpy(place, real > high ? &high : &real, sizeof real);
}

// ---- playing ----

static bool make_instance(struct trial_player *player, uint64_t seed) {
    struct trial *trial = player->trial;
    struct farm_error err;
    const struct farm_env_config config = {
        .seed = seed, .options = trial->request->options, .option_count = trial->request->option_count};
    trial_enter(trial, TRIAL_CREATE, 0);
    const enum farm_status status = farm_plugin_create(trial->plugin.api, &config, &player->env, &err);
    trial_leave(trial);
    player->ended = true;
    if (status)
        trial_report_finding(
            trial->report, TRIAL_BROKEN,
            "actors make many instances in one process; spec() should refuse what create() cannot make",
            "create() returns NULL: %.250s", err.message);
    return !status;
}

void trial_player_destroy(struct trial_player *player) {
    trial_enter(player->trial, TRIAL_DESTROY, player->calls);
    player->trial->plugin.api->destroy(player->env);
    trial_leave(player->trial);
}

bool trial_player_make(struct trial_player *player, struct trial *trial, enum trial_memory kind, uint64_t seed,
                       uint64_t action_seed) {
    *player = (struct trial_player){.trial = trial, .kind = kind, .fill = -1};
    farm_random_actions_start(&trial->spec.action, farm_random_mix(action_seed), &player->actions);
    if (!make_instance(player, seed)) return false;
    make_memory(player);
    if (kind != TRIAL_PLAIN) watched.player = player;
    player->begin_ns = farm_now_ns(); // an environment in Python takes a second to make
    return true;
}

bool trial_player_renew(struct trial_player *player, uint64_t seed) {
    trial_player_destroy(player);
    return make_instance(player, seed);
}

bool trial_player_continues(const struct trial_player *player) {
    const struct trial_request *request = player->trial->request;
    return player->calls < request->steps_max &&
           (player->calls < CALLS_MIN || farm_now_ns() - player->begin_ns < request->budget_ns);
}

static void step_player(struct trial_player *player, void *const *obs) {
    struct trial *trial = player->trial;
    const struct trial_area *action = &player->area[player->slot][trial->action];
    float *reward = (float *)(void *)trial_player_field(player, trial->reward);
    const bool guarded = player->kind == TRIAL_GUARD_BEHIND || player->kind == TRIAL_GUARD_BEFORE;
    if (!player->chosen) draw_action(player);
    player->chosen = false;
    if (guarded) protect_area(action, PROT_READ);
    trial_enter(trial, TRIAL_STEP, player->calls);
    const uint32_t agents = trial->spec.agents;
    bool left[FARM_AGENTS_MAX];
    uint8_t ends[FARM_AGENTS_MAX];
    memcpy(left, player->left, sizeof left);
    player->ended =
        farm_plugin_step(trial->plugin.api, agents, player->env, action->data, obs, reward, player->left, ends);
    trial_leave(trial);
    player->answer = 0;
    for (uint32_t a = 0; a < agents; a++) {
        if (player->ended || !farm_group_answer_valid(ends[a])) player->answer |= ends[a];
        for (uint32_t f = 0; f <= trial->reward && left[a]; f++) { // what it writes there means nothing
            const size_t bytes = trial->bytes[f] / agents;
            memset(trial_player_field(player, f) + a * bytes, (int)f == trial->mask, bytes);
        }
    }
    if (guarded) protect_area(action, PROT_READ | PROT_WRITE);
    memcpy(player->rewards, reward, agents * sizeof *reward);
    player->in_episode++;
}

void trial_player_call(struct trial_player *player) {
    struct trial *trial = player->trial;
    void *obs[FARM_OBS_FIELDS_MAX];
    prepare_memory(player);
    for (uint32_t f = 0; f < trial->reward; f++) obs[f] = trial_player_field(player, f);
    player->was_reset = player->ended;
    if (player->ended) {
        trial_enter(trial, TRIAL_RESET, player->calls);
        trial->plugin.api->reset(player->env, obs);
        trial_leave(trial);
        player->ended = false;
        player->answer = 0;
        memset(player->rewards, 0, sizeof player->rewards);
        memset(player->left, 0, sizeof player->left);
        player->in_episode = 0;
    } else {
        step_player(player, obs);
    }
    if (player->mask) memcpy(player->mask, obs[trial->mask], trial->bytes[trial->mask]);
    player->calls++;
}

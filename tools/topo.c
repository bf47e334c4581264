// `farm topo`: draws the machine (running or recorded) and its plan, or prints both as JSON. Claims no CPUs.
#include <dirent.h>
#include <jansson.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "algo/registry.h"
#include "base/cli.h"
#include "base/format.h"
#include "base/json.h"
#include "base/log.h"
#include "base/paths.h"
#include "run/scale.h"
#include "tools/report.h"
#include "tools/shared/command.h"
#include "topo/claim.h"
#include "topo/machine.h"
#include "topo/plan.h"

enum { LINE_COLUMNS = 100, INDENT_COLUMNS = 11, MARK_BYTES = 8 };

struct options {
    bool json, pin, numa;
    int64_t actors, train_threads, infer_threads, gpus;
    const char *device, *inference;
    struct farm_machine_source source;
};

static const struct options standard = {
    .pin = true, .numa = true, .device = "auto", .inference = "central", .gpus = 1, .source.bw = "auto"};

// Too large for the stack.
struct view {
    struct farm_machine machine;
    struct farm_plan_request request;
    struct farm_plan plan, other;         // `other`: a shipped recipe's
    char mark[FARM_CPUS_MAX][MARK_BYTES]; // by CPU number: what runs there
    int mark_columns;                     // the widest mark
    FILE *out;
};

// Keeps a count that no plan can have beyond the plan's limits, which farm_plan_make checks.
static int saturate(int64_t count) {
    return count > INT_MAX ? INT_MAX : count < INT_MIN ? INT_MIN : (int)count;
}

static enum farm_status fill_request(const struct options *o, const struct farm_machine *machine,
                                     struct farm_plan_request *request, struct farm_error *err) {
    static const char *const devices[] = {"auto", "cpu", "cuda", "none"};
    int device = 0;
    while (device < 4 && strcmp(o->device, devices[device]) != 0) device++;
    if (device == 4)
        return farm_fail(err, FARM_E_USAGE, "--device must be one of auto, cpu, cuda, none (got '%.40s')", o->device);
    const bool local = strcmp(o->inference, "local") == 0;
    if (local ? device == 2 : strcmp(o->inference, "central") != 0)
        return farm_fail(err, FARM_E_USAGE, "--inference must be central, or local on --device cpu (got '%.40s')",
                         o->inference);
    request->actors_infer = local && device < 2;
    // auto: as farm train does if the GPU's driver and libraries are installed.
    const int learners[] = {machine->gpu_count && !local ? 0 : FARM_LEARNER_CPU, FARM_LEARNER_CPU, 0,
                            FARM_LEARNER_NONE};
    request->actors = saturate(o->actors);
    if (learners[device] < 0 && (o->gpus < 0 || o->gpus > 1))
        return farm_fail(err, FARM_E_USAGE, "--gpus %d on device %s%s", saturate(o->gpus),
                         learners[device] == FARM_LEARNER_NONE ? "none" : "cpu",
                         device == 0 ? ": this machine shows no NVIDIA GPU" : "");
    request->learner_gpus = learners[device] < 0 ? 1 : o->gpus ? saturate(o->gpus) : machine->gpu_count;
    request->learner_device = learners[device];
    request->learner_threads = saturate(o->train_threads);
    request->learner_shards = saturate(o->infer_threads);
    request->pin = o->pin;
    request->numa = o->numa;
    return FARM_OK;
}

// CPUs that running farms have claimed.
static void read_taken(const struct options *o, struct farm_bitmap *taken) {
    struct farm_error err;
    struct farm_claim claim = {.fd = -1};
    if (o->source.xml || o->source.synthetic) return;
    if (farm_claim_open(&claim, NULL, &err))
        farm_log_warn("%s: other farms cannot be seen", err.message);
    else if (farm_claim_read_taken(&claim, taken, &err))
        farm_log_warn("%s", err.message);
    farm_claim_close(&claim);
}

static void set_mark(struct view *v, int cpu, const char *text) {
    int columns = snprintf(v->mark[cpu], MARK_BYTES, "%s", text);
    if (columns > v->mark_columns) v->mark_columns = columns;
}

static void make_marks(struct view *v) {
    const struct farm_plan *plan = &v->plan;
    char number[16];
    for (int i = 0; i < v->machine.cpu_count; i++) {
        int cpu = v->machine.cpu[i].cpu;
        const bool infers = !v->request.actors_infer && farm_bitmap_has(&plan->inference_cpus, cpu);
        const bool acts = farm_bitmap_has(&plan->actor_cpus, cpu);
        set_mark(v, cpu,
                 !farm_bitmap_has(&v->machine.allowed, cpu)             ? "x"
                 : farm_bitmap_has(&v->request.taken, cpu) && !acts     ? "#"
                 : acts && (plan->shared || !plan->pinned)              ? "~"
                 : infers && plan->shard_count > 1                      ? "I"
                 : infers || farm_bitmap_has(&plan->training_cpus, cpu) ? "L"
                                                                        : "-");
    }
    for (int i = 0; i < plan->actor_count; i++) {
        if (plan->actor[i].cpu < 0) continue;
        snprintf(number, sizeof number, "%d", i);
        set_mark(v, plan->actor[i].cpu, number);
    }
}

static bool uses_mark(const struct view *v, const char *mark) {
    for (int i = 0; i < v->machine.cpu_count; i++)
        if (strcmp(v->mark[v->machine.cpu[i].cpu], mark) == 0) return true;
    return false;
}

static const char *counted(int n, const char *thing, char *text, size_t size) {
    snprintf(text, size, "%d %s%s", n, thing, n == 1 ? "" : "s");
    return text;
}

static void draw_heading(const struct view *v) {
    const struct farm_machine *m = &v->machine;
    char a[32], b[32], c[32], d[32], e[32], list[64];
    fprintf(v->out, "%s\n", m->source);
    fprintf(v->out, "%s · %s · %s · %s · %s\n", counted(m->socket_count, "socket", a, sizeof a),
            counted(m->node_count, "NUMA node", b, sizeof b), counted(m->l3_count, "L3 group", c, sizeof c),
            counted(m->core_count, "core", d, sizeof d), counted(m->cpu_count, "CPU", e, sizeof e));
    if (farm_bitmap_count(&m->allowed) < m->cpu_count)
        fprintf(v->out, "allowed: CPUs %s\n", farm_bitmap_format(&m->allowed, list, sizeof list));
    if (m->cpu_quota > 0) fprintf(v->out, "quota: %.3g CPUs\n", m->cpu_quota);
    if (m->memory_limit_bytes != UINT64_MAX)
        fprintf(v->out, "memory limit: %s, %s left\n", farm_format_bytes((double)m->memory_limit_bytes).text,
                farm_format_bytes((double)m->memory_free_bytes).text);
}

static int actors_of_node(const struct farm_plan *plan, int node) {
    int count = 0;
    for (int i = 0; i < plan->actor_count; i++) count += plan->actor[i].memory_node == node;
    return count;
}

static bool is_learner_gpu(const struct view *v, int gpu) {
    const int first = v->request.learner_device, count = v->request.learner_gpus > 1 ? v->request.learner_gpus : 1;
    return first >= 0 && gpu >= first && gpu < first + count;
}

static void draw_node(const struct view *v, const struct farm_node *node) {
    int number = node->node;
    char actors[32];
    fprintf(v->out, "│  node %d", number);
    if (node->total_bytes)
        fprintf(v->out, " · %s, %s free", farm_format_bytes((double)node->total_bytes).text,
                farm_format_bytes((double)node->free_bytes).text);
    else
        fprintf(v->out, " · no memory reported");
    if (!node->has_cpus) fprintf(v->out, " · no CPUs");
    if (!node->usable) fprintf(v->out, " · not allowed");
    int here = actors_of_node(&v->plan, number);
    if (here) fprintf(v->out, " · segments of %s", counted(here, "actor", actors, sizeof actors));
    if (v->plan.learner_node == number) fprintf(v->out, " · learner's memory");
    fprintf(v->out, "\n");
    for (int i = 0; i < v->machine.gpu_count; i++)
        if (v->machine.gpu[i].node == number)
            fprintf(v->out, "│  GPU %d · %s · %s%s\n", i, v->machine.gpu[i].name, v->machine.gpu[i].pci_bus_id,
                    is_learner_gpu(v, i) ? " · learner" : "");
}

// Draws the L3 group that starts at cpu[first], a bracket per core, wrapped. Returns the index after it.
static int draw_group(const struct view *v, int first) {
    const struct farm_cpu *cpu = v->machine.cpu;
    int column = LINE_COLUMNS, i = first;
    while (i < v->machine.cpu_count && cpu[i].l3 == cpu[first].l3 && cpu[i].node == cpu[first].node &&
           cpu[i].socket == cpu[first].socket) {
        int threads = 1;
        while (i + threads < v->machine.cpu_count && cpu[i + threads].core == cpu[i].core) threads++;
        int columns = threads * (v->mark_columns + 1) + 2;
        if (column + columns > LINE_COLUMNS) {
            char label[32] = "cores";
            if (cpu[first].l3 >= 0) snprintf(label, sizeof label, "L3 %d", cpu[first].l3);
            fprintf(v->out, "%s│    %-*s", i > first ? "\n" : "", INDENT_COLUMNS - 5, i > first ? "" : label);
            column = INDENT_COLUMNS;
        }
        fprintf(v->out, " [");
        for (int t = 0; t < threads; t++)
            fprintf(v->out, "%s%*s", t ? " " : "", v->mark_columns, v->mark[cpu[i + t].cpu]);
        fprintf(v->out, "]");
        column += columns;
        i += threads;
    }
    fprintf(v->out, "\n");
    return i;
}

// Draws the node of cpu[at], at which a new socket or node begins. A node that spans sockets is described once.
static void draw_node_of(const struct view *v, int at) {
    const struct farm_cpu *cpu = v->machine.cpu;
    const struct farm_node *node = farm_machine_node(&v->machine, cpu[at].node);
    int first = 0;
    while (cpu[first].node != cpu[at].node) first++;
    if (!node) return;
    if (first == at)
        draw_node(v, node);
    else
        fprintf(v->out, "│  node %d, as above\n", node->node);
}

static void draw_machine(const struct view *v) {
    const struct farm_machine *m = &v->machine;
    for (int i = 0; i < m->cpu_count;) {
        bool new_socket = i == 0 || m->cpu[i].socket != m->cpu[i - 1].socket;
        if (new_socket) fprintf(v->out, "%s\n┌ socket %d\n", i ? "└" : "", m->cpu[i].socket);
        if (new_socket || m->cpu[i].node != m->cpu[i - 1].node) draw_node_of(v, i);
        i = draw_group(v, i);
    }
    fprintf(v->out, "└\n");
    for (int i = 0; i < m->node_count; i++)
        if (!m->node[i].has_cpus) draw_node(v, &m->node[i]);
    for (int i = 0; i < m->gpu_count; i++)
        if (m->gpu[i].node < 0)
            fprintf(v->out, "GPU %d · %s · %s · node unknown\n", i, m->gpu[i].name, m->gpu[i].pci_bus_id);
}

static void draw_legend(const struct view *v) {
    static const struct {
        const char *mark, *meaning;
    } legend[] = {{"L", "learner"}, {"I", "learner's inference"}, {"~", "scheduler's choice"},
                  {"-", "idle"},    {"#", "another farm's"},      {"x", "not allowed"}};
    fprintf(v->out, "[core]");
    if (v->plan.pinned) fprintf(v->out, "  0-%d actor", v->plan.actor_count - 1);
    for (size_t i = 0; i < sizeof legend / sizeof *legend; i++)
        if (uses_mark(v, legend[i].mark)) fprintf(v->out, "  %s %s", legend[i].mark, legend[i].meaning);
    fprintf(v->out, "\n");
}

static void draw(const struct view *v) {
    draw_heading(v);
    draw_machine(v);
    draw_legend(v);
    fprintf(v->out, "\nplan\n");
    for (int i = 0; i < v->plan.note_count; i++) fprintf(v->out, "  %s\n", v->plan.note[i]);
}

static json_t *list_json(const struct farm_bitmap *set) {
    char text[4 * FARM_BITMAP_BITS];
    return json_string(farm_bitmap_format(set, text, sizeof text));
}

static json_t *limit_json(uint64_t bytes) {
    return bytes == UINT64_MAX ? json_null() : json_integer((json_int_t)bytes);
}

static json_t *number_or_null(int n) {
    return n < 0 ? json_null() : json_integer(n);
}

static json_t *nodes_json(const struct farm_machine *m) {
    json_t *nodes = json_array();
    for (int i = 0; i < m->node_count; i++) {
        const struct farm_node *node = &m->node[i];
        json_t *distances = json_array();
        for (int j = 0; j < m->node_count; j++) farm_json_append(distances, json_integer(m->distance[i][j]));
        farm_json_append(nodes,
                         json_pack("{s:i, s:b, s:b, s:I, s:I, s:o}", "node", node->node, "has_cpus", node->has_cpus,
                                   "usable", node->usable, "total_bytes", (json_int_t)node->total_bytes, "free_bytes",
                                   (json_int_t)node->free_bytes, "distances", distances));
    }
    return nodes;
}

static json_t *cpus_json(const struct farm_machine *m) {
    json_t *cpus = json_array();
    for (int i = 0; i < m->cpu_count; i++) {
        const struct farm_cpu *cpu = &m->cpu[i];
        farm_json_append(cpus, json_pack("{s:i, s:i, s:i, s:o, s:i, s:i, s:b}", "cpu", cpu->cpu, "core", cpu->core,
                                         "smt", cpu->smt, "l3", number_or_null(cpu->l3), "node", cpu->node, "socket",
                                         cpu->socket, "allowed", farm_bitmap_has(&m->allowed, cpu->cpu)));
    }
    return cpus;
}

static json_t *gpus_json(const struct farm_machine *m) {
    json_t *gpus = json_array();
    for (int i = 0; i < m->gpu_count; i++)
        farm_json_append(gpus, json_pack("{s:s, s:s, s:o}", "name", m->gpu[i].name, "pci_bus_id", m->gpu[i].pci_bus_id,
                                         "node", number_or_null(m->gpu[i].node)));
    return gpus;
}

static json_t *machine_json(const struct farm_machine *m) {
    return json_pack("{s:s, s:i, s:i, s:i, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "source", m->source, "sockets",
                     m->socket_count, "cores", m->core_count, "l3_groups", m->l3_count, "allowed_cpus",
                     list_json(&m->allowed), "quota_cpus", m->cpu_quota > 0 ? json_real(m->cpu_quota) : json_null(),
                     "memory_limit_bytes", limit_json(m->memory_limit_bytes), "memory_left_bytes",
                     limit_json(m->memory_free_bytes), "nodes", nodes_json(m), "gpus", gpus_json(m), "cpus",
                     cpus_json(m));
}

static json_t *learner_json(const struct view *v) {
    int device = v->request.learner_device;
    if (device == FARM_LEARNER_NONE) return json_null();
    json_t *shards = json_array();
    for (int k = 0; k < v->plan.shard_count; k++)
        farm_json_append(shards, json_pack("{s:o, s:o}", "cpus", list_json(&v->plan.shard_cpus[k]), "node",
                                           number_or_null(v->plan.shard_node[k])));
    return json_pack("{s:s, s:o, s:o, s:o, s:o, s:i, s:o}", "device", device >= 0 ? "cuda" : "cpu", "gpu",
                     number_or_null(device), "inference_cpus", list_json(&v->plan.inference_cpus), "shards", shards,
                     "training_cpus", list_json(&v->plan.training_cpus), "training_threads", v->plan.training_threads,
                     "memory_node", number_or_null(v->plan.learner_node));
}

static json_t *plan_json(const struct view *v) {
    const struct farm_plan *plan = &v->plan;
    const int device = v->request.learner_device;
    json_t *actors = json_array(), *notes = json_array();
    for (int i = 0; i < plan->actor_count; i++) {
        struct farm_bitmap cpus;
        farm_plan_actor_cpus(&v->machine, plan, i, &cpus);
        farm_json_append(actors,
                         json_pack("{s:o, s:o, s:o, s:i, s:o}", "cpu", number_or_null(plan->actor[i].cpu), "cpus",
                                   list_json(&cpus), "memory_node", number_or_null(plan->actor[i].memory_node), "shard",
                                   plan->actor[i].shard, "gpu",
                                   device >= 0 ? json_integer(device + plan->actor[i].shard) : json_null()));
    }
    for (int i = 0; i < plan->note_count; i++) farm_json_append(notes, json_string(plan->note[i]));
    return json_pack("{s:b, s:b, s:f, s:o, s:o, s:o, s:o, s:o}", "pinned", plan->pinned, "shared", plan->shared,
                     "budget_cpus", plan->cpu_budget, "taken_cpus", list_json(&v->request.taken), "claimed_cpus",
                     list_json(&plan->claim), "learner", learner_json(v), "actors", actors, "notes", notes);
}

// ---- what shipped recipes use ----

// As farm train would plan it at this scale; null: it would refuse to.
static json_t *use_json(struct view *v, struct farm_recipe recipe, const char *scale) {
    struct farm_plan_request request = v->request;
    struct farm_error err;
    recipe.actors = request.actors;
    snprintf(recipe.scale, sizeof recipe.scale, "%s", scale);
    if (farm_run_scale_apply(&recipe, v->plan.actor_count, &err)) return json_null();
    if (recipe.envs_total) farm_run_scale_divide(&recipe, 0, v->plan.actor_count, 1);
    request.actors = (int)recipe.actors;
    if (farm_plan_make(&v->machine, &request, &v->other, &err)) return json_null();
    const int64_t each = recipe.envs_per_actor ? recipe.envs_per_actor : FARM_ENVS_PER_ACTOR;
    return json_pack("{s:f, s:i, s:I, s:i}", "scale", recipe.scaled, "actors", v->other.actor_count, "environments",
                     (json_int_t)(v->other.actor_count * each), "idle_cpus", v->other.idle_cpus);
}

static json_t *recipes_json(struct view *v) {
    char folder[PATH_MAX], path[PATH_MAX + 256];
    struct dirent **files;
    struct farm_recipe recipe;
    struct farm_error err;
    json_t *rows = json_array();
    if (v->request.learner_device == FARM_LEARNER_NONE || farm_path_recipes(folder, sizeof folder, &err)) return rows;
    const int count = scandir(folder, &files, NULL, alphasort);
    for (int i = 0; i < count; free(files[i++])) {
        const char *name = files[i]->d_name, *algo = "auto";
        const struct farm_recipe_family *family;
        for (size_t f = 0; (family = farm_algo_family_at(f)); f++) {
            snprintf(path, sizeof path, "_%s.", family->name);
            if (strstr(name, path)) algo = family->name;
        }
        snprintf(path, sizeof path, "%s/%s", folder, name);
        farm_recipe_defaults(&recipe, farm_algo_family_at);
        if (strstr(name, ".yaml") && !strstr(name, "_continuous") && !strstr(name, "_frames") &&
            !farm_recipe_set(&recipe, FARM_LAYER_DEFAULT, "algo", algo, &err) &&
            !farm_recipe_load(&recipe, FARM_LAYER_SHIPPED, path, &err) && !farm_recipe_settle(&recipe, &err))
            farm_json_append(rows, json_pack("{s:s, s:s, s:o, s:o}", "recipe", name, "algo", recipe.algo, "standard",
                                             use_json(v, recipe, "1"), "scale_auto", use_json(v, recipe, "auto")));
    }
    if (count >= 0) free(files);
    return rows;
}

static void draw_recipes(struct view *v) {
    static const char *const keys[] = {"scale", "actors", "environments", "idle_cpus"};
    size_t i;
    json_t *row, *rows = recipes_json(v);
    if (json_array_size(rows))
        fprintf(v->out, "\n%-27s %-7s %7s %7s %7s %7s  %7s %7s %7s %7s\n", "shipped recipe", "algo", "scale", "actors",
                "envs", "idle", "auto", "actors", "envs", "idle CPUs");
    json_array_foreach(rows, i, row) {
        fprintf(v->out, "%-27s %-7s", json_string_value(json_object_get(row, "recipe")),
                json_string_value(json_object_get(row, "algo")));
        for (int k = 0; k < 8; k++) {
            const json_t *use = json_object_get(row, k < 4 ? "standard" : "scale_auto");
            fprintf(v->out, "%*s", 8 + (k == 4),
                    farm_format_figure(json_number_value(json_object_get(use, keys[k % 4]))).text);
        }
        fprintf(v->out, "\n");
    }
    json_decref(rows);
}

static json_t *view_json(struct view *v) {
    json_t *document = farm_json_object(true);
    farm_json_set(document, "machine", machine_json(&v->machine));
    farm_json_set(document, "plan", plan_json(v));
    farm_json_set(document, "recipes", recipes_json(v));
    return document;
}

// Fills *document (NULL: not wanted) and draws on `drawing` (NULL: not wanted).
static enum farm_status make_view(const struct options *o, json_t **document, FILE *drawing, struct farm_error *err) {
    struct view *v = calloc(1, sizeof *v);
    if (!v) return farm_fail(err, FARM_E_LIMIT, "no memory to describe the machine");
    enum farm_status status = farm_machine_read(&v->machine, &o->source, err);
    if (!status) status = fill_request(o, &v->machine, &v->request, err);
    if (!status) read_taken(o, &v->request.taken);
    if (!status) status = farm_plan_make(&v->machine, &v->request, &v->plan, err);
    if (!status && document) *document = view_json(v);
    if (!status && drawing) {
        v->out = drawing;
        make_marks(v);
        draw(v);
        draw_recipes(v);
    }
    free(v);
    return status;
}

enum farm_status farm_topo_document(json_t **document, FILE *drawing, struct farm_error *err) {
    return make_view(&standard, document, drawing, err);
}

int farm_cmd_topo(int argc, char **argv) {
    struct options o = standard;
    const struct farm_cli_flag flags[] = {
        {"actors", FARM_CLI_INT, &o.actors, "N", "plan for N actors (default: as many as fit)"},
        {"device", FARM_CLI_STRING, &o.device, "D", "learner on auto, cpu, cuda, or none"},
        {"gpus", FARM_CLI_INT, &o.gpus, "N", "GPUs of the learner (default: 1; 0: all)"},
        {"inference", FARM_CLI_STRING, &o.inference, "WHERE", "central, in the learner, or local, in the actors"},
        {"train-threads", FARM_CLI_INT, &o.train_threads, "N", "training threads (default: a share of the cores)"},
        {"infer-threads", FARM_CLI_INT, &o.infer_threads, "N", "inference threads on CPUs (default: a share)"},
        {"pin", FARM_CLI_BOOL, &o.pin, NULL, "--no-pin leaves placement to the scheduler"},
        {"numa", FARM_CLI_BOOL, &o.numa, NULL, "--no-numa leaves memory to the kernel"},
        {"synthetic", FARM_CLI_STRING, &o.source.synthetic, "STR", "another machine, in hwloc's synthetic notation"},
        {"xml", FARM_CLI_STRING, &o.source.xml, "FILE", "another machine, recorded there by: lstopo --of xml FILE"},
        {"bw", FARM_CLI_STRING, &o.source.bw, "FILE",
         "the machine's document of farm bw --json (this machine's default: ~/.cache/actorfarm/bw.json)"},
        {"root", FARM_CLI_STRING, &o.source.root, "DIR", "read /proc and /sys (limits, memory) below DIR"},
        {"json", FARM_CLI_BOOL, &o.json, NULL, "one JSON document on stdout"},
    };
    const struct farm_cli cli = {
        .program = "farm topo",
        .synopsis = "[--actors N] [--device auto|cpu|cuda|none] [--synthetic STR | --xml FILE] [--json]",
        .about =
            "Draws this machine (sockets, NUMA nodes, L3 groups, cores, GPUs, limits of the control group) and the\n"
            "plan that `farm train` would follow on it: which actor runs on which CPU, which memory is on which\n"
            "node; then the actors, environments and idle CPUs of each shipped recipe, as it is and with --scale auto.",
        .examples = "  farm topo --actors 12\n"
                    "  farm topo --synthetic \"pack:2 [numa(memory=384GB)] l3:12 core:8 pu:2\"\n",
        .flags = flags,
        .flag_count = sizeof flags / sizeof *flags,
    };
    struct farm_error err;
    int exit_status;
    if (!farm_read_flags(&cli, argc, argv, NULL, &exit_status)) return exit_status;
    json_t *document = NULL;
    enum farm_status status = make_view(&o, o.json ? &document : NULL, o.json ? NULL : stdout, &err);
    if (!status && o.json) status = farm_json_print(document, stdout, &err);
    json_decref(document);
    return status ? farm_report_error("farm topo", &err) : 0;
}

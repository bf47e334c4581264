// `farm bridge --connect`: this machine's actors play for a learner elsewhere: flags, progress and report (run/node.h).
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/format.h"
#include "base/json.h"
#include "base/log.h"
#include "base/time.h"
#include "bridge/address.h"
#include "bridge/engine.h"
#include "report/progress.h"
#include "run/node.h"
#include "tools/bridge/bridge.h"
#include "tools/shared/command.h"
#include "tools/shared/recipe_flags.h"

static const char program[] = "farm bridge";

struct options {
    struct farm_recipe recipe;
    const char *connect, *key, *cache, *engine;
    double retry_s;
    bool insecure, json, quiet;
};

struct node {
    const struct options *options;
    struct farm_key *key; // NULL: --insecure
    char name[FARM_WIRE_NAME_BYTES], learner[FARM_ADDRESS_TEXT_BYTES];
    struct farm_run_node *run;
    struct farm_progress progress;
    // the present session: when it began, and the figures of the previous line
    uint64_t start_ns, drawn_ns;
    struct farm_run_node_figures drawn;
    // the sessions so far
    uint32_t actors, lanes, width;
    char env[FARM_ENV_NAME_BYTES];
};

// ---- while it runs ----

static void clear_line(void *context) {
    struct node *node = context;
    farm_progress_clear(&node->progress);
}

// The learner's address, read from the file for @FILE.
static const char *learner_address(struct node *node) {
    struct farm_error err;
    if (farm_address_read(node->options->connect, node->learner, &err))
        snprintf(node->learner, sizeof node->learner, "%.*s", (int)sizeof node->learner - 1, node->options->connect);
    return node->learner;
}

static struct farm_number_text format_rate(uint64_t now, uint64_t before, double passed_s) {
    return farm_format_count(passed_s > 0 && now > before ? (double)(now - before) / passed_s : 0);
}

// "0:12  connected to HOST:PORT  4 actors  12.3k steps/s  3.1M B/s out  210k in  round trip 0.31 ms".
static void draw_progress(struct node *node, const struct farm_run_node_figures *now, uint64_t now_ns) {
    const struct farm_run_node_figures *before = &node->drawn;
    const double passed_s = (double)(now_ns - node->drawn_ns) * 1e-9;
    char line[512], state[64] = "connected to", round_trip[48] = "", more[96] = "";
    if (!now->connected) snprintf(state, sizeof state, "away for %.0f s from", now->away_s);
    if (now->round_trip_s > 0)
        snprintf(round_trip, sizeof round_trip, "  round trip %s ms", farm_format_figure(1e3 * now->round_trip_s).text);
    if (now->reconnects || now->actor_restarts + now->bridge_restarts)
        snprintf(more, sizeof more, "  reconnects %llu  restarts %llu", (unsigned long long)now->reconnects,
                 (unsigned long long)(now->actor_restarts + now->bridge_restarts));
    snprintf(line, sizeof line, "%s  %s %.200s  %u actor%s  %s steps/s  %s B/s out  %s in%s%s",
             farm_format_duration((double)(now_ns - node->start_ns) * 1e-9).text, state, learner_address(node),
             now->actors, now->actors == 1 ? "" : "s", format_rate(now->steps, before->steps, passed_s).text,
             format_rate(now->bytes_out, before->bytes_out, passed_s).text,
             format_rate(now->bytes_in, before->bytes_in, passed_s).text, round_trip, more);
    farm_progress_show(&node->progress, line, now_ns);
    node->drawn = *now;
    node->drawn_ns = now_ns;
}

static enum farm_supervisor_turn on_tick(void *context, uint64_t now_ns) {
    struct node *node = context;
    struct farm_run_node_figures figures;
    if (node->options->quiet || !farm_progress_due(&node->progress, now_ns)) return FARM_TURN_ON;
    farm_run_node_figures(node->run, now_ns, &figures);
    draw_progress(node, &figures, now_ns);
    return FARM_TURN_ON;
}

// ---- the report ----

static double divide(double value, double by) {
    return by > 0 ? value / by : (double)NAN;
}

static json_t *result_json(const struct node *node, const struct farm_run_node_figures *all, bool interrupted,
                           const char *failure) {
    json_t *document = farm_json_object(true);
    farm_json_set_text(document, "address", node->options->connect);
    farm_json_set_text(document, "name", node->name);
    farm_json_set_text(document, "env", node->env[0] ? node->env : NULL);
    farm_json_set_real(document, "wall_s", all->wall_s);
    farm_json_set_int(document, "env_steps", all->steps);
    farm_json_set_real(document, "env_steps_per_s", divide((double)all->steps, all->wall_s));
    farm_json_set_int(document, "lane_steps", all->lane_steps);
    farm_json_set_int(document, "actors", node->actors);
    farm_json_set_int(document, "lanes", (uint64_t)node->actors * node->lanes);
    farm_json_set_int(document, "environments", (uint64_t)node->actors * node->lanes * node->width);
    farm_json_set_int(document, "bytes_in", all->bytes_in);
    farm_json_set_int(document, "bytes_out", all->bytes_out);
    farm_json_set_int(document, "copied_bytes", all->copied_bytes);
    farm_json_set_real(document, "bytes_in_per_s", divide((double)all->bytes_in, all->wall_s));
    farm_json_set_real(document, "bytes_out_per_s", divide((double)all->bytes_out, all->wall_s));
    farm_json_set_real(document, "round_trip_ms", all->round_trip_s > 0 ? 1e3 * all->round_trip_s : (double)NAN);
    farm_json_set_text(document, "engine", all->uring ? "uring" : "poll");
    farm_json_set_int(document, "system_calls", all->system_calls);
    farm_json_set_int(document, "sessions", all->sessions);
    farm_json_set_int(document, "reconnects", all->reconnects);
    farm_json_set_int(document, "actor_restarts", all->actor_restarts);
    farm_json_set_int(document, "bridge_restarts", all->bridge_restarts);
    farm_json_set_bool(document, "encrypted", !node->options->insecure);
    farm_json_set_bool(document, "interrupted", interrupted);
    farm_json_set_text(document, "error", failure);
    return document;
}

static void print_summary(const struct node *node, const struct farm_run_node_figures *all, bool interrupted,
                          bool failed) {
    const double speed = all->wall_s > 0 ? (double)all->steps / all->wall_s : 0;
    printf("\n%s for %s: %s environment steps in %s (%s/s), %sB sent, %sB received, %llu reconnect%s%s.\n", node->env,
           node->options->connect, farm_format_count((double)all->steps).text, farm_format_duration(all->wall_s).text,
           farm_format_count(speed).text, farm_format_count((double)all->bytes_out).text,
           farm_format_count((double)all->bytes_in).text, (unsigned long long)all->reconnects,
           all->reconnects == 1 ? "" : "s",
           failed        ? "; then it failed"
           : interrupted ? "; stopped by a signal"
                         : "; the learner's run has ended");
    if (all->actor_restarts)
        printf("Actors that died and were started again: %llu.\n", (unsigned long long)all->actor_restarts);
}

static enum farm_status report_result(struct node *node, bool interrupted, const char *failure,
                                      struct farm_error *err) {
    struct farm_run_node_figures all;
    farm_run_node_figures(node->run, farm_now_ns(), &all);
    farm_progress_end(&node->progress);
    if (!node->options->json) {
        if (node->env[0]) print_summary(node, &all, interrupted, failure != NULL);
        return FARM_OK;
    }
    json_t *document = result_json(node, &all, interrupted, failure);
    enum farm_status status = farm_json_print(document, stdout, err);
    json_decref(document);
    return status;
}

// ---- sessions ----

static void begin_session(struct node *node) {
    const struct farm_run_node *run = node->run;
    const struct farm_run_plan *plan = &run->run.plan;
    const uint32_t first = run->actors[0], count = plan->actors;
    bool in_row = true;
    node->actors = plan->actors;
    node->lanes = plan->lanes;
    node->width = plan->width;
    snprintf(node->env, sizeof node->env, "%s", plan->env.name);
    for (uint32_t a = 0; a < count; a++) in_row &= run->actors[a] == first + a;
    if (count == 1)
        farm_log_info("joined the run at %s: actor 0 here is its actor %u", learner_address(node), first);
    else if (in_row)
        farm_log_info("joined the run at %s: actors 0-%u here are its actors %u-%u", learner_address(node), count - 1,
                      first, first + count - 1);
    else
        farm_log_info("joined the run at %s with %u actors", learner_address(node), count);
    node->start_ns = node->drawn_ns = farm_now_ns();
    farm_run_node_figures(run, node->start_ns, &node->drawn);
}

static enum farm_status run_session(struct node *node, enum farm_run_node_state *state, struct farm_error *err) {
    enum farm_status status = farm_run_node_join(node->run, state, err);
    if (status || *state != FARM_RUN_NODE_JOINED) return status;
    begin_session(node);
    return farm_run_node_execute(node->run, state, err);
}

static enum farm_status run_sessions(struct node *node, enum farm_run_node_state *state, struct farm_error *err) {
    for (;;) {
        const enum farm_status status = run_session(node, state, err);
        farm_run_node_leave(node->run);
        if (status || *state != FARM_RUN_NODE_STRANGE) return status;
        clear_line(node);
        farm_log_info("the learner at %s does not know this node any more: joining again", learner_address(node));
        nanosleep(&(struct timespec){.tv_nsec = 500000000}, NULL); // a learner that refuses each time is not flooded
    }
}

static enum farm_status run_node(struct node *node, struct farm_error *err) {
    const struct options *options = node->options;
    enum farm_status status =
        options->insecure ? FARM_OK : farm_key_load(options->key, FARM_KEY_NODE, &node->key, NULL, err);
    if (status) return status;
    const struct farm_run_node_request request = {
        .node = {.address = options->connect, .key = node->key, .name = node->name, .engine = options->engine},
        .cache = options->cache,
        .recipe = &options->recipe,
        .retry_s = options->retry_s,
        .quiet = options->quiet,
        .caller = {.context = node, .clear_line = clear_line, .on_tick = on_tick},
    };
    enum farm_run_node_state state = FARM_RUN_NODE_STOPPED;
    status = farm_run_node_make(&request, &node->run, err);
    if (status) return status;
    struct farm_error report_error;
    if (options->insecure)
        farm_log_warn("--insecure: steps and answers travel unencrypted, and any process that answers at %s is taken "
                      "for the learner",
                      options->connect);
    status = run_sessions(node, &state, err);
    if (status == FARM_E_USAGE) return status;
    const enum farm_status reported =
        report_result(node, state == FARM_RUN_NODE_STOPPED, status ? err->message : NULL, &report_error);
    if (!status && reported) *err = report_error;
    return status ? status : reported;
}

static int connect_to_learner(const struct options *options) {
    static struct node node;
    struct farm_error err;
    node.options = options;
    if (gethostname(node.name, sizeof node.name - 1)) snprintf(node.name, sizeof node.name, "node");
    if (options->quiet) farm_log_set_level(FARM_LOG_WARN);
    farm_progress_start(&node.progress, STDERR_FILENO, farm_now_ns());
    const int exit_status = run_node(&node, &err) ? farm_report_error(program, &err) : 0;
    farm_run_node_free(node.run);
    farm_key_free(node.key);
    return exit_status;
}

// ---- flags ----

static enum farm_status check_options(const struct options *options, struct farm_error *err) {
    char address[FARM_ADDRESS_TEXT_BYTES];
    if (!options->connect)
        return farm_fail(err, FARM_E_USAGE, "--connect ADDR:PORT is missing: the learner's address (--help)");
    if (farm_address_read(options->connect, address, err) == FARM_E_USAGE) return FARM_E_USAGE;
    if (options->key && options->insecure)
        return farm_fail(err, FARM_E_USAGE, "--key and --insecure exclude each other");
    if (!options->key && !options->insecure)
        return farm_fail(err, FARM_E_USAGE,
                         "--key FILE is missing: the learner's FILE.node (farm bridge keygen FILE makes both); on "
                         "private networks --insecure works without a key");
    if (farm_engine_check_word(options->engine, err)) return FARM_E_USAGE;
    if (!(options->retry_s >= 0 && options->retry_s <= 1e9))
        return farm_fail(err, FARM_E_USAGE, "--retry-s %g: between 0 (no limit) and 1e9", options->retry_s);
    return FARM_OK;
}

int farm_bridge_connect(int argc, char **argv) {
    static struct options options = {.engine = "auto", .retry_s = 600}; // has a recipe: too large for a small stack
    const struct farm_cli_flag flags[] = {
        {"connect", FARM_CLI_STRING, &options.connect, "ADDR:PORT|@FILE",
         "the learner, or the file that holds its address (RUN/bridge.addr)"},
        {"key", FARM_CLI_STRING, &options.key, "FILE", "this node's key: FILE.node of farm bridge keygen FILE"},
        {"insecure", FARM_CLI_BOOL, &options.insecure, NULL,
         "no key and no encryption: loopback and private addresses only"},
        {"cache", FARM_CLI_STRING, &options.cache, "ADDR:PORT",
         "pass parameters on to other nodes, which connect here (actors that infer)"},
        {"bridge-engine", FARM_CLI_STRING, &options.engine, "auto|uring|poll",
         "how bytes move; auto: io_uring, or poll"},
        {"retry-s", FARM_CLI_DOUBLE, &options.retry_s, "S",
         "ends after S seconds without the learner (600; 0: no limit)"},
        {"json", FARM_CLI_BOOL, &options.json, NULL, "one JSON document on stdout at the end"},
        {"quiet", FARM_CLI_BOOL, &options.quiet, NULL, "no progress and no plan on stderr"},
    };
    const struct farm_cli cli = {
        .program = program,
        .synopsis = "--connect ADDR:PORT|@FILE --key FILE [--actors N] [--env E] [--json]\n"
                    "       farm bridge keygen [--node NAME | --withdraw NAME] FILE\n"
                    "       farm bridge status RUN [--json]\n"
                    "       farm bridge bench ADDR:PORT|--listen ADDR:PORT --key FILE [--json]",
        .about =
            "Runs actors on this machine for a learner that `farm train --listen ADDR:PORT --key FILE` has started\n"
            "on another machine. The learner chooses environment, options, seed and shape; this machine chooses how "
            "many\n"
            "actors it runs, and names the environment only if the learner's is plugin:, libenv: or gym/. A cut\n"
            "connection is tried again, and play goes on where it was. The command ends with the learner's run or on\n"
            "Ctrl-C, with exit status 0.",
        .examples = "  farm bridge keygen farm.key\n"
                    "  farm train --env ale/Pong --listen 0.0.0.0:7700 --key farm.key      on the learner's machine\n"
                    "  farm bridge --connect 10.0.0.5:7700 --key farm.key.node             on each other machine\n"
                    "  srun --ntasks-per-node=1 farm bridge --connect @r/bridge.addr --key farm.key.node\n"
                    "  farm bridge status r\n",
        .flags = flags,
        .flag_count = sizeof flags / sizeof *flags,
    };
    struct farm_error err;
    int exit_status;
    if (!farm_read_recipe_flags(&cli, FARM_USE_BRIDGE, argc, argv, NULL, &options.recipe, &exit_status))
        return exit_status;
    return check_options(&options, &err) ? farm_report_error(program, &err) : connect_to_learner(&options);
}

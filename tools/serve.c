// `farm serve`: actors without a learner, for a consumer (run/consumer.h): flags, progress, and the report at the end.
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/format.h"
#include "base/json.h"
#include "base/log.h"
#include "run/consumer.h"
#include "tools/shared/command.h"
#include "tools/shared/recipe_flags.h"

enum { STEPS_MAX = 1 << 24 };
static const char program[] = "farm serve";

struct options {
    struct farm_recipe recipe;
    const char *socket, *autoreset, *numbers, *pass_fds;
    int64_t socket_fd, steps;
    bool json, quiet;
    struct farm_listen_flags listen;
    struct farm_run_served served;
};

struct service {
    const struct options *options;
    struct farm_run run;
    struct farm_run_consumer consumer;
    bool interrupted;
};

static enum farm_status report(const struct service *service, const char *failure, struct farm_error *err) {
    const struct farm_run *run = &service->run;
    const struct farm_run_plan *plan = &run->plan;
    const double wall_s = farm_run_events_wall_s(&run->events);
    if (!service->options->json && service->consumer.path)
        printf("%s steps of environments in %s; consumers: %llu; actors started again: %llu.\n",
               farm_format_count((double)service->consumer.steps).text, farm_format_duration(wall_s).text,
               (unsigned long long)service->consumer.consumers, (unsigned long long)run->change.restarts);
    if (!service->options->json) return FARM_OK;
    json_t *document = farm_json_object(true);
    farm_json_set_text(document, "env", service->options->recipe.env);
    farm_json_set_int(document, "seed", (uint64_t)plan->recipe.seed);
    farm_json_set_real(document, "wall_s", wall_s);
    farm_json_set_int(document, "env_steps", service->consumer.steps);
    farm_json_set_real(document, "env_steps_per_s", wall_s > 0 ? (double)service->consumer.steps / wall_s : 0);
    farm_json_set_int(document, "consumers", service->consumer.consumers);
    farm_json_set_int(document, "actors", run->workers.count);
    farm_json_set_int(document, "lanes", (uint64_t)run->workers.count * plan->lanes);
    farm_json_set_int(document, "environments", (uint64_t)run->workers.count * plan->lanes * plan->width);
    farm_json_set_int(document, "ring_steps", plan->steps);
    farm_json_set_int(document, "actor_restarts", run->change.restarts);
    farm_json_set_bool(document, "interrupted", service->interrupted);
    farm_json_set_text(document, "error", failure);
    const enum farm_status status = farm_json_print(document, stdout, err);
    json_decref(document);
    return status;
}

static enum farm_status serve(struct service *service, struct farm_error *err) {
    struct farm_run *run = &service->run;
    struct farm_run_consumer *consumer = &service->consumer;
    const struct options *options = service->options;
    const struct farm_run_request request = {.recipe = &options->recipe,
                                             .elastic = true,
                                             .quiet = options->quiet,
                                             .served = &options->served,
                                             .listen = options->listen.request};
    enum farm_status status = farm_run_make(run, &request, err); // first: what is refused leaves no folder
    if (!status) status = farm_run_consumer_open(consumer, run, (int)options->socket_fd, options->socket, err);
    if (status) return status;
    run->workers.run_path = consumer->folder_name;
    run->caller = (struct farm_run_caller){.context = consumer, .on_tick = farm_run_consumer_tick};
    if ((status = farm_run_build(run, err))) return status;
    if (options->socket && !options->quiet) farm_log_info("consumers connect to %s", options->socket);
    struct farm_error ignored;
    status = farm_run_execute(run, &service->interrupted, err);
    const enum farm_status reported = report(service, status ? err->message : NULL, status ? &ignored : err);
    return status ? status : reported;
}

// Before a consumer has connected.
static int refuse(const struct options *options, const struct farm_error *err) {
    if (options->socket_fd >= 0) farm_run_consumer_refuse((int)options->socket_fd, err->message);
    return farm_report_error(program, err);
}

static int run_command(const struct options *options) {
    static struct service service;
    struct farm_error err = {0};
    service.options = options;
    service.consumer.socket = service.consumer.folder = service.consumer.listener = -1;
    const enum farm_status status = serve(&service, &err);
    const char *words = service.interrupted ? "a signal has ended the farm" : "the farm has ended";
    farm_run_consumer_end(&service.consumer, status ? err.message : words);
    farm_run_free(&service.run);
    farm_run_consumer_free(&service.consumer);
    if (!status) return 0;
    return service.consumer.consumers ? farm_report_error(program, &err) : refuse(options, &err);
}

// --numbers and --pass-fds.
static enum farm_status read_lists(struct options *options, struct farm_error *err) {
    struct farm_run_served *served = &options->served;
    char *end;
    for (const char *at = options->numbers; at && *at;) {
        const size_t length = strcspn(at, ",");
        if (!length || length >= sizeof served->numbers[0] || served->number_count == FARM_CONTROL_NUMBERS_MAX)
            return farm_fail(err, FARM_E_USAGE, "--numbers: up to %d names of 1 to %zu characters",
                             FARM_CONTROL_NUMBERS_MAX, sizeof served->numbers[0] - 1);
        memcpy(served->numbers[served->number_count++], at, length);
        at += length + (at[length] == ',');
    }
    for (const char *at = options->pass_fds; at && *at; at = end + (*end == ',')) {
        const int fd = (int)strtol(at, &end, 10);
        if (end == at || fd <= STDERR_FILENO || fcntl(fd, F_GETFD) < 0 || served->passed_count == FARM_RUN_PASSED_MAX)
            return farm_fail(err, FARM_E_USAGE, "--pass-fds: up to %d descriptors that this command has inherited",
                             FARM_RUN_PASSED_MAX);
        served->passed[served->passed_count++] = fd;
    }
    return FARM_OK;
}

static enum farm_status settle(struct options *options, struct farm_error *err) {
    struct farm_recipe *recipe = &options->recipe;
    const bool same_step = strcmp(options->autoreset, "same_step") == 0;
    if ((options->socket != NULL) == (options->socket_fd >= 0))
        return farm_fail(err, FARM_E_USAGE, "--socket PATH is missing: a new socket, to which consumers connect");
    if (!same_step && strcmp(options->autoreset, "next_step") != 0)
        return farm_fail(err, FARM_E_USAGE, "--autoreset must be one of next_step, same_step (got '%.40s')",
                         options->autoreset);
    if (same_step && options->listen.request.address)
        return farm_fail(err, FARM_E_USAGE,
                         "--autoreset same_step does not go with --listen: last observations do not travel between "
                         "machines; use next_step");
    if (options->socket_fd >= 0) fcntl((int)options->socket_fd, F_SETFD, FD_CLOEXEC); // no program here has it
    options->served.autoreset = same_step;
    enum farm_status status = read_lists(options, err);
    if (!status) status = farm_listen_flags_settle(&options->listen, err);
    if (!status && (options->steps < 2 || options->steps > STEPS_MAX))
        status = farm_fail(err, FARM_E_USAGE, "--steps %lld: must be 2 to %d", (long long)options->steps, STEPS_MAX);
    if (!status) status = farm_recipe_set(recipe, FARM_LAYER_FLAG, "base", "none", err);
    if (!status) status = farm_recipe_flags_settle(recipe, NULL, NULL, err);
    recipe->ring_steps = options->steps;
    recipe->frames = 0;
    recipe->seconds = 0;
    return status;
}

int farm_cmd_serve(int argc, char **argv) {
    // has a recipe: too large for a small stack
    static struct options options = {.socket_fd = -1, .steps = 16, .autoreset = "next_step"};
    struct farm_error err;
    const struct farm_cli_flag flags[] = {
        {"socket", FARM_CLI_STRING, &options.socket, "PATH",
         "consumers connect to this new socket, one after another; its folder, of mode 0700, is made if it is missing"},
        {"socket-fd", FARM_CLI_INT, &options.socket_fd, "N",
         "the consumer is the process that has started this command; the farm ends with it (libfarm's use)"},
        {"steps", FARM_CLI_INT, &options.steps, "C", "steps that a lane's ring holds [16]"},
        {"autoreset", FARM_CLI_STRING, &options.autoreset, "next_step|same_step",
         "where the next episode begins: a step behind the last one, or with it [next_step]"},
        {"numbers", FARM_CLI_STRING, &options.numbers, "NAME,NAME",
         "options of the environment, up to 16, that a consumer sets as it resets one"},
        {"pass-fds", FARM_CLI_STRING, &options.pass_fds, "N,N",
         "descriptors that the actors of this machine inherit (libfarm's use)"},
        {"json", FARM_CLI_BOOL, &options.json, NULL, "one JSON document on stdout at the end"},
        {"quiet", FARM_CLI_BOOL, &options.quiet, NULL, "no progress and no plan on stderr"},
        FARM_LISTEN_FLAGS(options.listen),
    };
    const struct farm_cli cli = {
        .program = program,
        .synopsis = "--env E --socket PATH [--steps C] [--actors N] [--listen ADDR:PORT --key FILE] [--json] "
                    "[--KEY VALUE ...]",
        .about = "Runs actors without a learner. A program of your own, the consumer, reads observations in place and\n"
                 "answers them: by actorfarm in Python (docs/PYTHON.md), or by farm/consumer.h in C. It may end and\n"
                 "another one continue; without one the environments wait. One process of the same user at a time.\n"
                 "`farm actors FOLDER +N` adds actors while it runs; FOLDER: the socket's. With --listen, actors of\n"
                 "other machines join by `farm bridge --connect`. No recipe counts: environments have their own\n"
                 "defaults. Ctrl-C ends it, with exit status 0.",
        .examples = "  farm serve --env ale/Pong --socket /tmp/pong/farm\n"
                    "  farm serve --env native/cartpole --socket /tmp/poles/farm --actors 2 --lanes 4 "
                    "--envs-per-actor 64\n"
                    "  farm serve --env ale/Pong --socket /tmp/pong/farm --listen 0.0.0.0:7000 --key farm.key\n",
        .flags = flags,
        .flag_count = sizeof flags / sizeof *flags,
        .error = &err,
    };
    int exit_status;
    if (!farm_read_recipe_flags(&cli, FARM_USE_SERVE, argc, argv, NULL, &options.recipe, &exit_status))
        return exit_status ? refuse(&options, &err) : 0;
    if (options.quiet) farm_log_set_level(FARM_LOG_WARN);
    return settle(&options, &err) ? refuse(&options, &err) : run_command(&options);
}

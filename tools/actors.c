// `farm actors`: how many actors a run has; adds and removes some (run/requests.h).
#include <stdio.h>
#include <time.h>

#include "base/json.h"
#include "run/requests.h"
#include "tools/shared/command.h"

static const char program[] = "farm actors";
enum { POLL_MS = 100, POLLS_MAX = 600 };

// "+3" or "-1". False: another text, or more than a run has.
static bool read_change(const char *word, int32_t *add) {
    int64_t number;
    if ((word[0] != '+' && word[0] != '-') || !farm_parse_int(word + 1, &number)) return false;
    if (number < 1 || number > FARM_PLAN_ACTORS_MAX) return false;
    *add = (int32_t)(word[0] == '-' ? -number : number);
    return true;
}

// Requests the change and waits until it is complete.
static enum farm_status change_actors(const char *run, int32_t add, struct farm_run_answer *answer,
                                      struct farm_error *err) {
    enum farm_status status = farm_run_requests_send(run, 0, answer, err);
    const int64_t wanted = (int64_t)answer->actors + add;
    if (!status && wanted < 0)
        return farm_fail(err, FARM_E_USAGE, "%s has %u actor%s: %lld cannot leave", run, answer->actors,
                         answer->actors == 1 ? "" : "s", -(long long)add);
    if (!status && add) status = farm_run_requests_send(run, add, answer, err);
    for (int i = 0; i < POLLS_MAX && !status && answer->pending; i++) {
        nanosleep(&(struct timespec){.tv_nsec = POLL_MS * 1000000}, NULL);
        status = farm_run_requests_send(run, 0, answer, err);
    }
    const bool reached = add < 0 ? answer->actors <= wanted : answer->actors >= wanted; // others may change it as well
    if (status || !add || reached) return status;
    return farm_fail(err, FARM_E_LIMIT, "%s has %u actor%s now, not %lld (%s)", run, answer->actors,
                     answer->actors == 1 ? "" : "s", (long long)wanted,
                     answer->pending ? "the change goes on" : "the messages of the run say why");
}

static enum farm_status print_numbers(const struct farm_run_answer *answer, bool json, struct farm_error *err) {
    if (!json) {
        printf("%u actor%s", answer->actors, answer->actors == 1 ? "" : "s");
        if (answer->remote) printf(", and %u of other machines", answer->remote);
        printf("\n");
        return FARM_OK;
    }
    json_t *document = farm_json_object(true);
    farm_json_set_int(document, "actors", answer->actors);
    farm_json_set_int(document, "remote_actors", answer->remote);
    const enum farm_status status = farm_json_print(document, stdout, err);
    json_decref(document);
    return status;
}

int farm_cmd_actors(int argc, char **argv) {
    bool json = false;
    int exit_status;
    int32_t add = 0;
    struct farm_error err;
    struct farm_run_answer answer = {0};
    const char *items[3];
    struct farm_cli_words words = {.items = items};
    const struct farm_cli_flag flags[] = {{"json", FARM_CLI_BOOL, &json, NULL, "one JSON document on stdout"}};
    const struct farm_cli cli = {
        .program = program,
        .synopsis = "RUN [+N|-N] [--json]",
        .about =
            "How many actors the run of `farm train` in the folder RUN has on its own machine, or the farm of `farm\n"
            "serve` whose socket is there. +N adds N actors while it goes on, -N removes the N newest; the command\n"
            "returns when they have joined or left. Actors of other machines come and go with `farm bridge` there.\n"
            "The run's user may do so, but no process of its environments.",
        .examples = "  farm actors runs/ale_Pong-20260101-1\n"
                    "  farm actors r +4\n"
                    "  farm actors r -2\n",
        .flags = flags,
        .flag_count = sizeof flags / sizeof *flags,
        .words = &words,
    };
    if (argc > 4) return fprintf(stderr, "%s: too many words: %s RUN [+N|-N]\n", program, program), 2;
    if (!farm_read_flags(&cli, argc, argv, NULL, &exit_status)) return exit_status;
    if (!words.count) return fprintf(stderr, "%s: RUN is missing: %s RUN [+N|-N]\n", program, program), 2;
    if (words.count > 2 || (words.count == 2 && !read_change(items[1], &add)))
        return fprintf(stderr, "%s: '%s' is neither +N nor -N (N from 1 to %d)\n", program, items[words.count - 1],
                       FARM_PLAN_ACTORS_MAX),
               2;
    if (change_actors(items[0], add, &answer, &err) || print_numbers(&answer, json, &err))
        return farm_report_error(program, &err);
    return 0;
}

// A task's settings from its defaults "key=value key=value" (mujoco.c), then the user's env.* options. Pure functions.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "envs/mujoco/env.h"

struct option {
    const char *key;
    enum { NUMBER, RANGE, SWITCH, COUNT, TEXT } kind;
    size_t offset, bytes; // in struct settings
};

#define OPTION(its_key, its_kind, member)                                                                              \
    { its_key, its_kind, offsetof(struct settings, member), sizeof((struct settings *)NULL)->member }
static const struct option options[] = {
    OPTION("forward_reward_weight", NUMBER, forward_reward_weight),
    OPTION("ctrl_cost_weight", NUMBER, ctrl_cost_weight),
    OPTION("contact_cost_weight", NUMBER, contact_cost_weight),
    OPTION("impact_cost_weight", NUMBER, contact_cost_weight),
    OPTION("healthy_reward", NUMBER, healthy_reward),
    OPTION("reset_noise_scale", NUMBER, reset_noise_scale),
    OPTION("reward_near_weight", NUMBER, reward_near_weight),
    OPTION("reward_dist_weight", NUMBER, reward_dist_weight),
    OPTION("reward_control_weight", NUMBER, reward_control_weight),
    OPTION("contact_cost_range", RANGE, contact_cost_range),
    OPTION("impact_cost_range", RANGE, contact_cost_range),
    OPTION("contact_force_range", RANGE, contact_force_range),
    OPTION("healthy_state_range", RANGE, healthy_state_range),
    OPTION("healthy_z_range", RANGE, healthy_z_range),
    OPTION("healthy_angle_range", RANGE, healthy_angle_range),
    OPTION("terminate_when_unhealthy", SWITCH, terminate_when_unhealthy),
    OPTION("exclude_current_positions_from_observation", SWITCH, exclude_positions),
    OPTION("use_contact_forces", SWITCH, use_contact_forces),
    OPTION("include_cinert_in_observation", SWITCH, include_cinert),
    OPTION("include_cvel_in_observation", SWITCH, include_cvel),
    OPTION("include_qfrc_actuator_in_observation", SWITCH, include_qfrc_actuator),
    OPTION("include_cfrc_ext_in_observation", SWITCH, include_cfrc_ext),
    OPTION("frame_skip", COUNT, frame_skip),
    OPTION("max_episode_steps", COUNT, max_episode_steps),
    OPTION("xml_file", TEXT, xml_file),
    OPTION("main_body", TEXT, main_body),
};
static const char *const expected[] = {
    [NUMBER] = "a number",      [RANGE] = "two numbers \"low,high\"",
    [SWITCH] = "true or false", [COUNT] = "a whole number from 1 to 1000000000",
    [TEXT] = "a short text",
};

bool mujoco_parse_number(const char *text, const char *end, double *number) {
    char *stop;
    const double value = strtod(text, &stop);
    if (stop == text || stop != end || isnan(value)) return false;
    *number = value;
    return true;
}

static bool parse_range(const char *text, struct range *range) {
    struct range given;
    const char *comma = strchr(text, ',');
    if (!comma || !mujoco_parse_number(text, comma, &given.low)) return false;
    if (!mujoco_parse_number(comma + 1, text + strlen(text), &given.high) || given.low > given.high) return false;
    *range = given;
    return true;
}

static bool parse_value(const struct option *option, const char *text, void *member) {
    double number;
    switch (option->kind) {
    case NUMBER:
        return mujoco_parse_number(text, text + strlen(text), member);
    case RANGE:
        return parse_range(text, member);
    case SWITCH:
        *(bool *)member = strcmp(text, "true") == 0;
        return *(bool *)member || strcmp(text, "false") == 0;
    case COUNT:
        if (!mujoco_parse_number(text, text + strlen(text), &number) || number < 1 || number > 1e9 ||
            number != floor(number))
            return false;
        *(int64_t *)member = (int64_t)number;
        return true;
    case TEXT:
        return (size_t)snprintf(member, option->bytes, "%s", text) < option->bytes;
    }
    return false;
}

static bool set_option(struct settings *settings, const char *key, size_t key_length, const char *value) {
    for (size_t i = 0; i < sizeof options / sizeof *options; i++)
        if (strlen(options[i].key) == key_length && strncmp(options[i].key, key, key_length) == 0)
            return parse_value(&options[i], value, (char *)settings + options[i].offset);
    return false;
}

// The next "key=value" of a task's text, with a copy of the value; NULL at the end.
static const char *next_pair(const char *at, size_t *key_length, char value[MUJOCO_FILE_BYTES], const char **rest) {
    at += strspn(at, " ");
    if (!*at) return NULL;
    *key_length = strcspn(at, "=");
    const char *start = at + *key_length + 1;
    const size_t length = strcspn(start, " ");
    snprintf(value, MUJOCO_FILE_BYTES, "%.*s", (int)length, start);
    *rest = start + length;
    return at;
}

static void set_defaults(struct settings *settings, const char *const texts[MUJOCO_TEXTS_MAX]) {
    char value[MUJOCO_FILE_BYTES];
    size_t length;
    for (int i = 0; i < MUJOCO_TEXTS_MAX && texts[i]; i++)
        for (const char *rest = texts[i], *key; (key = next_pair(rest, &length, value, &rest));)
            set_option(settings, key, length, value);
}

static bool offers(const struct task *task, const char *wanted) {
    char value[MUJOCO_FILE_BYTES];
    size_t length;
    for (int i = 0; i < MUJOCO_TEXTS_MAX && task->options[i]; i++)
        for (const char *rest = task->options[i], *key; (key = next_pair(rest, &length, value, &rest));)
            if (strlen(wanted) == length && strncmp(key, wanted, length) == 0) return true;
    return false;
}

// The message ends with the existing options, as far as they fit.
static void write_unknown(const struct task *task, const char *key, char *error, size_t error_bytes) {
    char value[MUJOCO_FILE_BYTES];
    size_t length, used = 0;
    for (int i = 0; i < MUJOCO_TEXTS_MAX && task->options[i]; i++)
        for (const char *rest = task->options[i], *known; (known = next_pair(rest, &length, value, &rest));) {
            const int n = snprintf(error + used, error_bytes - used, "%s%s%s%s%.*s", used ? ", " : task->name,
                                   used ? "" : " has no option \"", used ? "" : key, used ? "" : "\"; it has ",
                                   (int)length, known);
            if (n < 0 || used + (size_t)n + sizeof ", ..." > error_bytes) {
                snprintf(error + used, error_bytes - used, ", ...");
                return;
            }
            used += (size_t)n;
        }
}

bool mujoco_settings_read(const struct task *task, const struct farm_env_config *config, struct settings *settings,
                          char *error, size_t error_bytes) {
    const struct range everything = {-INFINITY, INFINITY};
    *settings = (struct settings){.contact_cost_range = everything, .contact_force_range = everything};
    set_defaults(settings, task->options);
    set_defaults(settings, task->fixed);
    for (size_t i = 0; i < config->option_count; i++) {
        const struct farm_env_option *given = &config->options[i];
        if (!offers(task, given->key)) {
            write_unknown(task, given->key, error, error_bytes);
            return false;
        }
        if (set_option(settings, given->key, strlen(given->key), given->value)) continue;
        size_t o = 0;
        while (strcmp(options[o].key, given->key) != 0) o++;
        snprintf(error, error_bytes, "%s: option \"%s\" is %s, not \"%s\"", task->name, given->key,
                 expected[options[o].kind], given->value);
        return false;
    }
    // Ant-v4 has one option for both.
    if (offers(task, "use_contact_forces")) settings->include_cfrc_ext = settings->use_contact_forces;
    return true;
}

// The film of an environment: records that arrive in the pipe, from render and from images among the observations.
#include <criterion/criterion.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>

#include "../support/rings.h"
#include "actor/film.h"
#include "envs/native/native.h"

enum { BYTES = 64 };

static struct farm_error err;

// An environment whose only field is an image of the bytes 1, 2, 3, ...; it has no game.
static struct farm_field_spec image;

static int still_spec(const struct farm_env_config *config, struct farm_env_spec *spec, char *error, size_t bytes) {
    *spec = (struct farm_env_spec){.obs_count = 1,
                                   .obs[0] = image,
                                   .action = {.kind = FARM_ACTION_DISCRETE, .dims = 1, .sizes = {2}},
                                   .frames_per_step = 1};
    return 0;
}
static void *still_create(const struct farm_env_config *config, char *error, size_t bytes) {
    return &image;
}
static void still_destroy(void *env) {}
static void still_reset(void *env, void *const *obs) {
    for (size_t i = 0; i < farm_field_bytes(&image); i++) ((uint8_t *)obs[0])[i] = (uint8_t)(i + 1);
}
static uint32_t still_step(void *env, const void *action, void *const *obs, float *reward) {
    still_reset(env, obs);
    return 0;
}
static const struct farm_env_api still = FARM_ENV_API("test/still", "one image", still, still_destroy);

// An actor's lane with its film, and the side that answers.
struct filmed {
    struct views views;
    struct farm_actor_config config;
    struct farm_call call;
    struct farm_group group;
    struct farm_film film;
    int pipe; // the film's reader
};

static enum farm_status start(struct filmed *filmed, const struct farm_env_api *api) {
    struct farm_ring_spec spec = {.lanes = 1, .width = 2, .steps = 4};
    int ends[2];
    api->spec(&(struct farm_env_config){0}, &spec.env, NULL, 0);
    farm_ring_spec_answers(&spec);
    *filmed = (struct filmed){.views = views_of(spec), .config = {.api = api, .seed = 1}};
    cr_assert_eq(pipe2(ends, O_NONBLOCK), 0);
    filmed->pipe = ends[0];
    cr_assert_eq(
        farm_group_make(&filmed->config, api, &filmed->views.actor.spec, 0, 0, &filmed->call, &filmed->group, &err),
        FARM_OK);
    return farm_film_open(&filmed->film, ends[1], &filmed->group, &err);
}

static void step(struct filmed *filmed) {
    struct farm_lane *lane = &filmed->views.actor.lanes[0], *answers = &filmed->views.learner.lanes[0];
    const uint64_t n = farm_lane_actor_next(lane);
    cr_assert_eq(farm_group_step(&filmed->group, lane, &err), FARM_OK, "%s", err.message);
    farm_film_step(&filmed->film, lane);
    farm_lane_actor_publish(lane);
    farm_lane_answer(answers, n);
    farm_lane_release(answers, n + 1);
}

static void end(struct filmed *filmed) {
    farm_film_close(&filmed->film);
    farm_group_free(&filmed->group);
    close_views(&filmed->views);
    if (filmed->pipe) close(filmed->pipe);
}

#define with_filmed __attribute__((cleanup(end))) struct filmed

static void expect_header(const struct filmed *filmed, uint32_t width, uint32_t height, uint32_t rate) {
    uint32_t header[3];
    cr_assert_eq(read(filmed->pipe, header, sizeof header), (ssize_t)sizeof header);
    cr_assert_eq(header[0], width);
    cr_assert_eq(header[1], height);
    cr_assert_eq(header[2], rate);
}

Test(film, has_a_picture_of_each_step_and_marks_the_ends_of_games) {
    with_filmed filmed;
    enum { WIDTH = 5, HEIGHT = 10 };
    cr_assert_eq(start(&filmed, &farm_env_catch), FARM_OK, "%s", err.message);
    for (int n = 0; n < 2 * HEIGHT; n++) step(&filmed);
    for (int game = 0; game < 2; game++) {
        for (int row = 0; row < HEIGHT; row++) {
            uint8_t rgb[HEIGHT][WIDTH][3];
            int lit = 0, in_row = 0;
            expect_header(&filmed, WIDTH, HEIGHT, FARM_FILM_RATE_HZ);
            cr_assert_eq(read(filmed.pipe, rgb, sizeof rgb), (ssize_t)sizeof rgb);
            for (int p = 0; p < HEIGHT * WIDTH; p++) {
                lit += rgb[p / WIDTH][p % WIDTH][1] != 0;
                in_row += p / WIDTH == row && rgb[p / WIDTH][p % WIDTH][1] != 0;
            }
            cr_assert(in_row >= 1, "the ball is in row %d", row);
            cr_assert(lit == 2 || row == HEIGHT - 1, "ball and paddle");
        }
        expect_header(&filmed, 0, 0, 0);
    }
    cr_assert_eq(read(filmed.pipe, &image, 1), -1, "nothing else is in the pipe");
}

Test(film, shows_images_of_any_layout) {
    static const struct {
        struct farm_field_spec field;
        uint32_t width, height;
        uint8_t first[3], second[3]; // pixels
    } cases[] = {
        {{"grey", FARM_U8, 2, {2, 3}, 0}, 3, 2, {1, 1, 1}, {2, 2, 2}},
        {{"rgb", FARM_U8, 3, {3, 4, 3}, 0}, 4, 3, {1, 2, 3}, {4, 5, 6}},
        {{"planes", FARM_U8, 3, {3, 4, 5}, 0}, 5, 4, {1, 21, 41}, {2, 22, 42}},
        {{"two", FARM_U8, 3, {3, 3, 2}, 0}, 6, 3, {1, 1, 1}, {3, 3, 3}}, // beside one another
    };
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        with_filmed filmed;
        uint8_t rgb[3 * BYTES];
        const size_t bytes = 3 * cases[c].width * cases[c].height;
        image = cases[c].field;
        cr_assert_eq(start(&filmed, &still), FARM_OK, "%s", err.message);
        step(&filmed);
        expect_header(&filmed, cases[c].width, cases[c].height, FARM_FILM_RATE_HZ);
        cr_assert_eq(read(filmed.pipe, rgb, bytes), (ssize_t)bytes);
        cr_assert_eq(memcmp(rgb, cases[c].first, 3), 0, "%s", image.name);
        cr_assert_eq(memcmp(rgb + 3, cases[c].second, 3), 0, "%s", image.name);
    }
}

Test(film, needs_a_render_or_an_image) {
    with_filmed filmed;
    struct farm_env_api blind = farm_env_catch;
    blind.struct_bytes = offsetof(struct farm_env_api, render); // compiled before it existed
    cr_assert_eq(start(&filmed, &blind), FARM_E_UNSUPPORTED);
    cr_assert_not_null(strstr(err.message, "native/catch cannot be filmed"), "%s", err.message);
}

Test(film, ends_without_a_reader) {
    with_filmed filmed;
    signal(SIGPIPE, SIG_IGN); // as in an actor
    cr_assert_eq(start(&filmed, &farm_env_catch), FARM_OK);
    close(filmed.pipe);
    filmed.pipe = 0;
    for (int n = 0; n < 3; n++) step(&filmed);
    cr_assert_eq(filmed.film.fd, -1);
}

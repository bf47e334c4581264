// See film.h.
#include "actor/film.h"

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#include "envs/plugin.h"
#include "ring/spec.h"

enum { HEADER_WORDS = 3 };

// The first field that is an image; obs_count: none.
static uint32_t find_image(const struct farm_env_spec *spec) {
    uint32_t f = 0;
    while (f < spec->obs_count && !farm_field_is_image(&spec->obs[f])) f++;
    return f;
}

// Channels beside one another if they are neither 1 nor 3.
static uint32_t panels_of(const struct farm_image *image) {
    return image->channels == 1 || image->channels == 3 ? 1 : image->channels;
}

enum farm_status farm_film_open(struct farm_film *film, int fd, const struct farm_group *group,
                                struct farm_error *err) {
    const char *name = group->api->name;
    *film = (struct farm_film){.fd = fd, .group = group, .render = farm_plugin_render(group->api)};
    film->field = find_image(group->spec);
    if (film->render) {
        uint32_t size[2] = {0, 0};
        group->call->env = 0;
        group->call->call = FARM_CALL_RENDER;
        film->render(group->envs[0], size, NULL);
        group->call->call = FARM_CALL_NONE;
        film->width = size[0];
        film->height = size[1];
    } else if (film->field < group->spec->obs_count) {
        const struct farm_image image = farm_field_image(&group->spec->obs[film->field]);
        film->width = image.width * panels_of(&image);
        film->height = image.height;
    } else {
        return farm_fail(err, FARM_E_UNSUPPORTED,
                         "environment %s cannot be filmed: it has no image among its observations and no render "
                         "(docs/ADDING_AN_ENVIRONMENT.md)",
                         name);
    }
    if (!film->width || !film->height || film->width > FARM_RENDER_SIDE_MAX || film->height > FARM_RENDER_SIDE_MAX)
        return farm_fail(err, FARM_E_INVALID,
                         "environment %s cannot be filmed: its pictures of %u x %u pixels exceed "
                         "1 to %d",
                         name, film->width, film->height, FARM_RENDER_SIDE_MAX);
    film->record = malloc(HEADER_WORDS * sizeof *film->record + (size_t)film->width * film->height * 3);
    return film->record ? FARM_OK : farm_fail(err, FARM_E_LIMIT, "no memory for a picture of %s", name);
}

static void write_all(struct farm_film *film, size_t bytes) {
    const uint8_t *at = (const uint8_t *)film->record;
    while (bytes && film->fd >= 0) {
        const ssize_t n = write(film->fd, at, bytes);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) {
            close(film->fd);
            film->fd = -1;
            return;
        }
        at += n;
        bytes -= (size_t)n;
    }
}

static void draw_observation(const struct farm_film *film, const uint8_t *obs, uint8_t *rgb) {
    const struct farm_image image = farm_field_image(&film->group->spec->obs[film->field]);
    const size_t plane = (size_t)image.height * image.width;
    for (uint32_t y = 0; y < image.height; y++)
        for (uint32_t panel = 0; panel < panels_of(&image); panel++)
            for (uint32_t x = 0; x < image.width; x++)
                for (uint32_t colour = 0; colour < 3; colour++) {
                    const uint32_t c = image.channels == 3 ? colour : panel;
                    const size_t pixel = (size_t)y * image.width + x;
                    *rgb++ = image.planes ? obs[c * plane + pixel] : obs[pixel * image.channels + c];
                }
}

void farm_film_step(struct farm_film *film, const struct farm_lane *lane) {
    const uint64_t n = farm_lane_actor_next(lane);
    uint32_t *header = film->record, size[2];
    uint8_t *rgb = (uint8_t *)(header + HEADER_WORDS);
    header[0] = film->width;
    header[1] = film->height;
    header[2] = FARM_FILM_RATE_HZ;
    if (film->render) {
        film->group->call->env = 0;
        film->group->call->call = FARM_CALL_RENDER;
        film->render(film->group->envs[0], size, rgb);
        film->group->call->call = FARM_CALL_NONE;
    } else {
        draw_observation(film, farm_lane_obs(lane, film->field, n, 0), rgb);
    }
    write_all(film, HEADER_WORDS * sizeof *header + (size_t)film->width * film->height * 3);
    header[0] = header[1] = header[2] = 0;
    if (farm_lane_flags(lane, n)[0] & FARM_STEP_GAME_END) write_all(film, HEADER_WORDS * sizeof *header);
}

void farm_film_close(struct farm_film *film) {
    if (film->fd >= 0) close(film->fd);
    free(film->record);
    *film = (struct farm_film){.fd = -1};
}

// See statistics.h.
#include "learner/statistics.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "intake/validator.h"
#include "kernels/pixels.h"
#include "nn/inputs.h"
#include "policy/observation.h"

// An environment's discounted return.
struct discounted {
    uint64_t next; // first step that continues it
    double value;
};

struct farm_statistics {
    const struct farm_net *net;
    const struct farm_algo_config *algo;
    struct farm_net read; // its io has only the normalised parts
    struct number {
        size_t at; // in the tensors
        struct farm_moments moments;
        double shift, sum, squares; // over an iteration: the first number, sums of x - shift
    } * numbers;                    // [read.io.flat]
    float *row;                     // [read.io.flat]
    double rows;                    // in the iteration

    size_t pixels;
    struct farm_moments *pixel; // [pixels]
    uint32_t *sums, *squares;   // [pixels] since the last merge
    uint32_t frames;            // the same for each image
    uint8_t *planes;            // a frame

    double discount;
    struct farm_moments returns;
    struct discounted *discounted; // [lanes][width_max]; NULL: rewards are not normalised
    uint32_t lanes, width_max;
};

void farm_moments_merge(struct farm_moments *into, const struct farm_moments *more) {
    const double count = into->count + more->count, share = count > 0 ? more->count / count : 0,
                 delta = more->mean - into->mean;
    into->mean += delta * share;
    into->variance += (more->variance - into->variance) * share + delta * delta * share * (1 - share);
    into->count = count;
}

// Keeps the parts that are normalised.
static void choose_parts(struct farm_statistics *statistics) {
    const struct farm_net_io *io = &statistics->net->io;
    struct farm_net_io *kept = &statistics->read.io;
    *kept = *io;
    kept->flat = kept->input_count = 0;
    for (int k = 0; k < io->input_count; k++) {
        if (!io->inputs[k].normalise) continue;
        kept->inputs[kept->input_count] = io->inputs[k];
        kept->inputs[kept->input_count++].normalise = false;
        kept->flat += farm_net_input_width(&io->inputs[k]);
    }
}

static void place_numbers(struct farm_statistics *statistics) {
    const struct farm_net_io *io = &statistics->net->io;
    struct number *number = statistics->numbers;
    const int pixels = farm_net_pixels(io);
    for (int k = 0, at = pixels; k < io->input_count; at += farm_net_input_width(&io->inputs[k++]))
        for (int i = 0; io->inputs[k].normalise && i < farm_net_input_width(&io->inputs[k]); i++, number++)
            number->at = (size_t)(at + i);
}

enum farm_status farm_statistics_make(const struct farm_net *net, const struct farm_algo_config *algo, uint32_t lanes,
                                      uint32_t width_max, struct farm_statistics **out, struct farm_error *err) {
    const bool rewards = net->normalise_return >= 0;
    const float *discount = farm_algo_discount(algo);
    *out = NULL;
    if (net->normalise < 0 && !rewards) return FARM_OK;
    if (rewards && !discount)
        return farm_fail(err, FARM_E_INVALID, "normalise_rewards: algorithm %s discounts no rewards",
                         algo->algo->recipe.name);
    struct farm_statistics *statistics = calloc(1, sizeof *statistics);
    if (!statistics) return farm_fail(err, FARM_E_LIMIT, "no memory for statistics");
    *statistics = (struct farm_statistics){
        .net = net, .algo = algo, .discount = discount ? (double)*discount : 0, .lanes = lanes, .width_max = width_max};
    choose_parts(statistics);
    const size_t numbers = (size_t)statistics->read.io.flat, environments = (size_t)lanes * width_max;
    statistics->numbers = calloc(numbers + 1, sizeof *statistics->numbers);
    statistics->row = calloc(numbers + 1, sizeof *statistics->row);
    const size_t pixels = statistics->pixels = (size_t)farm_net_pixels(&net->io);
    statistics->pixel = calloc(pixels + 1, sizeof *statistics->pixel);
    statistics->sums = calloc(pixels + 1, sizeof *statistics->sums);
    statistics->squares = calloc(pixels + 1, sizeof *statistics->squares);
    statistics->planes = calloc(pixels + 1, 1);
    if (rewards) statistics->discounted = calloc(environments + 1, sizeof *statistics->discounted);
    if (!statistics->numbers || !statistics->row || !statistics->pixel || !statistics->sums || !statistics->squares ||
        !statistics->planes || (rewards && !statistics->discounted)) {
        farm_statistics_free(statistics);
        return farm_fail(err, FARM_E_LIMIT, "no memory for statistics of %zu numbers and %zu environments",
                         numbers + pixels, environments);
    }
    place_numbers(statistics);
    *out = statistics;
    return FARM_OK;
}

void farm_statistics_free(struct farm_statistics *statistics) {
    if (!statistics) return;
    free(statistics->numbers);
    free(statistics->row);
    free(statistics->pixel);
    free(statistics->sums);
    free(statistics->squares);
    free(statistics->planes);
    free(statistics->discounted);
    free(statistics);
}

// ---- tensors ----

static size_t offset_of(const struct farm_statistics *statistics, int tensor) {
    return statistics->net->tensors[tensor].offset;
}

static struct farm_moments moments_at(const struct farm_statistics *statistics, const float *params, size_t at) {
    const int first = statistics->net->normalise;
    return (struct farm_moments){.count = (double)params[offset_of(statistics, first + 2)],
                                 .mean = (double)params[offset_of(statistics, first) + at],
                                 .variance = (double)params[offset_of(statistics, first + 1) + at]};
}

static void write_moments(const struct farm_statistics *statistics, struct farm_moments moments, size_t at,
                          float *params) {
    const int first = statistics->net->normalise;
    params[offset_of(statistics, first) + at] = (float)moments.mean;
    params[offset_of(statistics, first + 1) + at] = (float)moments.variance;
    params[offset_of(statistics, first + 2)] = (float)moments.count;
}

void farm_statistics_load(struct farm_statistics *statistics, const float *params) {
    if (!statistics) return;
    const int of_return = statistics->net->normalise_return;
    for (int i = 0; i < statistics->read.io.flat; i++)
        statistics->numbers[i].moments = moments_at(statistics, params, statistics->numbers[i].at);
    for (size_t i = 0; i < statistics->pixels; i++) statistics->pixel[i] = moments_at(statistics, params, i);
    if (of_return < 0) return;
    const float *from = params + offset_of(statistics, of_return);
    statistics->returns =
        (struct farm_moments){.mean = (double)from[0], .variance = (double)from[1], .count = (double)from[2]};
}

void farm_statistics_write(const struct farm_statistics *statistics, float *params) {
    if (!statistics) return;
    const int of_return = statistics->net->normalise_return;
    for (int i = 0; i < statistics->read.io.flat; i++)
        write_moments(statistics, statistics->numbers[i].moments, statistics->numbers[i].at, params);
    for (size_t i = 0; i < statistics->pixels; i++) write_moments(statistics, statistics->pixel[i], i, params);
    if (of_return < 0) return;
    float *to = params + offset_of(statistics, of_return);
    to[0] = (float)statistics->returns.mean;
    to[1] = (float)statistics->returns.variance;
    to[2] = (float)statistics->returns.count;
}

// ---- an iteration ----

static void merge_pixels(struct farm_statistics *statistics) {
    const double count = statistics->frames;
    for (size_t i = 0; i < statistics->pixels && count > 0; i++) {
        const double mean = statistics->sums[i] / count;
        farm_moments_merge(&statistics->pixel[i],
                           &(struct farm_moments){.count = count,
                                                  .mean = mean,
                                                  .variance = fmax(0, statistics->squares[i] / count - mean * mean)});
    }
    memset(statistics->sums, 0, statistics->pixels * sizeof *statistics->sums);
    memset(statistics->squares, 0, statistics->pixels * sizeof *statistics->squares);
    statistics->frames = 0;
}

// The newest frame of each image.
static void add_frames(struct farm_statistics *statistics, const struct farm_column *column, uint64_t n) {
    const struct farm_net_io *io = &statistics->net->io;
    const size_t pixels = statistics->pixels / (size_t)io->images;
    for (size_t image = 0; image < (size_t)io->images; image++) {
        const uint8_t *frame = farm_lane_obs(column->lane, (uint32_t)io->image_source[image], n, column->env);
        frame = farm_inputs_planes(io, frame, statistics->planes);
        farm_pixels_add(frame, pixels, statistics->sums + image * pixels, statistics->squares + image * pixels);
    }
    if (++statistics->frames == FARM_PIXELS_SUM_MAX) merge_pixels(statistics);
}

static void add_row(struct farm_statistics *statistics, const struct farm_column *column, uint64_t n) {
    const void *parts[FARM_NET_INPUTS_MAX];
    if (statistics->pixels) add_frames(statistics, column, n);
    farm_observation_parts(&statistics->read, column->lane, n, column->env, parts);
    farm_inputs_write(&statistics->read.io, NULL, NULL, parts, statistics->row);
    for (int i = 0; i < statistics->read.io.flat; i++) {
        struct number *number = &statistics->numbers[i];
        const double x = (double)statistics->row[i];
        if (statistics->rows == 0) number->shift = x, number->sum = number->squares = 0;
        number->sum += x - number->shift;
        number->squares += (x - number->shift) * (x - number->shift);
    }
    statistics->rows++;
}

static void add_observations(struct farm_statistics *statistics, const struct farm_iteration *it) {
    const uint32_t steps = it->plan->shape.stride;
    statistics->rows = 0;
    for (uint32_t c = 0; c < it->count; c++)
        for (uint64_t n = it->columns[c].start; n < it->columns[c].start + steps; n++)
            if (!(farm_lane_flags(it->columns[c].lane, n)[it->columns[c].env] & FARM_STEP_SENSELESS))
                add_row(statistics, &it->columns[c], n);
    merge_pixels(statistics);
    for (int i = 0; i < statistics->read.io.flat && statistics->rows > 0; i++) {
        struct number *number = &statistics->numbers[i];
        const double mean = number->sum / statistics->rows;
        farm_moments_merge(
            &number->moments,
            &(struct farm_moments){.count = statistics->rows,
                                   .mean = number->shift + mean,
                                   .variance = fmax(0, number->squares / statistics->rows - mean * mean)});
    }
}

// The rewards of a window's transitions lie in steps start + 1 to start + stride.
static void add_returns(struct farm_statistics *statistics, const struct farm_column *column, uint32_t stride) {
    assert(column->lane_id < statistics->lanes && column->env < statistics->width_max);
    struct discounted *own = &statistics->discounted[(size_t)column->lane_id * statistics->width_max + column->env];
    if (own->next != column->start) own->value = 0;
    unsigned flags = farm_lane_flags(column->lane, column->start)[column->env];
    for (uint64_t n = column->start + 1; n <= column->start + stride; n++) {
        const unsigned before = flags;
        flags = farm_lane_flags(column->lane, n)[column->env];
        const float reward = farm_algo_reward(statistics->algo, farm_lane_reward(column->lane, n)[column->env]);
        const bool exists = farm_step_leads(before, flags);
        own->value = exists ? statistics->discount * own->value + (double)reward : 0;
        if (exists) farm_moments_merge(&statistics->returns, &(struct farm_moments){.count = 1, .mean = own->value});
    }
    own->next = column->start + stride;
}

void farm_statistics_begin(struct farm_statistics *statistics, struct farm_iteration *it) {
    if (!statistics) return;
    if (statistics->net->normalise >= 0) add_observations(statistics, it);
    for (uint32_t c = 0; c < it->count && statistics->discounted; c++)
        add_returns(statistics, &it->columns[c], it->plan->shape.stride);
    it->reward_scale = statistics->discounted ? (float)(1 / sqrt(statistics->returns.variance + 1e-8)) : 0;
}

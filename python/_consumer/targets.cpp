// actorfarm.gae and actorfarm.vtrace: targets of training by the learner's own arithmetic, the columns of algo/ppo.h
// and algo/vtrace.h. Arrays are [T, columns]; index t is about the action of observation t.
#include "algo/ppo.h"
#include "algo/vtrace.h"
#include "arrays.hpp"

using namespace nb::literals;

// Appends `count` values. TypeError, ValueError: it has others.
template <class To, class... From>
static void append(std::vector<To> &to, nb::handle from, const char *what, size_t count) {
    const Input input = as_input(from, what);
    std::vector<To> values;
    if (!convert<To, From...>(input, values))
        refuse(PyExc_TypeError, "%s: must be %s", what, sizeof(To) == 1 ? "bool" : "float32 or float64");
    if (values.size() != count) refuse(PyExc_ValueError, "%s: %zu values, must be %zu", what, values.size(), count);
    to.insert(to.end(), values.begin(), values.end());
}

// What columns read, [T + 1][columns]: reward and flags come with the next observation.
struct Columns {
    Shape shape;
    struct farm_algo_rows rows = {};
    std::vector<float> reward, value, scratch;
    std::vector<uint8_t> flags, leads;

    Columns(const Like &rewards, const Like &values, const Like &last_value, const Like &terminated,
            const std::optional<Like> &valid, size_t arrays) {
        const Input input = as_input(rewards, "reward");
        const size_t count = input.size(), columns = count ? count / input.shape(0) : 0;
        if (!count) refuse(PyExc_ValueError, "reward: must not be empty");
        for (size_t i = 0; i < input.ndim(); i++) shape.push_back(input.shape(i));
        reward.resize(columns), flags.resize(columns), scratch.resize(count * arrays);
        append<float, float, double>(reward, rewards, "reward", count);
        append<float, float, double>(value, values, "value", count);
        append<float, float, double>(value, last_value, "last_value", columns);
        append<uint8_t, bool>(flags, terminated, "terminated", count);
        for (uint8_t &flag : flags) flag *= FARM_STEP_TERMINATED;
        if (valid) append<uint8_t, bool>(leads, *valid, "valid", count);
        for (size_t i = 0; i < leads.size(); i++)
            if (!leads[i]) flags[columns + i] = FARM_STEP_FIRST;
        rows.steps = (int)shape[0], rows.columns = (int)columns;
        rows.reward = reward.data(), rows.value = value.data(), rows.flags = flags.data(),
        rows.scratch = scratch.data();
    }

    Pair run(void (*column)(const struct farm_algo_rows *, int), int first, int second) {
        for (int c = 0; c < rows.columns; c++) column(&rows, c);
        void *to[2];
        Array arrays[] = {new_array(nb::dtype<float>(), shape, &to[0]), new_array(nb::dtype<float>(), shape, &to[1])};
        for (int i = 0; i < 2; i++)
            std::copy_n(farm_algo_scratch(&rows, i ? second : first), farm_algo_row_count(&rows), (float *)to[i]);
        return nb::make_tuple(arrays[0], arrays[1]);
    }
};

static Pair gae(Like reward, Like value, Like last_value, Like terminated, std::optional<Like> valid, double discount,
                double lambda) {
    Columns columns(reward, value, last_value, terminated, valid, FARM_PPO_SCRATCH);
    columns.rows.option[FARM_PPO_DISCOUNT] = (float)discount, columns.rows.option[FARM_PPO_LAMBDA] = (float)lambda;
    return columns.run(farm_ppo_column, FARM_PPO_ADVANTAGE, FARM_PPO_RETURN);
}

static Pair vtrace(Like log_ratio, Like reward, Like value, Like last_value, Like terminated, std::optional<Like> valid,
                   double discount, double lambda, double rho_clip, double c_clip, double pg_rho_clip) {
    Columns columns(reward, value, last_value, terminated, valid, FARM_VTRACE_SCRATCH);
    const double options[] = {discount, 0, 0, rho_clip, c_clip, pg_rho_clip, lambda};
    std::copy(options, options + FARM_VTRACE_LAMBDA + 1, columns.rows.option);
    std::vector<float> ratios;
    append<float, float, double>(ratios, log_ratio, "log_ratio", (size_t)farm_algo_row_count(&columns.rows));
    std::copy(ratios.begin(), ratios.end(), farm_algo_scratch(&columns.rows, FARM_VTRACE_LOG_RATIO));
    return columns.run(farm_vtrace_column, FARM_VTRACE_VS, FARM_VTRACE_ADVANTAGE);
}

void bind_targets(nb::module_ &m) {
    m.def(
        "gae", &gae, "reward"_a, "value"_a, "last_value"_a, "terminated"_a, "valid"_a = nb::none(), "discount"_a = 0.99,
        "lam"_a = 0.95,
        "Generalised advantage estimation (Schulman et al. 2015, equation 16): advantages and returns. last_value: of "
        "the observation behind the last step. Where not `valid` 0, and what leads there bootstraps from its value.");
    m.def(
        "vtrace", &vtrace, "log_ratio"_a, "reward"_a, "value"_a, "last_value"_a, "terminated"_a, "valid"_a = nb::none(),
        "discount"_a = 0.99, "lam"_a = 1.0, "rho_clip"_a = 1.0, "c_clip"_a = 1.0, "pg_rho_clip"_a = 1.0,
        "V-trace (Espeholt et al. 2018, equation 1): targets of the value and advantages. log_ratio: log pi(action) - "
        "log mu(action) of the policy in training and of the one that acted.");
}

// actorfarm._consumer: a program's own loop over the lanes of a farm (farm/consumer.h), for Python. Runs in the user's
// process. One thread at a time may call a consumer, which is checked; a fork's child may not. Arrays over the memory
// of a lane are read-only and hold their step until the last of them is collected, also after close().
#include "arrays.hpp"

#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>
#include <farm/consumer.h>
#include <memory>
#include <numeric>
#include <pthread.h>
#include <unistd.h>

using namespace nb::literals;
using Lanes = std::vector<uint32_t>;
using Ready = std::vector<farm_ready>;
using Words = std::optional<std::vector<std::string>>;
using Timeout = std::optional<double>; // seconds; none: for ever
using Arrays = nb::typed<nb::tuple, Array, nb::ellipsis>;
static std::atomic<uint64_t> process_forks{0}; // more in a fork's child
struct farm_ended : std::runtime_error {       // its last words
    using std::runtime_error::runtime_error;
};

// The interpreter is released while one lives. As it ends, Python ends daemon threads in RestoreThread by pthread_exit,
// whose unwinding noexcept functions do not survive: such a thread suspends, in a function of its own.
[[gnu::noinline]] static void restore(PyThreadState *state) {
    try {
        PyEval_RestoreThread(state);
    } catch (...) {
        for (;;) pause();
    }
}
struct Released {
    PyThreadState *state = PyEval_SaveThread();
    ~Released() { restore(state); }
};

struct Row { // one environment of a lane's waiting step
    uint32_t lane, env;
};
struct Lane {
    int seat = -1;                // its place in env_id, kept until another lane needs it
    bool listed = false;          // its step waits for an answer
    unsigned missing = 0;         // rows of that step without an action
    std::vector<uint8_t> waits;   // [W]: without an action
    std::vector<int32_t> elapsed; // [W]: steps since FIRST
    Array ids;                    // [W]: env_id
};
struct Field {
    nb::dlpack::dtype dtype;
    Shape dims;   // [W, ...], of several steps [steps, W, ...]
    size_t bytes; // of one step
};
class Consumer {
    farm_consumer *consumer = nullptr;
    const uint64_t forks = process_forks; // as it was opened
    struct farm_consumer_shape shape = {};
    farm_env_spec env = {};
    std::vector<Lane> state;       // [places]
    Lanes seats;                   // the lane of each
    Ready listed;                  // [places]: what the last wait has listed
    std::vector<int32_t> integers; // actions of another dtype, or `floats`
    std::vector<float> floats;

  public:
    std::atomic<bool> busy{false};
    // Begins a call, which ends with `busy`.
    void enter() {
        if (forks != process_forks) refuse(PyExc_RuntimeError, "this consumer is its process's, not a fork's child's");
        if (busy.exchange(true, std::memory_order_acquire))
            refuse(PyExc_RuntimeError, "another thread is in a call of this consumer: one thread at a time");
        if (!consumer) busy = false, refuse(PyExc_RuntimeError, "the consumer is closed");
    }

    Consumer(const Words &words, const std::optional<std::string> &socket, const std::vector<int> &pass_fds,
             unsigned keep) {
        if (words.has_value() == socket.has_value())
            refuse(PyExc_ValueError, "give either the words of `farm serve` or the path of its socket");
        std::vector<const char *> texts;
        if (words)
            for (const std::string &word : *words) texts.push_back(word.c_str());
        texts.push_back(nullptr);
        char error[512] = "";
        {
            Released released;
            consumer = socket
                           ? farm_consumer_connect(socket->c_str(), error, sizeof error)
                           : farm_consumer_start(texts.data(), pass_fds.data(), pass_fds.size(), error, sizeof error);
        }
        if (PyErr_CheckSignals()) {
            farm_consumer_close(consumer);
            throw nb::python_error();
        }
        if (!consumer) throw farm_ended(error);
        farm_consumer_keep(consumer, keep);
        farm_consumer_shape(consumer, &shape);
        env = *farm_consumer_env(consumer);
        state.resize(farm_consumer_places(consumer));
        listed.resize(state.size());
        for (uint32_t lane : occupied_lanes()) take_seat(lane);
    }

    void close() {
        if (!consumer || forks != process_forks) return; // a child leaves its parent's farm alone
        if (busy.exchange(true, std::memory_order_acquire))
            refuse(PyExc_RuntimeError, "another thread is in a call of this consumer, so it cannot be closed");
        Released released;
        farm_consumer_close(consumer);
        consumer = nullptr;
        busy = false;
    }
    ~Consumer() { close(); }

    bool occupied(unsigned lane) const {
        farm_lane_state ignored;
        return farm_consumer_state(consumer, lane, &ignored);
    }

    Lanes occupied_lanes() const {
        Lanes present;
        for (unsigned lane = 0; lane < state.size(); lane++)
            if (occupied(lane)) present.push_back(lane);
        return present;
    }

    // Fills `listed`; returns how many. A signal's handler runs within 50 ms.
    unsigned wait(unsigned least, unsigned most, Timeout timeout) {
        using std::chrono::steady_clock, std::chrono::nanoseconds;
        if (!most || most > state.size()) most = (unsigned)state.size();
        least = std::clamp(least, 1u, most);
        int count = farm_consumer_recv(consumer, least, most, 0, listed.data());
        const Lanes present = count ? Lanes() : occupied_lanes();
        size_t waiting = 0;
        for (uint32_t lane : present) waiting += state[lane].listed;
        if (waiting && waiting == present.size())
            refuse(PyExc_RuntimeError, "all lanes wait for actions: send some before recv");
        nanoseconds slice = std::chrono::milliseconds(50);
        const auto end = steady_clock::now() + nanoseconds((int64_t)(std::min(timeout.value_or(0), 9e9) * 1e9));
        while (!count) {
            if (timeout) slice = std::min(slice, nanoseconds(end - steady_clock::now()));
            if (slice.count() <= 0) break;
            {
                Released released;
                count = farm_consumer_recv(consumer, least, most, slice.count(), listed.data());
            }
            if (count <= 0 && PyErr_CheckSignals()) throw nb::python_error();
        }
        if (count < 0) throw farm_ended(farm_consumer_error(consumer));
        for (int i = 0; i < count; i++) list(listed[i]);
        return (unsigned)count;
    }

    void list(const farm_ready &ready) {
        take_seat(ready.lane);
        Lane &lane = state[ready.lane];
        lane.listed = true;
        lane.missing = shape.width;
        lane.waits.assign(shape.width, 1);
        auto flags = (const uint8_t *)at(ready.lane, ready.step, 1, FARM_VIEW_FLAGS);
        for (uint32_t e = 0; e < shape.width; e++)
            lane.elapsed[e] = flags[e] & FARM_STEP_FIRST ? 0 : lane.elapsed[e] + 1;
    }

    void take_seat(uint32_t number) {
        Lane &lane = state[number];
        if (lane.seat >= 0) return;
        uint32_t seat = 0;
        while (seat < seats.size() && occupied(seats[seat])) seat++;
        if (seat == seats.size()) seats.push_back(number);
        state[seats[seat]].seat = -1;
        seats[seat] = number;
        lane.seat = (int)seat;
        lane.waits.assign(shape.width, 0);
        lane.elapsed.assign(shape.width, 0);
        std::vector<int32_t> ids(shape.width);
        std::iota(ids.begin(), ids.end(), (int32_t)(seat * shape.width));
        lane.ids = as_new(ids);
        lane.ids.attr("setflags")("write"_a = false);
    }

    template <class T> static Array as_new(const std::vector<T> &values) {
        T *memory;
        Array array = new_array(values.size(), &memory);
        std::copy(values.begin(), values.end(), memory);
        return array;
    }

    static Pair split(const Ready &ready) {
        Lanes lanes;
        std::vector<uint64_t> steps;
        for (const farm_ready &one : ready) lanes.push_back(one.lane), steps.push_back(one.step);
        return nb::make_tuple(as_new(lanes), as_new(steps));
    }

    Array lanes() { return as_new(occupied_lanes()); }

    Pair recv(unsigned least, unsigned most, Timeout timeout) {
        const unsigned count = wait(least, most, timeout);
        return split(Ready(listed.begin(), listed.begin() + count));
    }

    Pair waiting() {
        Ready ready;
        farm_lane_state now;
        for (uint32_t lane = 0; lane < state.size(); lane++)
            if (state[lane].listed && farm_consumer_state(consumer, lane, &now)) ready.push_back({lane, now.acted});
        return split(ready);
    }

    nb::typed<nb::tuple, Arrays, Array, Array, Array, Array, Array, nb::any, bool>
    take(unsigned least, unsigned most, Timeout timeout, unsigned stack, bool copy) {
        const unsigned count = wait(least, most, timeout);
        Ready ready(listed.begin(), listed.begin() + count);
        std::sort(ready.begin(), ready.end(),
                  [this](const farm_ready &a, const farm_ready &b) { return state[a.lane].seat < state[b.lane].seat; });
        const size_t width = shape.width, rows = count * width;
        const bool in_place = count == 1 && stack == 1 && !copy;
        // Held steps that fill the ring leave it, at their addresses.
        const bool full = in_place && farm_consumer_room(consumer, ready[0].lane) < 2;
        const bool room = !full || farm_consumer_detach(consumer, ready[0].lane);
        float *reward;
        bool *terminated, *truncated, ended = false;
        int32_t *elapsed, *ids = nullptr;
        Array rewards = new_array(rows, &reward), terminations = new_array(rows, &terminated),
              truncations = new_array(rows, &truncated), ages = new_array(rows, &elapsed),
              env_id = count == 1 ? state[ready[0].lane].ids : new_array(rows, &ids);
        for (size_t i = 0; i < rows; i += width) {
            const farm_ready &one = ready[i / width];
            auto flags = (const uint8_t *)at(one.lane, one.step, 1, FARM_VIEW_FLAGS);
            memcpy(reward + i, at(one.lane, one.step, 1, FARM_VIEW_REWARD), width * sizeof *reward);
            memcpy(elapsed + i, state[one.lane].elapsed.data(), width * sizeof *elapsed);
            for (size_t e = 0; e < width; e++) {
                terminated[i + e] = flags[e] & FARM_STEP_TERMINATED;
                truncated[i + e] = flags[e] & FARM_STEP_TRUNCATED;
                ended |= terminated[i + e] || truncated[i + e];
                if (ids) ids[i + e] = (int32_t)(state[one.lane].seat * width + e);
            }
        }
        nb::object last = nb::none();
        if (ended && shape.same_step) last = observations(ready, FARM_VIEW_LAST, 1, false);
        return nb::make_tuple(observations(ready, FARM_VIEW_OBS, stack, in_place && room), rewards, terminations,
                              truncations, env_id, ages, last, full);
    }

    Arrays observations(const Ready &ready, unsigned field, unsigned stack, bool in_place) {
        nb::list fields;
        for (unsigned f = field; f < field + env.obs_count; f++)
            fields.append(in_place ? view(ready[0].lane, ready[0].step, f, 1) : gather_of(ready, f, stack));
        return nb::tuple(fields);
    }

    Field describe(unsigned field, unsigned steps = 1) const {
        const bool last = field >= FARM_VIEW_LAST;
        const unsigned f = field - (last ? FARM_VIEW_LAST : FARM_VIEW_OBS);
        const bool observed = field >= FARM_VIEW_OBS && f < env.obs_count && (!last || shape.same_step);
        const uint32_t kind = env.action.kind;
        uint32_t numbers = observed ? env.obs[f].dtype : (uint32_t)FARM_F32;
        if (!observed && field > FARM_VIEW_ACTION) refuse(PyExc_IndexError, "these lanes have no field %u", field);
        if (field == FARM_VIEW_FLAGS) numbers = FARM_U8;
        if (field == FARM_VIEW_ACTION && kind != FARM_ACTION_CONTINUOUS) numbers = FARM_I32;
        Field found = {dtypes[numbers], {shape.width}, dtypes[numbers].bits / 8u};
        if (observed) found.dims.insert(found.dims.end(), env.obs[f].dims, env.obs[f].dims + env.obs[f].rank);
        if (field == FARM_VIEW_ACTION && kind != FARM_ACTION_DISCRETE) found.dims.push_back(env.action.dims);
        for (size_t side : found.dims) found.bytes *= side;
        if (steps != 1) found.dims.insert(found.dims.begin(), steps);
        return found;
    }

    const void *at(unsigned lane, uint64_t step, unsigned steps, unsigned field) const {
        if (const void *found = farm_consumer_field(consumer, lane, step, steps, field)) return found;
        refuse(PyExc_IndexError, "%s", farm_consumer_error(consumer));
    }

    Array hold(unsigned lane, uint64_t step) {
        using Held = std::pair<void *, uint64_t>;
        void *token = farm_consumer_hold(consumer, lane, step);
        if (!token) refuse(PyExc_IndexError, "%s", farm_consumer_error(consumer));
        return nb::borrow<Array>(nb::capsule(new Held(token, step), [](void *memory) noexcept {
            const std::unique_ptr<Held> last((Held *)memory);
            farm_consumer_drop(last->first, last->second); // nothing in a fork's child
        }));
    }

    Array view(unsigned lane, uint64_t step, unsigned field, unsigned steps) {
        const Field one = describe(field, steps);
        nb::object owner = hold(lane, step);
        return nb::borrow<Array>(nb::cast(nb::ndarray<nb::numpy, nb::ro>(at(lane, step, steps, field), one.dims.size(),
                                                                         one.dims.data(), owner, nullptr, one.dtype)));
    }

    Array copy(unsigned lane, uint64_t step, unsigned field, unsigned steps) {
        const Field one = describe(field, steps);
        void *values;
        Array array = new_array(one.dtype, one.dims, &values);
        for (unsigned i = 0; i < steps; i++) // neighbours in memory or not
            memcpy((char *)values + i * one.bytes, at(lane, step + i, 1, field), one.bytes);
        return array;
    }

    Array gather_of(const Ready &ready, unsigned field, unsigned stack) {
        Field one = describe(field);
        one.dims[0] *= ready.size();
        if (stack > 1) one.dims.insert(one.dims.begin() + 1, stack);
        void *values;
        Array array = new_array(one.dtype, one.dims, &values);
        std::vector<const void *> from;
        for (const farm_ready &step : ready) from.push_back(at(step.lane, step.step, 1, field));
        bool done = true;
        {
            Released released;
            if (stack > 1) done = farm_consumer_gather(consumer, ready.data(), ready.size(), field, stack, values);
            for (size_t i = 0; i < from.size() && stack <= 1; i++)
                memcpy((char *)values + i * one.bytes, from[i], one.bytes);
        }
        if (!done) refuse(PyExc_ValueError, "%s", farm_consumer_error(consumer));
        return array;
    }

    Array gather(const Like &lanes, const Like &steps, unsigned field, unsigned stack) {
        Ready ready;
        std::vector<uint64_t> numbers;
        for (uint32_t lane : as_numbers(lanes, "lanes")) ready.push_back({lane, 0});
        convert_integers(as_input(steps, "steps"), numbers, "steps");
        if (numbers.size() != ready.size()) refuse(PyExc_ValueError, "steps: must be one for each lane");
        for (size_t i = 0; i < ready.size(); i++) ready[i].step = numbers[i];
        return gather_of(ready, field, stack);
    }

    unsigned room(unsigned lane) { return farm_consumer_room(consumer, lane); }
    Array env_id(unsigned lane) { return state.at(lane).ids; }

    // Lanes that wait, none twice.
    Lanes distinct(Lanes lanes) const {
        Lanes sorted = lanes;
        std::sort(sorted.begin(), sorted.end());
        for (size_t i = 0; i < sorted.size(); i++)
            if (sorted[i] >= state.size() || !state[sorted[i]].listed || (i && sorted[i] == sorted[i - 1]))
                refuse(PyExc_ValueError, "lane %u waits for no actions: not received, or named twice", sorted[i]);
        return lanes;
    }

    // Checked actions of these rows: int32 or float32, [rows][dims]. Memory of `input` or of this object.
    const void *actions_of(const Like &actions, const std::vector<Row> &rows, Input *input) {
        const farm_action_spec &spec = env.action;
        const bool continuous = spec.kind == FARM_ACTION_CONTINUOUS;
        *input = as_input(actions, "actions");
        const size_t count = rows.size() * spec.dims, ndim = input->ndim();
        if (input->size() != count || ndim > 3 || (spec.dims > 1 && input->shape(ndim - 1) != spec.dims))
            refuse(PyExc_ValueError, "actions: %zu numbers, must be [%zu, %u]", input->size(), rows.size(), spec.dims);
        const void *values = input->data();
        if (continuous && input->dtype() != nb::dtype<float>()) {
            if (!convert<float, double>(*input, floats)) refuse(PyExc_TypeError, "actions: must be float32 or float64");
            values = floats.data();
        } else if (!continuous && input->dtype() != nb::dtype<int32_t>()) {
            convert_integers(*input, integers, "actions");
            values = integers.data();
        }
        auto reals = (const float *)values; // the actor limits finite ones to their range, as it does a policy's
        auto choices = (const uint32_t *)values;
        size_t i = 0;
        while (i < count && (continuous ? std::isfinite(reals[i]) : choices[i] < spec.sizes[i % spec.dims])) i++;
        if (i == count) return values;
        const Row row = rows[i / spec.dims];
        const auto value = continuous ? std::to_string(reals[i]) : std::to_string((int32_t)choices[i]);
        refuse(PyExc_ValueError, "lane %u, environment %u (env_id %u): action %s, must be %s %u", row.lane, row.env,
               state[row.lane].seat * shape.width + row.env, value.c_str(), continuous ? "finite: dimension" : "below",
               continuous ? (unsigned)(i % spec.dims) : spec.sizes[i % spec.dims]);
    }

    void write_rows(const void *actions, const std::vector<Row> &rows) {
        const size_t bytes = env.action.dims * sizeof(float);
        char *slot = nullptr;
        for (size_t i = 0; i < rows.size(); i++) {
            if (i == 0 || rows[i].lane != rows[i - 1].lane)
                slot = (char *)farm_consumer_answer_field(consumer, rows[i].lane, FARM_VIEW_ACTION);
            if (slot) memcpy(slot + rows[i].env * bytes, (const char *)actions + i * bytes, bytes); // else it has left
        }
    }

    void publish(const Lanes &lanes) {
        Lanes present;
        for (uint32_t lane : lanes) {
            state[lane].listed = false;
            state[lane].waits.assign(shape.width, 0);
            if (occupied(lane)) present.push_back(lane);
        }
        if (!farm_consumer_answer(consumer, present.data(), present.size()))
            refuse(PyExc_RuntimeError, "%s", farm_consumer_error(consumer));
    }

    void send(const Like &lanes, const Like &actions) {
        const Lanes named = distinct(as_numbers(lanes, "lanes"));
        std::vector<Row> rows;
        for (uint32_t lane : named)
            for (uint32_t e = 0; e < shape.width; e++) rows.push_back({lane, e});
        Input kept;
        write_rows(actions_of(actions, rows, &kept), rows);
        publish(named);
    }

    void put(const Like &env_id, const Like &actions) {
        std::vector<Row> rows;
        try {
            for (uint32_t id : as_numbers(env_id, "env_id")) {
                const size_t seat = id / shape.width;
                const Row row = {seat < seats.size() ? seats[seat] : 0, id % shape.width};
                if (seat >= seats.size() || !state[row.lane].waits[row.env])
                    refuse(PyExc_ValueError, "env_id %u waits for no action: not received, or named twice", id);
                state[row.lane].waits[row.env] = 0;
                rows.push_back(row);
            }
            Input kept;
            write_rows(actions_of(actions, rows, &kept), rows);
        } catch (...) {
            for (const Row &row : rows) state[row.lane].waits[row.env] = 1;
            throw;
        }
        Lanes complete;
        for (const Row &row : rows)
            if (--state[row.lane].missing == 0) complete.push_back(row.lane);
        publish(complete);
    }

    void control(unsigned lane, unsigned env, std::optional<uint64_t> seed, std::vector<double> numbers) {
        distinct({lane});
        numbers.resize(16, std::nan(""));
        if (!farm_consumer_control(consumer, lane, env, seed ? &*seed : nullptr, numbers.data()))
            refuse(PyExc_ValueError, "%s", farm_consumer_error(consumer));
    }

    nb::typed<nb::dict, nb::str, nb::any> spec() {
        auto tuple_of = [](auto *values, size_t count) {
            return nb::tuple(nb::cast(std::vector(values, values + count)));
        };
        const farm_action_spec &a = env.action;
        static const char *const names[] = {"", "u8", "i32", "f32"};
        static const char *const kinds[] = {"", "discrete", "multi_discrete", "continuous"};
        nb::list obs, numbers;
        for (const farm_field_spec *f = env.obs; f < env.obs + env.obs_count; f++)
            obs.append(nb::steal(Py_BuildValue("{sssssOsI}", "name", f->name, "dtype", names[f->dtype], "dims",
                                               tuple_of(f->dims, f->rank).ptr(), "choices", f->choices)));
        for (uint32_t n = 0; n < shape.number_count; n++) numbers.append((const char *)shape.numbers[n]);
        nb::object action = nb::steal(Py_BuildValue(
            "{sssIsOsOsO}", "kind", kinds[a.kind], "dims", a.dims, "sizes", tuple_of(a.sizes, a.dims).ptr(), "low",
            tuple_of(a.low, a.dims).ptr(), "high", tuple_of(a.high, a.dims).ptr()));
        return nb::steal<nb::dict>(
            Py_BuildValue("{sOsOsIsIsnsIsNsO}", "obs", obs.ptr(), "action", action.ptr(), "width", shape.width, "steps",
                          shape.steps, "places", (Py_ssize_t)state.size(), "frames_per_step", env.frames_per_step,
                          "same_step", PyBool_FromLong(shape.same_step), "numbers", numbers.ptr()));
    }

    nb::typed<nb::dict, nb::str, double> stats() {
        struct farm_consumer_stats s;
        farm_consumer_stats(consumer, &s);
        return nb::steal<nb::dict>(Py_BuildValue(
            "{sKsKsKsKsdsdsdsd}", "recvs", s.recvs, "answers", s.answers, "agent_steps", s.agent_steps, "bad_values",
            s.bad_values, "recv_wait_p50_us", s.recv_wait_p50_us, "recv_wait_p95_us", s.recv_wait_p95_us,
            "answer_wait_p50_us", s.answer_wait_p50_us, "answer_wait_p95_us", s.answer_wait_p95_us));
    }

    int pid() { return farm_consumer_pid(consumer); }
};

// One thread calls a method at a time.
template <class Result, class... Arguments> static auto in_turn(Result (Consumer::*method)(Arguments...)) {
    return [method](Consumer &consumer, Arguments... arguments) -> Result {
        consumer.enter();
        auto leave = [](Consumer *left) { left->busy.store(false, std::memory_order_release); };
        const std::unique_ptr<Consumer, decltype(leave)> inside(&consumer, leave);
        return (consumer.*method)(arguments...);
    };
}

static void bind_consumer(nb::class_<Consumer> consumer) {
    const auto none = nb::none();
    consumer
        .def(nb::init<Words, std::optional<std::string>, std::vector<int>, unsigned>(), "words"_a = none,
             "socket"_a = none, "pass_fds"_a = nb::tuple(), "keep"_a = 0)
        .def_prop_ro("spec", in_turn(&Consumer::spec))
        .def_prop_ro("pid", in_turn(&Consumer::pid), "The farm's supervisor.")
        .def("lanes", in_turn(&Consumer::lanes), "Those that are occupied, ascending.")
        .def("recv", in_turn(&Consumer::recv), "least"_a = 1, "most"_a = 0, "timeout"_a = none,
             "Waits for `least` lanes with a step that no call has returned: (lanes, steps) of up to `most` (0: any "
             "number), oldest first. Empty after `timeout` seconds.")
        .def("waiting", in_turn(&Consumer::waiting), "Lanes and steps that recv has returned and that wait.")
        .def("take", in_turn(&Consumer::take), "least"_a = 1, "most"_a = 0, "timeout"_a = none, "stack"_a = 1,
             "copy"_a = false,
             "recv, as (observations, reward, terminated, truncated, env_id, steps since FIRST, last observations or "
             "None, whether held steps filled a ring and left it).")
        .def("view", in_turn(&Consumer::view), "lane"_a, "step"_a, "field"_a, "steps"_a = 1,
             "[W, ...] ([steps, W, ...] of several), in place, read-only. Holds the step until it is collected.")
        .def("copy", in_turn(&Consumer::copy), "lane"_a, "step"_a, "field"_a, "steps"_a = 1)
        .def("gather", in_turn(&Consumer::gather), "lanes"_a, "steps"_a, "field"_a, "stack"_a = 1,
             "A copy, [lanes * W, (stack,) ...]; stack is at most keep + 1.")
        .def("room", in_turn(&Consumer::room), "lane"_a, "Steps that its actor can take before held ones stop it.")
        .def("env_id", in_turn(&Consumer::env_id), "lane"_a)
        .def("hold", in_turn(&Consumer::hold), "lane"_a, "step"_a, "It stays while the result lives.")
        .def("send", in_turn(&Consumer::send), "lanes"_a, "actions"_a, "Answers all of the lanes, or none.")
        .def("put", in_turn(&Consumer::put), "env_id"_a, "actions"_a, "Answers lanes that have all their actions.")
        .def("control", in_turn(&Consumer::control), "lane"_a, "env"_a, "seed"_a = none, "numbers"_a = nb::tuple(),
             "The lane's next answer resets this environment instead of stepping it. numbers: in spec's order; NaN "
             "stays.")
        .def("stats", in_turn(&Consumer::stats), "Since the last call: recv's waits for lanes, and theirs for answers.")
        .def("close", &Consumer::close, "Ends the farm that this object started. Views stay valid.")
        .def("__reduce__", [](Consumer &) -> nb::typed<nb::object, nb::any> {
            refuse(PyExc_TypeError, "a Consumer cannot be pickled: it is this process's connection to a farm");
        });
}

static nb::any torch(const Array &array) {
    auto input = nb::cast<nb::ndarray<nb::ro>>(array);
    const Shape shape(input.shape_ptr(), input.shape_ptr() + input.ndim());
    return nb::borrow<nb::any>(nb::cast(nb::ndarray<nb::pytorch>((void *)input.data(), shape.size(), shape.data(),
                                                                 array, input.stride_ptr(), input.dtype())));
}
void bind_targets(nb::module_ &m); // targets.cpp
NB_MODULE(_consumer, m) {
    nb::set_leak_warnings(false); // arrays may outlive the interpreter
    pthread_atfork(nullptr, nullptr, [] { process_forks++; });
    nb::exception<farm_ended>(m, "FarmEnded", PyExc_RuntimeError);
    const char *const names[] = {"REWARD", "FLAGS", "ACTION", "OBS", "LAST"};
    const unsigned fields[] = {FARM_VIEW_REWARD, FARM_VIEW_FLAGS, FARM_VIEW_ACTION, FARM_VIEW_OBS, FARM_VIEW_LAST};
    for (int i = 0; i < 5; i++) m.attr(names[i]) = fields[i];
    bind_consumer(nb::class_<Consumer>(m, "Consumer", "Lanes of a new `farm serve` with these words, or at a socket."));
    bind_targets(m);
    m.def("torch", &torch, "array"_a, "The same memory as a tensor, which must not be written.");
}

// Ring. An actor attaches to its ring, writes observations through memoryviews into the lane (or through a Group, or
// commit() writes an Atari frame) and publishes; a reader or a test opens the other side. wait() releases the
// interpreter's lock. Memoryviews keep their Ring alive; numpy.asarray(view) copies nothing.
#include "python/_farm/module.h"

#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <structmember.h>
#include <unistd.h>

#include "base/thread.h"
#include "policy/local.h"
#include "ring/wait.h"

enum { SLEEP_NS_MAX = 100000000 }; // a pending signal waits at most this long

// Memory of a lane, exported to memoryviews.
typedef struct {
    PyObject_HEAD Ring *owner;
    void *start;
    bool writable;
    int rank;
    Py_ssize_t bytes, item_bytes;
    Py_ssize_t shape[FARM_FIELD_RANK_MAX + 2], strides[FARM_FIELD_RANK_MAX + 2];
    char format[2];
} View;

static const char *const dtype_names[] = {"?", "u8", "i32", "f32"};                        // enum farm_dtype
static const char *const kind_names[] = {"?", "discrete", "multi_discrete", "continuous"}; // enum farm_action_kind

// ---- views ----

static int View_getbuffer(PyObject *object, Py_buffer *buffer, int flags) {
    View *self = (View *)object;
    if (flags & PyBUF_WRITABLE && !self->writable) {
        PyErr_SetString(PyExc_BufferError, "this side of the lane is read-only");
        return -1;
    }
    *buffer = (Py_buffer){.buf = self->start,
                          .obj = Py_NewRef(object),
                          .len = self->bytes,
                          .itemsize = self->item_bytes,
                          .readonly = !self->writable,
                          .ndim = self->rank,
                          .format = flags & PyBUF_FORMAT ? self->format : NULL,
                          .shape = flags & PyBUF_ND ? self->shape : NULL,
                          .strides = (flags & PyBUF_STRIDES) == PyBUF_STRIDES ? self->strides : NULL};
    return 0;
}

static void View_dealloc(PyObject *object) {
    Py_XDECREF((PyObject *)((View *)object)->owner);
    free_object(object);
}

static PyType_Slot View_slots[] = {{Py_tp_dealloc, View_dealloc},
                                   {Py_bf_getbuffer, View_getbuffer},
                                   {Py_tp_doc, "Memory of a lane, behind a memoryview."},
                                   {0, NULL}};
PyType_Spec View_definition = {.name = "actorfarm._farm.View",
                               .basicsize = sizeof(View),
                               .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
                               .slots = View_slots};

// A memoryview over dims[0..rank) elements at start.
static PyObject *make_view(Ring *owner, void *start, bool writable, uint32_t dtype, int rank, const uint32_t *dims) {
    View *view = PyObject_New(View, View_type);
    if (!view) return NULL;
    view->owner = (Ring *)Py_NewRef((PyObject *)owner);
    view->start = start;
    view->writable = writable;
    view->rank = rank;
    view->item_bytes = view->bytes = (Py_ssize_t)farm_dtype_bytes(dtype);
    view->format[0] = dtype == FARM_U8 ? 'B' : dtype == FARM_I32 ? 'i' : 'f';
    view->format[1] = 0;
    for (int i = rank - 1; i >= 0; i--) {
        view->shape[i] = dims[i];
        view->strides[i] = view->bytes;
        view->bytes *= dims[i];
    }
    PyObject *memory = PyMemoryView_FromObject((PyObject *)view);
    Py_DECREF(view);
    return memory;
}

// ---- making and opening ----

static Ring *new_ring(enum side side) {
    Ring *self = (Ring *)PyType_GenericAlloc(Ring_type, 0); // zeroed
    if (!self) return NULL;
    self->ring = (struct farm_ring){.up.fd = -1, .down.fd = -1, .up.fd_readonly = -1, .down.fd_readonly = -1};
    self->side = side;
    self->eventfd = -1;
    return self;
}

static void Ring_dealloc(PyObject *object) {
    Ring *self = (Ring *)object;
    farm_local_close(self->local);
    if (self->ring.lanes && (self->answered || !self->local)) farm_ring_close(&self->ring);
    free(self->answered);
    free(self->atari);
    free_object(object);
}

static PyObject *open_ring(enum side side, int up_fd, int down_fd, int eventfd, uint64_t spin_ns) {
    Ring *self = new_ring(side);
    if (!self) return NULL;
    struct farm_error err = {0};
    self->eventfd = eventfd;
    self->spin_ns = spin_ns;
    static const enum farm_ring_side roles[] = {
        [SIDE_READER] = FARM_RING_OBSERVER, [SIDE_ACTOR] = FARM_RING_ACTOR, [SIDE_LEARNER] = FARM_RING_LEARNER};
    if (farm_ring_open(up_fd, down_fd, roles[side], &self->ring, &err)) {
        Py_DECREF(self);
        return raise_error(&err);
    }
    return (PyObject *)self;
}

PyObject *module_attach(PyObject *module, PyObject *args) {
    int up_fd, down_fd, eventfd = -1;
    unsigned long long spin_ns = 0;
    if (!PyArg_ParseTuple(args, "ii|iK", &up_fd, &down_fd, &eventfd, &spin_ns)) return NULL;
    return open_ring(SIDE_ACTOR, up_fd, down_fd, eventfd, spin_ns);
}

PyObject *module_catch_signals(PyObject *module, PyObject *unused) {
    farm_sigterm_catch();
    return Py_NewRef(Py_None);
}

PyObject *module_open_learner(PyObject *module, PyObject *args) {
    int up_fd, down_fd;
    if (!PyArg_ParseTuple(args, "ii", &up_fd, &down_fd)) return NULL;
    return open_ring(SIDE_LEARNER, up_fd, down_fd, -1, 0);
}

PyObject *module_observe(PyObject *module, PyObject *args) {
    int up_fd, down_fd;
    if (!PyArg_ParseTuple(args, "ii", &up_fd, &down_fd)) return NULL;
    PyObject *ring = open_ring(SIDE_READER, up_fd, down_fd, -1, 0);
    if (!ring) close(up_fd), close(down_fd);
    return ring;
}

// *field from (name, "u8" | "i32" | "f32", dims[, choices]).
static bool parse_field(PyObject *item, struct farm_field_spec *field) {
    const char *name, *dtype;
    PyObject *dims;
    if (!PyTuple_Check(item) ||
        !PyArg_ParseTuple(item, "ssO!|I", &name, &dtype, &PyTuple_Type, &dims, &field->choices)) {
        PyErr_SetString(PyExc_TypeError, "an observation field is (name, dtype, (dim, ...), choices=0)");
        return false;
    }
    const Py_ssize_t rank = PyTuple_GET_SIZE(dims);
    field->dtype = FARM_F32;
    while (field->dtype && strcmp(dtype, dtype_names[field->dtype]) != 0) field->dtype--;
    if (!field->dtype || strlen(name) >= FARM_FIELD_NAME_MAX || rank < 1 || rank > FARM_FIELD_RANK_MAX) {
        PyErr_Format(PyExc_ValueError,
                     "observation field \"%s\": dtype u8, i32 or f32, 1 to %d dims, name below %d letters", name,
                     FARM_FIELD_RANK_MAX, FARM_FIELD_NAME_MAX);
        return false;
    }
    strcpy(field->name, name);
    field->rank = (uint32_t)rank;
    for (Py_ssize_t i = 0; i < rank; i++) {
        const unsigned long dim = PyLong_AsUnsignedLong(PyTuple_GET_ITEM(dims, i));
        if (PyErr_Occurred()) return false;
        field->dims[i] = dim > UINT32_MAX ? 0 : (uint32_t)dim; // farm_ring_create refuses 0
    }
    return true;
}

// Element i of the list dict[key]; 0 if it is missing.
static double read_number(PyObject *dict, const char *key, Py_ssize_t i) {
    PyObject *list = PyDict_GetItemString(dict, key); // borrowed
    PyObject *item = list && PyList_Check(list) && i < PyList_GET_SIZE(list) ? PyList_GET_ITEM(list, i) : NULL;
    return item ? PyFloat_AsDouble(item) : 0;
}

// *action from a number of discrete actions or a dict as in Ring.spec; farm_ring_create refuses invalid values.
static bool parse_action(PyObject *object, struct farm_action_spec *action) {
    *action = (struct farm_action_spec){.kind = FARM_ACTION_DISCRETE, .dims = 1};
    if (PyLong_Check(object)) {
        action->sizes[0] = (uint32_t)PyLong_AsUnsignedLong(object);
        return !PyErr_Occurred();
    }
    PyObject *kind = PyDict_Check(object) ? PyDict_GetItemString(object, "kind") : NULL;
    PyObject *dims = kind ? PyDict_GetItemString(object, "dims") : NULL;
    if (!dims || !PyUnicode_Check(kind)) {
        PyErr_SetString(PyExc_TypeError, "actions are a number, or a dict of kind, dims and sizes or low and high");
        return false;
    }
    action->kind = FARM_ACTION_CONTINUOUS;
    while (action->kind && PyUnicode_CompareWithASCIIString(kind, kind_names[action->kind])) action->kind--;
    action->dims = (uint32_t)PyLong_AsUnsignedLong(dims);
    for (uint32_t i = 0; i < action->dims && i < FARM_ACTION_DIMS_MAX; i++) {
        action->sizes[i] = (uint32_t)read_number(object, "sizes", i);
        action->low[i] = (float)read_number(object, "low", i);
        action->high[i] = (float)read_number(object, "high", i);
    }
    return !PyErr_Occurred();
}

PyObject *module_create(PyObject *module, PyObject *args, PyObject *keywords) {
    static char *names[] = {"lanes",           "width",     "steps",   "obs", "actions",
                            "frames_per_step", "same_step", "numbers", NULL};
    struct farm_ring_spec spec = {.env = {.frames_per_step = 1, .agents = 1}};
    const char *numbers = NULL;
    PyObject *obs, *actions;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "IIIOO|Ipz", names, &spec.lanes, &spec.width, &spec.steps, &obs,
                                     &actions, &spec.env.frames_per_step, &spec.autoreset, &numbers))
        return NULL;
    if (!parse_action(actions, &spec.env.action)) return NULL;
    PyObject *fields = PySequence_List(obs);
    if (!fields) return NULL;
    const Py_ssize_t count = PyList_GET_SIZE(fields);
    bool good = count <= FARM_OBS_FIELDS_MAX;
    if (!good) PyErr_Format(PyExc_ValueError, "%zd observation fields, at most %d", count, FARM_OBS_FIELDS_MAX);
    for (Py_ssize_t i = 0; good && i < count; i++) good = parse_field(PyList_GET_ITEM(fields, i), &spec.env.obs[i]);
    Py_DECREF(fields);
    if (!good) return NULL;
    spec.env.obs_count = (uint32_t)count;
    farm_ring_spec_answers(&spec);
    for (const char *at = numbers; at && *at; at += strcspn(at, ",") + (strchr(at, ',') != NULL))
        if (spec.number_count < FARM_CONTROL_NUMBERS_MAX) sscanf(at, "%23[^,]", spec.numbers[spec.number_count++]);
    if (numbers) farm_ring_spec_control(&spec);
    Ring *self = new_ring(SIDE_CREATOR);
    if (!self) return NULL;
    struct farm_error err = {0};
    if (farm_ring_create(&spec, 0, -1, false, &self->ring, &err)) {
        Py_DECREF(self);
        return raise_error(&err);
    }
    return (PyObject *)self;
}

// ---- both sides ----

// {"kind", "dims", and "sizes" or "low" and "high"}
static PyObject *action_dict(const struct farm_action_spec *action) {
    const bool continuous = action->kind == FARM_ACTION_CONTINUOUS;
    PyObject *first = PyList_New(action->dims), *second = PyList_New(action->dims);
    for (uint32_t i = 0; first && second && i < action->dims; i++) {
        PyList_SET_ITEM(first, i,
                        continuous ? PyFloat_FromDouble((double)action->low[i])
                                   : PyLong_FromUnsignedLong(action->sizes[i]));
        PyList_SET_ITEM(second, i, PyFloat_FromDouble((double)action->high[i]));
    }
    if (first && second && continuous)
        return Py_BuildValue("{sssIsNsN}", "kind", kind_names[action->kind], "dims", action->dims, "low", first, "high",
                             second);
    Py_XDECREF(second);
    return first && second
               ? Py_BuildValue("{sssIsN}", "kind", kind_names[action->kind], "dims", action->dims, "sizes", first)
               : NULL;
}

static PyObject *Ring_spec(PyObject *object, void *closure) {
    const struct farm_env_spec *env = &((Ring *)object)->ring.spec.env;
    PyObject *obs = PyList_New(0), *action = action_dict(&env->action);
    for (uint32_t f = 0; obs && f < env->obs_count; f++) {
        PyObject *dims = PyTuple_New(env->obs[f].rank);
        for (uint32_t i = 0; dims && i < env->obs[f].rank; i++)
            PyTuple_SET_ITEM(dims, i, PyLong_FromUnsignedLong(env->obs[f].dims[i]));
        PyObject *field =
            dims ? Py_BuildValue("{sssssNsI}", "name", env->obs[f].name, "dtype", dtype_names[env->obs[f].dtype],
                                 "dims", dims, "choices", env->obs[f].choices)
                 : NULL;
        if (!field || PyList_Append(obs, field)) Py_CLEAR(obs);
        Py_XDECREF(field);
    }
    if (obs && action)
        return Py_BuildValue("{sNsNsIsI}", "obs", obs, "action", action, "frames_per_step", env->frames_per_step,
                             "agents", env->agents);
    Py_XDECREF(obs);
    Py_XDECREF(action);
    return NULL;
}

static PyObject *Ring_counters(PyObject *object, PyObject *argument) {
    const struct farm_lane *lane = parse_lane((Ring *)object, argument);
    if (!lane) return NULL;
    __atomic_thread_fence(__ATOMIC_ACQUIRE); // a reader's copies come before
    const uint64_t consumed = farm_lane_consumed(lane),
                   acted = farm_lane_acted(lane); // in this order: consumed <= acted <= produced
    return Py_BuildValue("KKK", farm_lane_produced(lane), acted, consumed);
}

// ---- the actor ----

static PyObject *Ring_take_over(PyObject *object, PyObject *unused) {
    Ring *self = (Ring *)object;
    if (!check_side(self, SIDE_ACTOR)) return NULL;
    for (uint32_t l = 0; l < self->ring.spec.lanes; l++) farm_lane_actor_take_over(&self->ring.lanes[l]);
    farm_actor_notify(&self->ring, self->eventfd);
    farm_ring_populate(&self->ring); // meanwhile the learner answers a dead predecessor's steps
    return Py_NewRef(Py_None);
}

static PyObject *Ring_open_policy(PyObject *object, PyObject *args) {
    Ring *self = (Ring *)object, *own;
    int board_fd;
    unsigned actor, opponents = 0;
    if (!PyArg_ParseTuple(args, "iI|I", &board_fd, &actor, &opponents) || !check_side(self, SIDE_ACTOR)) return NULL;
    if (!opponents && (self->ring.spec.answers != FARM_ANSWERS_LOCAL || self->answered))
        return PyErr_Format(PyExc_ValueError, "the lanes have their answers from elsewhere");
    struct farm_error err = {0};
    enum farm_status status;
    if (!opponents && !(self->answered = calloc(self->ring.spec.lanes, sizeof *self->answered)))
        return PyErr_NoMemory();
    if (!(own = opponents ? new_ring(SIDE_ACTOR) : (Ring *)Py_NewRef(object))) return NULL;
    Py_BEGIN_ALLOW_THREADS;
    status = farm_local_open(board_fd, &self->ring, opponents, actor, &own->local, &err);
    Py_END_ALLOW_THREADS;
    if (!status && opponents && own->local) own->ring = *farm_local_opponents(own->local);
    if (!status) return (PyObject *)own;
    Py_DECREF(own);
    return raise_error(&err);
}

// LOCAL: answers the newest step of a lane that can go on, once.
static void answer_lane(Ring *self, uint32_t l) {
    const uint64_t next = farm_lane_actor_next(&self->ring.lanes[l]);
    if (!self->local || self->answered[l] == next) return;
    farm_local_answer(self->local, l, next - 1);
    self->answered[l] = next;
}

static PyObject *Ring_generation(PyObject *object, PyObject *argument) {
    const struct farm_lane *lane = parse_lane((Ring *)object, argument);
    return lane ? PyLong_FromUnsignedLongLong(farm_load_acquire(&lane->down->generation)) : NULL;
}

static PyObject *Ring_wait(PyObject *object, PyObject *const *args, Py_ssize_t count) {
    Ring *self = (Ring *)object;
    if (!check_count("wait", count, 0, 1) || !check_side(self, SIDE_ACTOR)) return NULL;
    const long last = count ? PyLong_AsLong(args[0]) : -1;
    if (last == -1 && PyErr_Occurred()) return NULL;
    const uint32_t lanes = self->ring.spec.lanes;
    uint32_t ready = last < 0 || last >= (long)lanes ? lanes - 1 : (uint32_t)last; // the search starts behind it
    for (;;) {
        bool go;
        if (farm_sigterm_caught()) return PyLong_FromLong(-1);
        Py_BEGIN_ALLOW_THREADS;
        go = farm_actor_wait(&self->ring, NULL, self->spin_ns, SLEEP_NS_MAX, &ready);
        if (go) answer_lane(self, ready);
        Py_END_ALLOW_THREADS;
        if (go) return PyLong_FromLong((long)ready);
        if (farm_load_relaxed(&self->ring.down_control->stop)) return PyLong_FromLong(-1);
        if (PyErr_CheckSignals()) return NULL;
    }
}

static PyObject *Ring_beat(PyObject *object, PyObject *unused) {
    if (!check_side((Ring *)object, SIDE_ACTOR)) return NULL;
    beat((Ring *)object, 1);
    return Py_NewRef(Py_None);
}

void keep_last(const struct farm_lane *lane, uint32_t env) {
    const uint64_t n = farm_lane_actor_next(lane);
    for (uint32_t f = 0; f < lane->obs_count; f++)
        memcpy(farm_lane_last(lane, f, n, env), farm_lane_obs(lane, f, n, env), lane->obs_bytes[f]);
}

bool set_step(const struct farm_lane *lane, uint32_t env, PyObject *const *args, Py_ssize_t at) {
    const double reward = PyFloat_AsDouble(args[at]);
    if (reward == -1 && PyErr_Occurred()) return false;
    const long long flags = parse_index(args[at + 1], "flags", FARM_STEP_ALL + 1);
    if (flags < 0) return false;
    farm_lane_reward(lane, farm_lane_actor_next(lane))[env] = (float)reward;
    farm_lane_flags(lane, farm_lane_actor_next(lane))[env] = (uint8_t)flags;
    if (lane->last[0] && (flags & (FARM_STEP_FIRST | FARM_STEP_LAST)) == FARM_STEP_LAST) keep_last(lane, env);
    return true;
}

static PyObject *Ring_set(PyObject *object, PyObject *const *args, Py_ssize_t count) {
    if (!check_count("set", count, 4, 4)) return NULL;
    const struct farm_lane *lane = parse_writable_lane((Ring *)object, args[0]);
    if (!lane) return NULL;
    const long long env = parse_index(args[1], "environment", lane->width);
    if (env < 0 || !set_step(lane, (uint32_t)env, args, 2)) return NULL;
    return Py_NewRef(Py_None);
}

// An array of a lane: [steps][width][dims].
static PyObject *array_view(Ring *self, const struct farm_lane *lane, void *start, bool writable, uint32_t dtype,
                            uint32_t rank, const uint32_t *dims) {
    uint32_t all[FARM_FIELD_RANK_MAX + 2] = {lane->steps, lane->width};
    memcpy(all + 2, dims, rank * sizeof *dims);
    return make_view(self, start, writable, dtype, (int)rank + 2, all);
}

// The observation fields in at[], of which there are `steps` steps; without those that are NULL.
static PyObject *observation_views(Ring *self, const struct farm_lane *lane, uint8_t *const *at, uint32_t steps) {
    PyObject *list = PyList_New(0);
    for (uint32_t f = 0; list && f < lane->obs_count && at[f]; f++) {
        const struct farm_field_spec *field = &self->ring.spec.env.obs[f];
        uint32_t all[FARM_FIELD_RANK_MAX + 2] = {steps, lane->width};
        memcpy(all + 2, field->dims, field->rank * sizeof *all);
        PyObject *view = make_view(self, at[f], self->side == SIDE_ACTOR, field->dtype, (int)field->rank + 2, all);
        if (!view || PyList_Append(list, view)) Py_CLEAR(list);
        Py_XDECREF(view);
    }
    return list;
}

static PyObject *Ring_arrays(PyObject *object, PyObject *argument) {
    Ring *self = (Ring *)object;
    const bool writes = self->side == SIDE_ACTOR;
    const struct farm_lane *lane = parse_lane(self, argument);
    if (!lane) return NULL;
    const struct farm_env_spec *env = &self->ring.spec.env;
    const uint32_t action_dtype = env->action.kind == FARM_ACTION_CONTINUOUS ? FARM_F32 : FARM_I32;
    const uint32_t action_rank = env->action.dims > 1 || action_dtype == FARM_F32;
    const uint32_t outputs = farm_policy_outputs(&env->action);
    const struct farm_answer_array *answer = lane->answer;
    return Py_BuildValue(
        "NNNNNNN", observation_views(self, lane, lane->obs, lane->steps),
        array_view(self, lane, lane->reward, writes, FARM_F32, 0, &lane->width),
        array_view(self, lane, lane->flags, writes, FARM_U8, 0, &lane->width),
        array_view(self, lane, answer[FARM_ANSWER_ACTION].at, false, action_dtype, action_rank, &env->action.dims),
        array_view(self, lane, answer[FARM_ANSWER_POLICY].at, false, FARM_F32, 1, &outputs),
        array_view(self, lane, answer[FARM_ANSWER_VALUE].at, false, FARM_F32, 0, &outputs),
        observation_views(self, lane, lane->last, 2));
}

static PyObject *Ring_next(PyObject *object, PyObject *argument) {
    const struct farm_lane *lane = parse_writable_lane((Ring *)object, argument);
    return lane ? PyLong_FromUnsignedLongLong(farm_lane_actor_next(lane)) : NULL;
}

static PyObject *Ring_resets(PyObject *object, PyObject *argument) {
    Ring *self = (Ring *)object;
    const struct farm_lane *lane = check_side(self, SIDE_ACTOR) ? parse_lane(self, argument) : NULL;
    PyObject *resets = lane ? PyList_New(0) : NULL;
    for (uint32_t e = 0; resets && e < lane->width; e++) {
        const uint64_t *words = farm_lane_reset(lane, farm_lane_actor_next(lane), e);
        PyObject *numbers = words ? PyDict_New() : NULL;
        for (uint32_t i = 0; numbers && i < self->ring.spec.number_count; i++) {
            double number;
            memcpy(&number, &words[FARM_CONTROL_NUMBERS + i], sizeof number);
            PyObject *item = PyFloat_FromDouble(number);
            if (!item || (!isnan(number) && PyDict_SetItemString(numbers, self->ring.spec.numbers[i], item)))
                Py_CLEAR(numbers);
            Py_XDECREF(item);
        }
        if (!words) continue;
        const bool seeded = words[FARM_CONTROL_DO] & FARM_CONTROL_RESEED;
        PyObject *seed = seeded ? PyLong_FromUnsignedLongLong(words[FARM_CONTROL_SEED]) : Py_NewRef(Py_None);
        PyObject *reset = Py_BuildValue("INN", e, seed, numbers);
        if (!reset || PyList_Append(resets, reset)) Py_CLEAR(resets);
        Py_XDECREF(reset);
    }
    return resets;
}

static PyObject *Ring_numbers(PyObject *object, void *closure) {
    const struct farm_ring_spec *spec = &((Ring *)object)->ring.spec;
    if (!farm_ring_spec_find(spec, "control")) return Py_NewRef(Py_None);
    PyObject *names = PyList_New(0);
    for (uint32_t i = 0; names && i < spec->number_count; i++) {
        PyObject *name = PyUnicode_FromString(spec->numbers[i]);
        if (!name || PyList_Append(names, name)) Py_CLEAR(names);
        Py_XDECREF(name);
    }
    return names;
}

void beat(Ring *self, uint32_t calls) {
    uint64_t *heartbeat = &self->ring.up_control->heartbeat;
    farm_store_relaxed(heartbeat, farm_load_relaxed(heartbeat) + calls);
}

void publish_step(Ring *self, struct farm_lane *lane) {
    if (self->local && !self->answered) {
        farm_local_play(self->local, (uint32_t)(lane - self->ring.lanes));
    } else {
        farm_lane_actor_publish(lane);
        farm_actor_notify(&self->ring, self->eventfd);
    }
}

static PyObject *Ring_publish(PyObject *object, PyObject *argument) {
    Ring *self = (Ring *)object;
    struct farm_lane *lane = parse_writable_lane(self, argument);
    if (!lane) return NULL;
    beat(self, lane->width);
    publish_step(self, lane);
    return Py_NewRef(Py_None);
}

// ---- the side that answers ----

static PyObject *Ring_fds(PyObject *object, PyObject *unused) {
    const struct farm_ring *ring = &((Ring *)object)->ring;
    if (!check_side((Ring *)object, SIDE_CREATOR)) return NULL;
    const int from[4] = {ring->up.fd, ring->down.fd_readonly, ring->up.fd_readonly, ring->down.fd};
    int fds[4], made = 0;
    while (made < 4 && (fds[made] = fcntl(from[made], F_DUPFD_CLOEXEC, 3)) >= 0) made++;
    if (made == 4) return Py_BuildValue("(ii)(ii)", fds[0], fds[1], fds[2], fds[3]);
    PyErr_SetFromErrno(PyExc_OSError);
    while (made > 0) close(fds[--made]);
    return NULL;
}

static PyObject *Ring_answer(PyObject *object, PyObject *const *args, Py_ssize_t count) {
    Ring *self = (Ring *)object;
    Py_buffer actions, control = {.buf = NULL};
    if (!check_count("answer", count, 2, 3) || !check_side(self, SIDE_LEARNER)) return NULL;
    struct farm_lane *lane = parse_lane(self, args[0]);
    if (!lane) return NULL;
    const uint64_t n = farm_lane_acted(lane);
    if (lane->local || farm_lane_produced(lane) <= n)
        return PyErr_Format(PyExc_RuntimeError, "every published step has its answer");
    if (count > 2 && PyObject_GetBuffer(args[2], &control, PyBUF_C_CONTIGUOUS)) return NULL;
    if (PyObject_GetBuffer(args[1], &actions, PyBUF_C_CONTIGUOUS)) return PyBuffer_Release(&control), NULL;
    const size_t bytes = lane->width * lane->answer[FARM_ANSWER_ACTION].bytes,
                 control_bytes = lane->control ? lane->width * lane->answer[lane->control].bytes : 0;
    const bool fits = (size_t)actions.len == bytes && (!control.buf || (size_t)control.len == control_bytes);
    if (fits) memcpy(farm_lane_action(lane, n, 0), actions.buf, bytes);
    if (fits && control.buf) memcpy(farm_lane_answer_at(lane, lane->control, n, 0), control.buf, control_bytes);
    if (fits && !control.buf && lane->control) memset(farm_lane_answer_at(lane, lane->control, n, 0), 0, control_bytes);
    PyBuffer_Release(&actions);
    PyBuffer_Release(&control);
    if (!fits) return PyErr_Format(PyExc_ValueError, "the actions of a step of this lane are %zu bytes", bytes);
    farm_lane_answer(lane, n);
    farm_learner_notify(&self->ring);
    return Py_NewRef(Py_None);
}

static PyObject *Ring_release(PyObject *object, PyObject *const *args, Py_ssize_t count) {
    Ring *self = (Ring *)object;
    if (!check_count("release", count, 2, 2) || !check_side(self, SIDE_LEARNER)) return NULL;
    struct farm_lane *lane = parse_lane(self, args[0]);
    if (!lane) return NULL;
    const uint64_t n = PyLong_AsUnsignedLongLong(args[1]);
    if (PyErr_Occurred()) return NULL;
    if (n < farm_lane_consumed(lane) || n > farm_lane_produced(lane))
        return PyErr_Format(PyExc_ValueError, "only published steps can be released, each once");
    farm_lane_release(lane, n);
    farm_learner_notify(&self->ring);
    return Py_NewRef(Py_None);
}

static PyObject *Ring_stop(PyObject *object, PyObject *unused) {
    Ring *self = (Ring *)object;
    if (self->side != SIDE_CREATOR && !check_side(self, SIDE_LEARNER)) return NULL;
    farm_store_release(&self->ring.down_control->stop, 1);
    farm_learner_notify(&self->ring);
    return Py_NewRef(Py_None);
}

static PyMethodDef Ring_methods[] = {
    {"counters", Ring_counters, METH_O, "counters(lane) -> (produced, acted, consumed)"},
    {"generation", Ring_generation, METH_O, "generation(lane) -> number of earlier actors of this lane"},
    {"take_over", Ring_take_over, METH_NOARGS, "Actor: takes over all lanes; the next step of each is FIRST"},
    {"wait", FAST(Ring_wait), "wait(last=-1) -> the next lane after `last` whose next step can be written; -1: stop"},
    {"open_policy", Ring_open_policy, METH_VARARGS,
     "open_policy(board_fd, actor): LOCAL lanes: from here on wait() computes the actions of the lane that it returns, "
     "with the parameters of the board, whose descriptor it owns. Waits until the learner has published some.\n"
     "open_policy(board_fd, actor, rows) -> Ring of as many lanes, in this process, with the rows of agents that the "
     "board's policy plays: publish() of a step answers it. Its steps have the numbers of this ring's"},
    {"beat", Ring_beat, METH_NOARGS, "Actor: an environment was made, or reset before its step is published"},
    {"resets", Ring_resets, METH_O,
     "resets(lane) -> [(env, seed or None, {name: number, ...}), ...]: environments to reset with the next step"},
    {"set", FAST(Ring_set),
     "set(lane, env, reward, flags) of the next step. With same-step resets: LAST alone, which keeps "
     "the observation; then again with FIRST for the next episode's first one"},
    {"next", Ring_next, METH_O, "next(lane) -> number of the next step, which can be written"},
    {"arrays", Ring_arrays, METH_O,
     "arrays(lane) -> ([obs, ...], reward, flags, action, policy, value, [last, ...]), memoryviews [steps][width]...; "
     "step n is row n % steps, of last n % 2. An actor writes step next(), and reads the answer to the one before"},
    {"publish", Ring_publish, METH_O, "publish(lane): publishes the next step and wakes a sleeping learner"},
    {"atari", Ring_atari, METH_O, "atari(height): sets the frames of commit(): height x 160 palette indices"},
    {"commit", FAST(Ring_commit),
     "commit(lane, env, frame_a, frame_b, reward, flags): writes the maximum of both frames (frame_b may be None), "
     "grey, 84x84, into the next step's observation; sets reward and flags"},
    {"fds", Ring_fds, METH_NOARGS, "Creator: ((up, down) for attach, (up, down) for open_learner), new descriptors"},
    {"answer", FAST(Ring_answer), "answer(lane, actions[, control]): answers the oldest unanswered step"},
    {"release", FAST(Ring_release), "release(lane, n): allows steps before n to be overwritten"},
    {"stop", Ring_stop, METH_NOARGS, "Ends the actor after its current step"},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef Ring_attributes[] = {{"spec", Ring_spec, NULL, "dict: obs, action, frames_per_step", NULL},
                                        {"numbers", Ring_numbers, NULL,
                                         "names of the numbers that resets() may have; None: there are no such resets",
                                         NULL},
                                        {NULL, NULL, NULL, NULL, NULL}};
static PyMemberDef Ring_members[] = {
    {"lanes", T_UINT, offsetof(Ring, ring.spec.lanes), READONLY, "lanes of this actor"},
    {"width", T_UINT, offsetof(Ring, ring.spec.width), READONLY, "environments per lane"},
    {"steps", T_UINT, offsetof(Ring, ring.spec.steps), READONLY, "steps per lane"},
    {"same_step", T_UINT, offsetof(Ring, ring.spec.autoreset), READONLY, "1: same-step resets (farm/step.h)"},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot Ring_slots[] = {{Py_tp_dealloc, Ring_dealloc},
                                   {Py_tp_methods, Ring_methods},
                                   {Py_tp_getset, Ring_attributes},
                                   {Py_tp_members, Ring_members},
                                   {Py_tp_doc, "The lanes of one actor, from one side."},
                                   {0, NULL}};
PyType_Spec Ring_definition = {.name = "actorfarm._farm.Ring",
                               .basicsize = sizeof(Ring),
                               .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
                               .slots = Ring_slots};

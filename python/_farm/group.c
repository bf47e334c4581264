// Group: the Gymnasium environments of one lane. step() steps single environments in turn, write() takes the answer of
// a vector environment; both pack the lane's next step where it lies and publish it. gym_spaces.py compiles a space
// into parts: which value of an observation goes where. A value that this file cannot read (a list, another byte order,
// f16), or that is outside its space, goes to gym_spaces.py, which converts it or raises BrokenContract.
#include "python/_farm/module.h"

#include <stdlib.h>
#include <structmember.h>

#include "base/number.h"
#include "farm/step.h"
#include "kernels/head.h"

enum {
    RANK_MAX = 8, // gym_spaces.py converts values of a higher rank
    END_TERMINATED = FARM_STEP_LAST | FARM_STEP_TERMINATED | FARM_STEP_GAME_END,
    END_TRUNCATED = FARM_STEP_LAST | FARM_STEP_TRUNCATED | FARM_STEP_GAME_END,
    ONE = -1, // for `rows`: one value, no batch
};

struct choice {
    int64_t start, count;
};

// A value of an observation: an array of numbers, or whole numbers of known ranges, which are written counted from 0
// into i32 and u8, one-hot into f32.
struct part {
    PyObject *path;   // tuple of the keys that lead to it
    PyObject *read;   // None, or converts a value to an array of `dims`: read(value), or read(value, rows) of a batch
    uint8_t *into;    // where step 0 of environment 0 goes
    size_t row_bytes; // from one environment to the next
    uint32_t dtype;   // the field's
    int rank;         // the value's
    Py_ssize_t dims[RANK_MAX];
    size_t count, size;     // numbers read, numbers written
    struct choice *choices; // [count]; NULL: an array of numbers
};

struct single {
    PyObject *step, *reset, *seed; // seed None: used; the environment continues with its generator
};

typedef struct {
    PyObject_HEAD Ring *ring;
    struct farm_lane *lane;
    PyObject *convert, *invalid; // invalid None: the learner handles invalid numbers
    struct part *parts;
    struct single *singles; // [lane->width]; NULL: a vector environment
    bool *ended;            // [lane->width]: the next step is FIRST
    uint32_t part_count;
    unsigned at; // the environment that is stepped
    int resets;  // an episode with invalid numbers is abandoned
    int mask;    // observation field of action masks (kernels/head.h), or -1
} Group;

// ---- packing ----

// The type of a buffer's numbers as one letter: b, B, i, l, f, d; 0: another one.
static char letter_of(const Py_buffer *buffer) {
    const char *format = buffer->format ? buffer->format : "B";
    if (!format[0] || format[1]) return 0;
    return strchr("bBilfd", format[0]) ? format[0] : format[0] == '?' ? 'B' : 0;
}

// into[0..count) = from[0..count), which may be unaligned.
#define CAST(dtype, To, letter, From)                                                                                  \
    case (dtype) << 8 | (letter):                                                                                      \
        for (size_t i = 0; i < count; i++) {                                                                           \
            From number;                                                                                               \
            memcpy(&number, (const uint8_t *)from + i * sizeof number, sizeof number);                                 \
            ((To *)into)[i] = (To)number;                                                                              \
        }                                                                                                              \
        return true

// False: a rare conversion, or one that NumPy's casting "same_kind" forbids.
static bool cast(char letter, const void *from, size_t count, uint32_t dtype, void *into) {
    static const char letters[] = {[FARM_U8] = 'B', [FARM_I32] = 'i', [FARM_F32] = 'f'};
    if (letter == letters[dtype]) {
        memcpy(into, from, count * farm_dtype_bytes(dtype));
        return true;
    }
    switch (dtype << 8 | (uint32_t)letter) {
        CAST(FARM_F32, float, 'd', double);
        CAST(FARM_F32, float, 'l', int64_t);
        CAST(FARM_F32, float, 'i', int32_t);
        CAST(FARM_F32, float, 'B', uint8_t);
        CAST(FARM_I32, int32_t, 'l', int64_t);
    default:
        return false;
    }
}

static bool read_whole(char letter, const void *from, size_t i, int64_t *number) {
    int32_t number32;
    if (letter == 'l')
        memcpy(number, (const uint8_t *)from + i * sizeof *number, sizeof *number);
    else if (letter == 'i')
        memcpy(&number32, (const uint8_t *)from + i * sizeof number32, sizeof number32), *number = number32;
    else if (letter == 'b' || letter == 'B')
        *number = letter == 'b' ? ((const int8_t *)from)[i] : ((const uint8_t *)from)[i];
    else
        return false;
    return true;
}

static bool write_choices(const struct part *part, char letter, const void *from, void *into) {
    float *one_hot = into;
    if (part->dtype == FARM_F32) memset(into, 0, part->size * sizeof *one_hot);
    for (size_t i = 0; i < part->count; one_hot += part->choices[i++].count) {
        int64_t number;
        if (!read_whole(letter, from, i, &number)) return false;
        const uint64_t chosen = (uint64_t)number - (uint64_t)part->choices[i].start;
        if (chosen >= (uint64_t)part->choices[i].count) return false;
        if (part->dtype == FARM_F32)
            one_hot[chosen] = 1;
        else if (part->dtype == FARM_I32)
            ((int32_t *)into)[i] = (int32_t)chosen;
        else
            ((uint8_t *)into)[i] = (uint8_t)chosen;
    }
    return true;
}

static bool has_shape(const struct part *part, const Py_buffer *buffer, Py_ssize_t rows) {
    const int batch = rows != ONE;
    bool equal = part->rank <= RANK_MAX && buffer->ndim == part->rank + batch && (!batch || buffer->shape[0] == rows);
    for (int i = 0; equal && i < part->rank; i++) equal = buffer->shape[i + batch] == part->dims[i];
    return equal;
}

// False, perhaps with an exception set: this file cannot read the value, or it is outside its space.
static bool write_part(const struct part *part, PyObject *value, Py_ssize_t rows, void *into) {
    if (part->choices && part->rank == 0 && rows == ONE && PyIndex_Check(value)) { // int, numpy.int64
        const int64_t number = PyNumber_AsSsize_t(value, PyExc_OverflowError);
        return !(number == -1 && PyErr_Occurred()) && write_choices(part, 'l', &number, into);
    }
    Py_buffer buffer;
    if (PyObject_GetBuffer(value, &buffer, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT)) return false;
    const Py_ssize_t values = rows == ONE ? 1 : rows;
    const bool dense = !part->choices && part->count * farm_dtype_bytes(part->dtype) == part->row_bytes;
    const Py_ssize_t joined = dense ? values : 1; // values that follow each other on both sides
    const size_t count = part->count * (size_t)joined;
    bool good = has_shape(part, &buffer, rows);
    for (Py_ssize_t v = 0; good && v < values; v += joined) {
        const void *from = (const uint8_t *)buffer.buf + (size_t)v * part->count * (size_t)buffer.itemsize;
        void *row = (uint8_t *)into + (size_t)v * part->row_bytes;
        good = part->choices ? write_choices(part, letter_of(&buffer), from, row)
                             : cast(letter_of(&buffer), from, count, part->dtype, row);
    }
    PyBuffer_Release(&buffer);
    return good;
}

static bool find_and_write(const struct part *part, PyObject *observation, Py_ssize_t rows, void *into) {
    PyObject *value = Py_NewRef(observation);
    for (Py_ssize_t k = 0; value && k < PyTuple_GET_SIZE(part->path); k++)
        Py_SETREF(value, PyObject_GetItem(value, PyTuple_GET_ITEM(part->path, k)));
    if (value && part->read != Py_None)
        Py_SETREF(value, rows == ONE ? PyObject_CallOneArg(part->read, value)
                                     : PyObject_CallFunction(part->read, "On", value, rows));
    const bool good = value && write_part(part, value, rows, into);
    Py_XDECREF(value);
    return good;
}

// Writes environment `env` of the next step, or a batch of all environments.
static bool write_observation(const Group *self, uint32_t env, Py_ssize_t rows, PyObject *observation) {
    const struct farm_lane *lane = self->lane;
    const size_t row = farm_lane_slot(lane, farm_lane_actor_next(lane)) * lane->width + env;
    const struct part *part = self->parts, *const end = part + self->part_count;
    while (part < end && find_and_write(part, observation, rows, part->into + row * part->row_bytes)) part++;
    if (part == end) return true;
    PyErr_Clear();
    PyObject *all = rows == ONE ? PyObject_CallOneArg(self->convert, observation)
                                : PyObject_CallFunction(self->convert, "On", observation, rows);
    if (!all) return false;
    for (part = self->parts; part < end && PyList_Check(all) && part - self->parts < PyList_GET_SIZE(all); part++)
        if (!write_part(part, PyList_GET_ITEM(all, part - self->parts), rows, part->into + row * part->row_bytes))
            break;
    Py_DECREF(all);
    if (part < end && !PyErr_Occurred()) PyErr_SetString(PyExc_SystemError, "convert() returns other arrays");
    return part == end;
}

// Whether the next step of these environments has no invalid number, and its masks permit a choice before an end.
static bool is_valid(const Group *self, uint32_t env, uint32_t count) {
    const struct farm_lane *lane = self->lane;
    const uint64_t n = farm_lane_actor_next(lane);
    bool valid = farm_numbers_sensible(farm_lane_reward(lane, n) + env, count);
    for (uint32_t f = 0; valid && f < lane->obs_count; f++)
        for (uint32_t e = env; valid && e < env + count; e++)
            valid = farm_field_is_valid(&self->ring->ring.spec.env.obs[f], farm_lane_obs(lane, f, n, e));
    for (uint32_t e = env; valid && e < env + count && self->mask >= 0; e++)
        valid = farm_lane_flags(lane, n)[e] & FARM_STEP_LAST ||
                farm_head_mask_blocked(&self->ring->ring.spec.env.action,
                                       farm_lane_obs(lane, (unsigned)self->mask, n, e)) < 0;
    return valid;
}

static PyObject *publish_group(Group *self) {
    publish_step(self->ring, self->lane);
    return Py_NewRef(Py_None);
}

// ---- single environments ----

// The result of reset() or step(), which it takes, as a tuple of `count` values.
static PyObject *unpack(PyObject *result, Py_ssize_t count) {
    if (PyList_Check(result)) Py_SETREF(result, PyList_AsTuple(result));
    if (!result || (PyTuple_Check(result) && PyTuple_GET_SIZE(result) == count)) return result;
    const char *const names = count == 2 ? "reset() that is not (observation, info)"
                                         : "step() that is not (observation, reward, terminated, truncated, info)";
    if (PyTuple_Check(result))
        PyErr_Format(BrokenContract, "a result of %s but has %zd values", names, PyTuple_GET_SIZE(result));
    else
        PyErr_Format(BrokenContract, "a result of %s but %s", names, TYPE_NAME(result));
    Py_DECREF(result);
    return NULL;
}

static PyObject *start_episode(struct single *single) {
    PyObject *names = Py_BuildValue("(s)", "seed");
    PyObject *result = names ? PyObject_Vectorcall(single->reset, &single->seed, 0, names) : NULL;
    Py_XDECREF(names);
    if (result) Py_SETREF(single->seed, Py_NewRef(Py_None));
    return result ? unpack(result, 2) : NULL;
}

static PyObject *step_single(const struct single *single, PyObject *actions, uint32_t i) {
    PyObject *action = PySequence_GetItem(actions, i);
    PyObject *result = action ? PyObject_CallOneArg(single->step, action) : NULL;
    Py_XDECREF(action);
    return result ? unpack(result, 5) : NULL;
}

static bool read_end(PyObject *values, double *reward, uint8_t *flags) {
    PyObject *number = PyTuple_GET_ITEM(values, 1);
    *reward = PyFloat_AsDouble(number);
    if (*reward == -1 && PyErr_Occurred()) {
        if (PyErr_ExceptionMatches(PyExc_TypeError))
            PyErr_Format(BrokenContract, "a reward that is not a number but %s%s", TYPE_NAME(number),
                         PySequence_Check(number) ? " (--wrap PACKAGE:WRAPPER can make one number of it)" : "");
        return false;
    }
    const int terminated = PyObject_IsTrue(PyTuple_GET_ITEM(values, 2)),
              truncated = terminated ? 0 : PyObject_IsTrue(PyTuple_GET_ITEM(values, 3));
    *flags = terminated ? END_TERMINATED : truncated ? END_TRUNCATED : 0;
    return terminated >= 0 && truncated >= 0;
}

// Steps environment i, or resets it, and writes its part of the lane's next step; same-step resets: both at an end.
static bool play_single(Group *self, PyObject *actions, uint32_t i) {
    const bool starts = self->ended[i];
    PyObject *values = starts ? start_episode(&self->singles[i]) : step_single(&self->singles[i], actions, i);
    double reward = 0;
    uint8_t flags = FARM_STEP_FIRST;
    const bool good = values && write_observation(self, i, ONE, PyTuple_GET_ITEM(values, 0)) &&
                      (starts || read_end(values, &reward, &flags));
    Py_XDECREF(values);
    if (!good) return false;
    beat(self->ring, 1);
    const uint64_t n = farm_lane_actor_next(self->lane);
    self->ended[i] = flags & FARM_STEP_LAST;
    farm_lane_reward(self->lane, n)[i] = (float)reward;
    farm_lane_flags(self->lane, n)[i] = flags;
    if (self->invalid == Py_None || is_valid(self, i, 1)) {
        if (!self->ended[i] || !self->lane->last[0]) return true;
        keep_last(self->lane, i);
        if (!play_single(self, actions, i)) return false;
        farm_lane_reward(self->lane, n)[i] = (float)reward;
        farm_lane_flags(self->lane, n)[i] |= flags;
        return true;
    }
    if (self->resets && !starts) {
        uint64_t *abandoned = &self->ring->ring.up_control->abandoned;
        farm_store_relaxed(abandoned, farm_load_relaxed(abandoned) + 1);
        self->ended[i] = true;
        return play_single(self, actions, i);
    }
    PyErr_SetObject(BrokenContract, self->invalid);
    return false;
}

static PyObject *Group_step(PyObject *object, PyObject *actions) {
    Group *self = (Group *)object;
    if (!self->singles) return PyErr_Format(PyExc_TypeError, "this group has no single environments");
    if (!check_writable(self->ring, self->lane)) return NULL;
    for (self->at = 0; self->at < self->lane->width; self->at++)
        if (!play_single(self, actions, self->at)) return NULL;
    return publish_group(self);
}

static PyObject *Group_restart(PyObject *object, PyObject *const *args, Py_ssize_t count) {
    Group *self = (Group *)object;
    const long long env =
        check_count("restart", count, 3, 3) ? parse_index(args[0], "environment", self->lane->width) : -1;
    if (env < 0) return NULL;
    self->ended[env] = true;
    if (self->singles && args[1] != Py_None) Py_SETREF(self->singles[env].seed, Py_NewRef(args[1]));
    if (self->singles) Py_SETREF(self->singles[env].reset, Py_NewRef(args[2]));
    return Py_NewRef(Py_None);
}

// ---- a vector environment ----

// The buffer of an array of `count` numbers; BrokenContract if it is another.
static bool get_numbers(PyObject *object, char letter, uint32_t count, Py_buffer *buffer) {
    if (PyObject_GetBuffer(object, buffer, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT)) return false;
    if (letter_of(buffer) == letter && buffer->ndim == 1 && buffer->shape[0] == count) return true;
    PyErr_Format(BrokenContract, "rewards or ends that fit no group of %u", count);
    PyBuffer_Release(buffer);
    return false;
}

static bool write_ends(Group *self, PyObject *const *arrays, int count) {
    static const char letters[4] = {'f', 'B', 'B', 'B'};
    const uint32_t width = self->lane->width;
    float *const reward = farm_lane_reward(self->lane, farm_lane_actor_next(self->lane));
    uint8_t *const flags = farm_lane_flags(self->lane, farm_lane_actor_next(self->lane));
    Py_buffer buffers[4] = {{.buf = NULL}};
    int got = 0;
    while (got < count && get_numbers(arrays[got], letters[got], width, &buffers[got])) got++;
    const float *rewards = buffers[0].buf;
    const bool *done = buffers[1].buf, *truncated = buffers[2].buf, *over = buffers[3].buf;
    for (uint32_t i = 0; got == count && i < width; i++) {
        const bool starts = self->ended[i];
        uint8_t end = done[i] ? END_TERMINATED : truncated[i] && !over ? END_TRUNCATED : 0;
        if (over && end) end = truncated[i] ? END_TRUNCATED : over[i] ? end : end & ~FARM_STEP_GAME_END;
        flags[i] = starts ? FARM_STEP_FIRST : end;
        reward[i] = starts ? 0 : rewards[i];
        self->ended[i] = !starts && end;
    }
    for (int b = 0; b < got; b++) PyBuffer_Release(&buffers[b]);
    return got == count;
}

static PyObject *Group_write(PyObject *object, PyObject *const *args, Py_ssize_t count) {
    Group *self = (Group *)object;
    const uint32_t width = self->lane->width;
    if (!check_count("write", count, 4, 5) || !check_writable(self->ring, self->lane)) return NULL;
    if (!write_ends(self, args + 1, (int)count - 1) || !write_observation(self, 0, width, args[0])) return NULL;
    if (self->invalid == Py_None || self->resets || is_valid(self, 0, width)) {
        beat(self->ring, width);
        return publish_group(self);
    }
    PyErr_SetObject(BrokenContract, self->invalid);
    return NULL;
}

// ---- the type ----

static bool parse_choices(PyObject *choices, struct part *part) {
    part->choices = calloc(part->count, sizeof *part->choices);
    if (!part->choices) return PyErr_NoMemory();
    if (!PyList_Check(choices) || (size_t)PyList_GET_SIZE(choices) != part->count)
        return PyErr_Format(PyExc_ValueError, "choices are a list of (start, count), one per number");
    if (part->dtype == FARM_F32) part->size = 0;
    for (size_t i = 0; i < part->count; i++) {
        long long start, number;
        if (!PyArg_ParseTuple(PyList_GET_ITEM(choices, (Py_ssize_t)i), "LL", &start, &number)) return false;
        part->choices[i] = (struct choice){start, number};
        if (part->dtype == FARM_F32) part->size += number > 0 ? (size_t)number : 0;
    }
    return true;
}

// *part from (path, field, offset, shape, choices, read).
static bool parse_part(const Group *self, PyObject *item, struct part *part) {
    const struct farm_lane *lane = self->lane;
    unsigned field, offset;
    PyObject *path, *shape, *choices, *read;
    if (!PyTuple_Check(item)) return PyErr_Format(PyExc_TypeError, "a part is a tuple");
    if (!PyArg_ParseTuple(item, "O!IIO!OO", &PyTuple_Type, &path, &field, &offset, &PyTuple_Type, &shape, &choices,
                          &read))
        return false;
    part->path = Py_NewRef(path);
    part->read = Py_NewRef(read);
    part->rank = (int)PyTuple_GET_SIZE(shape);
    part->count = 1;
    for (int i = 0; i < part->rank; i++) {
        const Py_ssize_t dim = PyLong_AsSsize_t(PyTuple_GET_ITEM(shape, i));
        if (dim == -1 && PyErr_Occurred()) return false;
        if (i < RANK_MAX) part->dims[i] = dim;
        part->count *= (size_t)dim;
    }
    part->size = part->count;
    part->dtype = field < lane->obs_count ? self->ring->ring.spec.env.obs[field].dtype : FARM_F32;
    if (choices != Py_None && !parse_choices(choices, part)) return false;
    const size_t item_bytes = farm_dtype_bytes(part->dtype);
    if (field >= lane->obs_count || (offset + part->size) * item_bytes > lane->obs_bytes[field])
        return PyErr_Format(PyExc_ValueError, "part %R exceeds the lane's fields", item);
    part->row_bytes = lane->obs_bytes[field];
    part->into = lane->obs[field] + offset * item_bytes;
    return true;
}

static bool parse_parts(Group *self, PyObject *parts) {
    self->parts = calloc((size_t)PyList_GET_SIZE(parts), sizeof *self->parts);
    if (!self->parts) return PyErr_NoMemory();
    while (self->part_count < PyList_GET_SIZE(parts)) {
        const uint32_t p = self->part_count++;
        if (!parse_part(self, PyList_GET_ITEM(parts, p), &self->parts[p])) return false;
    }
    return true;
}

static bool parse_singles(Group *self, PyObject *singles) {
    const uint32_t width = self->lane->width;
    self->ended = malloc(width);
    self->singles = singles == Py_None ? NULL : calloc(width, sizeof *self->singles);
    if (!self->ended || (singles != Py_None && !self->singles)) return PyErr_NoMemory();
    memset(self->ended, true, width);
    if (!self->singles) return true;
    if (!PyList_Check(singles) || PyList_GET_SIZE(singles) != width)
        return PyErr_Format(PyExc_ValueError, "%u environments are needed", width);
    for (uint32_t i = 0; i < width; i++) {
        struct single *single = &self->singles[i];
        if (!PyArg_ParseTuple(PyList_GET_ITEM(singles, i), "OOO", &single->step, &single->reset, &single->seed)) {
            *single = (struct single){NULL, NULL, NULL};
            return false;
        }
        Py_INCREF(single->step);
        Py_INCREF(single->reset);
        Py_INCREF(single->seed);
    }
    return true;
}

static PyObject *Group_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    static char *names[] = {"ring", "lane", "parts", "convert", "singles", "invalid", "resets", NULL};
    PyObject *ring, *lane, *parts, *convert, *singles, *invalid;
    int resets;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "O!OO!OOOp", names, Ring_type, &ring, &lane, &PyList_Type, &parts,
                                     &convert, &singles, &invalid, &resets))
        return NULL;
    struct farm_lane *of = check_side((Ring *)ring, SIDE_ACTOR) ? parse_lane((Ring *)ring, lane) : NULL;
    Group *self = of ? (Group *)PyType_GenericAlloc(type, 0) : NULL; // zeroed
    if (!self) return NULL;
    self->ring = (Ring *)Py_NewRef(ring);
    self->lane = of;
    self->convert = Py_NewRef(convert);
    self->invalid = Py_NewRef(invalid);
    if (farm_head_mask_field(&self->ring->ring.spec.env, &self->mask, NULL)) self->mask = -1; // the learner refuses it
    self->resets = resets;
    if (parse_parts(self, parts) && parse_singles(self, singles)) return (PyObject *)self;
    Py_DECREF(self);
    return NULL;
}

static void Group_dealloc(PyObject *object) {
    Group *self = (Group *)object;
    for (uint32_t p = 0; p < self->part_count; p++) {
        Py_XDECREF(self->parts[p].path);
        Py_XDECREF(self->parts[p].read);
        free(self->parts[p].choices);
    }
    for (uint32_t i = 0; self->singles && i < self->lane->width; i++) {
        Py_XDECREF(self->singles[i].step);
        Py_XDECREF(self->singles[i].reset);
        Py_XDECREF(self->singles[i].seed);
    }
    free(self->parts);
    free(self->singles);
    free(self->ended);
    Py_XDECREF(self->convert);
    Py_XDECREF(self->invalid);
    Py_XDECREF((PyObject *)self->ring);
    free_object(object);
}

static PyMethodDef Group_methods[] = {
    {"step", Group_step, METH_O,
     "step(actions): steps or resets each environment and publishes the lane's next step. Their exceptions pass; `at` "
     "is "
     "then the environment"},
    {"restart", FAST(Group_restart),
     "restart(env, seed, reset): an environment's next step is a reset, with `reset` from then on and a seed or None"},
    {"write", FAST(Group_write),
     "write(observations, rewards, terminated, truncated[, over]): publishes the step of a vector environment with "
     "NEXT_STEP resets: f32 rewards, bool ends; over: whether games have ended, and `terminated` is any end"},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef Group_members[] = {
    {"at", T_UINT, offsetof(Group, at), READONLY, "the environment that is stepped"},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot Group_slots[] = {
    {Py_tp_new, Group_new},
    {Py_tp_dealloc, Group_dealloc},
    {Py_tp_methods, Group_methods},
    {Py_tp_members, Group_members},
    {Py_tp_doc,
     "Group(ring, lane, parts, convert, singles, invalid, resets): the environments of a lane. parts: [(path, "
     "field, offset in numbers, shape, None or [(start, count), ...] to write from 0, into f32 one-hot, None or a "
     "function that converts a value), ...]; "
     "convert(observation, batch=()) -> an array per part; singles: [(step, reset, seed), ...] or None; invalid: "
     "None, or the message of BrokenContract for invalid numbers; resets: abandon their episode first"},
    {0, NULL},
};
PyType_Spec Group_definition = {
    .name = "actorfarm._farm.Group", .basicsize = sizeof(Group), .flags = Py_TPFLAGS_DEFAULT, .slots = Group_slots};

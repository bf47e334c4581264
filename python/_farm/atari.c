// Frames of Atari games: their conversion into the lane, and the emulator's calls of a step.
#include "python/_farm/module.h"

#include <stdlib.h>

#include "kernels/atari.h"

// The table from palette index to grey: PAL games have 250 rows.
static const uint8_t *grey_table(long height) {
    return height == 250 ? farm_atari_grey_pal : farm_atari_grey_ntsc;
}

PyObject *Ring_atari(PyObject *object, PyObject *argument) {
    Ring *self = (Ring *)object;
    const long height = PyLong_AsLong(argument);
    if (height == -1 && PyErr_Occurred()) return NULL;
    const struct farm_field_spec *field = &self->ring.spec.env.obs[0];
    if (field->dtype != FARM_U8 || farm_field_bytes(field) != FARM_ATARI_SIDE * FARM_ATARI_SIDE)
        return PyErr_Format(PyExc_ValueError, "the lane's first observation field is not u8 84x84");
    if (height < 1 || height > FARM_ATARI_HEIGHT_MAX)
        return PyErr_Format(PyExc_ValueError, "an Atari screen cannot have %ld rows", height);
    struct farm_error err = {0};
    struct farm_atari_plan *plan = aligned_alloc(_Alignof(struct farm_atari_plan), sizeof *plan);
    if (!plan) return PyErr_NoMemory();
    if (farm_atari_plan_init(plan, (int)height, grey_table(height), &err)) {
        free(plan);
        return raise_error(&err);
    }
    free(self->atari);
    self->atari = plan;
    return Py_NewRef(Py_None);
}

// A frame of palette indices.
static bool parse_frame(Py_ssize_t height, PyObject *object, Py_buffer *frame) {
    if (PyObject_GetBuffer(object, frame, PyBUF_C_CONTIGUOUS)) return false;
    if (frame->len == height * FARM_ATARI_WIDTH) return true;
    PyErr_Format(PyExc_ValueError, "a frame of %zd bytes, not %zd x %d", frame->len, height, FARM_ATARI_WIDTH);
    PyBuffer_Release(frame);
    return false;
}

PyObject *Ring_commit(PyObject *object, PyObject *const *args, Py_ssize_t count) {
    Ring *self = (Ring *)object;
    if (!check_count("commit", count, 6, 6)) return NULL;
    const struct farm_lane *lane = parse_writable_lane(self, args[0]);
    if (!lane) return NULL;
    if (!self->atari) return PyErr_Format(PyExc_RuntimeError, "call atari(height) first");
    const long long env = parse_index(args[1], "environment", lane->width);
    Py_buffer a, b = {.buf = NULL};
    if (env < 0 || !parse_frame(self->atari->height, args[2], &a)) return NULL;
    if (args[3] != Py_None && !parse_frame(self->atari->height, args[3], &b)) {
        PyBuffer_Release(&a);
        return NULL;
    }
    farm_atari_preprocess(self->atari, a.buf, b.buf, farm_lane_obs(lane, 0, farm_lane_actor_next(lane), (uint32_t)env));
    PyBuffer_Release(&a);
    if (b.buf) PyBuffer_Release(&b);
    if (!set_step(lane, (uint32_t)env, args, 4)) return NULL;
    return Py_NewRef(Py_None);
}

// Calls a method of the emulator that returns an integer or a boolean; false with an exception set.
static bool call_emulator(PyObject *method, PyObject *arg, long *result) {
    PyObject *object = arg ? PyObject_CallOneArg(method, arg) : PyObject_CallNoArgs(method);
    *result = object ? PyLong_AsLong(object) : -1;
    Py_XDECREF(object);
    return *result != -1 || !PyErr_Occurred();
}

// In C because the emulator evicts the interpreter's code from the caches between two frames.
PyObject *module_skip(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    if (!check_count("skip", count, 7, 7)) return NULL;
    if (!PyTuple_Check(args[0]) || PyTuple_GET_SIZE(args[0]) != 4 || !PyTuple_Check(args[4]))
        return PyErr_Format(PyExc_TypeError, "skip takes a tuple of 4 methods, and one of screens");
    PyObject *methods[4]; // borrowed
    for (int i = 0; i < 4; i++) methods[i] = PyTuple_GET_ITEM(args[0], i);
    const long frames = PyLong_AsLong(args[2]), looks = PyLong_AsLong(args[3]), lives_before = PyLong_AsLong(args[5]);
    long left = PyLong_AsLong(args[6]), reward = 0, points = 0, over = 0, lives = 0, skip = frames - 1;
    if (looks > PyTuple_GET_SIZE(args[4])) PyErr_SetString(PyExc_ValueError, "fewer screens than looks");
    bool good = !PyErr_Occurred();
    for (; good && skip >= 0; skip--) {
        good = call_emulator(methods[0], args[1], &points) && call_emulator(methods[1], NULL, &over) &&
               call_emulator(methods[2], NULL, &lives);
        reward += points;
        left--;
        if (!good || over || left <= 0 || (0 < lives && lives < lives_before)) break;
        if (skip >= looks) continue;
        PyObject *none = PyObject_CallOneArg(methods[3], PyTuple_GET_ITEM(args[4], skip));
        good = none != NULL;
        Py_XDECREF(none);
    }
    return good ? Py_BuildValue("lllll", reward, skip, over, lives, left) : NULL;
}

PyObject *module_brighter(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    Py_buffer into, frame;
    if (!check_count("brighter", count, 2, 2)) return NULL;
    if (PyObject_GetBuffer(args[0], &into, PyBUF_C_CONTIGUOUS | PyBUF_WRITABLE)) return NULL;
    if (!parse_frame(into.len / FARM_ATARI_WIDTH, args[1], &frame)) {
        PyBuffer_Release(&into);
        return NULL;
    }
    const uint8_t *grey = grey_table((long)(into.len / FARM_ATARI_WIDTH)), *from = frame.buf;
    uint8_t *to = into.buf;
    for (Py_ssize_t i = 0; i < frame.len; i++)
        if (grey[from[i]] > grey[to[i]]) to[i] = from[i];
    PyBuffer_Release(&into);
    PyBuffer_Release(&frame);
    return Py_NewRef(Py_None);
}

// Replaces ale::PhosphorBlend::makeAveragePalette() of ALE's emulator, once ale_game.py has made this name global. It
// mixes each colour with each other, 0.17 of the 0.19 s in which a game is loaded, for colour averaging alone, which is
// off here.
__attribute__((visibility("default"))) void
farm_ale_no_averages(void) __asm__("_ZN3ale13PhosphorBlend18makeAveragePaletteEv");
void farm_ale_no_averages(void) {}

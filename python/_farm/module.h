// actorfarm._farm: lanes in Python. Uses CPython's API only and knows no environment. Runs in the interpreter's
// process; one thread uses a Ring and what belongs to it. ring/lane.h gives the memory orders; these files add none.
//   ring.c    Ring: the lanes of one actor from one side, their memory as memoryviews
//   group.c   Group: steps a lane's Gymnasium environments and packs what they return (gym_actor.py)
//   atari.c   frames of Atari games (ale_actor.py)
// Functions that return bool or a pointer set an exception when they return false or NULL.
#ifndef FARM_PYTHON_MODULE_H
#define FARM_PYTHON_MODULE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdbool.h>

#include "ring/ring.h"

enum side { SIDE_READER, SIDE_ACTOR, SIDE_LEARNER, SIDE_CREATOR };

typedef struct {
    PyObject_HEAD struct farm_ring ring;
    enum side side;
    int eventfd; // actor: wakes the learner; -1: no eventfd
    uint64_t spin_ns;
    struct farm_atari_plan *atari; // allocated apart because of its alignment; NULL until atari()
    struct farm_local *local;      // the actor's policy; NULL until open_policy()
    uint64_t *answered; // [lanes] steps that it has answered; NULL with `local`: the lanes are its opponents'
} Ring;

extern PyTypeObject *Ring_type, *View_type, *Group_type;
extern PyType_Spec Ring_definition, View_definition, Group_definition;
extern PyObject *BrokenContract; // an exception

// The stable ABI (a wheel's) has functions in place of macros.
#ifdef Py_LIMITED_API
#define PyTuple_GET_ITEM                        PyTuple_GetItem
#define PyTuple_GET_SIZE                        PyTuple_Size
#define PyTuple_SET_ITEM                        PyTuple_SetItem
#define PyList_GET_ITEM                         PyList_GetItem
#define PyList_GET_SIZE                         PyList_Size
#define PyList_SET_ITEM                         PyList_SetItem
#define PyDict_GET_SIZE                         PyDict_Size
#define PyObject_CallOneArg(callable, argument) PyObject_Vectorcall(callable, (PyObject *const[]){argument}, 1, NULL)
#define TYPE_NAME(object)                       PyUnicode_AsUTF8AndSize(PyType_GetName(Py_TYPE(object)), NULL) // the name stays
#define Py_SETREF(to, from)                                                                                            \
    do {                                                                                                               \
        PyObject *replaced = (to);                                                                                     \
        (to) = (from);                                                                                                 \
        Py_XDECREF(replaced);                                                                                          \
    } while (0)
#else
#define TYPE_NAME(object) Py_TYPE(object)->tp_name
#endif

#define FAST(function) (PyCFunction)(void (*)(void))(function), METH_FASTCALL

// ---- module.c: errors and arguments ----

PyObject *raise_error(const struct farm_error *err); // returns NULL
// The argument as an integer in 0..below-1; -1 with an exception set.
long long parse_index(PyObject *argument, const char *what, unsigned long long below);
bool check_count(const char *name, Py_ssize_t count, Py_ssize_t least, Py_ssize_t most);
bool check_side(const Ring *self, enum side side);
struct farm_lane *parse_lane(Ring *self, PyObject *argument);
bool check_writable(const Ring *self, struct farm_lane *lane); // whether the actor may write the next step now
// The actor's lane, if it may write the next step now.
struct farm_lane *parse_writable_lane(Ring *self, PyObject *argument);

void free_object(PyObject *object); // the last act of a type's tp_dealloc

// ---- ring.c ----

PyObject *module_attach(PyObject *module, PyObject *args);
PyObject *module_catch_signals(PyObject *module, PyObject *unused);
PyObject *module_open_learner(PyObject *module, PyObject *args);
PyObject *module_observe(PyObject *module, PyObject *args);
PyObject *module_create(PyObject *module, PyObject *args, PyObject *keywords);
// Stores reward args[at] and flags args[at + 1] of the next step.
bool set_step(const struct farm_lane *lane, uint32_t env, PyObject *const *args, Py_ssize_t at);
// Copies environment `env`'s observation of the next step to where the last one of an episode is kept.
void keep_last(const struct farm_lane *lane, uint32_t env);
// Counts calls of environments that have returned.
void beat(Ring *self, uint32_t calls);
// Publishes the lane's next step, which is written, and wakes a sleeping learner.
void publish_step(Ring *self, struct farm_lane *lane);

// ---- atari.c ----

PyObject *Ring_atari(PyObject *object, PyObject *argument);
PyObject *Ring_commit(PyObject *object, PyObject *const *args, Py_ssize_t count);
PyObject *module_skip(PyObject *module, PyObject *const *args, Py_ssize_t count);
PyObject *module_brighter(PyObject *module, PyObject *const *args, Py_ssize_t count);

#endif

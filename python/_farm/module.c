// The module: its functions and types, and what its files share.
#include "python/_farm/module.h"

#include "base/crc32c.h"
#include "kernels/random.h"
#include "nn/net.h"

// ---- errors and arguments ----

PyObject *raise_error(const struct farm_error *err) {
    const bool invalid = err->status == FARM_E_INVALID || err->status == FARM_E_USAGE || err->status == FARM_E_FORMAT;
    PyErr_SetString(invalid                       ? PyExc_ValueError
                    : err->status == FARM_E_LIMIT ? PyExc_MemoryError
                                                  : PyExc_OSError,
                    err->message);
    return NULL;
}

long long parse_index(PyObject *argument, const char *what, unsigned long long below) {
    const long long value = PyLong_AsLongLong(argument);
    if (value == -1 && PyErr_Occurred()) return -1;
    if (value >= 0 && (unsigned long long)value < below) return value;
    PyErr_Format(PyExc_IndexError, "%s %lld is not in 0..%lld", what, value, (long long)below - 1);
    return -1;
}

bool check_count(const char *name, Py_ssize_t count, Py_ssize_t least, Py_ssize_t most) {
    if (count >= least && count <= most) return true;
    PyErr_Format(PyExc_TypeError, "%s takes %zd to %zd arguments, not %zd", name, least, most, count);
    return false;
}

bool check_side(const Ring *self, enum side side) {
    if (self->side == side) return true;
    PyErr_SetString(PyExc_PermissionError, side == SIDE_ACTOR ? "only an attached actor may do this"
                                                              : "only the side that answers may do this");
    return false;
}

struct farm_lane *parse_lane(Ring *self, PyObject *argument) {
    const long long l = parse_index(argument, "lane", self->ring.spec.lanes);
    return l < 0 ? NULL : &self->ring.lanes[l];
}

static bool is_answered(const Ring *self, const struct farm_lane *lane) {
    const uint64_t next = farm_lane_actor_next(lane);
    if (!lane->local || next == 0) return farm_lane_actor_answered(lane);
    return self->answered && self->answered[lane - self->ring.lanes] == next;
}

bool check_writable(const Ring *self, struct farm_lane *lane) {
    if (is_answered(self, lane) && farm_lane_actor_can_write(lane)) return true;
    PyErr_SetString(PyExc_RuntimeError, "the next step cannot be written yet: wait for the lane");
    return false;
}

struct farm_lane *parse_writable_lane(Ring *self, PyObject *argument) {
    struct farm_lane *lane = check_side(self, SIDE_ACTOR) ? parse_lane(self, argument) : NULL;
    return lane && check_writable(self, lane) ? lane : NULL;
}

void free_object(PyObject *object) {
    PyTypeObject *type = Py_TYPE(object);
    PyObject_Free(object);
    Py_DECREF(type);
}

// ---- module ----

static PyObject *module_derive_seed(PyObject *module, PyObject *args) {
    unsigned long long seed, generation;
    unsigned lane, env;
    if (!PyArg_ParseTuple(args, "KIIK", &seed, &lane, &env, &generation)) return NULL;
    return PyLong_FromUnsignedLongLong(farm_seed_derive(seed, lane, env, generation));
}

static PyObject *module_crc32c(PyObject *module, PyObject *object) {
    Py_buffer data;
    if (PyObject_GetBuffer(object, &data, PyBUF_C_CONTIGUOUS)) return NULL;
    const uint32_t sum = farm_crc32c(0, data.buf, (size_t)data.len);
    PyBuffer_Release(&data);
    return PyLong_FromUnsignedLong(sum);
}

static PyObject *module_net_layers(PyObject *module, PyObject *argument) {
    static const char *const kinds[] = {"conv", "dense", "conv", "pool", "residual", "norm"};
    static const char *const activations[] = {"relu", "tanh", "none", "elu", "silu"};
    const char *text = PyUnicode_AsUTF8AndSize(argument, NULL);
    struct farm_net_spec spec;
    struct farm_error err;
    if (!text) return NULL;
    if (farm_net_find(text, &spec, &err)) return raise_error(&err);
    PyObject *rows = PyList_New(spec.layer_count);
    for (int i = 0; i < spec.layer_count && rows; i++) {
        const struct farm_layer *l = &spec.layers[i];
        const bool same = l->kind != FARM_LAYER_CONV && l->kernel > 0;
        PyObject *row = Py_BuildValue("(siiiNs)", kinds[l->kind], l->out, l->kernel, l->stride, PyBool_FromLong(same),
                                      activations[l->activation]);
        if (row)
            PyList_SET_ITEM(rows, i, row);
        else
            Py_CLEAR(rows);
    }
    return rows ? Py_BuildValue("(NN)", PyBool_FromLong(spec.separate), rows) : NULL;
}

static PyMethodDef module_methods[] = {
    {"attach", module_attach, METH_VARARGS,
     "attach(up_fd, down_fd, event_fd=-1, spin_ns=0) -> Ring of an actor; it owns the two descriptors"},
    {"catch_signals", module_catch_signals, METH_NOARGS,
     "From here on SIGTERM ends every Ring.wait() with -1, and SIGINT does nothing; processes that this one forks get "
     "back "
     "what was before"},
    {"open_learner", module_open_learner, METH_VARARGS,
     "open_learner(up_fd, down_fd) -> Ring of the side that answers"},
    {"observe", module_observe, METH_VARARGS,
     "observe(up_fd, down_fd) -> Ring of a reader of any farm's lanes; it owns the two descriptors, also on failure"},
    {"create", (PyCFunction)(void (*)(void))module_create, METH_VARARGS | METH_KEYWORDS,
     "create(lanes, width, steps, obs, actions, frames_per_step=1, same_step=False, numbers=None) -> Ring of the "
     "creator; obs: [(name, dtype, dims[, choices]), ...]; actions: a number, or a dict as in Ring.spec; numbers: "
     "\"NAME,NAME\" of resets on request"},
    {"skip", FAST(module_skip),
     "skip((act, game_over, lives, getScreen), code, frames, looks, screens, lives, left) -> (reward, skip, over, "
     "lives, left): repeats an action for `frames` frames, counting `skip` and `left` down; copies the last `looks` "
     "screens to screens[skip]. Ends early, before the copy, if the game is over, `left` reaches 0, or a life is lost "
     "(not the last); skip is -1 if it did not end early"},
    {"brighter", FAST(module_brighter),
     "brighter(into, frame): keeps the brighter pixel of two palette frames in `into`"},
    {"crc32c", module_crc32c, METH_O, "crc32c(buffer) -> the checksum of a checkpoint's tensors"},
    {"net_layers", module_net_layers, METH_O,
     "net_layers(text) -> (separate, [(kind, out, kernel, stride, same, activation), ...]), of src/nn/net.h's table"},
    {"derive_seed", module_derive_seed, METH_VARARGS, "derive_seed(seed, lane, env, generation) -> 64 bits"},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module_definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "actorfarm._farm",
    .m_doc = "Lanes of shared memory, for actors and readers written in Python.",
    .m_size = -1,
    .m_methods = module_methods,
};

static const char broken_contract_doc[] = "An environment violates its interface: invalid numbers where they are "
                                          "forbidden, an observation outside its space. "
                                          "A new actor would fail in the same way.";
PyObject *BrokenContract;
PyTypeObject *Ring_type, *View_type, *Group_type;

PyMODINIT_FUNC PyInit__farm(void);
PyMODINIT_FUNC PyInit__farm(void) {
    Ring_type = (PyTypeObject *)PyType_FromSpec(&Ring_definition);
    View_type = (PyTypeObject *)PyType_FromSpec(&View_definition);
    Group_type = (PyTypeObject *)PyType_FromSpec(&Group_definition);
    if (!Ring_type || !View_type || !Group_type) return NULL;
    BrokenContract = PyErr_NewExceptionWithDoc("actorfarm._farm.BrokenContract", broken_contract_doc, NULL, NULL);
    if (!BrokenContract) return NULL;
    PyObject *module = PyModule_Create(&module_definition);
    if (!module) return NULL;
    if (PyModule_AddType(module, Ring_type) || PyModule_AddType(module, Group_type) ||
        PyModule_AddObjectRef(module, "BrokenContract", BrokenContract) ||
        PyModule_AddIntConstant(module, "FIRST", FARM_STEP_FIRST) ||
        PyModule_AddIntConstant(module, "LAST", FARM_STEP_LAST) ||
        PyModule_AddIntConstant(module, "TERMINATED", FARM_STEP_TERMINATED) ||
        PyModule_AddIntConstant(module, "TRUNCATED", FARM_STEP_TRUNCATED) ||
        PyModule_AddIntConstant(module, "GAME_END", FARM_STEP_GAME_END)) {
        Py_DECREF(module);
        return NULL;
    }
#ifdef Py_GIL_DISABLED
    PyUnstable_Module_SetGIL(module, Py_MOD_GIL_NOT_USED);
#endif
    return module;
}

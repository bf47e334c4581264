"""Environments of a plug-in, called from Python through include/farm/env.h, in buffers with guards."""

import ctypes
import math
import os

import numpy as np

BUILD, SOURCE = os.environ["FARM_BUILD"], os.environ["FARM_SOURCE"]
TERMINATED, TRUNCATED, GAME_END = 4, 8, 16
NUMPY = {1: np.uint8, 2: np.int32, 3: np.float32}
F32 = CONTINUOUS = 3
DIRT, GUARD_BYTES, ERROR_BYTES = 0xA5, 64, 256
u32, u64, text = ctypes.c_uint32, ctypes.c_uint64, ctypes.c_char_p


class Field(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char * 24), ("dtype", u32), ("rank", u32), ("dims", u32 * 4), ("choices", u32)]


class Action(ctypes.Structure):
    _fields_ = [("kind", u32), ("dims", u32), ("sizes", u32 * 128), ("low", ctypes.c_float * 128), ("high", ctypes.c_float * 128)]


class Spec(ctypes.Structure):
    _fields_ = [("obs_count", u32), ("obs", Field * 8), ("action", Action), ("frames_per_step", u32), ("agents", u32)]


class Option(ctypes.Structure):
    _fields_ = [("key", text), ("value", text)]


class Config(ctypes.Structure):
    _fields_ = [("seed", u64), ("options", ctypes.POINTER(Option)), ("option_count", ctypes.c_size_t), ("hints", u32)]


class Api(ctypes.Structure):
    _fields_ = [
        ("abi_version", u32),
        ("struct_bytes", u32),
        ("name", text),
        ("about", text),
        ("spec", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(Config), ctypes.POINTER(Spec), text, ctypes.c_size_t)),
        ("create", ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.POINTER(Config), text, ctypes.c_size_t)),
        ("destroy", ctypes.CFUNCTYPE(None, ctypes.c_void_p)),
        ("reset", ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p))),
        ("step", ctypes.CFUNCTYPE(u32, ctypes.c_void_p, ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p), ctypes.POINTER(ctypes.c_float))),
    ]


def open_plugin(path):
    """The library, and its environments by name."""
    library = ctypes.CDLL(path)
    library.farm_env_at.restype = ctypes.POINTER(Api)
    apis = [library.farm_env_at(i) for i in range(64)]
    return library, {api.contents.name.decode(): api.contents for api in apis if api}


def as_text(value):
    """A value of Python as env.* options write it."""
    if isinstance(value, tuple):
        return ",".join(str(float(x)) for x in value)
    return str(value).lower() if isinstance(value, bool) else str(value)


def make_config(seed, options):
    pairs = [(key.encode(), as_text(value).encode()) for key, value in options.items()]
    return Config(seed, (Option * len(pairs))(*pairs), len(pairs))


def read_spec(api, **options):
    """ValueError with the plug-in's message if it refuses the options."""
    spec, message = Spec(), ctypes.create_string_buffer(ERROR_BYTES)
    if api.spec(make_config(0, options), spec, message, ERROR_BYTES):
        raise ValueError(message.value.decode())
    return spec


def create(api, seed=0, **options):
    """The plug-in's pointer; ValueError with its message if it refuses the options."""
    message = ctypes.create_string_buffer(ERROR_BYTES)
    env = api.create(make_config(seed, options), message, ERROR_BYTES)
    if not env:
        raise ValueError(message.value.decode())
    return env


class Environment:
    """One environment with one observation field. It writes into two buffers in turn, as in a lane; each is dirty before, and
    memory behind it must stay as it is."""

    def __init__(self, api, seed=0, **options):
        self.api, self.spec = api, read_spec(api, **options)
        self.env = create(api, seed, **options)
        field = self.spec.obs[0]
        self.shape, self.dtype = tuple(field.dims[: field.rank]), NUMPY[field.dtype]
        self.bytes = math.prod(self.shape) * np.dtype(self.dtype).itemsize
        self.buffers = [np.empty(self.bytes + GUARD_BYTES, np.uint8) for _ in range(2)]

    def close(self):
        self.api.destroy(self.env)

    def observe(self, call):
        """What call(pointers to the fields) returns, and a copy of the observation that it writes."""
        self.buffers.reverse()
        buffer = self.buffers[0]
        buffer[:] = DIRT
        result = call((ctypes.c_void_p * 1)(buffer.ctypes.data))
        assert (buffer[self.bytes :] == DIRT).all(), "wrote behind its observation"
        return result, buffer[: self.bytes].view(self.dtype).reshape(self.shape).copy()

    def reset(self):
        return self.observe(lambda fields: self.api.reset(self.env, fields))[1]

    def step(self, action):
        """(observation, reward, flags)"""
        reward = ctypes.c_float(math.nan)
        action = np.array(action, np.float32 if self.spec.action.kind == CONTINUOUS else np.int32)
        flags, observation = self.observe(lambda fields: self.api.step(self.env, action.ctypes.data, fields, reward))
        return observation, reward.value, flags

"""What a checkpoint's network computes, written once for PyTorch (policy.py) and as a graph of ONNX (here): the tensors of src/nn/net.h
by their names, the inputs of src/policy/observation.c and the heads of src/kernels/head.h, in f32."""

import json
import subprocess
from functools import partialmethod

import numpy as np
from actorfarm import _farm, program

OPSET, IR = 17, 8  # of 2022: onnxruntime 1.12, OpenVINO 2022.2, TensorRT 8.5
MOST, NUMBERS_MAX, DTYPES = np.finfo("f4").max, 1 << 26, {"u8": "uint8", "i32": "int32", "f32": "float32"}
OTHERS = "state", "first", "last_action", "last_reward", "action", "policy", "value", "next_state", "next_last_action"  # inputs and outputs


def is_image(field):
    return field["name"] != "action_mask" and field["dtype"] == "u8" and len(field["dims"]) in (2, 3) and field["choices"] in (0, 256)


class Network:
    """Subclasses compute values, which have methods of torch.Tensor: cat, linear, conv, pool, norm, activate; tensor(name), a weight; array(a).
    given: [dtype, *shape of one environment] of each input; obs: its name by field; action: as given's. masks: 0 where a weight, by name, stays 0."""

    def describe(self, tensors, metadata, spec=None):
        if not spec and "spaces" not in metadata:
            raise ValueError("the checkpoint does not describe its environment: load(..., spec=env.consumer.spec)")
        self.tensors, self.metadata, self.spec = tensors, metadata, spec or json.loads(metadata["spaces"])
        key, fields, action = {name: text for name, text in metadata.items() if name.startswith("recipe.")}, self.spec["obs"], self.spec["action"]
        (separate, self.rows), self.stack, self.head = _farm.net_layers(key["recipe.net"]), int(key.get("recipe.stack", 1)), metadata.get("head", "categorical")
        self.last_inputs, self.normalises = (key.get(f"recipe.{name}") == "true" for name in ("last_inputs", "normalise_observations"))
        self.lstm_layers = sum(name.startswith("lstm.weight_hh_l") for name in tensors)
        self.continuous, self.sizes, self.squashes = action["kind"] == "continuous", action.get("sizes"), self.head.startswith("tanh")
        low, high = self.low, self.high = [np.nan_to_num(np.array(action.get(end, 0), "f4"), nan=most) for end, most in (("low", -MOST), ("high", MOST))]
        half, middle = 0.5 * high - 0.5 * low, 0.5 * low + 0.5 * high
        bounded = (low >= -1e30) & (high <= 1e30) & (half >= 0.5e-30) & (key.get("recipe.scale_actions") != "false")
        self.last_offset, self.last_scale = np.where(bounded, middle, np.float32(0)), np.where(bounded, half, np.float32(1))
        self.offset, self.scale = (low, half) if self.squashes else (self.last_offset, self.last_scale)  # an action is offset + scale * number (farm_head_scale)
        self.actions = len(low if self.continuous else self.sizes)
        self.action = ["float32" if self.continuous else "int32", *([] if action["kind"] == "discrete" else [self.actions])]
        if max(int(np.prod(np.array([self.stack, *f["dims"], f["dtype"] == "i32" and f["choices"] or 1], object))) for f in fields) > NUMBERS_MAX:
            raise ValueError(f"an observation of more than {NUMBERS_MAX} numbers")
        self.obs = {f["name"]: f"obs.{f['name']}" if f["name"] in OTHERS else f["name"] for f in fields}
        self.given = {self.obs[f["name"]]: [DTYPES[f["dtype"]], *[self.stack] * (is_image(f) and self.stack > 1), *f["dims"]] for f in fields}
        self.given |= {"first": ["bool"], "last_action": self.action, "last_reward": ["float32"]} if self.last_inputs else {}
        self.given |= {"first": ["bool"], "state": ["float32", 2 * self.lstm_layers * tensors["lstm.weight_hh_l0"].shape[1]]} if self.lstm_layers else {}
        (outputs, width), is_first = tensors["policy.weight"].shape, lambda n: np.arange(n) < n // 2  # `separate` has no weights between its halves
        trained = np.arange(outputs)[:, None] < (outputs // 2 if self.continuous and key.get("recipe.sigma") != "state" else outputs)  # a free sigma has none
        self.masks = {"policy.weight": trained & (is_first(width) | (not separate)), "value.weight": ~is_first(width)[None] | (not separate)}
        for i in [i for i, (kind, *_) in enumerate(self.rows) if kind == "dense" and separate][1:]:
            self.masks[name] = np.equal.outer(*map(is_first, tensors[name := f"layers.{i}.weight"].shape))

    def _frames(self, x, dims, statistics):
        """([N][stack * channels][height][width], 0 to 1 or, normalised, in whole steps of src/kernels/pixels.h, height and width); a frame of zeros is from
        before the episode."""
        planes, dims = len(dims) == 2 or dims[0] <= min(16, dims[1]) and dims[0] < dims[2], dims if len(dims) == 3 else [1, *dims]  # farm_field_image
        x, shape = x.reshape(-1, self.stack, *dims), dims if planes else [dims[2], *dims[:2]]
        x, whole = x if planes else x.permute(0, 1, 4, 2, 3), (-1, self.stack * shape[0], *shape[1:])
        if not statistics:
            return x.float().reshape(*whole) / 255, shape[1:]
        mean, variance = (array.reshape(shape) for array in statistics)
        gain = np.rint(np.float32(512 * 25.4) / np.sqrt(variance + np.float32(0.65))) * (self.tensors["normalise.count"] > 0)
        steps = (x.int() * 64 - self.array(np.rint(64 * mean).astype("i4"))) * self.array(gain.astype("i4"))
        steps = ((steps + ((1 << 14) + (1 << 29))) // (1 << 15)).float() - (1 << 14)  # of positive numbers, because ONNX rounds to 0
        return (steps.clamp(-128, 127) / 25.4 * x.float().amax((2, 3, 4), True).clamp(0, 1)).reshape(*whole), shape[1:]

    def _read(self, given):
        """(pictures, their height and width or None, vectors) of an observation's fields"""
        at, images, numbers, size = 0, [], [], None
        one_hot_of = lambda x, n, choices: (x.reshape(-1, n, 1) == self.array(np.arange(choices, dtype="i4"))).float().reshape(-1, n * choices)  # noqa: E731
        for field in sorted((f for f in self.spec["obs"] if f["name"] != "action_mask"), key=is_image, reverse=True):  # images' statistics come first
            x, one_hot, count = given[self.obs[field["name"]]], field["dtype"] == "i32" and field["choices"], int(np.prod(field["dims"]))
            part, at = slice(at, at + count * (one_hot or 1)), at + count * (one_hot or 1)
            statistics = [self.tensors[name][part] for name in ("normalise.mean", "normalise.variance") if self.normalises and name in self.tensors]
            if is_image(field):
                x, size = self._frames(x, field["dims"], statistics)
            elif one_hot:
                x = one_hot_of(x, count, one_hot)
            else:
                x = x.float().reshape(-1, count)
                if field["dtype"] == "u8":
                    x = x / max(1, (field["choices"] or 256) - 1)
                elif statistics:
                    x = ((x - self.array(statistics[0])) * self.array(1 / np.sqrt(statistics[1] + np.float32(1e-8)))).clamp(-10, 10)
            (images if is_image(field) else numbers).append(x)
        if self.last_inputs:  # zeros in an episode's first step
            x = given["last_action"]
            x = (x - self.array(self.last_offset)) / self.array(self.last_scale) if self.continuous else one_hot_of(x, self.actions, max(self.sizes))
            numbers.append(self.cat([x, given["last_reward"].reshape(-1, 1).clamp(-1, 1)], 1).masked_fill(given["first"].reshape(-1, 1), 0))
        return images, size, numbers

    def _product(self, function, name, x, *how, ends=("weight", "bias")):
        return function(x, *(self.tensor(f"{name}.{end}") for end in ends), *how)

    def _layer(self, name, x, size, kind, kernel, stride, same):
        """(its output, height and width; None: a vector)"""
        if kind == "dense":
            return self._product(self.linear, name, x.flatten(1)), None
        if kind == "norm":  # of channels or units: the last axis
            x = self._product(self.norm, name, x.permute(0, 2, 3, 1) if size else x)
            return x.permute(0, 3, 1, 2) if size else x, size
        if kind == "residual":
            inner = self._product(self.conv, f"{name}.conv0", x.relu(), 1, [1] * 4).relu()
            return x + self._product(self.conv, f"{name}.conv1", inner, 1, [1] * 4), size
        after = [-(-n // stride) if same else (n - kernel) // stride + 1 for n in size]
        lacking = [max((m - 1) * stride + kernel - n, 0) for n, m in zip(size, after)]
        pads = [part for n in reversed(lacking) for part in (n // 2, n - n // 2)]  # left, right, above, below: TensorFlow's
        return self._product(self.conv, name, x, stride, pads) if kind == "conv" else self.pool(x, kernel, stride, pads), after

    def step(self, given):
        """One step of N environments: raw outputs [N][outputs], value [N][1], next state. given: values by name."""
        (images, size, numbers), after = self._read(given), []
        x = self.cat(images or numbers, 1)
        for i, (kind, _, kernel, stride, same, activation) in enumerate(self.rows):
            x, size = self._layer(f"layers.{i}", x, size, kind, kernel, stride, same)
            x = x if activation == "none" else self.activate(activation, x)
        x = x.flatten(1)
        if images and numbers:
            x = self.cat([x, self._product(self.linear, "inputs", self.cat(numbers, 1)).relu()], 1)
            x = x if self.lstm_layers else self._product(self.linear, "joined", x).relu()
        for k in range(self.lstm_layers):  # each has h, then c in the state
            units = self.given["state"][1] // (2 * self.lstm_layers)
            h, c = given["state"].masked_fill(given["first"].reshape(-1, 1), 0).split([units] * 2 * self.lstm_layers, 1)[2 * k : 2 * k + 2]
            ih, hh = (self._product(self.linear, "lstm", y, ends=(f"weight_{part}_l{k}", f"bias_{part}_l{k}")) for y, part in ((x, "ih"), (h, "hh")))
            i, f, g, o = (ih + hh).split([units] * 4, 1)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            x = o.sigmoid() * c.tanh()
            after += [x, c]
        return self._product(self.linear, "policy", x), self._product(self.linear, "value", x), self.cat(after, 1) if after else None

    def choose(self, outputs, value, mask, noise=None):
        """Actions [N][actions], policy and value [N][1] as a lane has them: forbidden choices are -inf, action-values are whole. noise makes actions
        random: normal or, of logits, Gumbel's; None: the most probable ones, as always of action-values."""
        if self.continuous:
            x, log_sigma = outputs.split([self.actions] * 2, 1)
            x = x if noise is None else x + log_sigma.clamp(-10, 2).exp() * noise
            return (x.tanh() + 1 if self.squashes else x) * self.array(self.scale) + self.array(self.offset), outputs, value
        policy, values, each = outputs, "_q " in self.head, lambda x, what: self.cat([what(part) for part in x.split(self.sizes, 1)], 1)
        if mask is not None:  # one that permits none of an action's choices permits all
            mask = each(mask.reshape(-1, sum(self.sizes)).float().clamp(0, 1), lambda part: (part == part.amax((1,), True)).float())
        if self.head.startswith("duelling"):
            policy = outputs + value - (outputs if mask is None else outputs * mask / mask.mean((1,), True)).mean((1,), True)
        policy = policy if mask is None else policy.masked_fill(mask < 1, -np.inf)
        action = each(policy if noise is None or values else policy + noise, lambda part: part.argmax(1, True)).int()
        return action, policy, policy.amax((1,), True) if values else value


class Value:
    """A node's output, as network.py uses tensors. dtype: of the numbers that it is computed with."""

    def __init__(self, graph, name, dtype="f4"):
        self.graph, self.name, self.dtype = graph, name, dtype

    def op(self, operator, *others, dtype=None, outputs=1, **attributes):
        """Adds a node. Of others lists are shapes and sizes; numbers and arrays have dtype."""
        inputs = [x if isinstance(x, Value) else self.graph.array(np.asarray(x, "i8" if isinstance(x, list) else self.dtype)) for x in (self, *others)]
        made = [Value(self.graph, f"/{operator}_{len(self.graph.nodes)}_{i}", dtype or self.dtype) for i in range(outputs)]
        self.graph.nodes.append(self.graph.onnx.helper.make_node(operator, [x.name for x in inputs], [x.name for x in made], **attributes))
        return made if outputs > 1 else made[0]

    __add__, __sub__, __mul__, __truediv__, __floordiv__ = map(partialmethod, [op] * 5, ("Add", "Sub", "Mul", "Div", "Div"))
    __eq__, __lt__, relu, tanh, elu, sigmoid, clamp = map(partialmethod, [op] * 7, ("Equal", "Less", "Relu", "Tanh", "Elu", "Sigmoid", "Clip"))
    float, int, flatten = partialmethod(op, "Cast", dtype="f4", to=1), partialmethod(op, "Cast", dtype="i4", to=6), lambda x, axis: x.op("Flatten", axis=axis)
    reshape, permute = lambda x, *shape: x.op("Reshape", [0, *shape[1:]]), lambda x, *order: x.op("Transpose", perm=order)
    amax, mean = (lambda x, axes, keep, name=name: x.op(name, axes=axes, keepdims=keep) for name in ("ReduceMax", "ReduceMean"))
    argmax, masked_fill = lambda x, axis, keep: x.op("ArgMax", axis=axis, keepdims=keep), lambda x, where, number: where.op("Where", float(number), x)
    split = lambda x, sizes, axis: x.op("Split", sizes, outputs=len(sizes), axis=axis) if len(sizes) > 1 else [x]  # noqa: E731


class Graph(Network):
    linear, norm = lambda self, x, *more: x.op("Gemm", *more, transB=1), lambda self, x, *more: x.op("LayerNormalization", *more, axis=-1, epsilon=1e-5)
    cat = lambda self, parts, axis: parts[0].op("Concat", *parts[1:], axis=axis) if len(parts) > 1 else parts[0]  # noqa: E731
    activate = lambda self, kind, x: x * x.sigmoid() if kind == "silu" else getattr(x, kind)()  # noqa: E731
    window = lambda self, stride, pads: {"strides": [stride] * 2, "pads": [pads[i] for i in (2, 0, 3, 1)]}  # noqa: E731
    conv = lambda self, x, *how: x.op("Conv", *how[:2], **self.window(*how[2:]))  # noqa: E731
    pool = lambda self, x, kernel, *how: x.op("MaxPool", kernel_shape=[kernel] * 2, **self.window(*how))  # noqa: E731

    def __init__(self, onnx, tensors, metadata, spec=None):
        self.onnx, self.nodes, self.constants, helper = onnx, [], {}, onnx.helper
        self.describe(tensors, metadata, spec)
        outputs, value, state = self.step(given := {name: Value(self, name) for name in self.given})
        action, policy, value = self.choose(outputs, value, given.get("action_mask"))
        within = action.op("Max", self.low).op("Min", self.high) if self.continuous else action  # as actors limit it
        made = {"action": (within, *self.action), "policy": (policy, "float32", len(tensors["policy.bias"])), "value": (value, "float32")}
        made |= ({"next_state": (state, *self.given["state"])} if state else {}) | ({"next_last_action": (action, *self.action)} if self.last_inputs else {})
        self.nodes += [helper.make_node("Reshape", [x.name, self.array(np.array([0, *shape])).name], [name]) for name, (x, _, *shape) in made.items()]
        self.ports = {"inputs": self.given, "outputs": {name: kind for name, (_, *kind) in made.items()}}
        ports = [[(name, helper.np_dtype_to_tensor_dtype(np.dtype(kind)), ["batch", *dims]) for name, (kind, *dims) in part.items()] for part in self.ports.values()]
        constants = [onnx.numpy_helper.from_array(x, name) for name, x in self.constants.items()]
        graph = helper.make_graph(self.nodes, "policy", *([helper.make_tensor_value_info(*port) for port in part] for part in ports), constants)
        self.model = helper.make_model(graph, producer_name="actorfarm", ir_version=IR, opset_imports=[helper.make_opsetid("", OPSET)])
        version = subprocess.run([program.path(), "--version"], stdout=subprocess.PIPE, text=True).stdout.split()[-1]
        about = {key: text for key, text in metadata.items() if key.startswith("recipe.") or key in ("frames", "head", "return_mean", "spaces")}
        helper.set_model_props(self.model, {"env": metadata["recipe.env"], "actorfarm": version, **about})
        onnx.checker.check_model(self.model, full_check=True)

    def array(self, array, name=None):
        self.constants[name := name or f"/{len(self.constants)}"] = array
        return Value(self, name)

    def tensor(self, name):
        return self.array(self.tensors[name] * self.masks.get(name, np.float32(1)), name)

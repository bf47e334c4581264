#!/usr/bin/env python3
"""Writes nn_grey.bin, nn_rgb.bin and nn_flat.bin: small networks computed and differentiated by JAX in f64.

Run in this folder after `pip install "jax[cpu]" numpy`. Each file is one array after another, little-endian, in this order: parameters f32
(tensor by tensor in the order of farm_net_make, PyTorch's layouts), input (u8 frames [batch][stack][channels][height][width],
or f32 [batch][flat]), dlogits f32 [batch][actions], dvalue f32 [batch], logits f32 [batch][actions], value f32 [batch],
gradients f32 like the parameters; then how far bf16 is off, f32: relative Euclidean norms for logits, values and each
tensor's gradient. Frame 0 of row 0 and the first two frames of row 1 are zeros.

In bf16, JAX rounds what the executor stores in bf16: packed weights (for frames, divided by 255), outputs of layers after
the activation, gradients by those outputs, these once more after the activation, and dlogits and dvalue.
"""
from functools import partial

import jax

jax.config.update("jax_enable_x64", True)

import jax.numpy as jnp
import numpy as np

# The same tables stand in tests/nn/test_executor.c.
NETS = {
    "grey": dict(layers=[("conv", 8, 4, 2), ("conv", 16, 3, 1), ("dense", 8, "relu")], channels=1, height=20, width=18, stack=3,
                 flat=0, actions=5, batch=5),
    "rgb": dict(layers=[("conv", 8, 4, 2), ("dense", 16, "relu")], channels=3, height=14, width=16, stack=2, flat=0, actions=3,
                batch=3),
    "flat": dict(layers=[("dense", 32, "tanh"), ("dense", 24, "tanh")], channels=0, height=0, width=0, stack=1, flat=7,
                 actions=4, batch=6),
}


def tensors(net):
    """Shapes of all tensors, in order."""
    shape = (net["stack"] * net["channels"], net["height"], net["width"]) if net["channels"] else (net["flat"],)
    out = []
    for layer in net["layers"]:
        if layer[0] == "conv":
            _, channels, kernel, stride = layer
            out += [(channels, shape[0], kernel, kernel), (channels,)]
            shape = (channels, (shape[1] - kernel) // stride + 1, (shape[2] - kernel) // stride + 1)
        else:
            out += [(layer[1], int(np.prod(shape))), (layer[1],)]
            shape = (layer[1],)
    features = int(np.prod(shape))
    return out + [(net["actions"], features), (1, features), (net["actions"],), (1,)]


def bf16(x):
    return jnp.asarray(x, jnp.float32).astype(jnp.bfloat16).astype(jnp.float64)


@partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def store(x, activation, rough):
    y = jnp.tanh(x) if activation == "tanh" else jax.nn.relu(x)
    return bf16(y) if rough else y


def store_backward(activation, rough, y, diff):
    slope = 1 - y * y if activation == "tanh" else y > 0
    return (bf16(bf16(diff) * slope) if rough else diff * slope,)


store.defvjp(lambda x, *how: (store(x, *how),) * 2, store_backward)


def forward(net, params, x, rough):
    """x: [batch][channels][height][width] in [0, 1], or [batch][flat]."""
    for i, layer in enumerate(net["layers"]):
        weight, bias = params[2 * i], params[2 * i + 1]
        if layer[0] == "conv":
            x = jax.lax.conv_general_dilated(x, weight, (layer[3], layer[3]), "VALID", dimension_numbers=("NCHW", "OIHW", "NCHW"))
            x = store(x + bias[None, :, None, None], "relu", rough)
        else:
            x = store(x.reshape(x.shape[0], -1) @ weight.T + bias, layer[2], rough)
    policy, value, policy_bias, value_bias = params[-4:]
    return x @ policy.T + policy_bias, (x @ value.T + value_bias)[:, 0]


def solve(net, params, x, dlogits, dvalue, rough):
    """Logits, values and gradients."""
    if rough:
        scales = [np.float32(1 / 255 if net["channels"] and i == 0 else 1) for i in range(len(params))]
        params = [bf16(p.astype(np.float32) * scale) / np.float64(scale) if p.ndim > 1 else p for p, scale in zip(params, scales)]
        x = x if net["channels"] else bf16(x)
        dlogits, dvalue = bf16(dlogits), bf16(dvalue)

    def loss(p):
        logits, value = forward(net, p, x, rough)
        return jnp.sum(dlogits * logits) + jnp.sum(dvalue * value)

    return [*forward(net, params, x, rough), *jax.grad(loss)(params)]


def write(name, net, rng):
    params = []
    for shape in tensors(net):
        bound = 1 / np.sqrt(np.prod(shape[1:])) if len(shape) > 1 else 0.1
        params.append(rng.uniform(-bound, bound, shape).astype(np.float32))
    batch = net["batch"]
    if net["channels"]:
        frames = rng.integers(0, 256, (batch, net["stack"], net["channels"], net["height"], net["width"]), dtype=np.uint8)
        frames[0, 0] = 0
        frames[1, :2] = 0
        raw, x = frames, frames.reshape(batch, -1, net["height"], net["width"]).astype(np.float64) / 255
    else:
        raw = rng.normal(size=(batch, net["flat"])).astype(np.float32)
        x = raw.astype(np.float64)
    dlogits = rng.normal(size=(batch, net["actions"])).astype(np.float32)
    dvalue = rng.normal(size=batch).astype(np.float32)

    wide = [np.asarray(a, np.float64) for a in [dlogits, dvalue, *params]]
    exact = solve(net, wide[2:], x, *wide[:2], rough=False)
    rough = solve(net, wide[2:], x, *wide[:2], rough=True)
    errors = [np.linalg.norm(np.ravel(a - b)) / np.linalg.norm(np.ravel(b)) for a, b in zip(rough, exact)]
    with open(f"nn_{name}.bin", "wb") as file:
        for array in params:
            file.write(array.tobytes())
        file.write(raw.tobytes())
        for array in [dlogits, dvalue, *exact, errors]:
            file.write(np.asarray(array, np.float32).tobytes())


for name, net in NETS.items():
    write(name, net, np.random.default_rng(7))

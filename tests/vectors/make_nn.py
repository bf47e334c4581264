#!/usr/bin/env python3
"""Writes nn_grey.bin, nn_rgb.bin and nn_flat.bin: small networks computed and differentiated by JAX in f64.

Run in this folder after `pip install "jax[cpu]" numpy`. Each file is one array after another, little-endian, in this order: parameters f32
(tensor by tensor in the order of farm_net_make, PyTorch's layouts), input (u8 frames [batch][stack][channels][height][width],
or f32 [batch][flat]), dlogits f32 [batch][actions], dvalue f32 [batch], logits f32 [batch][actions], value f32 [batch],
gradients f32 like the parameters. Frame 0 of row 0 and the first two frames of row 1 are zeros.
"""
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


def forward(net, params, x):
    """x: [batch][channels][height][width] in [0, 1], or [batch][flat]."""
    for i, layer in enumerate(net["layers"]):
        weight, bias = params[2 * i], params[2 * i + 1]
        if layer[0] == "conv":
            x = jax.lax.conv_general_dilated(x, weight, (layer[3], layer[3]), "VALID", dimension_numbers=("NCHW", "OIHW", "NCHW"))
            x = jax.nn.relu(x + bias[None, :, None, None])
        else:
            x = x.reshape(x.shape[0], -1) @ weight.T + bias
            x = jax.nn.relu(x) if layer[2] == "relu" else jnp.tanh(x)
    policy, value, policy_bias, value_bias = params[-4:]
    return x @ policy.T + policy_bias, (x @ value.T + value_bias)[:, 0]


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

    def loss(p):
        logits, value = forward(net, p, x)
        return jnp.sum(dlogits.astype(np.float64) * logits) + jnp.sum(dvalue.astype(np.float64) * value)

    wide = [p.astype(np.float64) for p in params]
    logits, value = forward(net, wide, x)
    grads = jax.grad(loss)(wide)
    with open(f"nn_{name}.bin", "wb") as file:
        for array in params:
            file.write(array.tobytes())
        file.write(raw.tobytes())
        for array in [dlogits, dvalue, logits, value, *grads]:
            file.write(np.asarray(array, np.float32).tobytes())


for name, net in NETS.items():
    write(name, net, np.random.default_rng(7))

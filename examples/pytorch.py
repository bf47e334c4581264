"""A checkpoint of `farm train` in PyTorch: `python pytorch.py RUN/checkpoints/best.safetensors`

After `pip install torch safetensors`. forward() computes what the learner does, in f32. Networks: mlp (flat f32 observations),
shallow and nature (frames); `deep` has residual blocks too, see tests/vectors/make_nn.py.
"""
import sys

import torch
from safetensors import safe_open
from torch.nn.functional import conv2d, linear

STRIDES = {"mlp": (), "shallow": (4, 2), "nature": (4, 2, 1)}  # of the convolutions, which come first


def load(path):
    """The tensors by name (the optimiser's begin with "optimiser."), and the metadata: frames, return_mean, recipe.net, ..."""
    with safe_open(path, "pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}, file.metadata()


def numbers(w, x):
    """What the network sees of pixels: 0 to 1, or (--normalise-observations) of mean 0 and deviation 1 in steps of 1/25.4."""
    if "normalise.mean" not in w:
        return x.float() / 255
    mean, variance = (w[f"normalise.{name}"][: x.shape[2] * x.shape[3]].reshape(x.shape[2:]) for name in ("mean", "variance"))
    steps = ((x.float() - mean) / (variance + 0.65).sqrt() * 25.4).round().clamp(-128, 127)
    return steps / 25.4 * x.flatten(2).any(-1)[:, :, None, None]  # a frame from before the episode stays 0


def remember(w, x, state):
    """A step of the LSTM's layers, whose tensors are named as in torch.nn.LSTM."""
    for k, (h, c) in enumerate(state):
        names = (f"{{}}_ih_l{k}", f"{{}}_hh_l{k}")
        gates = sum(linear(v, *(w["lstm." + name.format(part)] for part in ("weight", "bias"))) for v, name in zip((x, h), names))
        i, f, g, o = (gates[:, n * h.shape[1] : (n + 1) * h.shape[1]] for n in range(4))
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        x = o.sigmoid() * c.tanh()
        state[k] = (x, c)
    return x


def forward(w, net, x, inputs=None, state=()):
    """Logits [batch][actions] and values [batch][1]. x: flat [batch][numbers], or frames [batch][stack][height][width] of
    pixels 0 to 255, the oldest first; a frame from before the episode is zeros. inputs: numbers beside frames (with last_inputs the
    last action one-hot and the last reward, clipped to +-1; for mlp they end x), zeros in an episode's first step. state: of an
    LSTM a list of its layers' (h, c), [batch][units] each, zeros in an episode's first step; it becomes the next step's."""
    strides, i = STRIDES[net], 0
    x = numbers(w, x) if strides else x
    for i, stride in enumerate(strides, 1):
        x = conv2d(x, w[f"layers.{i - 1}.weight"], w[f"layers.{i - 1}.bias"], stride).relu()
    x = x.flatten(1)
    for i in range(i, i + 1 if strides else 2):
        x = linear(x, w[f"layers.{i}.weight"], w[f"layers.{i}.bias"])
        x = x.relu() if strides else x.tanh()
    if inputs is not None:
        x = torch.cat([x, linear(inputs, w["inputs.weight"], w["inputs.bias"]).relu()], 1)
        x = x if state else linear(x, w["joined.weight"], w["joined.bias"]).relu()
    x = remember(w, x, state)
    return linear(x, w["policy.weight"], w["policy.bias"]), linear(x, w["value.weight"], w["value.bias"])


if __name__ == "__main__":
    weights, about = load(sys.argv[1])
    print(f"{about['recipe.env']}, net {about['recipe.net']}, {about['frames']} frames, mean return {about['return_mean']}")
    for name, tensor in weights.items():
        if not name.startswith("optimiser."):
            print(f"  {name:<20} {list(tensor.shape)}")

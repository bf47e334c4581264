"""The network of a checkpoint as a PyTorch module (actorfarm.load): the tensors of src/nn/net.h by their names, the inputs of
src/policy/observation.c and the heads of src/kernels/head.h, computed in f32. Only this file imports torch."""

import json

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from . import _farm

NUMBERS_MAX, DENSE = 1 << 26, ("dense", 0, 0, 0, False, "relu")
ACTIVATIONS = {"relu": F.relu, "tanh": torch.tanh, "elu": F.elu, "silu": F.silu, "none": lambda x: x}


def _tensor(array, device):  # NumPy arrays are copied: PyTorch has no read-only tensors
    return array.to(device) if torch.is_tensor(array) else torch.from_numpy(np.array(array)).to(device)


def _is_image(field):
    return field["dtype"] == "u8" and len(field["dims"]) in (2, 3) and field["choices"] in (0, 256)


def _one_hot(x, choices):
    return (x[..., None] == torch.arange(choices, device=x.device)).flatten(1).float()


class Policy(nn.Module):
    """`module(obs, state, first, last)` gives the policy's raw outputs, the value and the next state; `act` chooses actions."""

    def __init__(self, tensors, metadata, spec=None):
        super().__init__()
        self.tensors, self.metadata, about = tensors, metadata, metadata
        if not spec and "spaces" not in about:
            raise ValueError("the checkpoint does not describe its environment: load(..., spec=env.consumer.spec)")
        self.spec = spec or json.loads(about["spaces"])
        key = {name[len("recipe.") :]: value for name, value in about.items() if name.startswith("recipe.")}
        (self.separate, self.rows), self.stack, self.head = _farm.net_layers(key["net"]), int(key.get("stack", 1)), about.get("head", "categorical")
        self.last_inputs, self.normalises = (key.get(name) == "true" for name in ("last_inputs", "normalise_observations"))
        self.lstm_layers = sum(name.startswith("lstm.weight_hh_l") for name in tensors)
        for name, tensor in tensors.items():
            if name.split(".")[0] in ("layers", "inputs", "joined", "lstm", "policy", "value", "normalise"):
                self._add(name, torch.from_numpy(tensor.copy()))
        self._set_actions(self.spec["action"], scale=key.get("scale_actions") != "false")
        self._set_masks(free=self.continuous and key.get("sigma") != "state")
        if max(self.stack * int(np.prod(np.array(field["dims"], object))) for field in self.spec["obs"]) > NUMBERS_MAX:
            raise ValueError(f"an observation of more than {NUMBERS_MAX} numbers")
        with torch.no_grad():  # the tensors' shapes fit one another and the environment
            self({field["name"]: np.zeros((1, self.stack if _is_image(field) else 1, *field["dims"]), "u1") for field in self.spec["obs"]})

    def _add(self, name, tensor):
        (*path, leaf), node = name.split("."), self
        for part in path:
            node = node._modules.setdefault(part, nn.Module())
        node.register_buffer(leaf, tensor) if path[0] == "normalise" else node.register_parameter(leaf, nn.Parameter(tensor))

    def _set_actions(self, action, scale):
        """Choices of each discrete action, or how numbers become continuous ones: offset + scale * number (farm_head_scale)."""
        self.continuous, self.sizes = action["kind"] == "continuous", action.get("sizes")
        low, high = (np.clip(np.array(action.get(end, 0), "f4"), -3.4e38, 3.4e38) for end in ("low", "high"))
        bounded = (low >= -1e30) & (high <= 1e30) & ((half := 0.5 * high - 0.5 * low) >= 0.5e-30) & scale
        last = np.where(bounded, 0.5 * low + 0.5 * high, 0), np.where(bounded, half, 1)
        for name, array in zip(("last_offset", "last_scale", "offset", "scale"), (*last, *((low, half) if self.head.startswith("tanh") else last))):
            self.register_buffer(name, torch.tensor(array, dtype=torch.float32), persistent=False)

    def _set_masks(self, free):
        """0: weights that stay 0, a free sigma's and those between the halves of `separate`."""
        (outputs, width), late = self.policy.weight.shape, lambda count: torch.arange(count) >= count // 2
        masks = {"policy": (torch.arange(outputs)[:, None] < (outputs // 2 if free else outputs)) & ~(late(width) & self.separate)}
        if self.separate:
            masks["value"] = late(width)[None]
            for i in range(1, len(self.rows)):
                into, out = map(late, self.get_submodule(f"layers.{i}").weight.T.shape)
                masks[f"layers.{i}"] = out[:, None] == into
        for name, mask in masks.items():
            self.get_submodule(name).register_buffer("mask", mask.float(), persistent=False)

    def _apply_layer(self, function, name, x, **how):
        layer = self.get_submodule(name)
        return function(x, layer.weight * layer.mask if hasattr(layer, "mask") else layer.weight, layer.bias, **how)

    def _layer(self, row, name, x):
        kind, _, kernel, stride, same, activation = row
        if kind == "dense":
            x = self._apply_layer(F.linear, name, x.flatten(1))
        elif kind == "norm":  # over the channels
            layer = self.get_submodule(name)
            x = F.layer_norm(x.movedim(1, -1), layer.weight.shape, layer.weight, layer.bias).movedim(-1, 1)
        elif kind == "residual":
            inner = F.relu(self._apply_layer(F.conv2d, f"{name}.conv0", F.relu(x), padding=1))
            x = x + self._apply_layer(F.conv2d, f"{name}.conv1", inner, padding=1)
        else:
            height, width = (max((-(-n // stride) - 1) * stride + kernel - n, 0) if same else 0 for n in x.shape[2:])
            x = F.pad(x, (width // 2, -(-width // 2), height // 2, -(-height // 2)), value=0 if kind == "conv" else -torch.inf)
            x = F.max_pool2d(x, kernel, stride) if kind == "pool" else self._apply_layer(F.conv2d, name, x, stride=stride)
        return ACTIVATIONS[activation](x)

    def _remember(self, x, state):
        """A step of the LSTM's layers; each has h, then c in the state."""
        after, weights = [], dict(self.lstm.named_parameters())
        for k, part in enumerate(state.chunk(self.lstm_layers, 1)):
            x, c = torch.lstm_cell(x, part.chunk(2, 1), *(weights[f"{name}_l{k}"] for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")))
            after += [x, c]
        return x, torch.cat(after, 1)

    def _frames(self, x, dims, statistics):
        """[N][stack * channels][height][width], 0 to 1, or (normalise_observations) in whole steps of src/kernels/pixels.h; a frame of zeros is
        from before the episode."""
        planes = len(dims) == 3 and dims[0] <= min(16, dims[1]) and dims[0] < dims[2]  # farm_field_image
        x = x.reshape(-1, self.stack, *(dims if len(dims) == 3 else (1, *dims)))
        x = x if planes or len(dims) == 2 else x.permute(0, 1, 4, 2, 3)
        if not statistics:
            return x.flatten(1, 2).float() / 255
        mean, variance = (array.view(x.shape[2:]) for array in statistics)
        mean, gain = (64 * mean).round().int(), (512 * 25.4 / (variance + 0.65).sqrt()).round().int() * (self.normalise.count > 0)
        steps = (((x.int() * 64 - mean) * gain + (1 << 14)) >> 15).clamp(-128, 127)
        return (steps / 25.4 * x.flatten(2).any(2).view(*x.shape[:2], 1, 1, 1)).flatten(1, 2)

    def _read(self, obs, first, last):
        """(frames [N][channels][height][width] or None, numbers [N][numbers] or None)"""
        device, at, images, numbers = self.value.weight.device, 0, [], []
        for field in sorted((f for f in self.spec["obs"] if f["name"] != "action_mask"), key=_is_image, reverse=True):  # images' statistics come first
            dims, choices, count = field["dims"], field["choices"], int(np.prod(field["dims"]))
            x, one_hot = _tensor(obs[field["name"]] if isinstance(obs, dict) else obs, device), choices and field["dtype"] == "i32"
            width = count * choices if one_hot else count
            statistics = [s[at : at + width] for s in (self.normalise.mean, self.normalise.variance)] if self.normalises and hasattr(self, "normalise") else []
            at += width
            if _is_image(field):
                images.append(self._frames(x, dims, statistics))
                continue
            x = x.reshape(-1, count)
            x = _one_hot(x, choices) if one_hot else x / max(1, (choices or 256) - 1) if field["dtype"] == "u8" else x.float()
            if statistics and field["dtype"] != "u8" and not one_hot:
                x = ((x - statistics[0]) / (statistics[1] + 1e-8).sqrt()).clamp(-10, 10)
            numbers.append(x)
        if self.last_inputs:
            numbers.append(self._last(len((images or numbers)[0]), first, last, device))
        return [torch.cat(parts, 1) if parts else None for parts in (images, numbers)]

    def _last(self, count, first, last, device):
        """The last action and reward, zeros in an episode's first step."""
        none = np.zeros((count, len(self.offset if self.continuous else self.sizes))), np.zeros(count, "f4")
        action, reward = (_tensor(x, device).reshape(count, -1) for x in last or none)
        action = (action - self.last_offset) / self.last_scale if self.continuous else _one_hot(action, max(self.sizes))
        begins = torch.full((count, 1), last is None) if first is None else _tensor(first, device).reshape(count, 1).bool()
        return torch.cat([action, reward.clamp(-1, 1)], 1).float().masked_fill(begins.to(device), 0)

    def forward(self, obs, state=None, first=None, last=None):
        """One step of N environments. obs: an array [N][stack][...] (stack 1: [N][...]), or a dict of them by field. state: of an LSTM [N][numbers],
        what the step before returned; None: zeros, as in rows whose `first` begins an episode. last: (actions, rewards) of the step before, if
        the recipe has last_inputs. Returns outputs [N][outputs] (logits, means and log sigma, or action-values before duelling), value [N], state."""
        frames, numbers = self._read(obs, first, last)
        x = numbers if frames is None else frames
        for i, row in enumerate(self.rows):
            x = self._layer(row, f"layers.{i}", x)
        if frames is not None and numbers is not None:
            x = torch.cat([x, self._layer(DENSE, "inputs", numbers)], 1)
            x = x if self.lstm_layers else self._layer(DENSE, "joined", x)
        if self.lstm_layers:
            state = _tensor(state if state is not None else np.zeros((len(x), 2 * self.lstm_layers * self.lstm.weight_hh_l0.shape[1]), "f4"), x.device)
            x, state = self._remember(x, state if first is None else state.masked_fill(_tensor(first, x.device).reshape(-1, 1).bool(), 0))
        return self._apply_layer(F.linear, "policy", x), self._apply_layer(F.linear, "value", x)[:, 0], state

    @torch.no_grad()
    def act(self, obs, state=None, first=None, last=None, greedy=False):
        """(actions [N], or [N][dims], as the environment takes them; the next state). greedy: the most probable ones, as `farm eval --greedy`.
        Action-values are always greedy. An observation's action_mask forbids choices."""
        outputs, _, state = self(obs, state, first, last)
        if self.continuous:
            mean, log_sigma = outputs.chunk(2, 1)
            x = mean if greedy else mean + log_sigma.clamp(-10, 2).exp() * torch.randn_like(mean)
            return self.offset + self.scale * (torch.tanh(x) + 1 if self.head.startswith("tanh") else x), state
        mask, chosen = obs["action_mask"] if isinstance(obs, dict) and "action_mask" in obs else torch.ones_like(outputs), []
        allowed = _tensor(mask, outputs.device).reshape(outputs.shape).bool()
        for logits, part in zip(outputs.split(self.sizes, 1), allowed.split(self.sizes, 1)):
            logits = logits.masked_fill(~part & part.any(1, keepdim=True), -torch.inf)
            noise = 0 if greedy or "_q " in self.head else -torch.empty_like(logits).exponential_().log()  # Gumbel's: a draw of softmax(logits)
            chosen.append((logits + noise).argmax(1))
        return torch.stack(chosen, 1).int() if self.spec["action"]["kind"] == "multi_discrete" else chosen[0].int(), state

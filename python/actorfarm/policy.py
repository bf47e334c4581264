"""The network of a checkpoint as a PyTorch module (actorfarm.load): network.py computed by PyTorch. Only this file imports torch."""

import numpy as np
import torch
from actorfarm.network import Network
from torch import nn
from torch.nn import functional as F


def _tensor(array, device):  # NumPy arrays are copied: PyTorch has no read-only tensors
    return array.to(device) if torch.is_tensor(array) else torch.from_numpy(np.array(array)).to(device)


class Policy(nn.Module, Network):
    """`module(obs, state, first, last)` gives the policy's raw outputs, the value and the next state; `act` chooses actions."""

    cat, linear = torch.cat, F.linear
    conv, pool = lambda self, x, *how: F.conv2d(F.pad(x, how[-1]), *how[:-1]), lambda self, x, *how: F.max_pool2d(F.pad(x, how[-1], value=-torch.inf), *how[:-1])
    norm, activate = lambda self, x, weight, bias: F.layer_norm(x, weight.shape, weight, bias, 1e-5), lambda self, kind, x: getattr(F, kind)(x)

    def __init__(self, tensors, metadata, spec=None):
        super().__init__()
        self.describe(tensors, metadata, spec)
        for name in (name for name in tensors if name.split(".")[0] in ("layers", "inputs", "joined", "lstm", "policy", "value", "normalise")):
            (*path, leaf), node, tensor = name.split("."), self, torch.from_numpy(tensors[name].copy())
            for part in path:
                node = node._modules.setdefault(part, nn.Module())
            node.register_buffer(leaf, tensor) if path[0] == "normalise" else node.register_parameter(leaf, nn.Parameter(tensor))
        with torch.no_grad():  # the tensors' shapes fit one another and the environment
            self({field: np.zeros((1, *self.given[name][1:]), "u1") for field, name in self.obs.items()})

    def array(self, array):
        return torch.from_numpy(array).to(self.value.weight.device)

    def tensor(self, name):
        return self.get_parameter(name) * self.array(self.masks[name].astype("f4")) if name in self.masks else self.get_parameter(name)

    def forward(self, obs, state=None, first=None, last=None):
        """One step of N environments. obs: an array [N][stack][...] (stack 1: [N][...]), or a dict of them by field. state: of an LSTM [N][numbers],
        what the step before returned; None: zeros, as in rows whose `first` begins an episode. last: (actions, rewards) of the step before, if
        the recipe has last_inputs. Returns outputs [N][outputs] (logits, means and log sigma, or action-values before duelling), value [N], state."""
        given, count = {name: obs[field] if isinstance(obs, dict) else obs for field, name in self.obs.items() if field != "action_mask"}, 1
        given.update(zip(("state", "first", "last_action", "last_reward"), (state, first, *(last or (None, None)))))
        for name, (dtype, *shape) in self.given.items():
            x = torch.full((count, *shape), name == "first" and last is None) if given.get(name) is None else given[name]
            given[name] = _tensor(x, self.value.weight.device).reshape(-1, *shape).to(getattr(torch, dtype))
            count = len(given[name])
        outputs, value, state = self.step(given)
        return outputs, value[:, 0], state

    @torch.no_grad()
    def act(self, obs, state=None, first=None, last=None, greedy=False):
        """(actions [N], or [N][dims], as the environment takes them; the next state). greedy: the most probable ones, as `farm eval --greedy`.
        Action-values are always greedy. An observation's action_mask forbids choices."""
        outputs, value, state = self(obs, state, first, last)
        noise, mask = None, obs.get("action_mask") if isinstance(obs, dict) else None
        if not greedy:  # Gumbel's gives draws of softmax(logits)
            noise = torch.randn_like(outputs[:, : self.actions]) if self.continuous else -torch.empty_like(outputs).exponential_().log()
        action, _, _ = self.choose(outputs, value[:, None], mask if mask is None else _tensor(mask, outputs.device), noise)
        return action.reshape(-1, *self.action[1:]), state

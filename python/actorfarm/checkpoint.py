"""Checkpoints of `farm train` (src/learner/checkpoint.h) as NumPy arrays, checked before they are used, as a PyTorch module (only load() imports torch),
and as ONNX files (`farm export`). dict[str, Any] have the network's own names; those of further sets have a prefix, "optimiser.second.". Metadata are texts."""

import functools
import json
import os
import pathlib
from typing import Any

import numpy as np
from actorfarm import _farm

HEADER_BYTES_MAX, OURS = 4 << 20, "actorfarm-1"


def find(run_or_checkpoint: str | os.PathLike[str], best: bool = False) -> pathlib.Path:
    """The file itself, or a run's newest checkpoint (best: its best one), as `farm eval` chooses."""
    path = pathlib.Path(run_or_checkpoint)
    if path.is_dir():
        files = [file for file in path.glob("checkpoints/*.safetensors") if file.stem.isdecimal() and not best]
        path = max(files, key=lambda file: int(file.stem), default=path / "checkpoints/best.safetensors")
    if not path.is_file():
        raise FileNotFoundError(f"{path} is not a file (a training writes its first checkpoint after at most 20 s)")
    return path


def _compact(header: Any, **more: Any) -> bytes:
    return json.dumps(header, separators=(",", ":"), ensure_ascii=False, **more).encode()


def _sum(data: bytes | memoryview) -> str:
    return f"{_farm.crc32c(data):08x}"


def _expect(condition: Any, message: str) -> None:
    if not condition:
        raise ValueError(message)


def _place(name: str, entry: Any) -> tuple[int, int, str, list[int]]:
    """(from, to, name, shape) of a tensor that the header describes."""
    (begin, end), shape = entry["data_offsets"], entry["shape"]
    numbers = len(shape) <= 8 and all(type(number) is int and 0 <= number < 1 << 40 for number in (begin, end, *shape))
    fits = numbers and entry["dtype"] == "F32" and end - begin == 4 * int(np.prod(np.array(shape, object)))
    _expect(fits, f"tensor {name[:80]}: {str(entry)[:200]} is not a tensor of f32")
    return begin, end, name, shape


def _decode(data: memoryview) -> tuple[dict[str, Any], dict[str, str]]:
    length, tensors, at = int.from_bytes(data[:8], "little"), {}, 0
    body, every = data[8 + length :], len(data) - 8 - length
    _expect(len(data) >= 8 and every >= 0 and length <= HEADER_BYTES_MAX, f"no safetensors file, or cut off within its header of {length} bytes")
    try:
        header = json.loads(bytes(data[8 : 8 + length]))
        metadata = header["__metadata__"]
        _expect(metadata["format"] == OURS and all(isinstance(value, str) for value in metadata.values()), f"its metadata is not that of {OURS}")
        places = sorted(_place(name, entry) for name, entry in header.items() if name != "__metadata__")
    except (ValueError, RecursionError, LookupError, TypeError, AttributeError) as error:
        raise ValueError(f"its header is not one of a checkpoint: {error!r}") from None
    _expect(metadata.pop("crc32c", None) in (None, _sum(_compact(header, sort_keys=True))), "corrupt: the header does not match its checksum")
    for begin, end, name, shape in places:
        _expect(begin == at and end <= every, f"{'cut off' if begin == at else 'corrupt'}: {every} bytes of data, {end} in the header")
        part, at = body[begin:end], end
        _expect(metadata.pop(f"crc32c.{name}", None) in (None, _sum(part)), f"corrupt: tensor {name[:80]} does not match its checksum")
        tensors[name] = np.frombuffer(part, "<f4").reshape(shape).copy()
        _expect(np.isfinite(tensors[name]).all(), f"tensor {name[:80]} holds values that are not finite")
    _expect(at == every, f"corrupt: {every} bytes of data, {at} in the header")
    return tensors, metadata


def read(path: str | os.PathLike[str]) -> tuple[dict[str, Any], dict[str, str]]:
    """A checkpoint's tensors by name, in the file's order, and its metadata. ValueError: a damaged file, or another format."""
    try:
        return _decode(memoryview(find(path).read_bytes()))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def write(path: str | os.PathLike[str], tensors: dict[str, Any], metadata: dict[str, str]) -> None:
    """Writes the file whole or not at all: a temporary file beside it, then a rename."""
    path, at, metadata = pathlib.Path(path), 0, {"format": OURS, **metadata}
    header: dict[str, Any] = {"__metadata__": metadata}
    for name, tensor in tensors.items():
        _expect(tensor.dtype == np.float32 and np.isfinite(tensor).all(), f"{path}: not written: tensor {name} is not of finite f32")
        header[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [at, at := at + tensor.nbytes]}
        metadata[f"crc32c.{name}"] = _sum(tensor.tobytes())
    metadata["crc32c"] = _sum(_compact(header, sort_keys=True))
    text = (plain := _compact(header)).ljust(-(-len(plain) // 8) * 8)
    replace(path, [len(text).to_bytes(8, "little"), text, *(tensor.tobytes() for tensor in tensors.values())])


def replace(path: str | os.PathLike[str], parts: list[bytes]) -> None:
    """Writes a file whole or not at all: a temporary one beside it, then a rename."""
    if (path := pathlib.Path(path)).exists() and not path.is_file():
        raise FileExistsError(f"{path} exists and is no regular file: choose another name")
    temporary = path.with_name(f"{path.name}.tmp.{os.getpid()}")
    try:
        with open(temporary, "xb") as file:
            file.writelines(parts)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        raise OSError(error.errno, f"cannot write: {error.strerror}", str(path)) from None
    finally:
        temporary.unlink(missing_ok=True)


def load(run_or_checkpoint: str | os.PathLike[str], best: bool = False, spec: dict[str, Any] | None = None, kind: Any = None) -> Any:
    """The policy of a run's newest (best: best) checkpoint, or of a file, as a torch.nn.Module (actorfarm.policy.Policy). spec: the environment's
    spaces (`env.consumer.spec`), for files of older versions, which lack them."""
    if not kind:
        from actorfarm.policy import Policy as kind
    whole = read(path := find(run_or_checkpoint, best))
    try:
        return kind(*whole, spec)
    except Exception as error:
        raise ValueError(f"{path}: its tensors are not those of its network and environment: {error!r}") from error


def save(module: Any, path: str | os.PathLike[str]) -> None:
    """Writes what load() returned, also after it was trained, as a checkpoint that `farm eval`, --resume and --init-from take. All metadata
    stay; so do further tensors, except those of other weights (an optimiser's moments, parameter sets of an algorithm) if the weights differ."""
    before, masks = module.tensors, module.masks
    own = {name: tensor.cpu().numpy() * masks.get(name, np.float32(1)) for name, tensor in module.state_dict().items()}
    equal = all(np.array_equal(array, before[name]) for name, array in own.items())
    others = {name: tensor for name, tensor in before.items() if equal or not any(name.endswith("." + part) for part in own)}
    write(path, {**others, **own}, module.metadata)


def export(run_or_checkpoint: str | os.PathLike[str], path: str | os.PathLike[str], best: bool = False, spec: dict[str, Any] | None = None) -> dict[str, Any]:
    """Writes the policy of a run's newest (best: best) checkpoint, or of a file, as an ONNX file, whole or not at all. spec: as load()'s. Returns the
    document of `farm export --json` (docs/PYTHON.md). ImportError: without the package onnx."""
    import onnx
    from actorfarm.network import OPSET, Graph

    graph = load(source := find(run_or_checkpoint, best), spec=spec, kind=functools.partial(Graph, onnx))
    replace(path, [data := graph.model.SerializeToString()])
    made = {"schema_version": 1, "file": os.fspath(path), "bytes": len(data), "env": graph.metadata["recipe.env"], "opset": OPSET, **graph.ports}
    made |= {"parameters": sum(array.size for name, array in graph.constants.items() if name in graph.tensors), "nodes": len(graph.nodes)}
    return made | {"checkpoint": str(source), "checkpoint_frames": int(graph.metadata.get("frames", 0))}

"""What to say of a gym/ID that does not play: its place, the id that works here, or for whom it was made. Only then imported."""

import difflib
import glob
import importlib.metadata
import os
import re
import sys

import gymnasium

from . import actor

OLD = "made for the old gym package: %s. Install its release for Gymnasium, or gym and shimmy (docs/ENVIRONMENTS.md)"


def _old(id, failed):
    """Evidence that the package was made for gym, Gymnasium's predecessor, or None. gym itself may be installed."""
    if isinstance(failed, ImportError) and (failed.name or "").partition(".")[0] == "gym":
        return f"it imports {failed.name}{actor.place_of(failed, own=True)}"
    if "gym" not in sys.modules:
        return None
    registry = getattr(getattr(sys.modules["gym"], "envs", None), "registry", {})
    if id in getattr(registry, "env_specs", registry):  # up to 0.21: an object
        return "it registers this id there"
    if isinstance(failed, TypeError) and re.search(r"inherit from the gymnasium\.Env|Gym is incompatible", str(failed)):
        return "its class is gym's"
    return None


def _nearest(package, id):
    """The name here of the most similar registered id: in other case, of another version, or misspelt."""
    def bare(id):
        return re.sub(r"-v\d+$", "", id).lower()

    def own(spec):
        return str(spec.entry_point or spec.vector_entry_point).startswith("gymnasium.")

    specs = sorted(gymnasium.registry.values(), key=lambda spec: spec.version or 0)
    known = {bare(spec.id): spec for spec in specs if package or own(spec)}
    near = [known[found] for found in difflib.get_close_matches(bare(id), known, 1, 0.8)]
    return f"gym/{'' if own(near[0]) else package + ':'}{near[0].id}" if near and near[0].id != id else None


def _packages():
    """Installed modules whose packages use Gymnasium."""
    def uses(name):
        return any(re.match(r"gymnasium\b", needed) for needed in importlib.metadata.requires(name) or ())

    modules = importlib.metadata.packages_distributions().items()
    return sorted(module for module, names in modules if module not in ("ale_py", "gymnasium") and module.isidentifier() and any(map(uses, names)))


def _registering(package):
    """Modules within the package that register environments when they are imported."""
    folder = os.path.dirname(sys.modules[package].__file__ or "")
    found = []
    for path in glob.glob(os.path.join(glob.escape(folder), "*", "__init__.py")):
        with open(path, encoding="utf-8", errors="replace") as file:
            if re.search(r"\bregister\(", file.read()):
                found.append(f"{package}.{os.path.basename(os.path.dirname(path))}")
    return found


def _other_id(package, id):
    """The sentence about an id that is not registered."""
    near = _nearest(package, id)
    try:
        from . import ale_game

        atari = ale_game.other_spelling(id)
    except ModuleNotFoundError:
        atari = None
    if atari or near:
        return atari or f'did you mean "{near}"?'
    found = _registering(package) if package else _packages()
    return "gym/PACKAGE:ID imports PACKAGE first" + (f"; PACKAGE may be {', '.join(found)}" if found else "")


def explain(package, id, failed):
    """One sentence or two for the exception of an import, of gymnasium.make or of a space."""
    old = _old(id, failed)
    text = " ".join(str(failed).split())
    if old:
        return OLD % old
    if isinstance(failed, ModuleNotFoundError):
        return f"{text}{actor.place_of(failed, own=True)} (install packages in {sys.prefix})"
    if isinstance(failed, gymnasium.error.Error) and id not in gymnasium.registry:
        return f"{re.split(r'[.] (?:Did|Have) you', text)[0].rstrip('.')}; {_other_id(package, id)}"
    if isinstance(failed, ImportError) and _nearest(package, id):  # a version that is registered in name only
        return f'{text.rstrip(".")}; did you mean "{_nearest(package, id)}"?'
    needed = re.findall(r"'(\w+)'", text.partition(" required positional argument")[2].partition(" was raised")[0])
    if isinstance(failed, TypeError) and needed:
        return f"{text} (its arguments are options: {' '.join(f'--env.{name} VALUE' for name in needed)})"
    return actor.describe_error(failed) if not text or actor.place_of(failed, own=True) else text

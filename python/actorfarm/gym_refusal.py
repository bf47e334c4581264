"""What to say of a gym/ID that does not play: what plays instead, or the place of the error. Only then imported."""

import difflib
import re
import sys

import gymnasium

from . import actor

OLD = "made for the old gym package: %s. Install its release for Gymnasium, or gym and shimmy (docs/ENVIRONMENTS.md)"


def _old(id, failed):
    """Evidence that the package was made for gym, Gymnasium's predecessor, or None. gym itself may be installed."""
    if isinstance(failed, ImportError) and (failed.name or "").partition(".")[0] == "gym":
        return f"it imports {failed.name}{actor.place_of(failed, own=True)}"
    registry = getattr(getattr(sys.modules.get("gym"), "envs", None), "registry", {})
    if id in getattr(registry, "env_specs", registry):  # up to 0.21: an object
        return "it registers this id there"
    alien = isinstance(failed, TypeError) and re.search(r"inherit from the gymnasium\.Env|Gym is incompatible", str(failed))
    return "its class is gym's" if alien and "gym" in sys.modules else None


def _nearest(package, id):
    """The question after the most similar id: in other case, of another version, or misspelt. Or None."""
    def bare(id):
        return re.sub(r"-v\d+$", "", id).lower()

    def own(spec):
        return str(spec.entry_point or spec.vector_entry_point).startswith("gymnasium.")

    specs = sorted(gymnasium.registry.values(), key=lambda spec: spec.version or 0)
    known = {bare(spec.id): spec for spec in specs if package or own(spec)}
    found = [near for name in (bare(id), bare(id).rpartition("/")[2]) for near in difflib.get_close_matches(name, known, 1, 0.8)]
    near = [known[name] for name in found[:1]]
    return f'did you mean "gym/{"" if own(near[0]) else package + ":"}{near[0].id}"?' if near and near[0].id != id else None


def _built_in(id):
    """The same for an id of an environment that has a program of its own here, or None."""
    procgen = re.fullmatch(r"procgen-(\w+)-v0", id)
    if procgen:
        return f'did you mean "procgen/{procgen[1]}"?'
    try:
        from . import ale_game

        return ale_game.other_spelling(id)
    except ModuleNotFoundError:
        return None


def explain(package, id, failed):
    """One sentence or two for the exception of an import, of gymnasium.make or of a space."""
    text, old = " ".join(str(failed).split()), _old(id, failed)
    if old:
        return OLD % old
    known, missing = id in gymnasium.registry, isinstance(failed, ImportError)
    unknown = isinstance(failed, gymnasium.error.Error) and not known
    near = (_built_in(id) if unknown or missing and not known else None) or (_nearest(package, id) if unknown or missing and known else None)
    if isinstance(failed, ModuleNotFoundError) and not near:
        return f"{text}{actor.place_of(failed, own=True)} (install packages in {sys.prefix})"
    if unknown or near:
        return f"{re.split(r'[.] (?:Did|Have) you', text)[0].rstrip('.')}; {near or 'gym/PACKAGE:ID imports PACKAGE first'}"
    needed = re.search(r" required positional arguments?: (.*) was raised from the environment creator", text)
    if needed:
        return f"{text} (its arguments are options: {' '.join('--env.' + name + ' VALUE' for name in needed[1].split(chr(39))[1::2])})"
    return actor.describe_error(failed) if not text or actor.place_of(failed, own=True) else text

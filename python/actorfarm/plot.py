"""Curves of training runs: what `farm plot` draws, and bench/figures.py from bench/results. Pictures need matplotlib; text and
JSON need nothing but Python.

A run is the folder of a `farm train`, a metrics.jsonl, or a line of a file like bench/results/training.jsonl (`curve`: [seconds,
mean return, frames]). Runs whose recipes differ in the seed only are one group: its median is drawn over the stretch that all of
its runs have played, with each run as a thin line.

usage: plot.py [KEY VALUE]...     tools/plot.c gives them: its flags, `run PATH` (-: stdin) and `baseline PATH` once or several times
"""

import bisect
import contextlib
import csv
import dataclasses
import glob
import json
import math
import os
import shutil
import signal
import statistics
import sys

# The panels drawn by default: short name, key of metrics.jsonl, label.
PANELS = (("return", "return_mean", "mean return of 100 games"), ("speed", "agent_steps_per_s", "agent steps/s"),
          ("lag", "policy_lag_updates", "policy lag, updates"), ("entropy", "entropy_nats", "entropy, nats"),
          ("kl", "kl_nats", "KL divergence, nats"))  # fmt: skip
AXES = {"steps": "agent steps", "minutes": "minutes", "frames": "frames"}
ENDINGS = (".png", ".svg", ".pdf")
COLOURS = ("#2b6cb0", "#c05621", "#2f855a", "#6b46c1", "#b83280", "#975a16", "#00838f", "#4a5568")
POINTS = 200  # of a group's median
SEEDS_OF_RANGE = 3  # so many runs or fewer: their range is the band, else their quartiles
NOT_A_RECIPE = {"seed", "base", "run", "json", "quiet", "checkpoint_every", "checkpoints_keep", "metrics_every", "metrics_updates",
                "csv", "tensorboard"}  # they change no training  # fmt: skip


class Refused(Exception):
    """A run, a file or a flag is at fault: cause, value, remedy."""


@dataclasses.dataclass
class Run:
    """One run's points, in order. xs: of each axis, ys: of each key of metrics.jsonl; NaN stands for what does not exist."""

    name: str
    settings: dict  # the recipe without what NOT_A_RECIPE has
    seed: object = None
    peer: bool = False  # another system's run on this machine
    algo: object = None  # as a record says beside its command; older ones do not
    xs: dict = dataclasses.field(default_factory=dict)
    ys: dict = dataclasses.field(default_factory=dict)

    def points(self, axis, key, smooth=1):
        """(x, y, standard deviation of y or NaN); each y is the mean over `smooth` neighbours."""
        nothing = [math.nan] * len(self.xs.get(axis, ()))
        rows = zip(self.xs.get(axis, ()), self.ys.get(key, nothing), self.ys.get(key.replace("_mean", "_std"), nothing) if key == "return_mean" else nothing)
        kept = {x: (y, deviation) for x, y, deviation in rows if not math.isnan(x) and not math.isnan(y)}
        xs, before, after = list(kept), (smooth - 1) // 2, smooth // 2 + 1
        ys, deviations = zip(*kept.values()) if kept else ((), ())
        mean = lambda values, i: statistics.fmean(values[max(i - before, 0) : i + after])  # noqa: E731
        return [(x, mean(ys, i), mean(deviations, i)) for i, x in enumerate(xs)]


def number(value):
    """NaN for what is not a number, or so large that sums of it overflow."""
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e300 else math.nan


# ---- reading ----


def read_recipe(folder):
    """recipe.yaml of a run's folder; empty if it does not exist."""
    try:
        with open(os.path.join(folder, "recipe.yaml"), encoding="utf-8", errors="replace") as file:
            return dict(line.strip().split(": ", 1) for line in file if ": " in line)
    except OSError:
        return {}


def read_samples(samples, name, folder):
    """A run from its lines of metrics.jsonl. Lines that a resumed run plays again, from its checkpoint on, replace the earlier ones.
    A null replaces no value of the same step."""
    kept = []
    for sample in samples:
        while kept and (kept[-1]["agent_steps"] >= sample["agent_steps"] or kept[-1]["wall_s"] > sample["wall_s"]):
            replaced = kept.pop()
            if replaced["agent_steps"] == sample["agent_steps"]:
                sample = {**replaced, **{key: value for key, value in sample.items() if value is not None}}
        kept.append(sample)
    recipe = read_recipe(folder)
    run = Run(name, {key: value for key, value in recipe.items() if key not in NOT_A_RECIPE} or {"run": name}, recipe.get("seed"))
    run.xs = {"steps": [float(s["agent_steps"]) for s in kept], "minutes": [s["wall_s"] / 60 for s in kept], "frames": [number(s.get("frames")) for s in kept]}
    keys = {key: None for sample in kept for key, value in sample.items() if not math.isnan(number(value))}
    run.ys = {key: [number(sample.get(key)) for sample in kept] for key in keys}
    return run


def read_command(command):
    """The flags of a `farm train` command line, by the names of their keys."""
    words, flags, key = command.split(), {}, None
    for word in words[words.index("train") + 1 :] if "train" in words else ():
        if word.startswith("--"):
            key = word[2:].replace("-", "_")
            flags[key] = "true"
        elif key:
            flags[key] = word
    return flags


def frames_per_step(record, flags):
    if record.get("agent_steps"):
        return round(record["frames"] / record["agent_steps"])
    return int(flags.get("env.frame_skip", 4)) if record.get("env", "").startswith("ale/") else 1


def read_record(record, name):
    """A run from a line of bench/results/training.jsonl."""
    flags = read_command(record["command"])
    settings = {**{key: value for key, value in flags.items() if key not in NOT_A_RECIPE}, "env": record["env"]}
    if "peer" in record:
        settings = {"env": record["env"], "peer": record["peer"]}
    rows = record["curve"] if "curve" in record else [[math.nan, value, frames] for frames, value in record["returns"]]
    rows = [[number(value) for value in row] + [math.nan] * (3 - len(row)) for row in rows]
    run = Run(f"{name} {record['env']}", settings, record.get("seed", flags.get("seed")), "peer" in record, record.get("algo"))
    skip = frames_per_step(record, flags)
    run.xs = {"steps": [row[2] / skip for row in rows], "minutes": [row[0] / 60 for row in rows], "frames": [row[2] for row in rows]}
    run.ys = {"return_mean": [row[1] for row in rows]}
    return run


def read_lines(lines, name):
    """The objects of JSON Lines. A torn last line is one that is being written: it is left out."""
    objects, torn = [], None
    for i, line in enumerate(lines, 1):
        if torn:
            raise Refused(f"{name}:{torn} is not a line of JSON: RUN is a run's folder, its metrics.jsonl, or lines like bench/results/training.jsonl")
        try:
            value = json.loads(line) if line.strip() else None
        except (ValueError, RecursionError):
            torn = i
        else:
            objects += [value] if isinstance(value, dict) else []
    return objects


def read_runs(path):
    """The runs of a folder or file; "-": stdin. A folder of `farm train --seeds` has one for each seed."""
    file_path = os.path.join(path, "metrics.jsonl") if os.path.isdir(path) else path
    seeds = sorted(glob.glob(os.path.join(glob.escape(path), "seed-*", "metrics.jsonl")))
    if seeds and not os.path.exists(file_path):
        return [run for one in seeds for run in read_runs(one)]
    try:
        with open(0 if path == "-" else file_path, encoding="utf-8", errors="replace", closefd=path != "-") as file:
            objects = read_lines(file, file_path)
    except OSError as error:
        remedy = "; RUN is the folder of a `farm train`" if path == file_path else f": {path} holds no run (`farm train --run {path}` makes one)"
        raise Refused(f"{file_path}: {error.strerror}{remedy}") from None
    try:
        records = {}  # of a command and seed that was trained again, the last line
        for run in (read_record(record, path) for record in objects if "curve" in record or "returns" in record):
            records[(*sorted(run.settings.items()), run.seed)] = run
        samples = [sample for sample in objects if {"agent_steps", "wall_s", "return_mean"} <= sample.keys() and "command" not in sample]
        runs = [*records.values()] + ([read_samples(samples, path, os.path.dirname(file_path))] if samples else [])
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise Refused(f"{file_path}: a line has another form than metrics.jsonl and bench/results/training.jsonl ({type(error).__name__}: {error})") from None
    if not runs:
        raise Refused(f"{file_path} has no metrics yet: a run's first line is written after its `metrics_every` seconds (5)")
    return runs


def read_baseline(path):
    """{name: {unit: [(x, y)]}} of a CSV file with the columns x, y and, optionally, name and unit (steps, minutes or frames)."""
    found = {}
    try:
        with open(path, encoding="utf-8", errors="replace", newline="") as file:
            rows = [(i, line) for i, line in enumerate(file, 1) if line.strip() and not line.startswith("#")]
    except OSError as error:
        raise Refused(f"--baseline {path}: {error.strerror}") from None
    reader = csv.DictReader([line for _, line in rows], skipinitialspace=True)
    if not {"x", "y"} <= set(reader.fieldnames or ()):
        raise Refused(f"--baseline {path}: the first line must name the columns: x, y and, optionally, name and unit (steps, minutes, frames)")
    for (i, _), row in zip(rows[1:], reader):
        name, unit = row.get("name") or os.path.splitext(os.path.basename(path))[0], row.get("unit") or "steps"
        try:
            point = float(row["x"]), float(row["y"])
            if not all(map(math.isfinite, point)):
                raise ValueError
        except (TypeError, ValueError):
            raise Refused(f"--baseline {path}:{i}: x and y must be numbers (got {row['x']!r}, {row['y']!r})") from None
        if unit not in AXES:
            raise Refused(f"--baseline {path}:{i}: unit must be one of {', '.join(AXES)} (got {unit!r})")
        found.setdefault(name, {}).setdefault(unit, []).append(point)
    return found


# ---- groups, medians, bands ----


def group_runs(runs):
    """Lists of runs that differ in the seed only, in the order of their first ones."""
    groups = {}
    for run in runs:
        groups.setdefault(tuple(sorted(run.settings.items())), []).append(run)
    return list(groups.values())


def label_groups(groups):
    """What distinguishes each: the keys of their recipes that differ; of more than three, only as many as make labels differ."""
    known = [next((run.algo for run in group if run.algo), None) for group in groups]
    own = [{**({"algo": algo} if algo else {}), **group[0].settings} for group, algo in zip(groups, known) if not group[0].peer]
    first = ("env", "algo", "net")
    keys = sorted({key for one in own for key in one if any(one[key] != other.get(key) for other in own)}, key=lambda key: (key not in first, key))
    for count in range(min(len(keys), 3 if len(keys) <= 3 else 1), len(keys) + 1):
        words = [[one[key] if key in ("env", "run") else f"{key} {one[key]}" for key in keys[:count] if key in one] for one in own]
        if len({tuple(word) for word in words}) == len(own):
            break
    labels, words = [], iter(words)
    for group in groups:
        one = group[0].settings
        label = one["peer"] if group[0].peer else ", ".join(next(words)) or one.get("env", os.path.basename(group[0].name))
        labels.append(f"{label} ({group[0].name})" if label in labels else label)
    return labels


def interpolate(points, x):
    """y at x between the points' neighbours; x lies within them."""
    i = bisect.bisect_left(points, x, key=lambda point: point[0])
    (x1, y1), (x0, y0) = points[i][:2], points[max(i - 1, 0)][:2]
    return y1 if x1 <= x or x1 == x0 else y0 + (y1 - y0) * (x - x0) / (x1 - x0)


def summarise(group, axis, key, smooth=1, x_max=None):
    """A group's curve as `farm plot --json` has it: x, median, low, high; band names what low and high are, None: nothing."""
    every = [points for points in (run.points(axis, key, smooth) for run in group) if points]
    every = [[point for point in points if x_max is None or point[0] <= x_max] for points in every]
    every = [points for points in every if points]
    curve = {"runs": [{"x": [p[0] for p in points], "y": [p[1] for p in points]} for points in every], "band": None, "low": [], "high": []}
    if len(every) == 1:
        curve.update(x=curve["runs"][0]["x"], median=curve["runs"][0]["y"])
        if not any(math.isnan(point[2]) for point in every[0]):
            curve.update(band="standard deviation of games", low=[y - s for _, y, s in every[0]], high=[y + s for _, y, s in every[0]])
        return curve
    start, end = max((points[0][0] for points in every), default=0), min((points[-1][0] for points in every), default=-1)
    curve["x"] = [min(start + (end - start) * i / (POINTS - 1), end) for i in range(POINTS)] if start < end else []
    columns = [sorted(interpolate(points, x) for points in every) for x in curve["x"]]
    curve["median"] = [statistics.median(column) for column in columns]
    if len(every) > SEEDS_OF_RANGE:
        quartiles = [statistics.quantiles(column, n=4, method="inclusive") for column in columns]
        curve.update(band="quartiles", low=[q[0] for q in quartiles], high=[q[2] for q in quartiles])
    elif every:
        curve.update(band="range", low=[column[0] for column in columns], high=[column[-1] for column in columns])
    return curve


def convert_baselines(baselines, runs, axis, x_max=None):
    """[{name, x, y}] in the unit of the axis, and sentences about those that have no such unit."""
    skips = {round(f / s, 3) for run in runs for f, s in list(zip(run.xs["frames"], run.xs["steps"]))[-1:] if s and s > 0 and f == f}
    drawn, left_out = [], []
    for name, units in baselines.items():
        points = list(units.get(axis, ()))
        if not points and len(skips) == 1 and axis != "minutes":
            scale = next(iter(skips))
            points = [(x / scale, y) for x, y in units.get("frames", ())] if axis == "steps" else [(x * scale, y) for x, y in units.get("steps", ())]
        points = sorted(point for point in points if x_max is None or point[0] <= x_max)
        if points:
            drawn.append({"name": name, "x": [x for x, _ in points], "y": [y for _, y in points]})
        elif axis not in units:
            left_out.append(f"baseline '{name}' is not drawn: it has {' and '.join(units)}, not {axis}")
    return drawn, left_out


def panel_of(name, runs):
    """(key, label) of a metric's short name or key. Refused: no run has it."""
    known = {word: (key, label) for short, key, label in PANELS for word in (short, key)}
    keys = {key for run in runs for key in run.ys}
    key, label = known.get(name, (name, name.replace("_", " ")))
    if key not in keys:
        raise Refused(f"--metrics: no run has '{name}' (there are {', '.join([short for short, of, _ in PANELS if of in keys] + sorted(keys - {key for _, key, _ in PANELS}))})")
    return key, label


def make_document(runs, axis="steps", metrics=(), baselines=(), smooth=1, x_max=None, title=None):
    """All that is drawn, as `farm plot --json` prints it, and remarks for stderr."""
    groups, remarks = group_runs(runs), []
    envs = {run.settings.get("env") for run in runs}
    document = {"schema_version": 1, "x": axis, "title": title or (envs.pop() if len(envs) == 1 else None),
                "groups": [{"label": label, "runs": [run.name for run in group], "seeds": [run.seed for run in group], "peer": group[0].peer}
                           for label, group in zip(label_groups(groups), groups)], "panels": []}  # fmt: skip
    chosen = [panel_of(name, runs) for name in metrics] or [(key, label) for _, key, label in PANELS if any(key in run.ys for run in runs)]
    for key, label in chosen:
        curves = [{"group": i, **summarise(group, axis, key, smooth, x_max)} for i, group in enumerate(groups)]
        curves = [curve for curve in curves if curve["runs"]]
        drawn, left_out = convert_baselines(baselines, runs, axis, x_max) if baselines and key == "return_mean" else ([], [])
        remarks += left_out
        remarks += [f"{label}: no figures over {AXES[axis]} of {document['groups'][i]['label']}" for i in range(len(groups)) if all(c["group"] != i for c in curves)]
        if curves:
            document["panels"].append({"metric": key, "label": label, "curves": curves, "baselines": drawn})
    if baselines and not any(key == "return_mean" for key, _ in chosen):
        remarks.append("--baseline is drawn with the return only: add it to --metrics")
    if not document["panels"]:
        raise Refused(f"there is nothing to draw over {AXES[axis]}: {remarks[0] if remarks else 'the runs have no figures yet'} (--x chooses another axis)")
    return document, remarks


def legend_of(curve, group):
    """A group's label with what its line and band are."""
    count = len(curve["runs"])
    what = [f"median of {count} runs"] if count > 1 else []
    what += [{"range": "least to most", "standard deviation of games": "mean, standard deviation of games", None: ""}.get(curve["band"], curve["band"])]
    return ": ".join(filter(None, (group["label"], ", ".join(filter(None, what)))))


# ---- pictures ----


def import_matplotlib():
    """matplotlib, drawing into files. A matplotlibrc of the current folder does not count: it is imported in another one."""
    here = os.open(".", os.O_PATH)
    os.chdir("/")
    try:
        import matplotlib
    finally:
        os.fchdir(here)
        os.close(here)
    matplotlib.use("svg")
    return matplotlib


def load_pyplot():
    """matplotlib.pyplot, in the style of all our pictures."""
    matplotlib = import_matplotlib()
    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "actorfarm", "font.size": 9, "axes.spines.top": False,
                                "axes.spines.right": False, "axes.grid": True, "grid.alpha": 0.3, "legend.framealpha": 0.7, "legend.edgecolor": "none",
                                "axes.formatter.useoffset": False})  # fmt: skip
    from matplotlib import pyplot

    return pyplot


def draw_panel(axes, panel, groups, axis, legend=legend_of):
    """Curves and baselines of a panel into matplotlib's axes. legend(curve, group): a label; None: no legend."""
    from matplotlib import ticker

    for curve in panel["curves"]:
        group, colour = groups[curve["group"]], COLOURS[curve["group"] % len(COLOURS)]
        style = {"color": colour, "linestyle": "--" if group["peer"] else "-"}
        if len(curve["runs"]) > 1:
            for run in curve["runs"]:
                axes.plot(run["x"], run["y"], linewidth=0.6, alpha=0.5, marker="." if len(run["x"]) == 1 else None, **style)
        if curve["band"]:
            axes.fill_between(curve["x"], curve["low"], curve["high"], color=colour, alpha=0.15, linewidth=0)
        axes.plot(curve["x"], curve["median"], linewidth=1.5, marker="." if len(curve["x"]) == 1 else None, label=legend(curve, group) if legend else None, **style)
    for i, baseline in enumerate(panel["baselines"]):
        shade = str(0.25 + 0.5 * i / max(len(panel["baselines"]) - 1, 1))
        axes.plot(baseline["x"], baseline["y"], color=shade, linestyle="--", linewidth=1, marker="D", markersize=3, label=baseline["name"])
    axes.set(xlabel=AXES[axis], ylabel=panel["label"])
    axes.set_xlim(left=0)
    if axis != "minutes":
        axes.xaxis.set_major_formatter(ticker.EngFormatter(sep=""))
    if legend:
        axes.legend(fontsize=7).set_in_layout(False)


def save(figure, path, **options):
    """Without dates and versions, so that equal figures make equal files. A new file replaces what has the name, a link too; a device or
    a fifo is written to."""
    software = {".png": {"Software": None}, ".svg": {"Date": None, "Creator": None}, ".pdf": {"CreationDate": None, "Producer": None, "Creator": None}}
    ending, part = os.path.splitext(path)[1], f"{path}.tmp.{os.getpid()}"
    options.update(format=ending[1:], metadata=software[ending])
    if os.path.exists(path) and not os.path.isfile(path):
        return figure.savefig(path, **options)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(part)  # a killed process has left it
    try:
        with open(part, "xb") as file:
            figure.savefig(file, **options)
        os.replace(part, path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(part)


def draw(document, path):
    """The first panel in full width, the others in two columns below it."""
    pyplot, panels = load_pyplot(), document["panels"]
    rows = [[0, 0], *([i, min(i + 1, len(panels) - 1)] for i in range(1, len(panels), 2))]
    figure, places = pyplot.subplot_mosaic(rows, figsize=(8, 4 + 2.4 * (len(rows) - 1)), height_ratios=[1.6, *[1] * (len(rows) - 1)], layout="constrained")
    for i, panel in enumerate(panels):
        draw_panel(places[i], panel, document["groups"], document["x"], legend=legend_of if i == 0 else None)
    if document["title"]:
        figure.suptitle(document["title"])
    save(figure, path, dpi=100)


# ---- text ----


def short(value):
    """Three digits, k, M, G."""
    for scale, suffix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= 0.9995 * scale:
            return f"{value / scale:.3g}{suffix}"
    return f"{value:.3g}"


def chart(curves, dotted, width, height, colours):
    """Rows of Braille: curves [(xs, ys, colour's number)] as lines, dotted ones as dots. Two by four dots are a character."""
    bits = ((1, 2, 4, 64), (8, 16, 32, 128))
    low, high = min(min(ys) for _, ys, _ in curves), max(max(ys) for _, ys, _ in curves)
    margin = max(1, abs(low)) if low == high else 0
    low, high = low - margin, high + margin
    end = max(xs[-1] for xs, _, _ in curves)
    cells, paint = [[0] * width for _ in range(height)], {}

    def dot(column, y, colour):
        row = round((high - y) / (high - low) * (4 * height - 1))
        if 0 <= row < 4 * height and 0 <= column < 2 * width:
            cells[row // 4][column // 2] |= bits[column % 2][row % 4]
            paint[row // 4, column // 2] = colour
        return row

    for xs, ys, colour in dotted:
        for column in range(0, 2 * width, 4):
            if xs[0] <= (x := end * column / (2 * width - 1)) <= xs[-1]:
                dot(column, interpolate(list(zip(xs, ys)), x), colour)
    for xs, ys, colour in curves:
        points, before = list(zip(xs, ys)), None
        for x, y in points:
            dot(round(x / end * (2 * width - 1)) if end else 0, y, colour)
        for column in range(2 * width):
            if not xs[0] <= (x := end * column / (2 * width - 1)) <= xs[-1]:
                continue
            y = interpolate(points, x)
            row = dot(column, y, colour)
            for between in range(min(row, before) + 1, max(row, before)) if before is not None else ():
                dot(column, high - between / (4 * height - 1) * (high - low), colour)
            before = row
    for i, row in enumerate(cells):
        line = "".join(f"\x1b[3{paint[i, k]}m{chr(0x2800 + cell)}\x1b[0m" if colours and cell else chr(0x2800 + cell) for k, cell in enumerate(row))
        yield f"{short(high if i == 0 else low) if i in (0, height - 1) else '':>8} {'┤' if i in (0, height - 1) else '│'}{line.rstrip(chr(0x2800))}"
    yield f"{'':9}└{'─' * width}"
    yield f"{'':10}0{short(end):>{width - 1}}"


def text_lines(document, width, colours):
    """Each panel as a chart of all groups in colours; without colours, a chart for each group."""
    if document["title"]:
        yield document["title"]
    for panel in document["panels"]:
        # A group without a stretch common to its runs has no median: its first run stands for it.
        curves = [(curve["x"] or curve["runs"][0]["x"], curve["median"] or curve["runs"][0]["y"], 1 + curve["group"] % 6) for curve in panel["curves"]]
        dotted = [(baseline["x"], baseline["y"], 7) for baseline in panel["baselines"]]
        yield ""
        for chosen in [range(len(curves))] if colours else [[i] for i in range(len(curves))]:
            yield f"{panel['label']}, over {AXES[document['x']]}"
            for i in chosen:
                _, ys, colour = curves[i]
                curve, label = panel["curves"][i], document["groups"][panel["curves"][i]["group"]]["label"]
                label += f", median of {len(curve['runs'])} runs" if len(curve["runs"]) > 1 else ""
                band = f" ({curve['band']} {short(curve['low'][-1])} to {short(curve['high'][-1])})" if curve["low"] else ""
                text = f"  {label}: last {short(ys[-1])}{band}, highest {short(max(ys))}"
                yield f"\x1b[3{colour}m{text}\x1b[0m" if colours else text
            yield from chart([curves[i] for i in chosen], dotted, width, 10 if panel is document["panels"][0] else 5, colours)
        for baseline in panel["baselines"]:
            yield f"  dotted: {baseline['name']}, {short(baseline['y'][-1])} at {short(baseline['x'][-1])}"


# ---- the command ----


def read_words(words):
    """{key: [value]} of the command line."""
    given = {}
    for key, value in zip(words[::2], words[1::2]):
        given.setdefault(key, []).append(value)
    return given


def check_output(path, remedy):
    """Refuses a file that cannot be drawn before anything is read."""
    if os.path.splitext(path)[1] not in ENDINGS:
        raise Refused(f"-o {path}: the ending must be one of {', '.join(ENDINGS)}")
    folder = os.path.dirname(path) or "."
    if not os.path.isdir(folder):
        raise Refused(f"-o {path}: there is no folder {folder}")
    try:
        load_pyplot()
    except ImportError as missing:
        raise Refused(f"-o needs matplotlib ({missing}): {remedy}, or {sys.executable} -m pip install matplotlib; without -o the curves are printed as text") from None


def main(words):
    given = read_words(words)
    one = {key: values[-1] for key, values in given.items()}
    axis, smooth, x_max = one["x"], int(one["smooth"]), float(one["x_max"]) or None
    if axis not in AXES:
        raise Refused(f"--x must be one of {', '.join(AXES)} (got '{axis}')")
    if smooth < 1 or (x_max or 0) < 0:
        raise Refused(f"--smooth must be at least 1, --x-max at least 0 (got {smooth}, {one['x_max']})")
    if not given.get("run"):
        raise Refused("which run? farm plot RUN... (RUN is the folder that `farm train` names at its end)")
    if "output" in one:
        check_output(one["output"], one["remedy"])
    runs = [run for path in given["run"] for run in read_runs(path)]
    baselines = {name: units for path in given.get("baseline", ()) for name, units in read_baseline(path).items()}
    metrics = [name.strip() for name in one.get("metrics", "").split(",") if name.strip()]
    document, remarks = make_document(runs, axis, metrics, baselines, smooth, x_max, one.get("title"))
    for remark in remarks:
        print(f"farm plot: {remark}", file=sys.stderr)
    if "output" in one:
        draw(document, one["output"])
        print(f"written: {one['output']}", file=sys.stderr)
    if "json" in one:
        print(json.dumps(document))
    elif "output" not in one:
        colours = sys.stdout.isatty() and "NO_COLOR" not in os.environ
        print("\n".join(text_lines(document, max(shutil.get_terminal_size().columns - 12, 20), colours)))
    sys.stdout.flush()


if __name__ == "__main__":
    sys.stdout.reconfigure(encoding="utf-8")
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C: no traceback
    try:
        main(sys.argv[1:])
    except Refused as refused:
        print(f"farm plot: {refused}", file=sys.stderr)
        sys.exit(2)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # Python flushes it again when it exits
        sys.exit(1 if "json" in sys.argv[1::2] else 0)
    except OSError as error:
        print(f"farm plot: {error}", file=sys.stderr)
        sys.exit(1)

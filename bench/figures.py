"""Pictures and tables from bench/results: the README's picture, and docs/RESULTS.md's pictures of learning curves and its tables.
Curves are drawn by `farm plot`'s own code (python/actorfarm/plot.py).

usage: figures.py       `make figures` runs it
"""

import json
import os
import re
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
RESULTS, BASELINES, DOCS = (os.path.join(HERE, *path) for path in (("results",), ("baselines",), ("..", "docs")))
sys.path[:0] = [HERE, os.path.join(HERE, "..", "python", "actorfarm")]
import plot
import training

# Label, file, name of the result, words in the name of the reference. The newest line that has it is drawn.
PEERS = [
    ("EnvPool, Pong", "peers", "envpool_pong", ""),
    ("EnvPool, Breakout", "peers", "envpool_breakout", ""),
    ("EnvPool, Procgen bigfish", "peers", "envpool_bigfish", ""),
    ("EnvPool, HalfCheetah", "peers", "envpool_halfcheetah", ""),
    ("ALE vector env, Pong", "peers", "ale_vector_pong", ""),
    ("Gymnasium async, Pong", "peers", "gymnasium_async_pong", ""),
    ("Sample Factory, Pong, sampling", "peers", "sample_factory_sample_pong", ""),
    ("Sample Factory, Pong, training", "peers", "sample_factory_train_pong", ""),
    ("PyTorch, update, IMPALA shallow", "learner", "train_shallow", "PyTorch"),
    ("PyTorch, update, Nature", "learner", "train_nature", "PyTorch"),
    ("gRPC, one 28 KB step and back", "peers", "grpc_step_summed", ""),
]
POINTS_MIN = 4  # fewer do not make a curve
COLOURS = 64  # of a PNG


def lines(name):
    with open(os.path.join(RESULTS, f"{name}.jsonl"), encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def ratio(name, result, reference):
    found = [r["ratio"] for d in lines(name) for r in d["results"] if r["name"] == result and reference in r["reference"]]
    if not found:
        sys.exit(f"figures.py: bench/results/{name}.jsonl has no {result} against {reference or 'a peer'}")
    return found[-1]


def recipe(record):
    """What one line shares with those of other seeds: its command, without programs' folders and the seed."""
    return re.sub(r"^\S*/(?=farm )| --seed \d+| --json", "", record["command"]) if "peer" not in record else record["peer"]


def training_records():
    """Lines of training.jsonl with curves, by environment and then by recipe; of a seed that was trained again, the last line."""
    found = {}
    for record in lines("training"):
        if "curve" in record or "returns" in record:
            found.setdefault(record["env"], {}).setdefault(recipe(record), {})[record.get("seed")] = record
    return {env: {command: list(seeds.values()) for command, seeds in recipes.items()} for env, recipes in found.items()}


def curves_of(recipes, **options):
    """A document of plot.py of these recipes' runs."""
    runs = [plot.read_record(record, "training.jsonl") for records in recipes.values() for record in records]
    return plot.make_document(runs, metrics=["return"], **options)[0]


def baselines_of(env):
    path = os.path.join(BASELINES, f"{env.replace('/', '_')}.csv")
    return plot.read_baseline(path) if os.path.exists(path) else {}


def minutes_of(recipes):
    return max(record["wall_s"] for records in recipes.values() for record in records) / 60


# ---- pictures ----


def label_of(curve, group):
    """Without the band, which docs/RESULTS.md explains."""
    return group["label"] + (f", {len(curve['runs'])} seeds" if len(curve["runs"]) > 1 else "")


def save_small(figure, name, dpi):
    """A PNG of few colours: a third of the bytes."""
    from PIL import Image

    path = os.path.join(DOCS, "figures", name)
    plot.save(figure, path, dpi=dpi)
    Image.open(path).convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE).save(path, optimize=True)


def draw_readme(records):
    """Ours beside peers, and Pong by PPO; while no such run is on record, a minute of native/breakout."""
    pyplot = plot.load_pyplot()
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 3.6), width_ratios=(3, 2), layout="constrained")
    rows = sorted(((label, ratio(*where)) for label, *where in PEERS), key=lambda row: row[1])
    left.barh([label for label, _ in rows], [value for _, value in rows], color=plot.COLOURS[0])
    for y, (_, value) in enumerate(rows):
        left.text(value * 1.05, y, f"{value:.3g}×", va="center")
    left.axvline(1, color="#888888", linewidth=1)
    left.grid(False)
    left.set(xscale="log", xticks=(1, 2, 5, 10, 20), xticklabels=("1", "2", "5", "10", "20"), xlim=(0.8, rows[-1][1] * 2), title="actorfarm ÷ peer, same machine, same run")
    pong = {command: found for command, found in records.get("ale/Pong", {}).items() if found[0].get("algo", "ppo") == "ppo" and "--algo vtrace" not in command}
    chosen = pong or {command: found for command, found in records["native/breakout"].items() if "--seconds 60" in command}
    document = curves_of(chosen, axis="minutes", baselines=baselines_of("ale/Pong") if pong else (), x_max=minutes_of(chosen))
    plot.draw_panel(right, document["panels"][0], document["groups"], "minutes", label_of)
    right.set(title=f"{document['title']}, two CPU cores")
    plot.save(figure, os.path.join(DOCS, "figures", "results.svg"))


def draw_environment(name, recipes, env):
    """One environment over agent steps and over minutes, with what others have published."""
    pyplot = plot.load_pyplot()
    figure, panels = pyplot.subplots(1, 2, figsize=(9, 3.4), sharey=True, layout="constrained")
    for axes, axis in zip(panels, ("steps", "minutes")):
        document = curves_of(recipes, axis=axis, baselines=baselines_of(env), x_max=minutes_of(recipes) if axis == "minutes" else None)
        plot.draw_panel(axes, document["panels"][0], document["groups"], axis, label_of if axis == "steps" else None)
    save_small(figure, name, dpi=90)


def draw_grid(name, records):
    """A small panel for each environment."""
    pyplot = plot.load_pyplot()
    rows = -(-len(records) // 3)
    figure, panels = pyplot.subplots(rows, 3, figsize=(10, 2.5 * rows), squeeze=False, layout="constrained")
    for axes in panels.flat[len(records) :]:
        axes.axis("off")
    for axes, (env, recipes) in zip(panels.flat, records.items()):
        document = curves_of(recipes)
        plot.draw_panel(axes, document["panels"][0], document["groups"], "steps", label_of if len(document["groups"]) > 1 else None)
        axes.set(title=env, xlabel="", ylabel="")
    save_small(figure, name, dpi=80)


# ---- docs/RESULTS.md ----


def is_curve(records):
    """Whether lines of one recipe show learning over agent steps: some points, of which the first are below the threshold. Agents that
    play against themselves return 0 at any time."""
    if "wins" in records[0]:
        return False
    curves = [record["curve"] if "curve" in record else [[0, *reversed(point)] for point in record["returns"]] for record in records]
    limit = records[0].get("threshold", float("inf"))
    return all(len(curve) >= POINTS_MIN and len(curve[0]) == 3 and curve[0][1] < limit for curve in curves)


def make_pictures(records):
    """Draws them; returns the text between the first pair of marks."""
    text, grid = [], {}
    for env, recipes in records.items():
        kept = {command: found for command, found in recipes.items() if is_curve(found)}
        if kept and baselines_of(env):
            name = f"{env.replace('/', '_')}.png"
            draw_environment(name, kept, env)
            again = f"grep '\"env\": \"{env}\"' bench/results/training.jsonl | farm plot - --baseline bench/baselines/{env.replace('/', '_')}.csv -o {name}"
            text += [f"### {env}", "", f"![Returns on {env} over agent steps and minutes](figures/{name})", "", f"`{again}` draws the left half, with `--x minutes` the right one.", ""]
        elif kept:
            grid[env] = kept
    draw_grid("curves.png", grid)
    return [*text, "### Other environments", "", "![Returns over agent steps, one environment a panel](figures/curves.png)", ""]


def steps_of(record, frames):
    return frames / plot.frames_per_step(record, plot.read_command(record["command"]))


def span(values, form):
    """'3' or '3 to 5'."""
    low, high = form(min(values)), form(max(values))
    return low if low == high else f"{low} to {high}"


def minutes(seconds):
    return f"{seconds / 60:.2g}" if seconds < 600 else f"{seconds / 60:.0f}"


def reached_of(found):
    """When the mean of 100 games first reached the threshold, and if it did not in all seeds, in how many."""
    limit = found[0].get("threshold")
    if limit is None:
        return ""
    points = ((record, record.get("first") or next((point for point in record["curve"] if point[1] >= limit), None)) for record in found)
    firsts = [(steps_of(record, point[2]), point[0]) for record, point in points if point]
    if not firsts:
        return "never"
    part = f"{len(firsts)} of {len(found)}: " if len(firsts) < len(found) else ""
    steps, seconds = zip(*firsts)
    return f"{part}{span(steps, plot.short)}, {span(seconds, minutes)} min"


def machine_of(record):
    known = record["machine"]
    return f"{known['cpu']}, {known['cores']} cores" + (", AVX-512" if "avx512f" in known.get("instruction_sets", ()) else "")


def make_table(records):
    """A row for each recipe of training.py and each peer."""
    text = ["| Environment | Command | Seeds: return at the end (of games played afterwards) | Threshold | First reached after | Agent steps | Minutes | Machine | Commit |",
            "|---|---|---|---|---|---|---|---|---|"]  # fmt: skip
    trained = {f"farm train {row.flags}" for row in training.TABLE}
    for env, recipes in records.items():
        for command, found in recipes.items():
            if command not in trained and "peer" not in found[0]:
                continue
            found = sorted(found, key=lambda record: record["seed"])
            returns = ", ".join(f"{record['seed']}: {record['return_mean']:.4g}" + (f" ({record['eval_return_mean']:.4g})" if "eval_return_mean" in record else "") for record in found)
            text.append(f"| {env} | {command if 'peer' in found[0] else f'`{command}`'} | {returns} | {found[0].get('threshold', '')} | {reached_of(found)} | "
                        f"{plot.short(steps_of(found[0], found[0]['frames']))} | {span([record['wall_s'] for record in found], minutes)} | {'; '.join(sorted({machine_of(record) for record in found}))} | "
                        f"{', '.join(dict.fromkeys(re.sub('^(.{7})[0-9a-f]*', lambda m: m[1], record['commit']) for record in found))} |")  # fmt: skip
    return text


def make_groups():
    """A table of each group of training.py."""
    text = []
    for name, group in training.GROUPS.items():
        head, *rows = training.group_table(name)
        text += [f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows)]
        text += ["", *(f"{published.system}: {published.source}." for published in group.published), ""]
    return text


def replace_parts(path, parts):
    """Puts each part between its marks, <!-- NAME: ... --> and <!-- end -->."""
    with open(path, encoding="utf-8") as file:
        text = file.read()
    for name, content in parts.items():
        text, count = re.subn(rf"(<!-- {name}: .*?-->\n).*?(<!-- end -->)", lambda mark: mark[1] + "\n".join(content).rstrip() + "\n" + mark[2], text, flags=re.S)  # noqa: B023
        if count != 1:
            sys.exit(f"figures.py: {path} needs one pair of marks <!-- {name}: ... --> and <!-- end -->")
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        sys.exit(__doc__)
    trained = training_records()
    draw_readme(trained)
    replace_parts(os.path.join(DOCS, "RESULTS.md"), {"pictures": make_pictures(trained), "groups": make_groups(), "runs": make_table(trained)})

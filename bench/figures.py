"""The picture of the README from bench/results: ours beside peers, and the learning curves of native/breakout on record.

usage: figures.py [FILE.svg]       `make figures` runs it
"""

import json
import os
import statistics
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
RESULTS = os.path.join(HERE, "results")
# Label, file, name of the result, words in the name of the reference. The median of all lines that have it is drawn.
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


def lines(name):
    with open(os.path.join(RESULTS, f"{name}.jsonl"), encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def ratio(name, result, reference):
    found = [r["ratio"] for d in lines(name) for r in d["results"] if r["name"] == result and reference in r["reference"]]
    if not found:
        sys.exit(f"figures.py: bench/results/{name}.jsonl has no {result} against {reference or 'a peer'}")
    return statistics.median(found)


def draw(path):
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "actorfarm", "font.size": 9, "axes.spines.top": False,
                                "axes.spines.right": False})  # fmt: skip
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 3.6), width_ratios=(3, 2), layout="constrained")
    rows = sorted(((label, ratio(*where)) for label, *where in PEERS), key=lambda row: row[1])
    left.barh([label for label, _ in rows], [value for _, value in rows], color="#2b6cb0")
    for y, (_, value) in enumerate(rows):
        left.text(value * 1.05, y, f"{value:.3g}×", va="center")
    left.axvline(1, color="#888888", linewidth=1)
    left.set(xscale="log", xticks=(1, 2, 5, 10, 20), xticklabels=("1", "2", "5", "10", "20"), xlim=(0.8, rows[-1][1] * 2), title="actorfarm ÷ peer, same machine, same run")

    curves = [line for line in lines("training") if "curve" in line and "native/breakout --seconds 60" in line["command"]]
    for number, line in enumerate(curves):
        label = f"{line['env']}, two CPU cores" if number == 0 else None
        right.plot([point[0] for point in line["curve"]], [point[1] for point in line["curve"]], color="#2b6cb0", alpha=0.7, label=label)
    right.set(xlabel="seconds", ylabel="mean return of 100 games", title=f"farm train, {len(curves)} seeds")
    right.legend(frameon=False)
    figure.savefig(path, metadata={"Date": None, "Creator": "bench/figures.py"})


if __name__ == "__main__":
    if len(sys.argv) > 2 or sys.argv[-1].startswith("-"):
        sys.exit(__doc__)
    draw(sys.argv[1] if len(sys.argv) == 2 else os.path.join(HERE, "..", "docs", "figures", "results.svg"))

"""The pictures of `farm bw --svg`: plot_bw.py DOCUMENT FOLDER draws the document's matrices and curves with matplotlib, one
SVG file each, and prints {"files": [path], "skipped": [{"pictures": [name], "reason": text}]}. Fewer than two figures make no
picture. Without arguments it looks for matplotlib and exits: status 1 if it is missing."""

import json
import math
import pathlib
import sys

from plot import import_matplotlib, save

try:
    import_matplotlib()
    if len(sys.argv) > 1:  # this takes longest
        from matplotlib import pyplot
except ImportError as missing:
    sys.exit(f"farm bw --svg: {missing}")


def median(figure, scale=1.0):
    return figure["median"] * scale if figure else math.nan


class Folder:
    def __init__(self, path):
        self.path, self.files, self.skipped = pathlib.Path(path), [], {}  # skipped: {reason: [name]}

    def skip(self, name, reason):
        self.skipped.setdefault(reason, []).append(name)

    def takes(self, name, values, section):
        """Whether the values make a picture; if not, the section's own note says why."""
        count = sum(not math.isnan(value) for value in values)
        note = section.get("conditions", {}).get("note") if count == 0 else None
        if count < 2:
            self.skip(name, note or ("there is one figure only" if count else "there are no figures"))
        return count >= 2

    def save(self, figure, name):
        self.files.append(str(self.path / f"{name}.svg"))
        save(figure, self.files[-1])
        pyplot.close(figure)


def draw_matrix(folder, section, name, title, axes, names, values, higher_is_better):
    if not folder.takes(name, (value for row in values for value in row), section):
        return
    figure, axis = pyplot.subplots(layout="constrained")
    image = axis.imshow(values, cmap="viridis" if higher_is_better else "viridis_r")
    figure.colorbar(image)
    axis.set(title=title, ylabel=axes[0], xlabel=axes[1])
    axis.set_yticks(range(len(names[0])), names[0])
    axis.set_xticks(range(len(names[1])), names[1])
    if len(names[1]) <= 24:
        for row, line in enumerate(values):
            for column, value in enumerate(line):
                axis.text(column, row, "–" if math.isnan(value) else f"{value:.3g}", ha="center", va="center")
    folder.save(figure, name)


def draw_curves(folder, section, name, title, axes, curves, **scales):
    if not folder.takes(name, (y for points in curves.values() for _, y in points), section):
        return
    figure, axis = pyplot.subplots(layout="constrained")
    for label, points in curves.items():
        axis.plot(*zip(*points), marker="o", label=label)
    axis.set(title=title, xlabel=axes[0], ylabel=axes[1], **scales)
    axis.grid(alpha=0.3)
    axis.legend()
    folder.save(figure, name)


def draw_nodes(folder, section):
    for kind, key, scale, title in (("latency", "ns", 1, "Latency node by node, ns"), ("bandwidth", "bytes_per_s", 1e-9, "Reads node by node, GB/s")):
        if kind in section:
            matrix = section[kind]
            values = [[median(figure, scale) for figure in row] for row in matrix[key]]
            draw_matrix(folder, matrix, f"matrix_{kind}", title, ("CPUs of node", "memory of node"),
                        (matrix["cpu_nodes"], matrix["memory_nodes"]), values, kind == "bandwidth")


def draw_handoff(folder, section):
    values = [[math.nan if ns is None else ns for ns in row] for row in section["ns"]]
    draw_matrix(folder, section, "handoff", "Hand-off of a cache line, ns", ("CPU", "CPU"), (section["cpus"], section["cpus"]), values, False)


def draw_ladder(folder, section):
    if "ladder" in section:
        curves = {"side by side" if key == "dense_ns" else "a load": [(rung["bytes"] / 1024, median(rung[key])) for rung in section["ladder"]]
                  for key in ("ns", "dense_ns") if key in section["ladder"][0]}
        name, title = ("tlb", "Reach of the TLB") if len(curves) > 1 else ("ladder", "Idle latency by working set")
        draw_curves(folder, section, name, title, ("working set, KiB", "latency of a load, ns"), curves, xscale="log", yscale="log")


def draw_loaded(folder, section):
    points = [(median(row["bytes_per_s"], 1e-9), median(row["ns"])) for row in section["rows"]]
    draw_curves(folder, section, "loaded", "Latency under load", ("bandwidth of the other cores, GB/s", "latency of a load, ns"), {"reads": points})


def draw_cores(folder, section):
    curves = {f"node {curve['node']}": [(step["cores"], median(step["bytes_per_s"], 1e-9)) for step in curve["steps"]]
              for curve in section["curves"]}
    draw_curves(folder, section, "cores", "Reads by number of cores, each node's own memory", ("cores", "bandwidth, GB/s"), curves)


def draw_ring(folder, section):
    points = [(rate["payload_bytes"], median(rate["payload_bytes_per_s"], 1e-9)) for rate in section["rates"]
              if rate["pairs"] == 1 and rate["wait"] == "spin"]
    draw_curves(folder, section, "ring", "Steps through a lane by payload", ("payload of a step, B", "payload, GB/s"),
                {"one pair, spinning": points}, xscale="log")


def draw_gpus(folder, section):
    gpus = list(range(len(section.get("devices", []))))
    nodes = sorted({cell["node"] for cell in section.get("cells", [])})
    for direction, title in (("h2d", "Host to GPU"), ("d2h", "GPU to host")):
        figures = {(cell["node"], cell["gpu"]): cell["copies_bytes_per_s"][0][direction]
                   for cell in section.get("cells", []) if "copies_bytes_per_s" in cell}
        values = [[median(figures.get((node, gpu)), 1e-9) for gpu in gpus] for node in nodes]
        draw_matrix(folder, section, f"gpu_{direction}", f"{title}, pinned memory, GB/s", ("memory of node", "GPU"), (nodes, gpus), values, True)
    if len(gpus) > 1:
        figures = {(peer["from"], peer["to"]): peer.get("bytes_per_s") for peer in section.get("peers", [])}
        values = [[median(figures.get((a, b)), 1e-9) for b in gpus] for a in gpus]
        draw_matrix(folder, section, "gpu_peers", "GPU to GPU, GB/s", ("from GPU", "to GPU"), (gpus, gpus), values, True)


PICTURES = {"matrix": draw_nodes, "handoff": draw_handoff, "latency": draw_ladder, "tlb": draw_ladder, "loaded": draw_loaded,
            "cores": draw_cores, "ring": draw_ring, "gpu": draw_gpus}


def main(document, path):
    measured, folder = json.loads(pathlib.Path(document).read_text(encoding="utf-8")), Folder(path)
    for name, draw in PICTURES.items():
        section = measured["sections"].get(name)
        if section is None:
            quick = measured["depth"] == "quick"
            folder.skip(name, "not measured: --quick leaves it out, --only names it" if quick else "not measured: --only and --full choose parts")
        elif "not_measured" in section:
            folder.skip(name, f"not measured: {section['not_measured']}")
        else:
            draw(folder, section)
    print(json.dumps({"files": folder.files, "skipped": [{"pictures": names, "reason": reason} for reason, names in folder.skipped.items()]}))


if __name__ == "__main__":
    if len(sys.argv) == 3:
        main(*sys.argv[1:])

"""Run folders of this version for tests/tools/test_old_runs.py: make_runs.py BUILD, into tests/vectors/runs/COMMIT.tar.xz

One for each algorithm, without and with an LSTM, each trained until its environment is solved (native/cartpole 475 of
500, native/recall 0.9 of 1). Make them before a change that is not to break them; the archives that exist stay.
"""

import io
import pathlib
import subprocess
import sys
import tarfile
import tempfile

RUNS = {f"{algo}{name}": ["--algo", algo, *flags]
        for algo in ("vtrace", "ppo")
        for name, flags in (("", ["--env", "native/cartpole"]), ("_lstm", ["--env", "native/recall", "--env.delay", "3", "--lstm", "8"]))}  # fmt: skip
COMMON = ["--seconds", "12", "--actors", "1", "--seed", "1", "--checkpoints-keep", "1", "--no-pin", "--quiet"]


def main():
    farm = pathlib.Path(sys.argv[1]).resolve() / "farm"
    here = pathlib.Path(__file__).resolve().parent
    commit = subprocess.run(["git", "rev-parse", "--short=7", "HEAD"], cwd=here, check=True, capture_output=True, text=True).stdout.strip()
    with tempfile.TemporaryDirectory() as folder, tarfile.open(here / f"runs/{commit}.tar.xz", "w:xz", preset=9) as archive:
        for name, flags in RUNS.items():
            subprocess.run([farm, "train", "--run", name, *flags, *COMMON], cwd=folder, check=True)
        for path in sorted(pathlib.Path(folder).rglob("*")):
            if not path.is_file() or path.name == "lock":
                continue
            entry = tarfile.TarInfo(str(path.relative_to(folder)))
            entry.size = path.stat().st_size
            archive.addfile(entry, io.BytesIO(path.read_bytes()))


main()

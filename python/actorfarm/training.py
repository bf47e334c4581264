"""`farm train` as a child process: iterating over it gives its figures while it runs."""

import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any

from actorfarm import program


class train(subprocess.Popen[bytes]):  # noqa: N801
    """Starts `farm train`, which ends with this object, or with this process, at the latest; `pid` is its supervisor's. Keys are those of
    `farm train --help` with underscores: frames="10M", net="nature", resume=True; options={"noop_max": 1} are the environment's. run: its
    folder, `run_dir` here; None: a new one below runs/. As a context it ends with the block."""

    def __init__(self, env: str | None = None, recipe: str | None = None, run: str | os.PathLike[str] | None = None, **keys: Any) -> None:
        (life, self._life), self._out, self._said = os.pipe(), os.memfd_create("stdout"), os.memfd_create("stderr")
        try:
            if run is None:
                os.makedirs("runs", exist_ok=True)
                run = tempfile.mkdtemp("", re.sub(r"[^\w.-]", "_", f"{env or os.path.basename(recipe or 'default')}-{time.strftime('%Y%m%d')}-"), "runs")
            self.run_dir, self._metrics = os.fspath(run), os.path.join(run, "metrics.jsonl")
            self._begin = os.path.getsize(self._metrics) if keys.get("resume") and os.path.exists(self._metrics) else 0
            words = [program.path(), "train", *program.words({"env": env, "recipe": recipe, "run": self.run_dir, **keys}), "--json", "--quiet"]
            how: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": self._out, "stderr": self._said, "start_new_session": True}  # Ctrl-C reaches Python alone
            super().__init__(words, **how, pass_fds=[life], env={"FARM_PYTHON": sys.executable, **os.environ, "FARM_LIFE_FD": str(life)})
        finally:
            os.close(life)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Each line of RUN/metrics.jsonl (docs/METRICS.md) as a dict, from the training's start to its end; then what `result` raises."""
        at, ended = self._begin, False
        while not ended:
            ended, lines = self.poll() is not None, []
            with contextlib.suppress(FileNotFoundError), open(self._metrics, "rb") as file:
                file.seek(at)
                lines = file.read().split(b"\n")[:-1]
            for line in lines:
                at += len(line) + 1
                yield json.loads(line)
            time.sleep(0 if ended or lines else 0.05)
        self.result  # noqa: B018

    @property
    def result(self) -> Any:
        """Waits for the end; the document of `farm train --json`. With its messages: ValueError, refused before it began; RuntimeError, failed."""
        if self.wait():
            said = os.pread(self._said, 1 << 20, 0).decode(errors="replace").strip()
            raise (ValueError if self.returncode == 2 else RuntimeError)(said or f"farm train: status {self.returncode}, without a word")
        return json.loads(os.pread(self._out, 1 << 24, 0))

    def stop(self) -> Any:
        """Requests the end, waits for the last checkpoint and returns `result`."""
        self.terminate()
        return self.result

    def __exit__(self, *_: object) -> None:
        self.terminate()
        self.wait()

    def __del__(self) -> None:
        for fd in (self._life, self._out, self._said):
            os.close(fd)
        super().__del__()

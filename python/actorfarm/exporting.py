"""The program of `farm export` (tools/export.c): names a package that is missing. Not to be imported."""

import errno
import json
import signal
import sys

_, run, path, best, as_json, remedy = sys.argv
signal.signal(signal.SIGTERM, signal.default_int_handler)  # no temporary file stays
try:
    from actorfarm import export

    made = export(run, path, best == "1")
except (ImportError, OSError, ValueError) as error:
    print(f"farm export: {error}" + f" ({remedy}, or {sys.executable} -m pip install numpy onnx)" * isinstance(error, ImportError), file=sys.stderr)
    sys.exit(1 if getattr(error, "errno", 0) in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO) else 2)
text = f"{path}: {made['env']} after {made['checkpoint_frames']} frames. Inputs: {', '.join(made['inputs'])}. Outputs: {', '.join(made['outputs'])}."
print(json.dumps(made) if as_json == "1" else text, flush=True)

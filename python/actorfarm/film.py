"""The film of one environment (`farm eval --video`), as an actor in Python writes it: records that video.py reads. A record is
u32 width, height, frames per second, then RGB[height][width][3]; three zeros after a game's last picture.
"""

import os
import struct

RECORD = struct.Struct("<III")


class Film:
    """Writes to the pipe fd, which it owns. Without a reader it does nothing: the reader says why it has ended."""

    def __init__(self, fd):
        self._fd = fd

    def picture(self, rgb, rate):
        """rgb: an array u8[height][width][3]; rate: pictures of a second."""
        height, width, _ = rgb.shape
        self._write(RECORD.pack(width, height, rate) + rgb.tobytes())

    def end_game(self):
        self._write(RECORD.pack(0, 0, 0))

    def _write(self, record):
        at = memoryview(record)
        try:
            while at and self._fd >= 0:
                at = at[os.write(self._fd, at):]
        except BrokenPipeError:
            os.close(self._fd)
            self._fd = -1

"""Encodes the film of `farm eval --video`: video.py PATH mp4|gif GAMES SECONDS [RATE_HZ].

Reads the records of film.py from stdin until GAMES whole games or SECONDS of played time have passed, or the end. Writes the film to
PATH: H.264 by ffmpeg's binary of imageio-ffmpeg, or an animated GIF by pillow. Prints one line of JSON: frames (in the file),
seconds, games (whole ones). RATE_HZ replaces the environment's pictures per second.
"""

import json
import os
import subprocess
import sys
import tempfile
import zlib

import numpy as np

from film import RECORD

MP4_SIDE = 560  # small pictures are enlarged by a whole number to about this; Atari's 160x210 to 480x630
GIF_SIDE_MAX = 320
GIF_RATE_HZ_MAX = 20
COLOURS = 256
PALETTE_SAMPLES = 24  # frames that a palette is made from if there are more colours


class Mp4:
    """Every picture, sharp (nearest neighbour), with even sides as yuv420p needs."""

    def __init__(self, path, width, height, rate):
        import imageio_ffmpeg

        scale = max(1, round(MP4_SIDE / max(width, height)))
        picture = f"scale={width * scale}:{height * scale}:flags=neighbor,pad=ceil(iw/2)*2:ceil(ih/2)*2"
        self._errors = tempfile.TemporaryFile()
        self._encoder = subprocess.Popen(
            [imageio_ffmpeg.get_ffmpeg_exe(), "-y", "-v", "error", "-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{width}x{height}",
             "-r", str(rate), "-i", "-", "-vf", picture, "-c:v", "libx264", "-preset", "veryfast", "-crf", "18", "-pix_fmt", "yuv420p",
             "-movflags", "+faststart", "-f", "mp4", path], stdin=subprocess.PIPE, stderr=self._errors, close_fds=False)
        self.frames = 0

    def add(self, pixels):
        try:
            self._encoder.stdin.write(pixels)
        except BrokenPipeError:
            self.close()
        self.frames += 1

    def close(self):
        try:
            self._encoder.stdin.close()
        except BrokenPipeError:
            pass
        if self._encoder.wait():
            self._errors.seek(0)
            lines = self._errors.read().decode(errors="replace").split("\n")
            sys.exit(f"video: ffmpeg failed: {(lines[-2:-1] or ['it gave no reason'])[0]}")


class Gif:
    """At most GIF_RATE_HZ_MAX pictures a second, every third of Atari's: an odd number, because sprites there flicker in alternate
    frames. Exact colours if the film has at most 256. Pictures are kept, compressed, until the end decides about the palette."""

    def __init__(self, path, width, height, rate):
        self._path, self._shape, self._rate = path, (height, width, 3), rate
        self._every, self._count = -(-rate // GIF_RATE_HZ_MAX), 0
        self._pictures, self._colours, self._exact = [], set(), True
        self._enlarge, self._reduce = max(1, GIF_SIDE_MAX // max(width, height)), -(-max(width, height) // GIF_SIDE_MAX)

    @property
    def frames(self):
        return len(self._pictures)

    def add(self, pixels):
        self._count += 1
        if (self._count - 1) % self._every:
            return
        from PIL import Image

        image = Image.fromarray(np.frombuffer(pixels, np.uint8).reshape(self._shape))
        image = image.reduce(self._reduce) if self._reduce > 1 else image
        self._size = image.size
        if self._exact:
            counts = image.getcolors(COLOURS)  # None: more
            self._colours.update(colour for _, colour in counts or ())
            self._exact = counts is not None and len(self._colours) <= COLOURS
        self._pictures.append(zlib.compress(image.tobytes(), 1))

    def close(self):
        from PIL import Image

        def picture(i):
            return Image.frombytes("RGB", self._size, zlib.decompress(self._pictures[i]))

        if self._exact:
            colours = np.array(sorted(self._colours), np.uint32)
            table = np.zeros(1 << 24, np.uint8)
            table[colours @ (1 << 16, 1 << 8, 1)] = np.arange(len(colours))
            palette = colours.astype(np.uint8).tobytes()

            def indices(rgb):
                pixels = np.asarray(rgb).astype(np.uint32)
                indexed = Image.fromarray(table[pixels @ np.array((1 << 16, 1 << 8, 1), np.uint32)])
                indexed.putpalette(palette)
                return indexed
        else:
            step = -(-self.frames // PALETTE_SAMPLES)
            samples = np.concatenate([np.asarray(picture(i)) for i in range(0, self.frames, step)])
            chosen = Image.fromarray(samples).quantize(COLOURS)

            def indices(rgb):
                return rgb.quantize(palette=chosen, dither=Image.Dither.NONE)

        def frames():
            for i in range(self.frames):
                frame = indices(picture(i))
                yield frame.resize([side * self._enlarge for side in self._size], Image.Resampling.NEAREST)

        ticks = [round(i * self._every * 100 / self._rate) for i in range(self.frames + 1)]  # a GIF counts hundredths of a second
        durations = [10 * (end - start) for start, end in zip(ticks, ticks[1:])]
        first, *others = frames()
        first.save(self._path, "GIF", save_all=True, append_images=others, duration=durations, loop=0)


def records(stream):
    """(width, height, rate, pixels) of each whole record."""
    while len(header := stream.read(RECORD.size)) == RECORD.size:
        width, height, rate = RECORD.unpack(header)
        pixels = stream.read(width * height * 3)
        if len(pixels) == width * height * 3:
            yield width, height, rate, pixels


def encode(stream, path, kind, games_max, seconds_max, rate_hz):
    """The result that main prints."""
    film, size, games, count = None, None, 0, 0
    for width, height, rate, pixels in records(stream):
        if not width:
            games += 1
            if games == games_max:
                break
            continue
        rate = rate_hz or rate
        if film is None:
            size, film = (width, height), (Mp4 if kind == "mp4" else Gif)(path, width, height, rate)
        if size != (width, height):
            sys.exit(f"video: the pictures change their size from {size[0]}x{size[1]} to {width}x{height}")
        if count >= seconds_max * rate:
            break
        film.add(pixels)
        count, last_rate = count + 1, rate
    stream.close()  # ends the actor's film
    if film is None:
        sys.exit("video: the environment played no step")
    film.close()
    return {"frames": film.frames, "seconds": count / last_rate, "games": games}


def main():
    path, kind, games_max, seconds_max, *rate_hz = sys.argv[1:]
    try:
        print(json.dumps(encode(sys.stdin.buffer, path, kind, int(games_max), float(seconds_max), int(*rate_hz))))
    except ModuleNotFoundError as missing:
        sys.exit(f"video: the Python package {missing.name} is missing in {sys.prefix}")
    except OSError as failed:
        sys.exit(f"video: {failed}")


if __name__ == "__main__":
    main()

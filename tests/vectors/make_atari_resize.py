"""Writes atari_resize.bin: what OpenCV makes of made-up Atari frames; tests/kernels/test_atari.c makes the same frames.

Usage: python make_atari_resize.py      (needs numpy and opencv-python-headless)

The file is little-endian: "FARMAR01", the number of cases as u32, then of each case height, pattern and seed as u32
and the 84 x 84 result bytes. The frames and the grey table come from a hash, so they need not be stored.
"""

import pathlib
import struct

import cv2
import numpy as np

NOISE, TIES, PICTURE, ANY_INDEX = range(4)
CASES = [(height, pattern, 10 * height + pattern) for height in (210, 250, 214) for pattern in range(4)]


def hash32(seed, y, x):
    v = (np.uint64(seed) * 0x9E3779B1 + y.astype(np.uint64) * 0x85EBCA77 + x.astype(np.uint64) * 0xC2B2AE3D) & 0xFFFFFFFF
    for shift, factor in ((15, 0x2C1B3C6D), (12, 0x297A2D39)):
        v = ((v ^ (v >> np.uint64(shift))) * np.uint64(factor)) & 0xFFFFFFFF
    return v ^ (v >> np.uint64(15))


def frame(height, pattern, seed, second):
    y, x = np.mgrid[0:height, 0:160]
    seed_of_frame = seed + 1000 * second
    if pattern == NOISE:
        index = hash32(seed_of_frame, y, x) % 128 * 2
    elif pattern == TIES:
        index = hash32(seed_of_frame, y, x) % 2 * 8
    elif pattern == PICTURE:  # blocks of 8 x 10 pixels; the second frame has another column of blocks
        index = hash32(np.where((x // 8 == 5) & bool(second), seed_of_frame, seed), y // 10, x // 8) % 128 * 2
    else:
        index = hash32(seed_of_frame, y, x) % 256
    return index.astype(np.uint8)


def main():
    grey = (hash32(7, np.arange(256), np.zeros(256)) % 256).astype(np.uint8)
    out = [b"FARMAR01", struct.pack("<I", len(CASES))]
    for height, pattern, seed in CASES:
        pair = np.maximum(grey[frame(height, pattern, seed, 0)], grey[frame(height, pattern, seed, 1)])
        small = cv2.resize(pair, (84, 84), interpolation=cv2.INTER_AREA)
        out += [struct.pack("<III", height, pattern, seed), small.tobytes()]
    pathlib.Path(__file__).with_name("atari_resize.bin").write_bytes(b"".join(out))


if __name__ == "__main__":
    main()

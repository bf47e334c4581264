#!/usr/bin/env python3
"""procgen_lean.py PROCGEN LEAN: writes the folder LEAN for Procgen's library, PROCGEN/libenv.so with PROCGEN/assets/.

The library decodes all its images, mostly backgrounds, in every process (1.9 s, 340 MB), and ends the process if one is
missing. LEAN (275 MB) holds the images that games draw in front; one pixel in place of each other image; and backgrounds.raw,
all backgrounds as the library decodes them, which src/envs/procgen/procgen.c maps into memory.

backgrounds.raw, little-endian: 16 bytes of magic, uint64 count, then count times uint32 group, index, width, height and
uint64 offset of the picture's pixels in the file, 32 bits each. A group is one of the library's vectors of pictures. Addresses
and layouts are those of the one build that procgen.sh fetches.
"""
import ctypes
import fnmatch
import hashlib
import os
import shutil
import struct
import sys
import zlib

# Named by asset_for_type of the 16 games in the library's source; * matches folders too.
DRAWN_IN_FRONT = (
    "misc_assets/*", "platformer/*", "kenney/Enemies/*", "kenney/Ground/*Mid.png", "kenney/Ground/*Center.png",
    "kenney/Items/coinGold.png", "kenney/Players/128x256/*_stand.png", "kenney/Players/128x256/*_jump.png",
    "kenney/Players/128x256/*_walk?.png", "kenney/Tiles/lava*", "kenney/Tiles/boxCrate*",
)
# Each a std::vector<std::shared_ptr<QImage>>; in src/envs/procgen/procgen.c's order.
GROUP_ADDRESSES = (0x96b670, 0x96b690, 0x96b6d0, 0x96b6b0, 0x96b650, 0x96b630)
PAGE = 4096
UINT8, INT32 = 1, 2  # libenv's dtypes


class Option(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char * 128), ("dtype", ctypes.c_int), ("count", ctypes.c_int), ("data", ctypes.c_void_p)]


class Options(ctypes.Structure):
    _fields_ = [("items", ctypes.POINTER(Option)), ("count", ctypes.c_int)]


def one_pixel():
    """A PNG."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", 1, 1, 8, 2, 0, 0, 0)
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(4))) + chunk(b"IEND", b""))


def write_images(assets, lean):
    pixel = one_pixel()
    for folder, _, names in os.walk(assets):
        inside = os.path.relpath(folder, assets)
        os.makedirs(os.path.join(lean, inside), exist_ok=True)
        for path in (os.path.join(inside, name) for name in names if name.endswith(".png")):
            if any(fnmatch.fnmatchcase(path, pattern) for pattern in DRAWN_IN_FRONT):
                shutil.copyfile(os.path.join(assets, path), os.path.join(lean, path))
            else:
                with open(os.path.join(lean, path), "wb") as file:
                    file.write(pixel)


def load_images(library, assets):
    """Makes an environment, so that the library loads its images. Returns the library's address."""
    numbers = {"num_levels": 0, "start_level": 0, "num_actions": 15, "num_threads": 0, "rand_seed": 0, "distribution_mode": 1}
    values = [(name, INT32, 1, ctypes.c_int32(value)) for name, value in numbers.items()]
    for name, text in (("env_name", b"bigfish"), ("resource_root", os.fsencode(assets) + b"/")):
        values.append((name, UINT8, len(text), ctypes.create_string_buffer(text)))
    items = [Option(name.encode(), dtype, count, ctypes.addressof(data)) for name, dtype, count, data in values]
    make = ctypes.CDLL(library).libenv_make
    make.restype, make.argtypes = ctypes.c_void_p, [ctypes.c_int, Options]
    make(1, Options((Option * len(items))(*items), len(items)))
    with open("/proc/self/maps", encoding="utf-8") as maps:
        return min(int(line.split("-")[0], 16) for line in maps if line.rstrip().endswith(library))


def load_word(address):
    return ctypes.c_uint64.from_address(address).value


def pictures(base):
    """Yields group, index, width, height, pixels."""
    for group, vector in enumerate(GROUP_ADDRESSES):
        begin, end = load_word(base + vector), load_word(base + vector + 8)
        for index in range((end - begin) // 16):
            data = load_word(load_word(begin + 16 * index) + 24)
            width, height, depth = (ctypes.c_int32 * 3).from_address(data + 0x4)
            if (depth, load_word(data + 0x10), load_word(data + 0x38)) != (32, 4 * width * height, 4 * width):
                sys.exit("a background is not of 32 bits a pixel")
            yield group, index, width, height, ctypes.string_at(load_word(data + 0x28), 4 * width * height)


def write_backgrounds(path, found):
    offsets, table = {}, []
    with open(path, "wb") as file:
        file.seek(PAGE)
        for group, index, width, height, pixels in found:
            digest = hashlib.sha256(pixels).digest()
            if digest not in offsets:
                offsets[digest] = (file.tell() + PAGE - 1) // PAGE * PAGE
                file.seek(offsets[digest])
                file.write(pixels)
            table.append(struct.pack("<IIIIQ", group, index, width, height, offsets[digest]))
        head = struct.pack("<16sQ", b"procgen pictures", len(table)) + b"".join(table)
        if len(head) > PAGE:
            sys.exit("too many backgrounds")
        file.seek(0)
        file.write(head)


def main():
    procgen, lean = map(os.path.abspath, sys.argv[1:])
    assets = os.path.join(procgen, "assets")
    write_images(assets, lean)
    base = load_images(os.path.realpath(os.path.join(procgen, "libenv.so")), assets)
    write_backgrounds(os.path.join(lean, "backgrounds.raw"), pictures(base))


if __name__ == "__main__":
    main()

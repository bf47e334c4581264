"""A machine with four NUMA nodes on a machine that has one: an emulated guest (QEMU without KVM), Debian's kernel, and an
initial file system of busybox, the program `farm` and its libraries. The output of the guest's commands comes back over
serial ports. Speeds mean nothing there; shapes, distances and the placement of pages are the kernel's."""

import gzip
import os
import pathlib
import re
import shutil
import stat
import subprocess
import tempfile

NODES = 4
NODE_MB = 256
# Of nodes i and j, as in firmware (10 is local): two pairs of near nodes, far from each other.
DISTANCES = [[10, 12, 20, 22], [12, 10, 22, 20], [20, 22, 10, 12], [22, 20, 12, 10]]
LIMIT_S = 300

# The ports are raw, so that bytes pass unchanged.
INIT = """#!/bin/sh
/bin/busybox mkdir -p /proc /sys /dev /tmp
/bin/busybox mount -t proc proc /proc
/bin/busybox mount -t sysfs sys /sys
/bin/busybox mount -t devtmpfs dev /dev
/bin/busybox stty -F /dev/ttyS1 raw
cd /tmp
{commands}
/bin/busybox sync
/bin/busybox poweroff -f
"""


class Missing(Exception):
    """A part of the guest that is missing."""


def find_parts(build):
    """Emulator, kernel, busybox; Missing names what `make numa-guest` installs."""
    emulator = shutil.which("qemu-system-x86_64")
    if not emulator:
        raise Missing("no qemu-system-x86_64 (make numa-guest installs it)")
    kernels = sorted((build / "numa").glob("boot/vmlinuz-*"))
    busybox = build / "numa" / "bin" / "busybox"
    if not kernels or not busybox.exists():
        raise Missing(f"no kernel for the guest in {build.name}/numa (make numa-guest fetches it)")
    return emulator, kernels[-1], busybox


def libraries(program):
    """Paths of the shared objects that the loader would open, and of the loader."""
    printed = subprocess.run(["ldd", program], check=True, capture_output=True, text=True).stdout
    if "not found" in printed:
        raise Missing(f"libraries of {program}: {printed}")
    return sorted(set(re.findall(r"(/\S+) \(0x", printed)))


class Archive:
    """The kernel's initial file system: cpio's "newc" form."""

    def __init__(self, stream):
        self.stream, self.number, self.folders = stream, 0, set()

    def add(self, name, mode, data=b""):
        self.number += 1
        fields = [self.number, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name) + 1, 0]
        head = b"070701" + b"".join(b"%08X" % field for field in fields) + name.encode() + b"\0"
        self.stream.write(head + b"\0" * (-len(head) % 4) + data + b"\0" * (-len(data) % 4))

    def add_folders(self, name):
        for parent in reversed(pathlib.PurePosixPath(name).parents):
            if str(parent) not in (".", *self.folders):
                self.folders.add(str(parent))
                self.add(str(parent), stat.S_IFDIR | 0o755)

    def add_file(self, name, data):
        self.add_folders(name)
        self.add(name, stat.S_IFREG | 0o755, data)

    def end(self):
        self.add("TRAILER!!!", 0)


def write_root(path, farm, busybox, commands):
    with open(path, "wb") as stream:
        archive = Archive(stream)
        archive.add_file("bin/busybox", busybox.read_bytes())
        archive.add_folders("bin/sh")
        archive.add("bin/sh", stat.S_IFLNK | 0o777, b"busybox")
        archive.add_file("farm", pathlib.Path(farm).read_bytes())
        for library in libraries(farm):
            archive.add_file(library.lstrip("/"), pathlib.Path(library).read_bytes())
        archive.add_file("init", INIT.format(commands=commands).encode())
        archive.end()


def machine(cpus):
    """QEMU's flags for the nodes, each with `cpus` CPUs and its own memory."""
    each = NODE_MB + 96 * cpus
    flags = ["-m", str(NODES * each), "-smp", f"{NODES * cpus},sockets={NODES},cores={cpus},threads=1"]
    for node in range(NODES):
        flags += ["-object", f"memory-backend-ram,id=m{node},size={each}M",
                  "-numa", f"node,nodeid={node},cpus={node * cpus}-{(node + 1) * cpus - 1},memdev=m{node}"]
    for i in range(NODES):
        for j in range(i + 1, NODES):
            flags += ["-numa", f"dist,src={i},dst={j},val={DISTANCES[i][j]}"]
    return flags


def run(build, farm, commands, cpus=1):
    """Runs the shell commands in a guest whose nodes have `cpus` CPUs each. Returns what they wrote to /dev/ttyS1, and the guest's console."""
    emulator, kernel, busybox = find_parts(build)
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        write_root(folder / "root", farm, busybox, commands)
        try:
            ended = subprocess.run(
                [emulator, "-accel", "tcg,thread=multi", "-cpu", "max", "-nodefaults", "-display", "none", "-no-reboot",
                 "-kernel", kernel, "-initrd", folder / "root", "-append", "console=ttyS0 panic=-1 quiet loglevel=4",
                 "-serial", f"file:{folder}/console", "-serial", f"file:{folder}/answer", *machine(cpus)],
                stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LIMIT_S)
            messages = ended.stderr
        except subprocess.TimeoutExpired:
            messages = f"the guest did not end within {LIMIT_S} s"
        console = (folder / "console").read_text(errors="replace") if (folder / "console").exists() else ""
        answer = (folder / "answer").read_text(errors="replace") if (folder / "answer").exists() else ""
        return answer, messages + console

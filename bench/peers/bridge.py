"""The bridge's stream of observations by TLS against gRPC's: a bidirectional stream of protobuf messages, as SEED sends them.

# packages: g++ make pkg-config openssl libgrpc++-dev libprotobuf-dev protobuf-compiler protobuf-compiler-grpc iperf3

Builds bench/peers/bridge, then runs the streams of build/bench/bridge, which then finds it there. 225,832 B a message (a step of 8
environments with 28,224 B of observation each), four in flight, AES-128-GCM; both sides, with the threads that gRPC starts, on one
CPU each, in two network namespaces.
"""

import argparse
import json
import os
import subprocess
import sys


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("build")
    parser.add_argument("--json", default="-", help="where the document goes (default: stdout)")
    parser.add_argument("--seconds", default="45")
    arguments = parser.parse_args()
    build = os.path.abspath(arguments.build)
    here = os.path.dirname(os.path.abspath(__file__))
    subprocess.run(["make", "-C", os.path.join(here, "bridge"), f"BUILD={build}"], check=True)
    done = subprocess.run(
        [os.path.join(build, "bench", "bridge"), "--only", "stream", "--seconds", arguments.seconds, "--json"],
        stdout=subprocess.PIPE, text=True, check=True,
    )
    document = json.loads(done.stdout)
    if arguments.json == "-":
        json.dump(document, sys.stdout)
    else:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump(document, file)
    return 0


if __name__ == "__main__":
    sys.exit(main())

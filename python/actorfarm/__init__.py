"""actorfarm in Python: actors written in Python, and reading lanes.

`actorfarm._farm` is the C extension that gives access to the lanes; `python -m actorfarm.ale_actor` plays Atari games.
"""

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Layer lint: an #include may only point to the same layer or one above it in LAYERS (docs/architecture.md).

The layer of src/<layer>/... is its folder. A public header belongs to the layer of its name or else to the one that
implements it, src/<layer>/<stem>.cpp, or else to the one named in HEADERS_WITHOUT_SOURCE. Files named *_patch hold what
several patch families share: they are the layer `patching`, wherever they lie. Patches use public headers only.
"""
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LAYERS = ["base", "io", "comm", "mesh", "tensor", "random", "exchange", "dispatch", "patching", "patches", "runtime", "parallel",
          "stencil", "fem", "testing"]
HEADERS_WITHOUT_SOURCE = {"error": "base", "communicator": "comm", "patch": "dispatch", "patch_kernel": "dispatch",
                          "process_group": "comm"}
UMBRELLAS = {"shard"}  # headers that only include others: for users, not for the library
APART = {"io"}  # a library of its own, which libshard does not link
INCLUDE = re.compile(r'^\s*#\s*include\s*(?:<shard/([^>]+)\.h>|"([^"]+)")')


def layer_of_header(stem):
    if stem.endswith("_patch"):
        return "patching"
    if stem in LAYERS:
        return stem
    if stem in HEADERS_WITHOUT_SOURCE:
        return HEADERS_WITHOUT_SOURCE[stem]
    found = {path.relative_to(ROOT / "src").parts[0] for path in (ROOT / "src").rglob(f"{Path(stem).name}.cpp")}
    return found.pop() if len(found) == 1 else None


def layer_of_file(path):
    parts = path.relative_to(ROOT).parts
    if parts[0] == "patches":
        return "patches"
    if path.stem.endswith("_patch"):
        return "patching"
    if parts[0] == "src":
        return parts[1] if len(parts) > 2 else None
    return layer_of_header(path.relative_to(ROOT / "include/shard").with_suffix("").as_posix())


def complaint(path, user, header, private):
    """What is wrong with `path` (of layer `user`) including a public header's stem or a private path; None if nothing."""
    if header in UMBRELLAS:
        return None if path.stem in UMBRELLAS else f"<shard/{header}.h> is for users; include what is needed"
    if private is not None:
        if user == "patches":
            return f'"{private}" is private; patches use public headers only'
        if not (ROOT / "src" / private).exists():
            return f'"{private}" is not a path below src/'
        used = Path(private).parts[0]
    else:
        used = layer_of_header(header)
        if used is None:
            return f"<shard/{header}.h> has no layer: name it like its source or add it to {Path(__file__).name}"
    if used not in LAYERS or user not in LAYERS:
        return f"layer '{used if used not in LAYERS else user}' is not in {LAYERS}"
    if LAYERS.index(used) > LAYERS.index(user):
        return f"layer '{user}' must not use layer '{used}' ({header or private})"
    if used in APART and user != used and LAYERS.index(user) < LAYERS.index("parallel"):
        return f"layer '{user}' is in libshard, which does not link lib{used}"
    return None


def check(path):
    user = layer_of_file(path)
    if path.stem in UMBRELLAS or user is None and path.parent == ROOT / "src":
        return
    for number, line in enumerate(path.read_text().splitlines(), 1):
        match = INCLUDE.match(line)
        if match:
            problem = complaint(path, user, *match.groups())
            if problem:
                yield f"{path.relative_to(ROOT)}:{number}: {problem}"


def main():
    files = [path for folder in ("src", "patches", "include/shard") for path in sorted((ROOT / folder).rglob("*"))
             if path.suffix in (".h", ".cpp")]
    problems = [problem for path in files for problem in check(path)]
    print("\n".join(problems) or f"layers: {len(files)} files, all includes point upwards")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Text lint over the files under version control: a licence line in every source, and no word of the machine the
project was written on: no folder of it, no package registry, no author's tools. The README's first program is the
quickstart example, so that it prints what the README says."""
import re
import subprocess
import sys
from itertools import zip_longest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LICENCE = "SPDX-License-Identifier: Apache-2.0"
QUICKSTART = "examples/quickstart/main.cpp"
SOURCES = {".cpp", ".h", ".cu", ".py", ".sh", ".cmake"}
SOURCE_NAMES = {"CMakeLists.txt", "Makefile", "run"}
# Written in pieces so that this file passes its own test.
FORBIDDEN = {
    "a folder of one machine": r"/(wor" r"k|roo" r"t|hom" r"e/\w+|op" r"t/wheels|tm" r"p/\w+)\b(?!/\*)",
    "a package registry": r"py" r"pi\.org|pythonhos" r"ted|download\.pyt" r"orch|conda\.an" r"aconda|index-" r"url|find-" r"links",
    "how the project was written": r"(?i)\b(this|previous|next|earlier|last) ses" r"sion\b|\bchat" r"bot|\blanguage mo" r"del"
                                   r"|\bAI a" r"gent|\bthe l" r"ead\b",
}
FORBIDDEN = {what: re.compile(pattern) for what, pattern in FORBIDDEN.items()}


def files():
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True,
                            capture_output=True, text=True).stdout.split("\n")
    return [ROOT / name for name in listed if name and (ROOT / name).is_file()]


def check(path):
    try:
        lines = path.read_text().splitlines()
    except UnicodeDecodeError:
        return  # a picture
    name = path.relative_to(ROOT)
    if (path.suffix in SOURCES or path.name in SOURCE_NAMES) and not any(LICENCE in line for line in lines[:3]):
        yield f"{name}:1: no '{LICENCE}' in the first three lines"
    for number, line in enumerate(lines, 1):
        for what, pattern in FORBIDDEN.items():
            if pattern.search(line):
                yield f"{name}:{number}: {what}: {line.strip()}"


def check_readme():
    """The first ```cpp block is the example without its leading comment lines."""
    program = (ROOT / QUICKSTART).read_text().splitlines()
    while program and program[0].startswith("//"):
        program.pop(0)
    lines = (ROOT / "README.md").read_text().splitlines()
    if "```cpp" not in lines:
        yield "README.md:1: no ```cpp block"
        return
    begin = lines.index("```cpp") + 1
    shown = lines[begin:lines.index("```", begin)]
    for number, (line, wanted) in enumerate(zip_longest(shown, program), begin + 1):
        if line != wanted:
            yield f"README.md:{number}: got {line!r}; {QUICKSTART} has {wanted!r}"
            return


def main():
    checked = files()
    problems = [problem for path in checked for problem in check(path)] + list(check_readme())
    print("\n".join(problems) or f"texts: {len(checked)} files are clean")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())

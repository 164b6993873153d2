# SPDX-License-Identifier: Apache-2.0
"""Judges op_db in child processes with a watchdog, writes what every entry gave, and compares it with the baseline.

    runner.py [--only REGEX] [--jobs N] [--cap SAMPLES] [--one-in K] [--seed S] [--report FILE.json] [--log FILE]
              [--check BASELINE.json | --update BASELINE.json] [--docs docs/ops.md] [--reuse LOG]

Exit code 1 when an entry is wrong, crashes, hangs, or is worse than its baseline.
"""
import argparse
import json
import re
import selectors
import subprocess
import sys
import time
from pathlib import Path

import report

SILENCE = 90  # seconds without a line from a child that has begun a unit
BATCH = 8     # entries a child has at once


class Child:
    def __init__(self, options):
        command = [sys.executable, str(Path(__file__).with_name("child.py")), "--seed", str(options.seed), "--cap",
                   str(options.cap), "--one-in", str(options.one_in)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=subprocess.DEVNULL)
        self.given = []     # [entry, units done], in order
        self.started = None  # the unit under way
        self.heard = time.monotonic()
        self.rest = b""

    def give(self, entry, first=0):
        self.given.append([entry, first])
        try:
            self.process.stdin.write(f"{entry} {first}\n".encode())
            self.process.stdin.flush()
        except BrokenPipeError:  # its end is noticed by the reader
            pass

    def lines(self):
        """None: the process has ended."""
        block = self.process.stdout.read1(1 << 16)
        if not block:
            return None
        self.heard = time.monotonic()
        *lines, self.rest = (self.rest + block).split(b"\n")
        return [json.loads(line) for line in lines]

    def is_silent(self):
        return self.started is not None and time.monotonic() - self.heard > SILENCE

    def end(self):
        self.process.kill()
        self.process.stdin.close()
        self.process.wait()


class Run:
    """All entries over a few children; a child that dies is replaced and its unit counted as crash or hang."""

    def __init__(self, entries, options, log):
        self.todo = list(reversed(entries))
        self.options, self.log = options, log
        self.units = []
        self.selector = selectors.DefaultSelector()
        self.children = 0
        self.done, self.total = 0, len(entries)

    def add(self, unit):
        self.units.append(unit)
        if self.log:
            print(json.dumps(unit), file=self.log, flush=True)

    def start(self, leftover=()):
        child = Child(self.options)
        self.selector.register(child.process.stdout, selectors.EVENT_READ, child)
        self.children += 1
        for entry, first in leftover:
            child.give(entry, first)
        self.feed(child)

    def feed(self, child):
        while len(child.given) < BATCH and self.todo:
            child.give(self.todo.pop())
        if not child.given:
            self.stop(child)

    def stop(self, child):
        self.selector.unregister(child.process.stdout)
        self.children -= 1
        child.end()

    def died(self, child, status):
        self.stop(child)
        code = child.process.returncode
        if child.started is None and not child.given:
            return
        if child.started is None:
            raise RuntimeError(f"a child ended with {code} before its first unit of {child.given}")
        done, *where = child.started
        self.add([*where, "forward", status, f"exit code {code}" if status == "crash" else f"silent for {SILENCE} s"])
        child.given[0][1] = done
        self.start(child.given)

    def hear(self, child, line):
        kind, *rest = line
        if kind == "start":
            child.started = rest
        elif kind == "unit":
            self.add(rest)
        elif kind == "entry":
            child.given.pop(0)
            child.started = None
            self.done += 1
            if sys.stderr.isatty() or self.done % 50 == 0:
                print(f"[op_db] {self.done} of {self.total} entries", file=sys.stderr, flush=True)
            self.feed(child)

    def __call__(self):
        for _ in range(self.options.jobs):
            if self.todo:
                self.start()
        while self.children:
            for key, _ in self.selector.select(timeout=5):
                child = key.data
                lines = child.lines()
                if lines is None:
                    self.died(child, "crash")
                    continue
                for line in lines:
                    self.hear(child, line)
            for key in list(self.selector.get_map().values()):
                if key.data.is_silent():
                    self.died(key.data, "hang")
        return self.units


def names_of_entries():
    """In a process of its own: op_db takes hundreds of megabytes."""
    code = "import warnings; warnings.simplefilter('ignore'); from units import entries; print('\\n'.join(entries()))"
    listed = subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parent, check=True, capture_output=True)
    return listed.stdout.decode().split()


def parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", default="", help="entries that match this")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--cap", type=int, default=40, help="samples an entry")
    parser.add_argument("--one-in", type=int, default=1, help="of the units of a sample, one in K")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--log", help="a JSON line for every unit")
    parser.add_argument("--check", help="fail where an entry is worse than in this file")
    parser.add_argument("--update", help="write this baseline")
    parser.add_argument("--reuse", help="a log of an earlier run: entries that are not run now are taken from it")
    parser.add_argument("--docs", help="write the table into this page")
    return parser.parse_args(arguments)


def main(arguments=None):
    options = parse(arguments)
    names = names_of_entries()
    entries = [name for name in names if re.search(options.only, name)]
    begin = time.monotonic()
    with open(options.log or "/dev/null", "w", encoding="utf-8") as log:
        units = Run(entries, options, log if options.log else None)()
    if options.reuse:
        units += [unit for unit in map(json.loads, Path(options.reuse).read_text(encoding="utf-8").splitlines())
                  if unit[0] not in set(entries)]
    table = report.Table(names if options.reuse else entries, units)
    print(table.summary())
    print(f"{len(units)} units in {time.monotonic() - begin:.0f} s")
    if options.update:
        Path(options.update).write_text(table.baseline(), encoding="utf-8")
    if options.docs:
        report.write_docs(Path(options.docs), table)
    complaints = table.defects()
    if options.check:
        complaints += table.regressions(json.loads(Path(options.check).read_text(encoding="utf-8")))
    for complaint in complaints:
        print(complaint)
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())

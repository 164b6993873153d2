# SPDX-License-Identifier: Apache-2.0
"""Judges op_db in child processes with a watchdog, writes what every entry gave, and compares it with the baseline.

    runner.py [--only REGEX] [--jobs N] [--cap SAMPLES] [--one-in K] [--seed S] [--silence SECONDS] [--setup FILE.py]
              [--log FILE] [--reuse LOG] [--check FILE.json | --update FILE.json [--accept]] [--docs docs/ops.md]

Exit code 1 when an entry is wrong, crashes, hangs, accepts a call that plain LibTorch rejects, or is worse than its
baseline; and, where all entries are judged, when the bars of report.py are not met. Baseline and page are then left as
they are, unless --accept is given.
"""
import argparse
import json
import re
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import report
from line import Line

BATCH = 8  # entries a child has at once
LONGEST_WAIT = 2  # seconds between two looks at the children; where there were more, the machine stood still


class Child:
    def __init__(self, options):
        command = [sys.executable, str(Path(__file__).with_name("child.py")), "--seed", str(options.seed), "--cap",
                   str(options.cap), "--one-in", str(options.one_in)]
        command += ["--setup", options.setup] if options.setup else []
        self.said = tempfile.TemporaryFile()  # warnings, and the stacks of its threads when it fails
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.said)
        self.given = []      # [entry, units done], in order
        self.started = None  # the unit under way
        self.silence = 0.0   # seconds
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
        self.silence = 0.0
        *lines, self.rest = (self.rest + block).split(b"\n")
        return [json.loads(line) for line in lines]

    def is_silent(self, seconds):
        return self.started is not None and self.silence > seconds

    def stacks(self):
        """Where its threads are, or were when it crashed: what faulthandler wrote."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGUSR1)
            time.sleep(1)
        size = self.said.seek(0, 2)
        self.said.seek(max(0, size - 20_000))
        return self.said.read().decode(errors="replace")

    def end(self):
        self.process.kill()
        self.process.stdin.close()
        self.process.wait()
        self.said.close()


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
        stacks = child.stacks()
        self.stop(child)
        code = child.process.returncode
        if child.started is None and not child.given:
            return
        if child.started is None:
            raise RuntimeError(f"a child ended with {code} before its first unit of {child.given}")
        done, *where = child.started
        text = f"exit code {code}" if status == "crash" else f"silent for {self.options.silence:g} s"
        self.add(Line(*where, status, text))
        print(f"[op_db] {where}: {status}, {text}\n{stacks}", file=sys.stderr, flush=True)
        child.given[0][1] = done
        self.start(child.given)

    def hear(self, child, line):
        kind, *rest = line
        if kind == "start":
            child.started = rest
        elif kind == "unit":
            self.add(Line(*rest))
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
        looked = time.monotonic()
        while self.children:
            ready = self.selector.select(timeout=LONGEST_WAIT / 2)
            elapsed, looked = time.monotonic() - looked, time.monotonic()
            for key in self.selector.get_map().values():
                key.data.silence += min(elapsed, LONGEST_WAIT)
            for key, _ in ready:
                child = key.data
                lines = child.lines()
                if lines is None:
                    self.died(child, "crash")
                    continue
                for line in lines:
                    self.hear(child, line)
            for key in list(self.selector.get_map().values()):
                if key.data.is_silent(self.options.silence):
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
    parser.add_argument("--silence", type=float, default=90, help="seconds after which a unit hangs")
    parser.add_argument("--setup", help="a file that every child runs first, to register patches for instance")
    parser.add_argument("--log", help="a JSON line for every unit")
    parser.add_argument("--reuse", help="a log of an earlier run: entries that are not run now are taken from it")
    parser.add_argument("--check", help="fail where an entry is worse than in this file")
    parser.add_argument("--update", help="the same, and write the file anew where nothing is to be complained of")
    parser.add_argument("--accept", action="store_true", help="write baseline and page in any case")
    parser.add_argument("--docs", help="write the table into this page where nothing is to be complained of")
    return parser.parse_args(arguments)


def run(entries, options):
    with open(options.log or "/dev/null", "w", encoding="utf-8") as log:
        units = Run(entries, options, log if options.log else None)()
    if options.reuse:
        lines = Path(options.reuse).read_text(encoding="utf-8").splitlines()
        units += [unit for unit in (Line(*json.loads(line)) for line in lines) if unit.entry not in set(entries)]
    return units


def complaints_about(table, options, is_complete):
    found = table.defects()
    now = table.statuses()
    if is_complete:
        found += now.missed_bars()
    if options.check or options.update:
        baseline = report.Statuses.read(options.check or options.update)
        found += baseline.regressions(now)
        if options.check:  # the full run's: this one may be thinned out
            found += [f"{options.check}: {text}" for text in baseline.missed_bars()]
    return found


def write(table, options):
    if options.update:
        table.statuses().write(options.update)
    if options.docs:
        report.write_docs(Path(options.docs), table)


def main(arguments=None):
    options = parse(arguments)
    names = names_of_entries()
    entries = [name for name in names if re.search(options.only, name)]
    begin = time.monotonic()
    units = run(entries, options)
    table = report.Table(names if options.reuse else entries, units)
    print(table.summary())
    print(f"{len(units)} units in {time.monotonic() - begin:.0f} s")
    complaints = complaints_about(table, options, is_complete=len(table.entries) == len(names))
    for complaint in complaints:
        print(complaint)
    if options.accept or not complaints:
        write(table, options)
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())

# SPDX-License-Identifier: Apache-2.0
"""Judges some entries in a process of its own, which may crash or hang: one JSON line before and after each unit.

    child.py --seed S --cap N [--one-in K] [--setup FILE.py] < lines "entry first_unit"
"""
import argparse
import faulthandler
import functools
import json
import os
import runpy
import signal
import sys
import warnings

import torch

from line import Line


def thin_out(units, one_in, seed):
    """Every K-th unit, another one for each seed, but at least one."""
    return units if one_in == 1 else units[seed % one_in::one_in] or units[:1]


class Entry:
    """Units of an entry, counted; the first ones have been judged by a process before."""

    def __init__(self, name, op, first, options, say):
        self.name, self.op, self.first, self.options, self.say = name, op, first, options, say
        self.done = 0

    def judge(self, unit, stage, verdict_of):
        self.done += 1
        if self.done <= self.first:
            return
        where = [unit.entry, unit.sample, unit.dim, unit.split]
        self.say(["start", self.done, *where, stage])
        self.say(["unit", *Line(*where, *verdict_of(unit))])

    def judge_samples(self):
        from judge import Judge
        from units import samples, units_of
        for index, sample in samples(self.name, self.op, self.options.seed, self.options.cap):
            judge = functools.cache(functools.partial(Judge, self.op, sample))

            def verdict_of(unit, judge=judge):
                try:
                    judge()
                except Exception as error:  # plain LibTorch cannot run it
                    return "forward", "skipped", f"plain: {type(error).__name__}: {error}"[:300]
                verdict = judge()(unit)
                return (verdict.stage, verdict.status, verdict.message[:600], judge().has_gradient, verdict.in_float64)

            units = units_of(self.name, index, sample)
            for unit in thin_out(units, self.options.one_in, self.options.seed + index):
                self.judge(unit, "forward", verdict_of)

    def judge_errors(self):
        from judge import describe, judge_error, plain_error
        from units import error_inputs, units_of_error
        for index, sample in error_inputs(self.name, self.op, self.options.seed):
            expected = plain_error(self.op, sample)

            def verdict_of(unit, sample=sample, expected=expected):
                verdict = judge_error(self.op, sample, unit)
                text = f"{verdict.message}; {describe(sample)[:200]}; plain: {type(expected).__name__}: {expected}"
                return verdict.stage, verdict.status, "" if verdict.status == "pass" else text[:600]

            for unit in units_of_error(self.name, index, sample) if expected else []:
                self.judge(unit, "error", verdict_of)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cap", type=int, default=40)
    parser.add_argument("--one-in", type=int, default=1)
    parser.add_argument("--setup")
    options = parser.parse_args()
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1)  # from a runner that has waited too long
    pipe = os.dup(1)  # ops may print
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    import shardtensor as st
    from units import entries
    st.set_fallback_mode("refuse")
    setup = runpy.run_path(options.setup) if options.setup else None  # holds what it registers
    ops = entries()

    def say(line):
        os.write(pipe, (json.dumps(line) + "\n").encode())

    say(["ready"])
    for line in sys.stdin:
        name, first = line.split()
        entry = Entry(name, ops[name], int(first), options, say)
        entry.judge_samples()
        entry.judge_errors()
        say(["entry", name])
    del setup


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
"""Judges some entries in a process of its own, which may crash or hang: one JSON line before and after each unit.

    child.py --seed S --cap N [--one-in K] < lines "entry first_unit"
"""
import argparse
import json
import os
import sys
import warnings

import torch


def thin_out(units, one_in, seed):
    """Every K-th unit, another one for each seed, but at least one."""
    return units if one_in == 1 else units[seed % one_in::one_in] or units[:1]


def judge_entry(name, op, first, options, say):
    from judge import Judge
    from units import samples, units_of
    done = 0
    for index, sample in samples(name, op, options.seed, options.cap):
        units = thin_out(units_of(name, index, sample), options.one_in, options.seed + index)
        judge = None
        for unit in units:
            done += 1
            if done <= first:
                continue
            where = [name, unit.sample, unit.dim, unit.split]
            say(["start", done, *where])
            try:
                judge = judge or Judge(op, sample)
            except Exception as error:  # plain LibTorch cannot run it
                say(["unit", *where, "forward", "skipped", f"plain: {type(error).__name__}: {error}"[:300]])
                continue
            verdict = judge(unit)
            say(["unit", *where, verdict.stage, verdict.status, verdict.message[:600]])
    say(["entry", name])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cap", type=int, default=40)
    parser.add_argument("--one-in", type=int, default=1)
    options = parser.parse_args()
    pipe = os.dup(1)  # ops may print
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    from units import entries
    ops = entries()

    def say(line):
        os.write(pipe, (json.dumps(line) + "\n").encode())

    say(["ready"])
    for line in sys.stdin:
        name, first = line.split()
        judge_entry(name, ops[name], int(first), options, say)


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
"""The runner itself: what a child says or does not say ends in its exit code and text; what it compares with."""
from collections import Counter

import pytest

import runner
from line import Line
from report import ORDER, Entry, Statuses, Table

WRONG_RULE = """
import shardtensor as st
def sin_of_double(x):
    spec = st.spec(x)
    partition = list(spec.partitions[spec.placements[0].dim])
    return st.from_local((2 * st.local(x)).sin(), spec.mesh, spec.placements, [partition])
kept = st.register_function_handler("aten::sin", sin_of_double)
"""
EXITS = """
import os
import shardtensor as st
kept = st.register_function_handler("aten::sin", lambda x: os._exit(3))
"""
SLEEPS = """
import time
import shardtensor as st
def sleeping_rule(x):
    time.sleep(600)
kept = st.register_function_handler("aten::sin", sleeping_rule)
"""
SEGFAULTS = """
import faulthandler
import shardtensor as st
def faulty_rule(x):
    faulthandler._sigsegv()
kept = st.register_function_handler("aten::sin", faulty_rule)
"""


@pytest.mark.parametrize("setup, status, text, stack", [
    (WRONG_RULE, "wrong", "off by", ""), (EXITS, "crash", "exit code 3", ""),
    (SEGFAULTS, "crash", "exit code -11", "in faulty_rule"), (SLEEPS, "hang", "silent for 3 s", "in sleeping_rule")],
    ids=["wrong", "exits", "segfaults", "sleeps"])
def test_a_child_that_fails_fails_the_run(tmp_path, monkeypatch, capsys, setup, status, text, stack):
    file = tmp_path / "setup.py"
    file.write_text(setup)
    monkeypatch.setattr(runner, "names_of_entries", lambda: ["sin"])
    options = ["--jobs", "1", "--cap", "1", "--one-in", "9", "--silence", "3", "--setup", str(file)]
    assert runner.main(options) == 1
    printed, said = capsys.readouterr()
    assert stack in said
    assert f"1 {status} (100.0 %)" in printed
    assert f"sin: forward {status} at sample, dim, split [0, 0, 'uneven_3']: " in printed
    assert text in printed


def statuses(passing, of, units=None):
    entries = {f"op{i}": ["pass" if i < passing else "refused"] * 2 for i in range(of)}
    return Statuses(entries, Counter(units or {"pass": 1}))


def test_the_bars():
    assert not statuses(85, 100).missed_bars()
    assert statuses(84, 100).missed_bars() == ["forward: 84.0 % pass; expected at least 85 %"]
    assert len(statuses(79, 100).missed_bars()) == 2
    assert "units" in statuses(1, 1, {"pass": 89, "gathered": 11}).missed_bars()[0]


def test_entries_without_a_gradient_do_not_count_with_backward():
    entries = {"add": ["pass", "pass"], "det": ["refused", "refused"], "argmax": ["pass", None], "arange": [None, None]}
    assert Statuses(entries, Counter()).counts()["with backward"] == Counter({"pass": 1, "refused": 1})


def test_what_got_worse():
    before = Statuses({"a": ["pass", "pass"], "b": ["refused", None], "c": ["pass", None]}, Counter())
    now = Statuses({"a": ["pass", "gathered"], "b": ["pass", None], "c": [None, None]}, Counter())
    assert before.regressions(now) == ["a: backward was pass and is gathered", "c: was judged and is not any more"]


def test_an_entry_is_as_bad_as_its_worst_unit_and_keeps_every_reason():
    entry = Entry()
    for stage, status, message in [("backward", "pass", ""), ("backward", "gathered", "aten::sort"),
                                   ("forward", "refused", "[aten::qr] 3"), ("forward", "refused", "[aten::qr] 4"),
                                   ("backward", "refused", "[aten::svd] 3")]:
        entry.add(Line("x", 0, 0, "uneven_3", stage, status, message))
    assert entry.status == {"forward": "refused", "backward": "refused"}
    assert [message for _, message in entry.messages_of("refused")] == ["[aten::qr] 3", "[aten::svd] 3"]


@pytest.mark.parametrize("line, is_defect", [
    (Line("x", "error 0", 0, "uneven_2", "error", "pass"), False),
    (Line("x", "error 0", 0, "uneven_2", "error", "wrong", "no error"), True),
    (Line("x", 0, 0, "uneven_2", "forward", "skipped", "plain: no kernel"), True),
    (Line("x", 0, 0, "uneven_2", "forward", "refused", "[aten::x] no"), False),
    *((Line("x", 0, 0, "uneven_2", "backward", status, "text"), True) for status in ORDER[3:])])
def test_what_fails_a_run(line, is_defect):
    assert bool(Table(["x"], [line]).defects()) == is_defect

# SPDX-License-Identifier: Apache-2.0
"""What the units of a run say about every entry, as text, baseline and page."""
import json
import re
from collections import Counter, defaultdict
from pathlib import Path
from typing import NamedTuple

BAD = ("wrong", "hang", "crash")
# From best to worst: an entry is as bad as its worst unit.
ORDER = ("pass", "gathered", "refused", *BAD)
STAGES = ("forward", "backward")
# Per cent that pass, at least.
BARS = {"forward": 85.0, "with backward": 80.0, "units": 90.0}
# Why ops are refused, by their names.
REASONS = {
    r"lstsq": "a matrix cut along its own dims, and no batch dim; drivers whose results' sizes depend on values",
    r"embedding_renorm": "max_norm rescales the rows of the table in place",
    r"rrelu": "how many random numbers are drawn depends on the values",
    r"linalg|cholesky|geqrf|lu_|ormqr|triangular_solve": "a matrix cut along its own dims, and no batch dim to move to",
    r"as_strided|resize|set_|_to_sparse": "storage and strides of a sharded tensor are not its own",
}
# Why a cut tensor is gathered, by the ops that do it.
GATHERS = {
    r"::index|unsafe_masked|::put|::gather|::scatter|::take": "an index for every element; no dim to move the cut to",
    r"cum": "a scan along the cut dim; no dim to move the cut to",
    r"cross": "the components of vectors are cut; no dim to move the cut to",
    r"unique": "slices are compared with those of all ranks",
    r"pdist|cdist|combinations|cartesian": "every pair of rows",
    r"unbind": "every slice along the cut dim becomes a tensor that all ranks have",
    r"::mm|div.Tensor": "the product of a matrix with its own transpose",
    r"masked_select|masked_scatter": "a mask that repeats the tensor, or no dim to move the cut to",
    r"nll_loss|multilabel_margin_loss": "targets pick among classes that are cut",
}
# Entries of which plain LibTorch cannot run some samples, and why.
SKIPS = {
    r"jiterator_": "only on GPUs",
    r"as_strided_partial_views": "views that reach beyond a cloned input",
}


def worse(a, b):
    return max(a, b, key=ORDER.index)


def reason(message):
    """A refusal's text without the numbers of the case."""
    found = re.match(r"\[([^\]]+)\]", message)
    return found.group(1) if found else message[:60]


class Entry:
    """forward and backward: the worst status of its units at that stage, None where nothing was to be judged."""

    def __init__(self):
        self.status = dict.fromkeys(STAGES)
        self.units = Counter()
        self.errors = Counter()  # of error inputs
        self.skipped = []        # messages
        self.in_float64 = 0
        self.messages = {}       # (stage, status, who refuses or gathers) -> the first such (where, message)

    def add(self, line):
        if line.status == "skipped":
            self.skipped.append(line.message)
        elif line.stage == "error":
            self.errors[line.status] += 1
            self._keep_message(line)
        else:
            self._add_unit(line)

    def _add_unit(self, line):
        self.units[line.status] += 1
        self.in_float64 += line.in_float64
        if line.stage == "backward":  # reached: the forward was right
            self._note("forward", "gathered" if line.status == "gathered" else "pass")
        self._note(line.stage, line.status)
        if line.stage == "forward" and line.has_gradient:  # not reached
            self._note("backward", line.status)
        self._keep_message(line)

    def _keep_message(self, line):
        if line.status != "pass":
            what = {"refused": reason(line.message), "gathered": line.message}.get(line.status, "")
            self.messages.setdefault((line.stage, line.status, what), (line[1:4], line.message))

    def _note(self, stage, status):
        self.status[stage] = status if self.status[stage] is None else worse(self.status[stage], status)

    @property
    def is_applicable(self):
        return bool(self.units)

    def messages_of(self, status):
        """(stage, message), one a reason."""
        return [(stage, message) for (stage, now, _), (_, message) in self.messages.items() if now == status]


def percent(counts, statuses=("pass",)):
    return 100 * sum(counts[status] for status in statuses) / max(sum(counts.values()), 1)


class Statuses(NamedTuple):
    """entries: name -> [forward, backward], the worst status or None; units: status -> how many."""
    entries: dict
    units: Counter

    def counts(self):
        """What has a bar -> status -> how many. An entry without gradients is not counted with backward."""
        applicable = [statuses for statuses in self.entries.values() if statuses[0]]
        return {"forward": Counter(forward for forward, _ in applicable),
                "with backward": Counter(worse(forward, backward) for forward, backward in applicable if backward),
                "units": self.units}

    def missed_bars(self):
        return [f"{what}: {percent(counts):.1f} % pass; expected at least {BARS[what]:g} %"
                for what, counts in self.counts().items() if percent(counts) < BARS[what]]

    def regressions(self, now):
        """Of another run, which may be of some entries only."""
        complaints = []
        for name in now.entries:
            known = self.entries.get(name, [None, None])
            if known[0] and not now.entries[name][0]:
                complaints.append(f"{name}: was judged and is not any more")
            for stage, before, after in zip(STAGES, known, now.entries[name]):
                if before and after and ORDER.index(after) > ORDER.index(before):
                    complaints.append(f"{name}: {stage} was {before} and is {after}")
        return complaints

    @classmethod
    def read(cls, path):
        content = json.loads(Path(path).read_text(encoding="utf-8"))
        return cls(content["entries"], Counter(content["units"]))

    def write(self, path):
        """One line an entry."""
        lines = [f"    {json.dumps(name)}: {json.dumps(statuses)}" for name, statuses in sorted(self.entries.items())]
        units = json.dumps({status: self.units[status] for status in ORDER})
        text = '{\n  "units": ' + units + ',\n  "entries": {\n' + ",\n".join(lines) + "\n  }\n}\n"
        Path(path).write_text(text, encoding="utf-8")


class Table:
    def __init__(self, names, lines):
        self.entries = {name: Entry() for name in names}
        for line in lines:
            self.entries[line.entry].add(line)

    def applicable(self):
        return {name: entry for name, entry in sorted(self.entries.items()) if entry.is_applicable}

    def statuses(self):
        units = sum((entry.units for entry in self.entries.values()), Counter())
        return Statuses({name: list(entry.status.values()) for name, entry in self.entries.items()}, units)

    def total(self, number):
        """How many units, and in which entries."""
        found = {name: number(entry) for name, entry in sorted(self.entries.items()) if number(entry)}
        return sum(found.values()), list(found)

    def summary(self):
        counts = self.statuses().counts()
        judged = len(self.applicable())
        lines = [f"entries: {judged} judged, {len(self.entries) - judged} not applicable"]
        lines += [f"  {what}: {_line(counts[what])}" for what in ("forward", "with backward")]
        lines.append(f"units: {_line(counts['units'])}")
        for text, number in (("pass in float64 only", lambda entry: entry.in_float64),
                             ("skipped, plain LibTorch cannot run them", lambda entry: len(entry.skipped))):
            units, names = self.total(number)
            lines.append(f"  {text}: {units} units of {len(names)} entries")
        errors = sum((entry.errors for entry in self.entries.values()), Counter())
        lines.append(f"error inputs: {errors['pass']} raise, {sum(errors.values()) - errors['pass']} do not")
        lines.append("bars: " + ", ".join(f"{what} {percent(of):.1f} % (at least {BARS[what]:g} %; "
                                          f"{percent(of, ('pass', 'gathered')):.1f} % with those that gather)"
                                          for what, of in counts.items()))
        return "\n".join(lines)

    def defects(self):
        found = []
        for name, entry in self.entries.items():
            found += [f"{name}: {stage} {status} at sample, dim, split {list(where)}: {message}"
                      for (stage, status, _), (where, message) in entry.messages.items()
                      if status in BAD]
            if entry.skipped and not listed(SKIPS, name):
                found.append(f"{name}: {len(entry.skipped)} units skipped: {entry.skipped[0]}")
            found += [f"{name}: {ops} gathers, and GATHERS does not say why"
                      for _, ops in entry.messages_of("gathered") if not listed(GATHERS, ops)]
        return found


def _line(counts):
    return ", ".join(f"{counts[status]} {status} ({percent(counts, (status,)):.1f} %)" for status in ORDER)


def listed(reasons, name):
    """The text of the first pattern that fits, or ""."""
    return next((text for pattern, text in reasons.items() if re.search(pattern, name)), "")


def why(op, message):
    found = re.search(r"expected ([^.;]*)", message)
    return listed(REASONS, op) or (f"expected {found.group(1)}" if found else "")


def write_docs(path, table):
    """Replaces what stands between the markers of the page."""
    begin, end = "<!-- op_db begin -->", "<!-- op_db end -->"
    text = path.read_text(encoding="utf-8")
    head, rest = text.split(begin)
    tail = rest.split(end)[1]
    path.write_text(head + begin + "\n" + page(table) + end + tail, encoding="utf-8")


def refusals(applicable):
    """A table of who refuses, why and which entries; an entry stands in every row that it has a unit of."""
    refused, reasons = defaultdict(set), {}
    for name, entry in applicable.items():
        for stage, message in entry.messages_of("refused"):
            refused[reason(message)].add(name if stage == "forward" else f"{name} (gradient)")
            reasons.setdefault(reason(message), why(reason(message), message))
    rows = sorted(refused.items(), key=lambda item: (-len(item[1]), item[0]))
    return ["| refused by | because | entries |", "|---|---|---|",
            *(f"| `{op}` | {reasons[op]} | {', '.join(sorted(names))} |" for op, names in rows)]


def gathers(applicable):
    """A table of the ops that gather, why, and the entries of which some units do."""
    by = defaultdict(set)
    for name, entry in applicable.items():
        for _, message in entry.messages_of("gathered"):
            by[message].add(name)
    rows = sorted(by.items(), key=lambda item: (-len(item[1]), item[0]))
    return ["| gathered by | because | entries |", "|---|---|---|",
            *(f"| `{ops}` | {listed(GATHERS, ops)} | {', '.join(sorted(names))} |" for ops, names in rows)]


def page(table):
    applicable = table.applicable()
    passing = [name for name, entry in applicable.items() if set(entry.status.values()) <= {"pass", None}]
    absent = [name for name, entry in sorted(table.entries.items()) if not entry.is_applicable]
    in_float64 = table.total(lambda entry: entry.in_float64)[1]
    return "\n".join([
        "```", table.summary(), "```",
        "", "Entries of which some units are refused, with every reason:", "", *refusals(applicable),
        "", "Entries of which some units gather: every rank receives as many bytes as the cut tensor has.", "",
        *gathers(applicable),
        "", f"Some units pass in float64 only: {', '.join(in_float64)}.",
        "", f"Pass, all units with gradients: {', '.join(passing)}.",
        "", f"Not applicable (no tensor input, or no dim to cut): {', '.join(absent)}.", ""])

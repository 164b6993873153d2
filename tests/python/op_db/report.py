# SPDX-License-Identifier: Apache-2.0
"""What the units of a run say about every entry, as text, baseline and page."""
import json
import re
from collections import Counter, defaultdict

BAD = ("crash", "hang", "wrong")
# Why ops are refused, by their names.
REASONS = {
    r"lstsq": "as below; and drivers whose results' sizes depend on values",
    r"rrelu": "how many random numbers are drawn depends on the values",
    r"linalg|cholesky|geqrf|lu_|ormqr|triangular_solve": "a matrix cut along its own dims, without a batch dim to move to",
    r"as_strided|resize|set_|_to_sparse": "storage and strides of a sharded tensor are not its own",
}
# From best to worst: an entry is as bad as its worst unit.
ORDER = ("pass", "refused", "wrong", "hang", "crash")
STAGES = ("forward", "backward")


def worse(a, b):
    return max(a, b, key=ORDER.index)


class Entry:
    """forward and backward: the worst status of its units at that stage, None where nothing was to be judged."""

    def __init__(self):
        self.status = dict.fromkeys(STAGES)
        self.units = Counter()
        self.messages = {}

    def add(self, where, stage, status, message):
        if status == "skipped":
            return
        self.units[status] += 1
        if stage == "backward":  # reached: the forward was right
            self._note("forward", "pass")
        self._note(stage, status)
        if status != "pass":
            self.messages.setdefault((stage, status), (where, message))

    def _note(self, stage, status):
        self.status[stage] = status if self.status[stage] is None else worse(self.status[stage], status)

    @property
    def is_applicable(self):
        return bool(self.units)


class Table:
    def __init__(self, names, units):
        self.entries = {name: Entry() for name in names}
        for name, sample, dim, split, stage, status, message in units:
            self.entries[name].add((sample, dim, split), stage, status, message)

    def applicable(self):
        return {name: entry for name, entry in self.entries.items() if entry.is_applicable}

    def counts(self, stage):
        return Counter(entry.status[stage] for entry in self.applicable().values() if entry.status[stage])

    def both(self):
        """Entries with a gradient that pass with it."""
        judged = [e for e in self.applicable().values() if e.status["backward"] or e.status["forward"] == "pass"]
        return judged

    def summary(self):
        applicable = self.applicable()
        units = sum((entry.units for entry in applicable.values()), Counter())
        lines = [f"entries: {len(applicable)} judged, {len(self.entries) - len(applicable)} not applicable"]
        lines.append("  forward:  " + self._line(self.counts("forward"), len(applicable)))
        with_backward = Counter(worst_of(entry) for entry in applicable.values())
        lines.append("  with backward: " + self._line(with_backward, len(applicable)))
        lines.append("units: " + self._line(units, sum(units.values())))
        return "\n".join(lines)

    @staticmethod
    def _line(counts, total):
        return ", ".join(f"{counts[status]} {status} ({100 * counts[status] / max(total, 1):.1f} %)" for status in ORDER)

    def defects(self):
        return [f"{name}: {stage} {status} at sample, dim, split {where}: {message}"
                for name, entry in self.entries.items()
                for (stage, status), (where, message) in entry.messages.items() if status in BAD]

    def baseline(self):
        """One line an entry."""
        lines = [f"  {json.dumps(name)}: {json.dumps([entry.status[stage] for stage in STAGES])}"
                 for name, entry in sorted(self.entries.items())]
        return "{\n" + ",\n".join(lines) + "\n}\n"

    def regressions(self, baseline):
        complaints = []
        for name, entry in self.entries.items():
            for stage, before in zip(STAGES, baseline.get(name, [None, None])):
                now = entry.status[stage]
                if now and before and ORDER.index(now) > ORDER.index(before):
                    complaints.append(f"{name}: {stage} was {before} and is {now}")
        return complaints


def worst_of(entry):
    return worse(entry.status["forward"], entry.status["backward"] or "pass")


def reason(message):
    """A refusal's text without the numbers of the case."""
    found = re.match(r"\[([^\]]+)\]", message)
    return found.group(1) if found else message[:60]


def why(op, message):
    for pattern, text in REASONS.items():
        if re.search(pattern, op):
            return text
    found = re.search(r"expected ([^.;]*)", message)
    return f"expected {found.group(1)}" if found else ""


def write_docs(path, table):
    """Replaces what stands between the markers of the page."""
    begin, end = "<!-- op_db begin -->", "<!-- op_db end -->"
    text = path.read_text(encoding="utf-8")
    head, rest = text.split(begin)
    tail = rest.split(end)[1]
    path.write_text(head + begin + "\n" + page(table) + end + tail, encoding="utf-8")


def page(table):
    applicable = table.applicable()
    refused = defaultdict(list)
    reasons = {}
    for name, entry in sorted(applicable.items()):
        for (stage, status), (_, message) in entry.messages.items():
            if status == "refused":
                refused[reason(message)].append(name if stage == "forward" else f"{name} (gradient)")
                reasons.setdefault(reason(message), why(reason(message), message))
    lines = ["```", table.summary(), "```", "", "Entries of which some units are refused:", "",
             "| refused by | because | entries |", "|---|---|---|"]
    lines += [f"| `{op}` | {reasons[op]} | {', '.join(sorted(set(names)))} |" for op, names in
              sorted(refused.items(), key=lambda item: (-len(item[1]), item[0]))]
    passing = [name for name, entry in sorted(applicable.items()) if worst_of(entry) == "pass"]
    absent = [name for name, entry in sorted(table.entries.items()) if not entry.is_applicable]
    lines += ["", f"Pass, all units with gradients: {', '.join(passing)}.", "",
              f"Not applicable (no tensor input, or no dim to cut): {', '.join(absent)}.", ""]
    return "\n".join(lines)

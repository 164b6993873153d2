# SPDX-License-Identifier: Apache-2.0
"""What a child says about a unit, one JSON line each."""
from typing import NamedTuple


class Line(NamedTuple):
    entry: str
    sample: int | str           # "error N": an error input
    dim: int
    split: str
    stage: str                  # the last one reached: forward, backward; or error, of an error input
    status: str
    message: str = ""
    has_gradient: bool = False  # the plain op has one here
    in_float64: bool = False    # judged again in float64

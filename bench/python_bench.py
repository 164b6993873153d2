# SPDX-License-Identifier: Apache-2.0
"""What an op on a ShardTensor costs over the plain op when Python calls it, and whether that stays so.

Thread CPU time, medians of interleaved blocks, as in bench.h; x 1x8x64x64 Shard(2) on one rank. "with grad" is the forward with
inputs that require grad, graph dropped.
"""
import json
import statistics
import sys
import time

import torch

import shardtensor as st


def report(case, ranks, us, reference_us, reference, limit):
    ok = us <= limit
    print(json.dumps({"bench": "python", "case": case, "ranks": ranks, "us": round(us, 3), "vs": round(reference_us, 3),
                      "ref": reference, "limit": round(limit, 3), "ok": ok}), flush=True)
    return ok


def block(function, x, calls):
    """Microseconds a call."""
    begin = time.thread_time_ns()
    for _ in range(calls):
        function(x)
    return (time.thread_time_ns() - begin) / 1000 / calls


def measure(function, subject, reference, blocks=31, calls=2000):
    block(function, subject, calls)
    block(function, reference, calls)
    pairs = [(block(function, subject, calls), block(function, reference, calls)) for _ in range(blocks)]
    return tuple(statistics.median(values) for values in zip(*pairs))


# name, op, allowed over plain without grad, and with
OPS = (("relu", torch.relu, 2.0, 3.0),
       ("add", lambda x: x + x, 2.0, 3.0),
       ("mul", lambda x: x * 2, 2.0, 3.0),
       ("view", lambda x: x.view(1, 8, -1), 2.0, 3.0),
       ("permute", lambda x: x.permute(0, 2, 3, 1), 2.0, 3.0),
       ("slice of an uncut dim", lambda x: x[:, 2:6], 2.0, 3.0),
       ("cat along an uncut dim", lambda x: torch.cat((x, x), 1), 2.0, 3.0))


def overheads(world):
    whole = torch.randn(1, 8, 64, 64)
    cut = st.scatter_tensor(whole, 0, world.mesh(), st.Shard(2))
    ok = True
    for name, op, allowed, allowed_with_grad in OPS:
        with torch.no_grad():
            us, plain = measure(op, cut, whole)
        ok &= report(name, 1, us, plain, "plain Python", plain + allowed)
        us, plain = measure(op, cut.detach().requires_grad_(), whole.detach().requires_grad_())
        ok &= report(f"{name} with grad", 1, us, plain, "plain Python", plain + allowed_with_grad)
    return ok


def there_and_back(x):
    st.redistribute(st.redistribute(x.relu(), st.Shard(1)), st.Shard(0))


def flatness(world, tenths=10, calls=3334):
    """10^5 calls, a third of them ops and two thirds redistributions: the last tenth against the second."""
    x = st.scatter_tensor(torch.randn(16, 16), 0, world.mesh(), st.Shard(0))
    with torch.no_grad():
        spans = [block(there_and_back, x, calls) for _ in range(tenths + 1)]
    if not world.is_root:
        return True
    return report("call 100000 of relu and redistribute", world.size, spans[-1], spans[1], "call 10000", spans[1] * 1.25)


if __name__ == "__main__":
    outcomes = st.run_ranks(1, overheads) + st.run_ranks(1, flatness) + st.run_ranks(2, flatness)
    sys.exit(0 if all(outcomes) else 1)

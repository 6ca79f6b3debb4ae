"""Branches of a CUDA graph: which node continues which, and what each needs after its edges."""

import numpy as np

from depgraph.system.compiled import compiled_if_large


@compiled_if_large
def continue_branches(times, path, fork, begin, sources):
    """Let each operation continue the branch of the last of its sources to end that none continues.

    The sources of operation `k` are `sources[begin[k]:begin[k + 1]]`. Returns how much later than
    the last of them each starts (float64), after `path` in its branch and `fork` out of another,
    and its branch (int64).
    """
    n = len(times)
    latency = np.zeros(n, np.float64)
    ended = times.copy()
    branch = np.arange(n)
    is_continued = np.zeros(n, np.bool_)
    for k in range(n):
        if begin[k] == begin[k + 1]:
            continue
        last = -1
        for i in range(begin[k], begin[k + 1]):
            if not is_continued[sources[i]] and (last < 0 or ended[sources[i]] > ended[last]):
                last = sources[i]
        if last >= 0:
            is_continued[last] = True
            branch[k] = branch[last]
        ready = -np.inf
        latest = -np.inf
        for i in range(begin[k], begin[k + 1]):
            source = sources[i]
            latest = max(latest, ended[source])
            ready = max(ready, ended[source] + (path[k] if source == last else fork[k]))
        latency[k] = ready - latest
        ended[k] += ready
    return latency, branch

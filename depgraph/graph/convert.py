"""A block graph for networkx and pandas."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from depgraph.graph.kinds import KIND_NAMES
from depgraph.graph.pairs import PairSummary

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import networkx as nx
    import numpy as np
    import pandas as pd
    from numpy.typing import NDArray


def kernel_digraph(
    kernel: NDArray[np.int32], blocks: NDArray[np.int64], pairs: Iterable[PairSummary]
) -> nx.DiGraph[Any]:
    """Return one node a kernel, copy or memset, and one edge a pair of them."""
    import networkx as nx

    result: nx.DiGraph[Any] = nx.DiGraph()
    for number, n in zip(kernel.tolist(), blocks.tolist(), strict=True):
        result.add_node(number, blocks=n)
    for pair in pairs:
        result.add_edge(
            pair.source,
            pair.target,
            raw=pair.raw,
            war=pair.war,
            waw=pair.waw,
            reuse=pair.reuse,
            edges=pair.edges,
            possible=pair.possible,
            pattern=pair.pattern.value,
        )
    return result


def block_digraph(
    names: Sequence[tuple[int, int]],
    edges: Iterable[tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.uint8]]],
) -> nx.DiGraph[Any]:
    """Return one node a block, named by kernel and number, and one edge two dependent ones."""
    import networkx as nx

    result: nx.DiGraph[Any] = nx.DiGraph()
    result.add_nodes_from(names)
    for source, target, kind in edges:
        for s, t, k in zip(source.tolist(), target.tolist(), kind.tolist(), strict=True):
            kinds = result.get_edge_data(names[s], names[t], {}).get("kinds", "")
            kinds = f"{kinds},{KIND_NAMES[k]}" if kinds else KIND_NAMES[k]
            result.add_edge(names[s], names[t], kinds=kinds)
    return result


def pairs_frame(pairs: Iterable[PairSummary]) -> pd.DataFrame:
    """Return one row a pair of kernels."""
    import pandas as pd

    columns = list(PairSummary.__slots__)
    rows = [
        [getattr(pair, c) if c != "pattern" else pair.pattern.value for c in columns]
        for pair in pairs
    ]
    return pd.DataFrame(rows, columns=columns)

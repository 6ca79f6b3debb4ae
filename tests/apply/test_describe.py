"""What is known of a captured graph, by a driver that is not there."""

from __future__ import annotations

from fake_graphs import OTHER, POOL

from depgraph.apply.captured import COPY, EMPTY, KERNEL, MEMSET, Node, Region
from depgraph.torch.describe import describe, in_order

REGIONS = [Region(POOL, 4096, is_own=True), Region(OTHER, 512, is_own=False)]
LONE = 0x7C0000000000


class FakeDriver:
    """A graph of five nodes, one of which copies to the host."""

    def __init__(self):
        self.kinds = {1: KERNEL, 2: MEMSET, 3: COPY, 4: "host function", 5: COPY}
        self.edges_of = [(1, 2), (2, 3), (3, 4), (4, 5)]

    def nodes(self, graph):
        assert graph == 7
        return [1, 2, 3, 4, 5]

    def edges(self, graph):
        assert graph == 7
        return self.edges_of

    def kind(self, node):
        return self.kinds[node]

    def kernel(self, node):
        assert node == 1
        return "_Zk", (2, 1, 1), (64, 1, 1), 16

    def parameters(self, node):
        """Return a number that is no pointer, a structure with two, and one of another library."""
        assert node == 1
        words = [[12345], [POOL + 8, 1 << 60, OTHER], [LONE + 4]]
        return [b"".join(w.to_bytes(8, "little") for w in each) for each in words] + [b"abc"]

    def memset(self, node):
        assert node == 2
        return POOL

    def copy(self, node):
        return {3: (0x5000_0000_0000, POOL + 16, False), 5: (POOL, 0x5000_0000_0000, True)}[node]

    def allocation(self, address):
        return (LONE, 64) if LONE <= address < LONE + 64 else None


def test_nodes_and_the_pointers_among_their_parameters():
    captured = describe(FakeDriver(), 7, [1, 2, 3, 4, 5], REGIONS)
    pointers = ((1, 0, POOL + 8), (1, 16, OTHER), (2, 0, LONE + 4))
    assert captured.nodes == (
        Node(KERNEL, "_Zk", (2, 1, 1), (64, 1, 1), 16, pointers),
        Node(MEMSET, words=((0, 0, POOL),)),
        Node(COPY, words=((1, 0, POOL + 16),)),
        Node("host function"),
        Node(COPY, words=((0, 0, POOL),), to_host=True),
    )
    assert captured.regions == (*REGIONS, Region(LONE, 64, is_own=False))
    assert captured.edges == tuple((i, i + 1) for i in range(4))


def test_nodes_stand_in_an_order_that_edges_allow():
    driver = FakeDriver()
    assert in_order(driver, 7) == [1, 2, 3, 4, 5]
    driver.edges_of = [(3, 1), (5, 2), (1, 2)]
    assert in_order(driver, 7) == [3, 1, 4, 5, 2]


def test_an_empty_node_is_only_a_place():
    driver = FakeDriver()
    driver.kinds, driver.edges_of = dict.fromkeys((1, 2), EMPTY), [(1, 2)]
    assert describe(driver, 7, [1, 2], []).nodes == (Node(EMPTY), Node(EMPTY))

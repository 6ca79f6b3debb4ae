"""Whatever the values are, and whatever order the edges permit: a graph gives what the program gives."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from itertools import count, cycle, islice
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import find, given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from cpu_graphs import captured_on_cpu  # noqa: E402
from torch import library  # noqa: E402
from torch.utils import _pytree as pytree  # noqa: E402

from depgraph.apply.order import chain, masks_of, reduced  # noqa: E402
from depgraph.apply.plan import Layout, make_plan  # noqa: E402
from depgraph.torch.arguments import Arguments  # noqa: E402
from depgraph.torch.bench import copied, moved, not_close, other_changes  # noqa: E402
from depgraph.torch.check_here import Runs  # noqa: E402
from depgraph.torch.checking import Checker, rounded  # noqa: E402

ROWS, COLUMNS = 8, 16


@library.custom_op("laws::mix", mutates_args={"y"})
def mix(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Do what no table knows."""
    y.add_(x.mean())
    return x + y[:1]


OPERATORS = {
    "relu": lambda a, b, s, v: a.relu() + b,
    "matmul": lambda a, b, s, v: (a @ b.t()) @ b * 0.01,
    "softmax": lambda a, b, s, v: a.softmax(-1) * b,
    "in place": lambda a, b, s, v: a.add_(b.tanh()),
    "to a slice": lambda a, b, s, v: (a[2:5].copy_(b[:3].clone()), a)[1],
    "to columns": lambda a, b, s, v: a[:, ::2].mul_(0.5).sum() + b,
    "selected": lambda a, b, s, v: a.index_select(0, v["rows"]).mean(0) + b,
    "added at": lambda a, b, s, v: a.index_add_(0, v["rows"], b[:4].clone()),
    "copied to": lambda a, b, s, v: s.index_copy_(0, v["rows"], a[:4].clone()).sum() + b,
    "put": lambda a, b, s, v: s.index_put_((v["rows"],), b[0].clone()) * 1.0 + a,
    "scattered": lambda a, b, s, v: a.scatter_add(0, v["rows"][:, None].expand(-1, COLUMNS), b[:4]),
    "masked": lambda a, b, s, v: torch.where(v["mask"], a, b),
    "filled": lambda a, b, s, v: s.masked_fill_(v["mask"], 0.25) * 1.0 + a,
    "gathered": lambda a, b, s, v: a.gather(0, v["rows"][:, None].expand(-1, COLUMNS)).sum() + b,
    "sorted": lambda a, b, s, v: a.sort(-1).values - b.topk(COLUMNS).values,
    "joined": lambda a, b, s, v: torch.cat([a, b])[::2].contiguous(),
    "kept": lambda a, b, s, v: s.copy_(a * 0.5 + s * 0.1) * 1.0 + b,
    "into an empty view": lambda a, b, s, v: (torch.mul(a, b, out=s[:0]), s + b)[1],
    "normalised": lambda a, b, s, v: torch.nn.functional.batch_norm(a, s[0], s[1].abs_(), training=True) + b,
    "unknown": lambda a, b, s, v: mix(a, s) + b,
    "seen otherwise": lambda a, b, s, v: a.contiguous().as_strided((COLUMNS, ROWS), (1, COLUMNS)).t() + b,
}  # fmt: skip
instruction = st.tuples(
    st.sampled_from(sorted(OPERATORS)), st.integers(0, 5), st.integers(0, 5), st.integers(0, 1)
)


def values(seed):
    generator = torch.Generator().manual_seed(seed)
    return {
        "x": torch.randn(ROWS, COLUMNS, generator=generator),
        "rows": torch.randperm(ROWS, generator=generator)[:4],
        "mask": torch.rand(ROWS, 1, generator=generator) < 0.5,
    }


def any_order(n, edges, seed):
    """Return the nodes in some order that edges permit."""
    chance = np.random.default_rng(seed)
    _, closed = reduced(masks_of(n, edges))
    order, ran = [], 0
    while len(order) < n:
        free = [i for i in range(n) if not ran >> i & 1 and closed[i] & ~ran == 0]
        order.append(int(chance.choice(free)))
        ran |= 1 << order[-1]
    return order


class Program:
    """Instructions that each take two earlier results, a state and the inputs."""

    def __init__(self, instructions):
        self.instructions = instructions
        self.inputs = values(0)
        self.state = [torch.zeros(ROWS, COLUMNS), torch.ones(ROWS, COLUMNS)]

    def run(self):
        made = [self.inputs["x"] * 1.0, self.inputs["x"] + 1.0]
        for name, a, b, s in self.instructions:
            one, other = made[-1 - a % len(made)], made[-1 - b % len(made)]
            made.append(OPERATORS[name](one, other, self.state[s], self.inputs))
        return made[2:]

    def restore(self):
        self.state[0].fill_(0.0)
        self.state[1].fill_(1.0)

    def write(self, seed):
        for name, value in values(seed).items():
            self.inputs[name].copy_(value)

    def results(self, outputs):
        return [(str(i), t) for i, t in enumerate([*pytree.tree_leaves(outputs), *self.state])]


def test_some_programs_have_other_orders():
    """Else the law below would hold for no reason."""

    def is_free(instructions):
        plan = make_plan(captured_on_cpu(Program(instructions).run).captured)
        found = plan.candidates(Layout(plan.lanes(4)))
        return any(len(candidate.edges) < plan.n - 1 for candidate in found)

    find(st.lists(instruction, min_size=3, max_size=10), is_free)


@given(st.lists(instruction, min_size=2, max_size=10), st.integers(0, 1000))
def test_every_permitted_order_gives_what_the_program_gives(instructions, seed):
    program = Program(instructions)
    captured = captured_on_cpu(program.run)
    plan = make_plan(captured.captured)
    for candidate in plan.candidates(Layout(plan.lanes(4))):
        for inputs in (1, 2):
            found = []
            for run in (
                lambda e=candidate.edges: (
                    captured.run(any_order(plan.n, e, seed)) or captured.outputs
                ),
                program.run,
            ):
                program.restore()
                program.write(inputs)
                found.append(copied(program.results(run())))
            assert not_close(*found) == ""


@pytest.fixture
def mixture():
    """Return experts that each read, add to and write rows of one tensor, and what checks them."""
    torch.manual_seed(0)
    layers = [
        torch.nn.Linear(COLUMNS, COLUMNS).requires_grad_(requires_grad=False) for _ in range(5)
    ]
    program = Program([])

    def run():
        y = torch.zeros(ROWS, COLUMNS)
        rows = program.inputs["rows"]
        for layer in layers:
            y[rows] = y[rows] + layer(program.inputs["x"][rows]).tanh()
        program.state[0].index_copy_(0, rows, y[:4])
        return y, torch.stack([layer(program.inputs["x"]) for layer in layers]).sum(0)

    program.run = run
    captured = captured_on_cpu(run)
    plan = make_plan(captured.captured)
    return program, captured, plan, checker_of(program, captured, plan)


def checker_of(program, captured, plan):
    kept = [
        torch.empty(0, dtype=torch.uint8).set_(storage)
        for at, storage in captured.held._kept.items()
        if at not in captured.outside
    ]
    return Checker(
        graph=captured.graph,
        launch=captured.run,
        calls=[partial(program.write, seed) for seed in range(3)],
        results=lambda: program.results(captured.outputs),
        state=[("", each) for each in program.state],
        restore=program.restore,
        fill=lambda value: [each.fill_(value) for each in kept],
        n=plan.n,
        labels=[node.name for node in plan.captured.nodes],
    )


def test_independent_experts_run_side_by_side_and_what_they_share_in_turn(mixture):
    program, _, plan, checker = mixture
    assert plan.estimate(plan.edges) < 0.5 * plan.estimate(chain(plan.n))
    assert checker.check(plan.edges).wrong == ""
    program.restore()
    function = []
    for seed in range(3):
        program.write(seed)
        function.append(copied(program.results(program.run())))
    assert checker.differs_from(function) == ""


def test_every_edge_that_is_taken_away_is_noticed(mixture):
    """The proof that the check can fail."""
    *_, plan, checker = mixture
    noticed = [checker.check([e for e in plan.edges if e != edge]).wrong for edge in plan.edges]
    assert all(noticed)


def test_only_edges_keep_apart_what_gives_the_same_in_either_order():
    """Side by side one of two sums may undo the other: no order of them shows it."""
    program = Program([])

    def run():
        program.state[0].add_(program.inputs["x"])
        program.state[0].add_(program.inputs["x"])
        return ()

    program.run = run
    captured = captured_on_cpu(run)
    plan = make_plan(captured.captured)
    assert checker_of(program, captured, plan).check([]).wrong == ""
    assert [*plan.edges] == [(0, 1)]


def test_a_function_that_a_graph_does_not_repeat_is_noticed(mixture):
    program, _, _, checker = mixture
    program.restore()
    function = []
    for seed in range(3):
        program.write(seed)
        outputs = program.run()
        outputs[0].add_(seed)  # as if the function had counted its calls
        function.append(copied(program.results(outputs)))
    assert checker.differs_from(function).startswith("call 1: 0 differs in ")


def test_rounding_that_grows_from_call_to_call_is_no_difference():
    """As in training: a rounded weight turns a ReLU around, and the next gradient is another one."""
    program = Program([])

    def run():
        program.state[0].add_(program.inputs["x"].tanh())
        return (program.state[0] * 1e5).sin()

    program.run = run
    captured = captured_on_cpu(run)
    checker = checker_of(program, captured, make_plan(captured.captured))
    for growth, wrong in ((1e-6, ""), (1e-2, "call 0: 1 differs in")):
        program.restore()
        function = []
        for seed in range(3):
            program.write(seed)
            outputs = program.run()
            program.state[0].mul_(1 + growth)
            function.append(copied(program.results(outputs)))
        assert checker.differs_from(function).startswith(wrong)
        assert bool(checker.differs_from(function)) == bool(wrong)


def of_nothing_but_rounding(x, weights):
    """As a gradient of a bias before a normalisation: zero, if numbers were exact."""
    return ((x - x.mean(1, keepdim=True)) * weights).sum(1)


@pytest.mark.parametrize(
    ("counts", "is_refused"), [(0, False), (1, True)], ids=["rounding", "its calls, too"]
)
def test_what_is_nothing_but_rounding_may_be_rounded_in_another_way(counts, is_refused):
    x = torch.randn(8, 1024, generator=torch.Generator().manual_seed(0))
    calls = iter(range(9))

    def results(x, weights):
        return copied([("bias", of_nothing_but_rounding(x, weights) + counts * next(calls))])

    weights = torch.ones(1024)
    first, again = results(x, weights), results(x, weights)
    other = copied([("bias", of_nothing_but_rounding(x.flip(1), weights))])
    assert not_close(other, first)
    runs = [(again, again)]
    runs += [(r, r) for r in (results(rounded(x, times), weights) for times in (1, 2, 3))]
    found = moved(first, runs, None)
    assert bool(found is None or not_close(other, first, found)) == is_refused


def test_what_is_more_than_rounding_is_noticed_where_that_is_looked_at():
    x = torch.randn(8, 1024, generator=torch.Generator().manual_seed(0))
    weights = torch.rand(1024, generator=torch.Generator().manual_seed(1))
    first = copied([("sum", of_nothing_but_rounding(x, weights))])
    other = copied([("sum", of_nothing_but_rounding(rounded(x), weights))])
    more = moved(first, [(first, first), (other, other)], None)
    assert more
    assert not_close(copied([("sum", first[0].tensor * 1.01)]), first, more)


def test_whole_and_short_numbers_are_not_rounded():
    """They may be indices, masks or steps: of a bit less something else is made."""
    exact = torch.tensor([-3.0, 0.0, 0.5, 7.0, 1001.0, float("inf")])
    assert torch.equal(rounded(exact, 3), exact)
    x = torch.rand(64, generator=torch.Generator().manual_seed(0))
    assert (rounded(x, 3) < x).all()
    assert (rounded(-x) > -x).all()
    assert torch.equal(rounded(x.half()), x.half())
    assert rounded(x[:, None].expand(-1, 4).requires_grad_()).requires_grad


class Rerun:
    """A function that is run again, on the CPU, with its inputs rounded; it leaves gradients."""

    def __init__(self, function, state=(), *, also_returns=False):
        self.state = [(str(i), tensor) for i, tensor in enumerate(state)]
        then = [tensor.clone() for tensor in state]

        def undo():
            for tensor, old in zip(state, then, strict=True):
                tensor.copy_(old)

        generator = torch.Generator().manual_seed(0)
        self.inputs = [torch.randn(256, 32, generator=generator) for _ in range(3)]
        plain = SimpleNamespace(gradients=[])

        def run(x):
            made = function(x)
            made = made if isinstance(made, (tuple, list)) else [made]
            for place, gradient in enumerate(made):
                if place == len(plain.gradients):
                    plain.gradients.append((SimpleNamespace(), None))
                plain.gradients[place][0].grad = gradient
            return made if also_returns else ()

        prepared = SimpleNamespace(
            arguments=Arguments(self.inputs[:1], gpu="cpu"),
            function=run,
            undo=undo,
            draws=lambda _: False,
        )
        self.runs = Runs(prepared, plain, self.state, [[x] for x in self.inputs])
        undo()
        self.left = [self.runs._called([x.clone()]) for x in self.inputs]
        undo()

    def moves(self, place, spread=None):
        """Return by how much rounding moves a call's results."""
        return self.runs.rounding(self.left, place, spread)


def gradients_before_a_normalisation(x, weight, bias):
    weight, bias = (each.clone().requires_grad_() for each in (weight, bias))
    made = torch.nn.functional.batch_norm(x @ weight + bias, None, None, training=True)
    return torch.autograd.grad((made.relu() * torch.arange(16)).sin().sum(), [weight, bias])


def test_a_step_of_nothing_but_rounding_may_be_another_one():
    """Adam makes it as long as any other, whichever way it goes."""
    weight, bias = torch.randn(32, 16, generator=torch.Generator().manual_seed(1)), torch.zeros(16)

    def step(x):
        of_weight, of_bias = gradients_before_a_normalisation(x, weight, bias)
        bias.sub_(1e-3 * of_bias / (of_bias.abs() + 1e-8))
        return of_weight

    rerun = Rerun(step, [bias])
    begun = copied(rerun.state)
    mine = copied([("", step(rerun.inputs[0].flip(0))), ("", rerun.inputs[0]), *rerun.state])
    bias.zero_()
    assert not_close(mine, rerun.left[0])
    more = rerun.moves(0)
    assert torch.equal(bias, torch.zeros(16))
    assert not_close(mine, rerun.left[0], more) == ""
    assert other_changes(begun, mine, rerun.left[0], more) == ""
    mine[0].tensor.mul_(1.02)
    assert not_close(mine, rerun.left[0], more)


def test_what_is_returned_is_compared_as_it_is():
    """An input on a grid, as a picture of bytes: less is the step below."""
    rerun = Rerun(lambda x: (x * 255).round().div(255).mul(255).floor() + 5, also_returns=True)
    returned, gradient, argument = rerun.moves(0)
    assert returned is None
    assert argument is None
    assert gradient.max() > 0


@pytest.mark.parametrize("values", [(0.0, 1.0), (0.0, 0.0, 1.0), (0.0, 1.0, 2.0), (0, 0, 0, 1)])
def test_what_takes_turns_is_not_taken_for_rounding(values):
    """A function run again may give the same by chance, and something else with rounded inputs."""
    for begin in range(len(values)):
        turns = islice(cycle(values), begin, None)
        rerun = Rerun(lambda x, turns=turns: x.sin() + next(turns))
        for place in range(3):
            more = rerun.moves(place)
            assert more is None or max(float(each.max()) for each in more) < 1e-6


def test_a_number_that_counts_calls_is_not_hidden_beside_larger_ones():
    calls, kept = count(3), torch.tensor([1e8, 0.0])

    def counting(x):
        kept[1] += next(calls)
        return x.sin()

    assert Rerun(counting, [kept]).moves(0) is None


@pytest.mark.parametrize("slack", [1e-5, float("inf")])
def test_a_number_that_counts_calls_is_not_hidden_among_those_that_vary(slack):
    first, again = (copied([("", torch.ones(10**5))]) for _ in range(2))
    again[0].tensor[5] += 0.02
    spread = torch.full((10**5,), 1e-5, dtype=torch.float64)
    spread[9] = slack
    assert moved(first, [(again, again)] * 2, [spread]) is None
    assert moved(first, [(first, again)] * 2, [spread]) is None


def test_a_step_in_low_precision_that_depends_on_calls_is_noticed():
    """It is less than what rounding is of the weights."""
    generator = torch.Generator().manual_seed(0)
    weight = (0.02 * torch.randn(4096, generator=generator)).bfloat16()
    direction, calls = torch.randn(4096, generator=generator).sign(), count(10)

    def step(x):
        weight.sub_((direction * 2e-3 * 0.9 ** next(calls)).bfloat16())
        return x.sin()

    assert Rerun(step, [weight]).moves(0) is None


@pytest.mark.parametrize("most", [3, 5])
def test_a_function_that_cannot_run_again_tells_nothing(most):
    left, sizes = iter(range(most)), count(1)
    assert Rerun(lambda x: x + next(left)).moves(0) is None
    assert Rerun(lambda x: x[: next(sizes)]).moves(0) is None


def test_a_function_that_reads_what_was_left_in_memory_is_noticed():
    x, left, output = torch.ones(4), torch.zeros(4), torch.zeros(4)
    checker = Checker(
        graph=lambda *_: nullcontext(),
        launch=lambda _: output.copy_(x + left),
        calls=[lambda: None],
        results=lambda: [("output", output)],
        state=[],
        restore=lambda: None,
        fill=lambda value: left.view(torch.uint8).fill_(value),
        n=1,
        labels=["add"],
    )
    assert checker.varies
    function = [copied([("output", x)])]
    assert checker.differs_from(function) == "call 0: output differs in 4 of 4 elements"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("makes", "is_noticed"), [(0.0, True), (2.0, True), (-1.0, True), (1.0, False), (1.01, False)]
)
def test_a_small_change_of_state_is_compared_with_what_the_function_changes(
    dtype, makes, is_noticed
):
    """A step of an optimizer is less than what rounding may make of a weight."""
    generator = torch.Generator().manual_seed(0)
    begin = (0.02 * torch.randn(400, generator=generator)).to(dtype)
    begin[7] = 10.0  # beside which the step is nothing
    step = 1e-3 * torch.randn(400, generator=generator).sign()
    weight = begin.clone()
    named = [("weight", weight)]

    def launch(_):
        made = makes * step
        made[3] *= -1  # of a gradient that is nothing but rounding
        weight.copy_(weight + made)

    checker = Checker(
        graph=lambda *_: nullcontext(),
        launch=launch,
        calls=[lambda: None] * 2,
        results=lambda: named,
        state=named,
        restore=lambda: weight.copy_(begin),
        fill=lambda _: None,
        n=1,
        labels=["sub"],
    )
    function = []
    weight.copy_(begin)
    for _ in range(2):
        weight.copy_(weight + step)
        function.append(copied(named))
    said = "call 0: weight is changed in another way" if is_noticed else ""
    assert checker.differs_from(function) == said


def test_state_that_is_only_rounded_otherwise_is_not_changed_in_another_way():
    """A table that each call makes anew: the function finds it as it was, but for rounding."""
    table = torch.linspace(0.1, 3.0, 100)
    before, wanted = copied([("table", table)]), copied([("table", table)])
    found = copied([("table", torch.nextafter(table, torch.tensor(9.0)))])
    assert other_changes(before, found, wanted) == ""
    assert other_changes(before, copied([("table", table * 1.00001)]), wanted) != ""

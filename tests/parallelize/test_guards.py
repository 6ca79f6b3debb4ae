"""What a graph takes for granted is looked at; what has nothing to do with it may change."""

from __future__ import annotations

import contextlib
import functools
import gc
import logging
import subprocess
import sys
from dataclasses import dataclass, field

import pytest

torch = pytest.importorskip("torch")

from guarding import guarded  # noqa: E402
from torch import nn  # noqa: E402

from depgraph.errors import ApplyError  # noqa: E402
from depgraph.torch.bindings import find_bindings  # noqa: E402
from depgraph.torch.executed import Executed  # noqa: E402
from depgraph.torch.guards import _SETTINGS, Guards, settings  # noqa: E402
from depgraph.torch.operator_log import OperatorLog  # noqa: E402

CPU = torch.device("cpu")
FACTOR = 2.0


@dataclass
class Settings:
    gain: float = 1.5
    shift: object = field(default_factory=lambda: torch.ones(8))


class Shared:
    state = torch.zeros(8)


class Pair:
    __slots__ = ("left", "right")

    def __init__(self):
        self.left, self.right = torch.ones(8), 3.0


class Net(nn.Module):
    bonus = 0.5

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout(0.1)])
        self.settings, self.tables = Settings(), {"a": torch.ones(8), "n": 2}
        self.pair, self.unused = Pair(), 1
        self.sizes = [1.0, 2.0]

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        x = x * self.settings.gain + self.settings.shift * self.tables["a"] * self.tables["n"]
        return x + self.pair.left * self.pair.right + self.bonus + self.sizes[0]


@pytest.fixture
def net():
    torch.manual_seed(0)
    return Net().requires_grad_(requires_grad=False)


CHANGES = {
    "a flag": lambda n: n.layers[2].eval(),
    "a number": lambda n: setattr(n.layers[2], "p", 0.5),
    "a weight": lambda n: setattr(n.layers[0], "weight", nn.Parameter(torch.ones(8, 8))),
    "a weight's memory": lambda n: setattr(n.layers[0].bias, "data", torch.ones(8)),
    "a storage": lambda n: n.layers[0].bias.set_(torch.ones(8)),
    "a buffer": lambda n: setattr(n.layers[1], "running_mean", torch.ones(8)),
    "a weight that is gone": lambda n: setattr(n.layers[0], "bias", None),
    "a module": lambda n: n.layers.__setitem__(0, nn.Identity()),
    "another module": lambda n: n.layers.append(nn.Identity()),
    "a method": lambda n: setattr(n.layers[0], "forward", lambda x: x),
    "a hook": lambda n: n.layers[0].register_forward_hook(lambda *_: None),
    "a dataclass's number": lambda n: setattr(n.settings, "gain", 2.5),
    "a dataclass's tensor": lambda n: setattr(n.settings, "shift", torch.zeros(8)),
    "a dictionary's tensor": lambda n: n.tables.update(a=torch.zeros(8)),
    "a dictionary's number": lambda n: n.tables.update(n=3),
    "a list's item": lambda n: n.sizes.__setitem__(0, 9.0),
    "all weights of a module": lambda n: setattr(
        n.layers[0], "_parameters", {"weight": torch.ones(8, 8), "bias": torch.ones(8)}
    ),
    "all modules": lambda n: setattr(
        n.layers, "_modules", {**n.layers._modules, "0": nn.Identity()}
    ),
    "all attributes": lambda n: setattr(n.settings, "__dict__", {**vars(n.settings), "gain": 2.5}),
    "a class": lambda n: setattr(n.settings, "__class__", type("Other", (Settings,), {})),
    "a tensor's class": lambda n: setattr(n.settings.shift, "__class__", nn.Parameter),
    "a tensor's strides": lambda n: n.layers[0].weight.t_(),
    "whether a weight requires gradients": lambda n: n.layers[0].weight.requires_grad_(),
    "a tensor's object in C++": lambda n: torch.utils.swap_tensors(
        n.layers[0].weight, nn.Parameter(torch.ones(8, 8))
    ),
    "a slot": lambda n: setattr(n.pair, "left", torch.zeros(8)),
    "a slot's number": lambda n: setattr(n.pair, "right", 4.0),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_of_what_is_read_is_noticed(net, change):
    guards = guarded(net, torch.randn(4, 8))
    assert guards.failed() == ""
    CHANGES[change](net)
    assert guards.failed() != ""


def test_equal_values_and_new_values_in_place_are_no_change(net):
    guards = guarded(net, torch.randn(4, 8))
    net.settings.gain = float("1.5")
    net.tables["n"] = int("2")
    net.layers[0].weight.mul_(2.0)
    net.unused = 7
    del net.unused
    net.unused = 7
    nn.Linear(2, 2).register_forward_hook(lambda *_: None)  # of a module that is not used
    assert [guards.failed() for _ in range(2)] == ["", ""]


def test_class_attributes_globals_cells_and_partial_arguments_count(monkeypatch):
    weight, gain = torch.ones(8), 3.0

    def run(x, power=1.0):
        return (x * weight + Shared.state) * gain * FACTOR * power

    function = functools.partial(run, power=2.0)
    guards = guarded(function, torch.ones(4, 8))
    assert guards.failed() == ""
    monkeypatch.setattr(Shared, "state", torch.zeros(8))
    assert guards.failed() == "Shared.state was replaced or changed"
    monkeypatch.undo()
    assert guards.failed() == ""
    monkeypatch.setitem(globals(), "FACTOR", 4.0)
    assert guards.failed() == "FACTOR was replaced or changed"
    monkeypatch.undo()
    gain = 4.0
    assert guards.failed() == "gain was replaced or changed"


def helper(x):
    return x + 1


def test_a_function_that_is_called_counts(monkeypatch):
    weight = torch.ones(8)
    guards = guarded(lambda x: helper(x) * weight, torch.ones(4, 8))
    monkeypatch.setitem(globals(), "helper", lambda x: x + 2)
    assert guards.failed() == "helper was replaced or changed"


def test_settings_of_pytorch_count(net):
    guards = guarded(net, torch.randn(4, 8))
    with torch.backends.cudnn.flags(enabled=True, deterministic=True):
        assert guards.failed() == "cudnn.deterministic: True, not False"
    assert guards.failed() == ""


SETTINGS = {
    "anomaly detection": lambda: torch.autograd.set_detect_anomaly(True),
    "fast paths of transformers": lambda: set_for_now(
        torch.backends.mha.set_fastpath_enabled, False, True
    ),
    "warnings instead of deterministic algorithms": lambda: set_for_now(
        lambda only: torch.use_deterministic_algorithms(only, warn_only=only), True, False
    ),
    "filling of new memory": lambda: set_for_now(
        torch._C._set_deterministic_fill_uninitialized_memory, False, True
    ),
    "functions of tensors' classes": torch._C.DisableTorchFunctionSubclass,
    "reductions in plain attention": lambda: set_for_now(
        torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp, True, False
    ),
}


@contextlib.contextmanager
def set_for_now(change, new, old):
    change(new)
    try:
        yield
    finally:
        change(old)


@pytest.mark.parametrize("name", SETTINGS)
def test_each_setting_counts(net, name):
    guards = guarded(net, torch.randn(4, 8))
    then = dict(zip(_SETTINGS, settings(), strict=True))
    with SETTINGS[name]():
        now = dict(zip(_SETTINGS, settings(), strict=True))
        assert then.pop(name) != now.pop(name)
        assert guards.failed()
    assert guards.failed() == ""


def test_derivatives_that_are_carried_forward_are_none_of_a_graph(net):
    guards = guarded(net, torch.randn(4, 8))
    with torch.autograd.forward_ad.dual_level():
        assert guards.in_other_modes() == "derivatives are carried forward"
    assert guards.in_other_modes() == ""


def test_a_precision_that_pytorch_refuses_to_tell_counts():
    text = (
        "import torch\n"
        "from depgraph.torch.guards import settings\n"
        "before = settings()\n"
        "torch.backends.cuda.matmul.fp32_precision = 'tf32'\n"
        "assert settings() != before and settings() == settings()\n"
    )
    subprocess.run([sys.executable, "-c", text], check=True, timeout=120)


def test_grad_mode_counts_where_something_needs_gradients():
    weight = torch.ones(8, requires_grad=True)
    executed, log = Executed(), OperatorLog(CPU)

    def run(x):
        return x * weight

    with torch.no_grad(), executed.listening(), log:
        run(torch.ones(8))
    bindings = find_bindings({"run": run}, executed)
    with torch.no_grad():
        guards = Guards(bindings, [weight], needs_grad=True)
        assert guards.failed() == ""
    assert guards.failed() == "grad mode or inference mode is another one"


def test_a_tensor_on_the_cpu_counts_by_its_value():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = torch.tensor(2.0)

        def forward(self, x):
            return x * self.scale

    net = Scaled()
    executed = Executed()
    with executed.listening():
        net(torch.ones(8))
    guards = Guards(find_bindings({"net": net}, executed), [], on_host=[net.scale])
    assert guards.failed() == ""
    net.scale.fill_(3.0)
    assert guards.failed() == "net.scale, a tensor on the CPU, was changed"


def test_sparse_tensors_count_by_what_they_are_made_of():
    matrix = torch.eye(8).to_sparse()
    guards = guarded(lambda x: torch.sparse.mm(matrix, x), torch.ones(8, 8))
    assert guards.failed() == ""
    matrix._values().mul_(2.0)
    assert guards.failed() == ""
    matrix = torch.eye(8).to_sparse()
    assert guards.failed() == "matrix was replaced or changed"


def test_a_tensor_that_nothing_leads_to_is_refused():
    hidden = [torch.ones(8)]
    get = iter([hidden[0], hidden[0]]).__next__
    with pytest.raises(ApplyError, match=r"float32\[8\].* that nothing it refers to leads to"):
        guarded(lambda x: x * get(), torch.ones(8))


@pytest.fixture
def without_collection():
    """Let nobody's finalizers run meanwhile: what they run would be looked at, too."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("without_collection")
def test_what_did_not_run_and_loggers_are_not_looked_at(net):
    """A library is full of functions that lead everywhere."""
    guards = guarded(net, torch.randn(4, 8))
    count = guards.count

    class Logging(Net):
        def forward(self, x):
            if x.shape[0] > 100:
                LOGGER.warning("large")
                return elsewhere(x)
            return super().forward(x)

    logging_net = Logging().requires_grad_(requires_grad=False)
    assert guarded(logging_net, torch.randn(4, 8)).count < count + 12


LOGGER = logging.getLogger("depgraph.tests")
TABLE = {str(i): i for i in range(1000)}


def elsewhere(x):
    return x * TABLE["1"]


def test_numbers_that_c_objects_make_anew_are_compared_by_value():
    class Kept:
        __slots__ = ("number",)

    kept, weight = Kept(), torch.ones(8)
    kept.number = 123_456
    guards = guarded(lambda x: x * weight * kept.number, torch.ones(4, 8))
    kept.number = int("123456")
    assert guards._fast()
    kept.number = 3
    assert guards.failed() == "kept.number was replaced or changed"

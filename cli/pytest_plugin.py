"""The fixture ``depgraph_baseline`` of pytest: a program may not get worse than it was."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from depgraph.errors import DepgraphError

if TYPE_CHECKING:
    Guard = Callable[..., dict[str, float]]

_UPDATE = "--depgraph-update"
_BASELINES = "depgraph-baselines.json"
_SMS = 80
# The upper bound falls where less can overlap, and false dependences are what one can get rid of.
_FALLING, _RISING = ("upper_bound", "bound_raw"), ("false_dependences",)
_NUMBERS = (*_FALLING, *_RISING)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that writes baselines anew."""
    group = parser.getgroup("depgraph")
    group.addoption(
        _UPDATE, action="store_true", help=f"Write {_BASELINES} anew instead of comparing with it."
    )


@pytest.fixture
def depgraph_baseline(request: pytest.FixtureRequest) -> Guard:
    """Return a function that fails the test where a program got worse than its baseline.

    ``depgraph_baseline(PATH, sms=80, tolerance=0.02)`` takes a store, or a trace or recording, and
    returns its numbers. A program has got worse if the upper bound on its speedup, with all
    dependences or with RAW dependences, fell by more than the tolerance, or if it has more false
    dependences (certain WAR and WAW edges between blocks). Baselines stand in
    ``depgraph-baselines.json`` beside the test; ``pytest --depgraph-update`` writes them.
    """
    baselines = Path(request.path).with_name(_BASELINES)
    updates = bool(request.config.getoption(_UPDATE))
    compared: set[str] = set()

    def check(
        path: str | Path, *, sms: int = _SMS, tolerance: float = 0.02, name: str | None = None
    ) -> dict[str, float]:
        __tracebackhide__ = True
        if not 0 <= tolerance < 1:
            pytest.fail(f"tolerance is {tolerance}: give a share from 0 to below 1", pytrace=False)
        if updates and hasattr(request.config, "workerinput"):
            pytest.fail(f"{_UPDATE} writes one file: run it in one process (-n0)", pytrace=False)
        try:
            found = measured(Path(path), sms)
        except DepgraphError as error:
            raise pytest.fail.Exception(str(error), pytrace=False) from None
        test = "::".join([request.path.name, *request.node.nodeid.split("::")[1:]])
        key = f"{test}: {name or Path(path).name} on {sms} SMs"
        if key in compared:
            pytest.fail(f"{key}: compared before in this test; give each a name=", pytrace=False)
        compared.add(key)
        known = _read(baselines)
        if updates:
            text = json.dumps({**known, key: found}, indent=2, sort_keys=True)
            baselines.write_text(text + "\n", encoding="utf-8")
            return found
        if key not in known:
            pytest.fail(f"{key}: no baseline in {baselines}; run pytest {_UPDATE}", pytrace=False)
        worse = worsened(known[key], found, tolerance)
        if worse:
            pytest.fail(f"{key}: " + "; ".join(worse), pytrace=False)
        return found

    return check


def measured(path: Path, sms: int) -> dict[str, float]:
    """Return the numbers of a store, or of a trace, which is extracted for that."""
    from depgraph.analysis.bound import bound_one
    from depgraph.parsers import open_trace
    from depgraph.parsers.profiles import read_profile
    from depgraph.scenario.of_store import Request
    from depgraph.scenario.scenario import Scenario
    from depgraph.store.store import Store
    from depgraph.store.tables import is_store

    if not is_store(path):
        from depgraph.extraction.pipeline import extract

        with tempfile.TemporaryDirectory() as folder:
            return measured(extract(open_trace(path), Path(folder) / "it.out").path, sms)
    scenario = Scenario.of_store(Store(path), Request(read_profile=read_profile)).on(sms)
    return {
        "upper_bound": bound_one(scenario).upper_bound,
        "bound_raw": bound_one(scenario.with_kinds({"RAW"})).upper_bound,
        "false_dependences": float(sum(pair.war + pair.waw for pair in scenario.pairs)),
    }


def worsened(before: dict[str, float], now: dict[str, float], tolerance: float) -> list[str]:
    """Return one line for each number that got worse by more than a share."""
    fell = [name for name in _FALLING if now[name] < before[name] * (1 - tolerance)]
    rose = [name for name in _RISING if now[name] > before[name] * (1 + tolerance)]
    return [f"{name} was {before[name]:.4g} and is {now[name]:.4g}" for name in (*fell, *rose)]


def _read(path: Path) -> dict[str, dict[str, Any]]:
    if not path.is_file():
        return {}
    try:
        found: dict[str, dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
        return {key: {n: _finite(numbers[n]) for n in _NUMBERS} for key, numbers in found.items()}
    except (ValueError, TypeError, AttributeError, KeyError) as error:
        what = f"{path}: has no baselines that can be read ({error!r})"
        hint = f"remove it and run pytest {_UPDATE}"
        raise pytest.fail.Exception(f"{what}; {hint}", pytrace=False) from None


def _finite(value: Any) -> float:
    number = float(value)
    if not isfinite(number):
        raise ValueError(value)
    return number

"""The mechanisms that there are, and finding them by name."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from depgraph.errors import ModelError
from depgraph.mechanisms.acs import AcsHardware, AcsSoftware
from depgraph.mechanisms.base import Dataflow, Ideal, Mechanism, Serial
from depgraph.mechanisms.blockmaestro import BlockMaestro
from depgraph.mechanisms.bloom import DataflowBloom
from depgraph.mechanisms.child_kernels import Cdp, Flat, Spawn
from depgraph.mechanisms.clusters import ClusterLaunchControl, Clusters
from depgraph.mechanisms.communication_rules import COMMUNICATION_RULES
from depgraph.mechanisms.cuda_graph import CudaGraph
from depgraph.mechanisms.custom import SUFFIX, Custom
from depgraph.mechanisms.cusync import CuSyncConv2d, CuSyncRow, CuSyncStrided, CuSyncTile
from depgraph.mechanisms.dataflow_hints import DataflowHints
from depgraph.mechanisms.dataflow_learned import DataflowLearned
from depgraph.mechanisms.green_contexts import GreenContexts
from depgraph.mechanisms.mega import MegaKernel
from depgraph.mechanisms.pdl import ProgrammaticDependentLaunch
from depgraph.mechanisms.queues import HsaQueues
from depgraph.mechanisms.stages import HorizontalFusion, InterOperatorScheduler
from depgraph.mechanisms.stream_k import StreamK
from depgraph.mechanisms.streams import Streams
from depgraph.mechanisms.wireframe import Wireframe
from depgraph.system.text import did_you_mean, in_short

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

MECHANISMS: dict[str, type[Mechanism]] = {
    mechanism.name: mechanism
    for mechanism in (
        Serial,
        Streams,
        CudaGraph,
        ProgrammaticDependentLaunch,
        GreenContexts,
        Clusters,
        HsaQueues,
        HorizontalFusion,
        InterOperatorScheduler,
        MegaKernel,
        ClusterLaunchControl,
        AcsSoftware,
        AcsHardware,
        CuSyncRow,
        CuSyncTile,
        CuSyncStrided,
        CuSyncConv2d,
        StreamK,
        BlockMaestro,
        Wireframe,
        Dataflow,
        DataflowLearned,
        DataflowBloom,
        DataflowHints,
        Flat,
        Cdp,
        Spawn,
        Ideal,
        *COMMUNICATION_RULES,
    )
}

# What mechanisms were called before.
_FORMER_NAMES = {"kernel-graph": "cuda-graph"}

_NAME = re.compile(r"([\w.:-]+)\s*(?:\(([^()]*)\))?")


def split_names(text: str) -> list[str]:
    """Split a list of mechanisms at the commas outside parentheses."""
    return [name.strip() for name in re.split(r",(?![^(]*\))", text) if name.strip()]


def find_mechanisms(names: Iterable[str], *, hypothetical: bool = False) -> list[Mechanism]:
    """Return the mechanisms with these names.

    Parameters
    ----------
    names : iterable of str
        Such as ``"dataflow"``, ``"wireframe(4)"``, ``"all"``, or ``"mymodule:MyRule"`` or
        ``"policy.toml"`` for a class or a file of the user's own.
    hypothetical : bool
        Whether "all" has those, too, that a GPU lacks; what is named always counts.

    Raises
    ------
    ModelError
        If there is no such mechanism, or it takes other parameters.
    """
    mechanisms: list[Mechanism] = []
    for name in names:
        if name == "all":
            every = [each for kind in MECHANISMS.values() for each in kind.every()]
            for each in every:
                each.asked_by_name = False
                each.only_where_available = not hypothetical
            mechanisms += every
            continue
        if name.endswith(SUFFIX):
            mechanisms.append(Custom(Path(name)))
            continue
        match = _NAME.fullmatch(name)
        if match is None:
            raise ModelError(
                f"{in_short(name)!r} is not a mechanism: give NAME, NAME(PARAMETERS) or all"
            )
        kind = _imported(match[1]) if ":" in match[1] else _named(match[1])
        if kind is None:
            own = "MODULE:CLASS or FILE.toml for one of your own"
            listed = f"; known: {', '.join([*MECHANISMS, *_of_packages()])}, or {own}"
            hint = did_you_mean(match[1], MECHANISMS) or listed
            raise ModelError(f"there is no mechanism {in_short(match[1])!r}{hint}")
        if match[2] is None:
            mechanisms += kind.variants()
        else:
            mechanisms.append(kind.with_parameters([part.strip() for part in match[2].split(",")]))
    return mechanisms


def _named(name: str) -> type[Mechanism] | None:
    """Return a mechanism of depgraph's own, or of an installed package."""
    own = MECHANISMS.get(_FORMER_NAMES.get(name, name))
    point = _of_packages().get(name) if own is None else None
    if point is None:
        return own
    from depgraph.system.plugins import loaded

    return _checked(loaded(point), name, point.value)


def known_mechanisms() -> list[type[Mechanism]]:
    """Return depgraph's own mechanisms, then those of installed packages."""
    further = [kind for name in _of_packages() if (kind := _named(name)) is not None]
    return list(dict.fromkeys([*MECHANISMS.values(), *further]))


def _of_packages() -> dict[str, EntryPoint]:
    from depgraph.system import plugins

    return plugins.installed(plugins.MECHANISMS)


def _checked(found: object, name: str, where: str) -> type[Mechanism]:
    if not (isinstance(found, type) and issubclass(found, Mechanism)):
        raise ModelError(f"mechanism {name!r}: {where} has no subclass of Mechanism so named")
    return found


def _imported(name: str) -> type[Mechanism]:
    """Import a user's mechanism, from the current folder too."""
    module_name, _, class_name = name.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    if not all(part.isidentifier() for part in module_name.split(".")):
        raise ModelError(f"mechanism {in_short(name)!r}: there is no module of that name")
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # noqa: BLE001 - it is the code of the user
        reason = str(error) if isinstance(error, ImportError) else repr(error)
        raise ModelError(
            f"mechanism {in_short(name)!r}: cannot import {module_name!r}: {in_short(reason, 400)}"
        ) from None
    return _checked(getattr(module, class_name, None), name, module_name)

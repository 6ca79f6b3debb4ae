"""Whether a profile is of the program that was traced: one judgement for all who use its times."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from depgraph.errors import ProfileError
from depgraph.graph.program import Kernel
from depgraph.system.text import nor_more
from depgraph.timing.match import match_profile
from depgraph.timing.matched_profile import GUESSED, MATCHED, UNMATCHED, Match
from depgraph.timing.profile import BlockProfile, KernelProfile, Where

_MOST_OTHERS = 0.5  # share of its time that a profile spends outside the trace
_OWN_TABLES = ("kernels-", "blocks-")
_SIMULATOR = "simlog"
_DROPPED = (
    "it may exit with 0 all the same: Accel-Sim of before commit 0842752 drops kernels with "
    "-gpgpu_concurrent_kernel_sm 1; run it again, or pass --allow-mismatch to use what there is"
)
_HINT = "profile the program that was traced, or pass --allow-mismatch to use what fits"


@dataclass(frozen=True, slots=True, eq=False)
class Fit:
    """What of a profile belongs to which kernel of a store."""

    profile: KernelProfile | BlockProfile
    kernels: Sequence[Kernel]
    match: Match | None  # None for block times without names or grids of kernels
    # Which kernels have a time that is surely theirs; of block times, one for each block.
    is_measured: NDArray[np.bool_]
    # Of block times: the place in `kernels` that each row is of, -1 where it is of no block.
    place: NDArray[np.int64] | None = None
    misfit: str = ""  # what of block times names no block of the store, or leaves one out

    @property
    def summary(self) -> str:
        """Say in one line how well the two fit."""
        if self.place is None:
            return "" if self.match is None else self.match.summary()
        have = int(self.is_measured.sum())
        text = f"kernels with a time for each block: {have} of {len(self.kernels)}"
        return text + (f"; {self.misfit}" if self.misfit else "")

    @property
    def has_times(self) -> bool:
        """Whether any kernel has times that can be used, a guess included."""
        if self.place is None and self.match is not None:
            return not np.isnan(self.match.duration).all()
        return bool(self.is_measured.any())

    @property
    def warning(self) -> str | None:
        """What to tell users of the times; None if each kernel has one and others take little."""
        others = 0.0 if self.match is None else self.match.share_of_time(UNMATCHED)
        if self.is_measured.all() and not self.misfit and others <= _MOST_OTHERS:
            return None
        return f"{self.profile.source}: not all of it fits the trace: {self.summary}"

    def check(self, *, allow_mismatch: bool = False) -> None:
        """Refuse a profile of another program: fewer than half of the kernels have times.

        Block times must fit the grids; a table of one's own may leave kernels out, since it says
        which are meant. `allow_mismatch` refuses only what has not one usable time.
        """
        fitting = int(self.is_measured.sum())
        source = self.profile.source
        if self.place is not None and not fitting:
            found = self.misfit or "names no kernel of the store"
            raise ProfileError(source, f"holds no times of a kernel of the store: {found}", _HINT)
        if allow_mismatch:
            return
        if self.misfit:
            raise ProfileError(source, self.misfit, _HINT)
        ended = self._ended_in_simulator
        if ended is not None and ended < len(self.kernels):
            found = f"{ended} kernels ended in the simulator, and the store has {len(self.kernels)}"
            raise ProfileError(source, found, _DROPPED)
        if 2 * fitting < self._expected:
            raise ProfileError(
                source, f"seems to be of another program than the store: {self.summary}", _HINT
            )

    @property
    def _ended_in_simulator(self) -> int | None:
        """Kernels that a simulator's log has times of; None for other profiles."""
        profile = self.profile.kernels if isinstance(self.profile, BlockProfile) else self.profile
        return len(profile) if profile is not None and profile.format == _SIMULATOR else None

    @property
    def _expected(self) -> int:
        """Kernels that should have a time: in a table of one's own those that it names."""
        if not self.profile.format.startswith(_OWN_TABLES):
            return len(self.kernels)
        return len(self.profile) if self.place is None else 0

    def usable_blocks(self) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Return the kernel of each row of block times, or -1, and whether it is a measured one."""
        if self.place is None:
            raise TypeError("these are no block times")
        number = np.array([*(kernel.kernel for kernel in self.kernels), -1], np.int64)
        usable = np.append(self.is_measured, False)
        return number[self.place], usable[self.place]


def fit_profile(
    profile: KernelProfile | BlockProfile, kernels: Sequence[Kernel], where: Where | None = None
) -> Fit:
    """Find out what of a profile belongs to which kernel.

    Parameters
    ----------
    profile : KernelProfile or BlockProfile
    kernels : sequence of Kernel
        In launch order.
    where : Where, optional
        As for `match_profile`.

    Raises
    ------
    ProfileError
        As `match_profile` does. What fits badly is for `Fit.check` to refuse.
    """
    if not isinstance(profile, BlockProfile):
        matched = match_profile(profile, kernels, where)
        return Fit(profile, kernels, matched, _surely_matched(matched))
    match = None if profile.kernels is None else match_profile(profile.kernels, kernels, where)
    place = _places(profile, kernels, match)
    size = np.array([kernel.blocks for kernel in kernels], np.int64)
    is_known = place >= 0
    is_inside = is_known & (profile.block < size[place])
    is_wrong = ~is_inside if match is None else is_known & ~is_inside
    timed = np.bincount(place[is_inside], minlength=len(kernels))
    beyond = np.bincount(place[is_known & ~is_inside], minlength=len(kernels))
    is_measured = (timed == size) & (beyond == 0)
    misfit = ""
    if is_wrong.any():
        row = int(np.flatnonzero(is_wrong)[0])
        misfit = f"kernel {profile.kernel[row]} block {profile.block[row]} is not in the store"
        misfit += nor_more(int(is_wrong.sum()), "are")
    elif len(cut := np.flatnonzero((timed > 0) & ~is_measured)):
        kernel = kernels[cut[0]]
        has = np.bincount(profile.block[is_inside & (place == cut[0])], minlength=kernel.blocks)
        misfit = f"kernel {kernel.kernel} block {int(np.argmin(has))} has no duration"
        misfit += nor_more(int((size - timed)[cut].sum()), "have", " blocks")
    return Fit(profile, kernels, match, is_measured, np.where(is_inside, place, -1), misfit)


def _surely_matched(match: Match) -> NDArray[np.bool_]:
    """Tell which kernels are matched; without names in the profile a guess is all there can be."""
    taken = {MATCHED} if any(match.profile.name) else {MATCHED, GUESSED}
    return np.array([status in taken for status in match.status], np.bool_)


def _places(
    profile: BlockProfile, kernels: Sequence[Kernel], match: Match | None
) -> NDArray[np.int64]:
    place_of = {kernel.kernel: place for place, kernel in enumerate(kernels)}
    if match is not None and match.profile.kernel is not None:
        rows = enumerate(match.row.tolist())
        place_of = {int(match.profile.kernel[row]): place for place, row in rows if row >= 0}
    distinct, member = np.unique(profile.kernel, return_inverse=True)
    found = np.array([place_of.get(number, -1) for number in distinct.tolist()], np.int64)
    return found[member]

"""The constants of `xla_ext/core`: purpose, and what changes in a build with another one.

The core is copied, a constant is replaced in its source, and the planner plans and packs
random steps (`tests/core/bench/core_values.cc`). It takes CMake and a C++ compiler.
"""

from __future__ import annotations

import dataclasses
import pathlib
import re
import shutil
import statistics
import subprocess
import tempfile
from collections.abc import Iterator, Sequence

import budget_table
from budget_table import progress

from .results import Results
from .values import ARGUMENT, EFFORT

ROOT = pathlib.Path(__file__).parent.parent.parent
CORE = ROOT / "xla_ext" / "core"
FACTORS = (0.5, 2)
KINDS = {
    "plan": "recomputed seconds",
    "packed": "the same, with offsets",
    "pool": "smallest pool",
    "packing": "packed bytes",
}
COLUMNS = ("constant", "is", "set to", *KINDS.values(), "seconds")


@dataclasses.dataclass(frozen=True)
class Constant:
    """A constant of the core.

    Attributes:
        file: below `xla_ext/core`.
        name: its name there.
        purpose: the decision that depends on it.
        chosen: as of `values.Tuned`.
        neutral: as of `values.Tuned`.
        effect: for one that no random step of this size reaches, what depends on it.
    """

    file: str
    name: str
    purpose: str
    chosen: str = EFFORT
    neutral: float = 0
    effect: str = ""

    @property
    def pattern(self) -> re.Pattern[str]:
        return re.compile(rf"(constexpr [\w:]+ {self.name} = )([\d.']+)(;)")

    def text(self) -> str:
        """The constant as it stands in the source."""
        match = self.pattern.search((CORE / self.file).read_text())
        assert match is not None, f"{self.name} is not in {self.file}"
        return match[2].replace("'", "")

    def times(self, factor: float) -> str:
        """The constant, its distance from the neutral value multiplied."""
        text = self.text()
        scaled = self.neutral + factor * (float(text) - self.neutral)
        return repr(scaled) if "." in text else str(max(1, round(scaled)))


_SEARCH, _REPAIR, _PLANNER = "search/search.cc", "search/repair.cc", "planner.cc"
_POOL, _BOUND = "search/pool_search.cc", "search/recomputation_bound.cc"
_PLANS, _NEGOTIATION = "search/pool_plans.cc", "search/negotiation.cc"
_LIVE, _POLISH = "search/live_bytes.cc", "search/polish.h"
_PACKED = "search/packed_plans.cc"
_HARD = "plans far above the lower bound, see `planner_properties.py`"
_REFUSED = "seconds of rooms without a plan, see `refused_rooms.py`"
_DEADLINE = "plans with `PlanOptions(seconds=...)`"
CONSTANTS = (
    Constant(
        _POLISH, "kMostWorse", "cost of a move relative to its plan's", ARGUMENT, neutral=1
    ),
    Constant("search/ruin.cc", "kDropAttempts", "picks of a value to drop"),
    Constant(
        "search/ruin.cc",
        "kWaysToVary",
        "of so many times, in four what is kept behind its last use varies",
    ),
    Constant("search/ruin.cc", "kLeastShareOfMuch", "part undone to begin anew"),
    Constant(_SEARCH, "kMostWorseAnew", "the most seconds of what begins anew"),
    Constant(_SEARCH, "kMostStale", "failures before a return to the best plan"),
    Constant(_SEARCH, "kMostStarts", "plans that share half of the effort"),
    Constant(_POLISH, "kMostPolished", "gaps that are tried one by one at the end"),
    Constant(_SEARCH, "kMostSegments", "parts of the forward half in a first plan"),
    Constant(_SEARCH, "kSplitRounds", "rounds in which gaps are divided"),
    Constant(_SEARCH, "kTriesToMend", "tries to cut a given plan to the capacity"),
    Constant(_SEARCH, "kReserveOfEffort", "effort without first plans, one over this"),
    Constant(_REPAIR, "kCutsPerRound", "cuts between two pricings"),
    Constant(_REPAIR, "kMostUnblocked", "values that a stuck repair keeps again"),
    Constant(
        _REPAIR,
        "kOverdraft",
        "work of a repair when the effort is spent",
        effect="seconds of plans with thousands of operations and little effort",
    ),
    Constant(_REPAIR, "kOverdraftPerOp", "the same", effect="as `kOverdraft`"),
    Constant(
        _REPAIR,
        "kLookupsPerEffort",
        "values that prices ask for in the time of one execution",
        effect=_HARD,
    ),
    Constant(_REPAIR, "kFillRounds", "rounds in which values are kept in free room"),
    Constant(
        "search/checkpoints.h",
        "kShortestPart",
        "shortest gap of a first plan, one over this of the program",
        ARGUMENT,
    ),
    Constant(
        "search/cuts.cc",
        "kLongestChain",
        "operations of one recomputation",
        effect="plans that recompute chains of over 2,048 operations",
    ),
    Constant(
        "search/cuts.cc",
        "kMostSplitsInARow",
        "places in a gap at which an early run is priced",
        effect=_HARD,
    ),
    Constant(
        "search/splits.cc",
        "kMostEarlyRuns",
        "places of early runs in a small graph",
        effect=_HARD,
    ),
    Constant(
        "search/room.h", "kStretches", "parts of a program with a bound of free bytes"
    ),
    Constant("packing/greedy.cc", "kMaxChunk", "blocks in a chunk of the sorted list"),
    Constant(
        "packing/order_search.cc",
        "kPatience",
        "failures before the walk starts from the best order",
    ),
    Constant(
        "packing/turns.cc",
        "kFirstTurn",
        "steps of the first turn of each way to pack, where there is a deadline",
        effect="seconds of `planning.pack`, see `packing_table.py`",
    ),
    Constant(
        "packing/turns.cc",
        "kTurnPerBlock",
        "more of them for each block",
        effect="as `kFirstTurn`",
    ),
    Constant(
        "packing/turns.cc",
        "kTriesAtBound",
        "tries at the bound itself in each turn",
        effect="as `kFirstTurn`",
    ),
    Constant(
        "packing/turns.cc",
        "kTurnsOfOrder",
        "turns of the search over the order to one of the skyline's",
        effect="as `kFirstTurn`",
    ),
    Constant(
        "packing/composed_search.cc",
        "kShortestTry",
        "steps of the shortest try to compose blocks, where there is a deadline",
        effect="as `kFirstTurn`",
    ),
    Constant(
        "packing/composed_search.cc",
        "kTryPerBlock",
        "more of them for each block",
        effect="as `kFirstTurn`",
    ),
    Constant(
        "packing/composed_search.cc",
        "kPassedOver",
        "powers of two of what a composition passes over",
        effect="as `kFirstTurn`",
    ),
    Constant("packing/refit.cc", "kCostPerFailure", "cost of a block that fits nowhere"),
    Constant(_SEARCH, "kTemperature", "how much worse the next plan may be", ARGUMENT),
    Constant(_SEARCH, "kMostReserved", "room that plans that pack leave"),
    Constant(_PACKED, "kPairsPerBlock", "work to fit the blocks of one plan in"),
    Constant(_PACKED, "kPairsPerEffort", "the same over effort"),
    Constant(_PACKED, "kPairsPerStep", "the same where a plan is packed anew"),
    Constant(_PACKED, "kPartOfOtherWays", "effort over that of other ways to pack"),
    Constant(_POOL, "kSearchesOfPacked", "searches from plans that pack"),
    Constant(_POOL, "kPackingAttempts", "searches with less room for a bad packing"),
    Constant(_POOL, "kRoomsForLiveBytes", "rooms of a search that goes on"),
    Constant(
        _POOL,
        "kDepthForLiveBytes",
        "part of the capacity that the smallest of them is below it",
        ARGUMENT,
    ),
    Constant(_POOL, "kRoomsForPacking", "the same where plans are packed"),
    Constant(_POOL, "kDepthForPacking", "the same where plans are packed", ARGUMENT),
    Constant(_POOL, "kPartForPath", "effort over what a path of plans takes"),
    Constant(_POOL, "kPartPerRoom", "effort over what each room takes"),
    Constant(_POOL, "kPartPerRoomWithoutPlan", "the same while there is no plan"),
    Constant(_POOL, "kPartForEarly", "effort over what early runs take", effect=_HARD),
    Constant(_POOL, "kSeedsNearBound", "seeds tried in a round near the bound"),
    Constant(_POOL, "kPartNearBound", "effort over what each of them takes"),
    Constant(_POOL, "kPartToExchange", "that over what is left to exchange values"),
    Constant(_POOL, "kEffortAtAnyCost", "of a plan at any cost", effect=_REFUSED),
    Constant(
        _POOL,
        "kLookupsAtAnyCost",
        "values that prices ask for on the way to it",
        effect=_REFUSED,
    ),
    Constant(_POOL, "kSharedRoomPart", "a room over a step below it", effect=_REFUSED),
    Constant(_POOL, "kSharedRooms", "rooms where there is no plan", effect=_REFUSED),
    Constant(_POOL, "kPartPerSharedRoom", "effort over what each takes", effect=_REFUSED),
    Constant(_LIVE, "kHalvings", "rooms searched for the most live bytes that pack"),
    Constant(_LIVE, "kLeastPart", "of the capacity, the least of them", ARGUMENT),
    Constant(
        _LIVE, "kNegligible", "of the seconds, what packing may cost without it", ARGUMENT
    ),
    Constant(_NEGOTIATION, "kPartPerTalk", "effort over what mending a bad packing takes"),
    Constant(_NEGOTIATION, "kRoundsOfTalk", "how often a bad packing is mended"),
    Constant(_NEGOTIATION, "kStaleRoundsOfTalk", "rounds of that without success"),
    Constant(
        _NEGOTIATION, "kPartPerRefinement", "effort over a search of a plan that packs"
    ),
    Constant(_NEGOTIATION, "kRefinements", "how often such a plan is searched again"),
    Constant(_NEGOTIATION, "kPartOfExcess", "excess over what is then kept less"),
    Constant(_NEGOTIATION, "kPartOfExcessThen", "the same where that does not help"),
    Constant(_PLANS, "kPackingPart", "effort of packing over that of other plans"),
    Constant(_PLANS, "kMostPacked", "plans that are packed"),
    Constant(_PLANS, "kNearlyFits", "capacity over what is packed again"),
    Constant(_PLANS, "kPackingSeeds", "seeds that it is packed with"),
    Constant(_POOL, "kNegotiatedPerRound", "plans changed so", effect=_DEADLINE),
    Constant(_POOL, "kMostKnown", "results kept between turns", effect=_DEADLINE),
    Constant(_PLANS, "kPackingPartOfSeconds", "seconds of a packing", effect=_DEADLINE),
    Constant("search/path.cc", "kStepsDown", "steps from all bytes to the capacity"),
    Constant("search/path.cc", "kStepsBelow", "steps below the capacity"),
    Constant("search/path.cc", "kPartBelow", "capacity over such a step"),
    Constant("search/path.cc", "kMostTries", "tries of a step"),
    Constant(_BOUND, "kMostWork", "work of a lower bound on recomputation"),
    Constant(_BOUND, "kLeastRounds", "its rounds at least"),
    Constant(_BOUND, "kMostRounds", "its rounds at most"),
    Constant(_BOUND, "kPatience", "its rounds without success before steps are halved"),
    Constant(
        _PLANNER,
        "kNearBound",
        "distance from that bound at which a plan is good enough",
        ARGUMENT,
    ),
    Constant(_PLANNER, "kOnlineSteps", "steps of an online policy"),
    Constant(_PLANNER, "kOnlineStepsPerOp", "more of them for each operation"),
    Constant(_PLANNER, "kOnlineStepsPerSecond", "the same by time", effect=_DEADLINE),
    Constant(_PLANNER, "kSearchPartOfSeconds", "part of the search", effect=_DEADLINE),
    Constant(_PLANNER, "kContinuePartOfSeconds", "part of going on", effect=_DEADLINE),
    Constant(
        _PLANNER,
        "kMostOpsToCompare",
        "operations up to which online policies and other seeds are tried",
        effect="seconds of plans with 5,000 to 20,000 operations, see `search_scaling.py`",
    ),
    Constant(
        _PLANNER,
        "kMostOpsToGoOn",
        "operations up to which early runs and less effort are tried",
        effect="seconds of plans with 1,000 to 4,000 operations",
    ),
    Constant(_PLANNER, "kOtherSeeds", "seeds that a search is done again with"),
    Constant(_PLANNER, "kNegotiated", "plans that are changed until they pack"),
    Constant(_PLANNER, "kMostRoundsNearBound", "rounds near the bound at most"),
    Constant(_PLANNER, "kSearchesForAPlan", "searches while there is no plan"),
    Constant(
        _PLANNER,
        "kMostOpsNearBound",
        "operations up to which less effort is tried near the bound",
        effect="seconds of plans with 1,000 to 2,000 operations",
    ),
    Constant(
        _PLANNER, "kLeastPartOfPacking", "packing of searches with less effort", ARGUMENT
    ),
    Constant(_PLANNER, "kLessEffort", "effort over less of it that is tried, too"),
    Constant(_PLANNER, "kLeastEffort", "the least effort that less is tried for"),
    Constant(
        _PLANNER,
        "kEffortPerPairOfOps",
        "effort of the search for each pair of operations",
    ),
    Constant("minimum.cc", "kQuicker", "effort of a plan of a bisection, one over this"),
    Constant("minimum.cc", "kPartBelow", "steps below what it ends at, one over this"),
    Constant("minimum.cc", "kPartOfEnd", "and the last of them, one over this"),
)

# Constants that are no tuned values: of formats, numbers of cases, limits of types,
# and empty values.
OTHER_CONSTANTS = {
    "base/types.h": {"kMostBytes", "kMostSeconds", "kNever", "kNone"},
    "loops/frontier.cc": {"kFirstNode"},
    "loops/min_cut.h": {"kInfiniteCapacity", "kSink", "kSource"},
    "loops/retention.cc": {"kLeastSecondsPerByte"},
    "loops/time_units.cc": {"kBitsOfTotal", "kMostBitsOfPrice"},
    "packing/greedy.h": {"kNumGreedyOrders"},
    "packing/packing.cc": {"kMaxTotal"},
    "packing/skyline_search.cc": {"kWall", "kWaste", "kWorkPerLook"},
    "packing/turns.cc": {"kMostTries", "kMostTurn"},
    "planner.cc": {"kEffortPerSearch", "kRounding"},
    "schedule/block_map.cc": {"kLast"},
    "schedule/xla_heap.cc": {"kOpen"},
    "search/plan.h": {"kNoLimit"},
    "search/pool_search.cc": {"kSeedOfLive", "kSeedStep"},
    "search/recomputation_bound.cc": {"kRounding"},
    "search/rollout.h": {"kNotYet"},
}

Lines = list[tuple[str, float, float]]
"""A kind, a figure, and seconds."""


class Builds:
    """A copy of the core that is built with one constant or another."""

    def __init__(self, folder: pathlib.Path) -> None:
        self._core = folder / "xla_ext" / "core"
        self._build = folder / "build"
        for name in ("xla_ext", "tests/core", "tests/ffi"):
            shutil.copytree(ROOT / name, folder / name)
        source = str(folder / "xla_ext")
        self._run("cmake", "-S", source, "-B", str(self._build), "-DCOOP_BUILD_TESTS=ON")

    def lines(self, constant: Constant | None = None, value: str = "") -> Lines:
        """The results of the planner, with a constant replaced."""
        if constant is None:
            return self._found()
        path = self._core / constant.file
        before = path.read_text()
        path.write_text(constant.pattern.sub(rf"\g<1>{value}\g<3>", before))
        try:
            return self._found()
        finally:
            path.write_text(before)

    def _found(self) -> Lines:
        self._run("cmake", "--build", str(self._build), "--target", "core_values")
        text = self._run(str(self._build / "core_values"))
        found = (line.split() for line in text.splitlines())
        return [(kind, float(figure), float(seconds)) for kind, figure, seconds in found]

    def _run(self, *command: str) -> str:
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def pages(before: str = "", names: Sequence[str] | None = None) -> Iterator[str]:
    """The results page, again after every constant; `before` as of `Results`."""
    measured = [constant for constant in CONSTANTS if not constant.effect]
    current = {f"`{constant.name}`": constant.text() for constant in measured}
    results = Results(COLUMNS, current, before)
    with tempfile.TemporaryDirectory() as folder:
        builds = Builds(pathlib.Path(folder))
        usual = builds.lines()
        for constant in measured:
            if names and constant.name not in names:
                continue
            rows: list[list[str]] = []
            for factor in FACTORS:
                value = constant.times(factor)
                cells = _cells(usual, builds.lines(constant, value))
                rows.append([f"`{constant.name}`", constant.text(), value, *cells])
                progress(" | ".join(rows[-1]))
            results.replace(f"`{constant.name}`", rows)
            yield results.text(
                budget_table.header().replace(
                    " Step-time ratios are medians of interleaved runs.",
                    " Medians over random steps, in brackets the least and the greatest.",
                )
            )


def _cells(usual: Lines, found: Lines) -> list[str]:
    cells = []
    for kind in KINDS:
        pairs = [
            (a, b)
            for (k, a, _), (_, b, _) in zip(usual, found, strict=True)
            if k == kind and a > 0
        ]
        lost = sum(b < 0 for _, b in pairs)
        changes = [100 * (b / a - 1) for a, b in pairs if b >= 0]
        text = "="
        if any(abs(change) >= 0.005 for change in changes):
            middle = statistics.median(changes)
            text = f"{middle:+.2f} % ({min(changes):+.2f} to {max(changes):+.2f})"
        cells.append(f"{text}, {lost} not found" if lost else text)
    took = [sum(seconds for *_, seconds in lines) for lines in (usual, found)]
    return [*cells, f"{took[1] / took[0]:.2f} ×"]

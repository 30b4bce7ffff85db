"""Processes: one plan for a step whose devices belong to several processes.

JAX's multi-controller engine: every process calls the same step, and compiles its part of
it. All of them have to run the same program, so one process plans, the others receive the
text of the plan's file, and then every process compiles it. They exchange:

1. a digest of the step, compared before anything is planned;
2. the plan, or the error of the process that planned;
3. whether each of them compiled the plan within the budget.

A failure in one is an error in all. From the first step that it traces on, a process counts
a heartbeat up; one whose heartbeat stops is an error in the others, and so is one that does
not come.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import hashlib
import json
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax

from coop_jax.base import _compat_distributed
from coop_jax.base._compat_distributed import Store, StoreError
from coop_jax.base.errors import InfeasibleBudgetError, PlanFileError

_BEAT_SECONDS = 2.0
# Without a heartbeat for so long, a process is gone. XLA compiles and the planner searches
# without Python's lock, so that a process that works is not silent.
_SILENT_SECONDS = 30.0
# A process may come so much later than the first one, from its input pipeline for example.
_ARRIVAL_SECONDS = 300.0
_POLL_SECONDS = 0.5

_lock = threading.Lock()
_turns: dict[tuple[int, ...], int] = {}


@dataclasses.dataclass(frozen=True)
class Proposal:
    """The plan that all processes are to compile.

    Attributes:
        text: the text of its file.
        budget_bytes: the budget.
        num_compilations: compilations of the process that planned.
    """

    text: str
    budget_bytes: int
    num_compilations: int


def keep_beating(store: Store) -> None:
    """Count this process's heartbeat up until it ends, in a thread; begun once.

    To be called before a step is traced: what is killed from then on is missed soon.
    """
    global _heartbeat
    with _lock:
        if _heartbeat is not None and _heartbeat.is_alive():
            return
        ended = threading.Event()
        store.put(_beat_key(jax.process_index()), "0")
        _heartbeat = threading.Thread(
            target=_beat, args=(store, ended), name="coop_jax heartbeat", daemon=True
        )
        _heartbeat.start()
        atexit.register(_end_heartbeat, _heartbeat, ended)


_heartbeat: threading.Thread | None = None


def _beat_key(process: int | str) -> str:
    return f"coop_jax/beat/{process}"


def _beat(store: Store, ended: threading.Event) -> None:
    count = 0
    with contextlib.suppress(StoreError):
        while not ended.wait(_BEAT_SECONDS):
            count += 1
            store.put(_beat_key(jax.process_index()), str(count))


def _end_heartbeat(thread: threading.Thread, ended: threading.Event) -> None:
    ended.set()
    thread.join(_BEAT_SECONDS)


def fit_together(
    store: Store,
    processes: Sequence[int],
    step: dict[str, Any],
    propose: Callable[[Callable[[], None]], Proposal],
    realize: Callable[[Proposal], Any],
    caller: str,
) -> Any:
    """The result of `realize` for one plan in all processes; an error in all otherwise.

    Every one of the processes has to call this, for the same steps in the same order.

    Arguments:
        store: the store that the processes share.
        processes: their numbers; the first one plans.
        step: the step as JSON, equal in all processes, as `Subject.contents`.
        propose: makes the plan, in the first process. It is given a function to call now
            and then, which raises where another process failed meanwhile.
        realize: compiles a plan.
        caller: the public function that errors name.

    Raises:
        ValueError: the step is not the same in all processes.
        RuntimeError: a process is gone, did not come, or failed with an error that is not
            of this package; those are raised as they are, in all processes.
    """
    with _lock:
        exchange = _Exchange(store, tuple(processes), caller)
        try:
            exchange.compare(step)
            fitted = realize(exchange.decided(propose))
        except BaseException as error:
            exchange.failed(error)
            raise
        exchange.succeeded()
        return fitted


class _Exchange:
    """One plan's messages.

    The keys hold the number of the exchange among the same processes: messages of two
    steps are never confused, and processes that call steps in another order find that
    they differ.
    """

    def __init__(self, store: Store, processes: tuple[int, ...], caller: str) -> None:
        self._store = store
        self._processes = processes
        self._caller = caller
        self._me = jax.process_index()
        self._turn = _turns[processes] = _turns.get(processes, 0) + 1
        self._group = hashlib.sha256(str(processes).encode()).hexdigest()[:16]
        self._began = time.monotonic()
        self._heard: dict[int, tuple[str, float]] = {}
        self._is_told = False
        self._is_gone = False

    @property
    def _planner(self) -> int:
        return self._processes[0]

    def _key(self, *names: Any, turn: int | None = None) -> str:
        turn = self._turn if turn is None else turn
        return "/".join(map(str, ("coop_jax", self._group, turn, *names)))

    def compare(self, step: dict[str, Any]) -> None:
        """Check that all processes have the step of the first one."""
        own = _digest(step)
        self._put("step", own)
        digests = {p: self._wait("step", p) for p in self._processes}
        if self._me == self._planner and self._turn > 1:
            # All came to this exchange, so nobody reads the one before.
            self._store.delete(self._key(turn=self._turn - 1) + "/")
        others = [p for p in self._processes if digests[p] != digests[self._planner]]
        if not others:
            return
        if self._me == self._planner:
            self._put("contents", json.dumps(step))
        if self._me == others[0]:
            theirs = json.loads(self._wait("contents", self._planner))
            raise ValueError(
                f"`{self._caller}` must be given the same step in all processes. Got in "
                f"process {self._me} {_difference(theirs, step, self._planner)}. Call the "
                "same steps in the same order, with the same shapes, shardings, constants "
                "and options, in every process."
            )
        self._wait("outcome", others[0])  # Raises that error.

    def decided(self, propose: Callable[[Callable[[], None]], Proposal]) -> Proposal:
        """The plan of the first process, which makes it here."""
        if self._me == self._planner:
            proposal = propose(self.check)
            self._put("plan", json.dumps(dataclasses.asdict(proposal)))
            return proposal
        return Proposal(**json.loads(self._wait("plan", self._planner)))

    def succeeded(self) -> None:
        """Tell that this process has compiled the plan, and wait for the others."""
        self._is_told = True
        self._put("outcome", json.dumps(None))
        for process in self._processes:
            self._wait("outcome", process)
        self.check()

    def failed(self, error: BaseException) -> None:
        """Tell the others of an error; `succeeded` or an error of theirs may have come
        first."""
        if self._is_told:
            return
        self._is_told = True
        with contextlib.suppress(StoreError):
            told = {"is_gone": self._is_gone, **self._as_json(error)}
            self._put("outcome", json.dumps(told))

    def check(self) -> None:
        """Raise where another process failed, is gone, or did not come."""
        outcomes = self._read("outcome")
        for process in self._processes:
            found = json.loads(outcomes.get(process, "null"))
            if found is not None and process != self._me:
                self._is_told = True
                if found["is_gone"]:
                    _compat_distributed.exit_without_waiting()
                raise _restored(found)
        now, beats = time.monotonic(), self._numbered(_beat_key(""))
        for process in self._processes:
            if process in outcomes or process == self._me:
                continue
            beat = beats.get(process)
            if beat is None:
                if now - self._began > _ARRIVAL_SECONDS:
                    raise self._lost(
                        process, f"did not call it for {_ARRIVAL_SECONDS:.0f} s"
                    )
            elif self._heard.get(process, ("", 0.0))[0] != beat:
                self._heard[process] = beat, now
            elif now - self._heard[process][1] > _SILENT_SECONDS:
                self._is_gone = True
                _compat_distributed.exit_without_waiting()
                raise self._lost(process, f"has been silent for {_SILENT_SECONDS:.0f} s")

    def _lost(self, process: int, what: str) -> RuntimeError:
        return RuntimeError(
            f"`{self._caller}` plans a step together with all processes that have a part "
            f"of it. Got no answer: process {process} {what}. See the output of that "
            "process, and start all of them again."
        )

    def _put(self, name: str, value: str) -> None:
        self._asked(self._store.put, self._key(name, self._me), value)

    def _read(self, name: str) -> dict[int, str]:
        return self._numbered(self._key(name) + "/")

    def _numbered(self, prefix: str) -> dict[int, str]:
        """The values of a folder by process."""
        rows = self._asked(self._store.folder, prefix)
        return {int(process): value for process, value in rows.items()}

    def _wait(self, name: str, process: int) -> str:
        """The value of another process's key, as soon as it has one."""
        while True:
            value = self._asked(
                self._store.wait_for, self._key(name, process), _POLL_SECONDS
            )
            if value is not None and name != "outcome":
                return value
            self.check()
            if value is not None:
                return value

    def _asked(self, method: Callable, *args: Any) -> Any:
        try:
            return method(*args)
        except StoreError as error:
            raise RuntimeError(
                f"`{self._caller}` plans a step together with other processes through the "
                "service of `jax.distributed`, which must answer. Got "
                f"{error}. See the output of process 0, and start all of them again."
            ) from error

    def _as_json(self, error: BaseException) -> dict[str, Any]:
        """An error for the other processes."""
        if isinstance(error, InfeasibleBudgetError):
            with contextlib.suppress(Exception):  # The smallest budget is compiled now.
                return {"type": "budget", "parts": error.__reduce__()[1]}
        names: dict[type, str] = {kind: name for name, kind in _TYPES.items()}
        name = names.get(type(error))
        if name is not None:
            return {"type": name, "parts": [str(error)]}
        told = (
            f"`{self._caller}` failed in process {self._me}, and therefore in all: "
            f"{type(error).__name__}: {error}"
        )
        return {"type": "RuntimeError", "parts": [told]}


_TYPES: dict[str, type[Exception]] = {
    "ValueError": ValueError,
    "TypeError": TypeError,
    "PlanFileError": PlanFileError,
    "RuntimeError": RuntimeError,
}


def _restored(found: dict[str, Any]) -> Exception:
    """The error of another process."""
    if found["type"] == "budget":
        return InfeasibleBudgetError.restored(*found["parts"])
    return _TYPES[found["type"]](*found["parts"])


def _digest(step: dict[str, Any]) -> str:
    """A digest of a step, without the source lines of its equations."""
    rows = [row[:2] for row in step["equations"]]
    text = json.dumps({**step, "equations": rows}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _difference(theirs: dict[str, Any], own: dict[str, Any], planner: int) -> str:
    """The first difference between the step of the process that plans and this one."""
    there = f"in process {planner}"
    for name in ("arguments", "equations", "results"):
        for index, (row, expected) in enumerate(zip(own[name], theirs[name], strict=False)):
            if name != "equations":
                if row != expected:
                    return f"as {name[:-1]} {index} `{row}`, and {there} `{expected}`"
            elif row[0] != expected[0]:
                same = ", with other parameters or operands" * (row[1] == expected[1])
                return (
                    f"as equation {index} `{row[1]}` at {row[2]}, and {there} "
                    f"`{expected[1]}` at {expected[2]}{same}"
                )
        if len(own[name]) != len(theirs[name]):
            return f"{len(own[name])} {name}, and {there} {len(theirs[name])}"
    for name, value in own.items():
        if value != theirs.get(name):
            return f"as {name} {value!r}, and {there} {theirs.get(name)!r}"
    return "another step"

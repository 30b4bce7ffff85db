"""DTR logs: a recorded run for the DTR simulator to a `Graph`.

The log is one JSON object a line; `INSTRUCTION` is the kind of event. Figures are strings
or numbers, times in nanoseconds, memory in bytes.

* `CONSTANT NAME`, then `MEMORY`: a graph input, pinned in the pool to the end, also when it
  is released, as in the simulator: parameters, data.
* `CALL NAME ARGS RESULT TIME`, then `MEMORY` and `ALIAS` for every result: an operation.
  `ALIAS` -1: the result is a new tensor. Otherwise it is a view of that argument: a further
  name of its tensor, with no bytes of its own.
* `MUTATE NAME ARGS MUTATE TIME`: an operation that changes the arguments at the indices
  `MUTATE`: each gets a new tensor of the same bytes, to which this name now refers. The old
  one lives on while it has other names or is needed for a recomputation; the new one may
  take over its block (an in-place pair).
* `COPY DST SRC`: a further name of the tensor of `SRC`.
* `COPY_FROM DST SRC`: `DST` is given up and becomes a further name of the tensor of `SRC`.
* `RELEASE NAME`: the name is given up; a name that is not known is ignored. When a tensor
  has lost all names, the program has released it.
* `ANNOTATE START`: what came before it is left out.
* `ANNOTATE BACKWARD`: noted in `DtrLog.backward`.

A view that is computed (a `CALL` whose results are all aliases) is an operation that
takes its time once; to recompute a tensor brings its views back for nothing. The
simulator charges their operations again, which real views do not cost. Of a `CALL` with
aliased and other results only the others are its outputs.

Names that are left at the end of the log keep their tensors: they are outputs, resident at
the end (the simulator's `REMATERIALIZE`), or stay in place if pinned.

A name that is made again after it was released is a new one. A log does not say which
operations draw random numbers: all of them count as recomputable.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import os
import re
from collections.abc import Iterable, Iterator
from typing import Any

from coop_jax.base.strict_values import shown
from coop_jax.plan.named_graph import MOST_BYTES, MOST_BYTES_OF_ONE, MOST_SECONDS
from coop_jax.planning import Graph, named_graph

_WHOLE = re.compile(r"\s*[-+]?[0-9]+\s*", re.ASCII)


@dataclasses.dataclass(frozen=True, eq=False)
class DtrLog:
    """A log as a graph.

    Attributes:
        graph: to be planned by `coop_jax.planning`.
        operation_names: of the graph's operations, as logged.
        tensor_names: of the graph's tensors: the first name each had; `name$2` is the
            second tensor of that name, after a `MUTATE` or when a name was used again.
        backward: the first operation after `ANNOTATE BACKWARD` or, if there is none, the
            first whose name contains "backward"; None without either.
    """

    graph: Graph
    operation_names: tuple[str, ...]
    tensor_names: tuple[str, ...]
    backward: int | None


def read_dtr_log(source: str | os.PathLike[str] | Iterable[str]) -> DtrLog:
    """Reads a log from a path or from its lines; the module's docstring has the format.

    Arguments:
        source: a path, or the lines as strings. A file is UTF-8, without a byte order
            mark.

    Raises:
        ValueError: a line is malformed; the message has its number.
        TypeError: `source` is something else, or one of its lines is.
    """
    if isinstance(source, str | os.PathLike):
        with open(source, "rb") as lines:
            return _read(_decoded(lines))
    if isinstance(source, bytes | bytearray) or not isinstance(source, Iterable):
        raise TypeError(
            "`read_dtr_log(...)` must be given a path or lines of text. Got "
            f"{shown(source)}. Decode bytes with `.decode().splitlines()`."
        )
    return _read(source)


def _decoded(lines: Iterable[bytes]) -> Iterator[str]:
    for number, line in enumerate(lines, 1):
        try:
            yield line.decode()
        except UnicodeDecodeError as error:
            raise ValueError(
                f"`read_dtr_log(...)`: line {number}: the file must be UTF-8 text "
                f"({error.reason} at byte {error.start} of the line). Got {shown(line)}. "
                "Is it a log, and unpacked?"
            ) from None


def _read(lines: Iterable[str]) -> DtrLog:
    """The graph of the instructions in these lines."""
    instructions = list(_instructions(lines))
    starts = [
        i
        for i, line in enumerate(instructions)
        if line.kind == "ANNOTATE" and line.text("ANNOTATION") == "START"
    ]
    reader = _Reader(iter(instructions[starts[0] + 1 :] if starts else instructions))
    reader.run()
    return reader.finish()


@dataclasses.dataclass(frozen=True)
class _Line:
    number: int
    fields: dict[str, Any]

    @property
    def kind(self) -> str:
        return self.fields["INSTRUCTION"]

    def fail(self, rule: str, got: Any, todo: str) -> ValueError:
        return ValueError(
            f"`read_dtr_log(...)`: line {self.number}: {rule}. Got {shown(got)}. {todo}."
        )

    def _field(self, key: str) -> Any:
        if key not in self.fields:
            rule = f"{self.kind} must have the field {key}"
            raise self.fail(rule, sorted(self.fields), "Complete the line")
        return self.fields[key]

    def text(self, key: str) -> str:
        value = self._field(key)
        if not isinstance(value, str):
            raise self.fail(f"{key} must be a string", value, "Quote it")
        return value

    def texts(self, key: str) -> list[str]:
        value = self._field(key)
        if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
            raise self.fail(f"{key} must be a list of strings", value, "Correct it")
        return value

    def integer(self, key: str, smallest: int = 0) -> int:
        return self._whole(key, self._field(key), smallest)

    def integers(self, key: str) -> list[int]:
        value = self._field(key)
        if not isinstance(value, list):
            raise self.fail(f"{key} must be a list", value, "Correct it")
        return [self._whole(key, v, 0) for v in value]

    def _whole(self, key: str, value: Any, smallest: int) -> int:
        """The value as an int: of an integer, an integral float, or a string of digits."""
        is_whole = (
            (isinstance(value, int) and not isinstance(value, bool))
            or (isinstance(value, float) and value.is_integer())
            or (isinstance(value, str) and _WHOLE.fullmatch(value) is not None)
        )
        try:
            number = int(value) if is_whole else None
        except ValueError:  # More digits than Python reads.
            number = None
        if number is None:
            raise self.fail(f"{key} must be a whole number", value, "Correct it")
        if number < smallest:
            raise self.fail(f"{key} must be at least {smallest}", value, "Correct it")
        return number


def _instructions(lines: Iterable[str]) -> Iterator[_Line]:
    """The lines of a log that are instructions, decoded and in order."""
    for number, text in enumerate(lines, 1):
        if not isinstance(text, str):
            raise TypeError(
                f"`read_dtr_log(...)`: line {number}: every line must be a string. Got "
                f"{shown(text)}. Decode it."
            )
        if not text.strip():
            continue
        try:
            fields = json.loads(text)
        except (ValueError, RecursionError) as error:
            # Raised for malformed JSON, and also for numbers of thousands of digits.
            raise ValueError(
                f"`read_dtr_log(...)`: line {number}: every line must be a JSON object "
                f"({error}). Got {shown(text.strip())}. Was the file cut off?"
            ) from None
        line = _Line(number, fields if isinstance(fields, dict) else {})
        if not isinstance(line.fields.get("INSTRUCTION"), str):
            rule = "every line must be a JSON object with the string INSTRUCTION"
            raise line.fail(rule, fields, "Complete the line")
        yield line


class _Reader:
    def __init__(self, lines: Iterator[_Line]) -> None:
        self._lines = lines
        self._tensors: dict[str, dict[str, Any]] = {}
        self._operations: list[dict[str, Any]] = []
        self._operation_names: list[str] = []
        # Current names: the key in `_tensors` of each, and their number by tensor.
        self._tensor_of: dict[str, str] = {}
        self._num_names: dict[str, int] = {}
        self._released: dict[str, int] = {}
        self._num_bytes, self._num_seconds = 0, 0.0
        self._annotated_backward: int | None = None

    def run(self) -> None:
        """Take in one instruction."""
        readers = {
            "CONSTANT": self._constant,
            "CALL": self._call,
            "MUTATE": self._mutate,
            "COPY": self._copy,
            "COPY_FROM": self._copy_from,
            "RELEASE": self._release,
            "ANNOTATE": self._annotate,
        }
        for line in self._lines:
            if line.kind in ("MEMORY", "ALIAS"):
                rule = f"{line.kind} must follow the CONSTANT or CALL it belongs to"
                raise line.fail(rule, line.fields, "Check the lines before it")
            if line.kind not in readers:
                rule = f"INSTRUCTION must be one of {', '.join(readers)}, MEMORY, ALIAS"
                raise line.fail(rule, line.kind, "Correct it")
            readers[line.kind](line)

    def finish(self) -> DtrLog:
        """The graph of all instructions, once the log has ended."""
        for name, count in self._num_names.items():
            if count > 0 and not self._tensors[name].get("pinned"):
                self._tensors[name]["output"] = True
        for operation in self._operations:
            operation["releases"] = []
        for name, position in self._released.items():
            # A release before the first operation takes place after it.
            if self._operations and not self._tensors[name]["pinned"]:
                self._operations[max(position, 0)]["releases"].append(name)
        graph, names = named_graph(self._tensors, self._operations)
        backward = self._annotated_backward
        if backward is None:
            backward = next(
                (i for i, n in enumerate(self._operation_names) if "backward" in n),
                None,
            )
        return DtrLog(graph, tuple(self._operation_names), names, backward)

    # Instructions.

    def _constant(self, line: _Line) -> None:
        name = line.text("NAME")
        follower = self._follower(line, "MEMORY", name)
        memory = follower.integer("MEMORY")
        self._bind(line, name, self._new_tensor(follower, name, memory, pinned=True))

    def _call(self, line: _Line) -> None:
        """An operation with its results; sizes and aliases follow in lines of their own."""
        arguments = [self._lookup(line, name) for name in line.texts("ARGS")]
        results, outputs, bindings = line.texts("RESULT"), [], []
        for name in results:
            made = self._follower(line, "MEMORY", name)
            memory = made.integer("MEMORY")
            follower = self._follower(line, "ALIAS", name)
            alias = follower.integer("ALIAS", smallest=-1)
            if alias >= len(arguments):
                rule = f"ALIAS must be -1 or below the {len(arguments)} ARGS of its CALL"
                raise follower.fail(rule, alias, "Correct it")
            if alias >= 0:
                bindings.append((name, arguments[alias]))
                continue
            tensor = self._new_tensor(made, name, memory)
            outputs.append(tensor)
            bindings.append((name, tensor))
        self._operation(line, arguments, outputs)
        for name, tensor in bindings:
            self._bind(line, name, tensor)

    def _mutate(self, line: _Line) -> None:
        """An operation in place: new values under the names that it writes to."""
        names = line.texts("ARGS")
        arguments = [self._lookup(line, name) for name in names]
        pairs = []
        for index in line.integers("MUTATE"):
            if index >= len(names):
                rule = f"MUTATE must be below the {len(names)} ARGS"
                raise line.fail(rule, index, "Correct it")
            old = arguments[index]
            new = self._new_tensor(line, names[index], self._tensors[old]["bytes"])
            pairs.append((names[index], old, new))
        self._operation(line, arguments, [new for _, _, new in pairs])
        in_place = [(old, new) for _, old, new in pairs]
        self._operations[-1]["in_place"] = in_place
        for name, _, new in pairs:
            self._unbind(name)
            self._bind(line, name, new)

    def _copy(self, line: _Line) -> None:
        tensor = self._lookup(line, line.text("SRC"))
        self._bind(line, line.text("DST"), tensor)

    def _copy_from(self, line: _Line) -> None:
        name, tensor = line.text("DST"), self._lookup(line, line.text("SRC"))
        self._lookup(line, name)
        self._num_names[tensor] += 1  # `DST` and `SRC` may be the same name.
        self._unbind(name)
        self._num_names[tensor] -= 1
        self._bind(line, name, tensor)

    def _release(self, line: _Line) -> None:
        if line.text("NAME") in self._tensor_of:
            self._unbind(line.text("NAME"))

    def _annotate(self, line: _Line) -> None:
        annotation = line.text("ANNOTATION")
        if annotation == "BACKWARD" and self._annotated_backward is None:
            self._annotated_backward = len(self._operations)

    # Names and tensors.

    def _follower(self, line: _Line, kind: str, name: str) -> _Line:
        follower = next(self._lines, None)
        if follower is None or follower.kind != kind or follower.text("NAME") != name:
            rule = f"{line.kind} must be followed by {kind} of {name!r}"
            got = "the end of the log" if follower is None else follower.fields
            raise (follower or line).fail(rule, got, "Insert the line")
        return follower

    def _lookup(self, line: _Line, name: str) -> str:
        if name not in self._tensor_of:
            rule = f"{line.kind} must use names that are in force"
            raise line.fail(rule, name, "Define it by CONSTANT, CALL or COPY before")
        return self._tensor_of[name]

    def _new_tensor(self, line: _Line, name: str, memory: int, pinned: bool = False) -> str:
        """A tensor under a name that no other has."""
        self._num_bytes += memory
        if memory > MOST_BYTES_OF_ONE or self._num_bytes > MOST_BYTES:
            rule = "the bytes of a tensor must be below 2**48, of all together below 2**61"
            raise line.fail(rule, memory, "Check the unit")
        candidates = itertools.chain([name], (f"{name}${i}" for i in itertools.count(2)))
        tensor = next(c for c in candidates if c not in self._tensors)
        self._tensors[tensor] = {"bytes": memory, "pinned": pinned}
        self._num_names[tensor] = 0
        return tensor

    def _operation(self, line: _Line, inputs: list[str], outputs: list[str]) -> None:
        """Append an operation to the graph."""
        nanoseconds = line.integer("TIME")
        # Integers of any size are accepted.
        seconds = nanoseconds * 1e-9 if nanoseconds < 1e30 else math.inf
        self._num_seconds += seconds
        if self._num_seconds > MOST_SECONDS:
            rule = "TIME must add up to at most 1e27 nanoseconds"
            raise line.fail(rule, nanoseconds, "Check the unit")
        self._operations.append(
            {
                "seconds": seconds,
                "inputs": inputs,
                "outputs": outputs,
            }
        )
        self._operation_names.append(line.text("NAME"))

    def _bind(self, line: _Line, name: str, tensor: str) -> None:
        if name in self._tensor_of:
            rule = f"{line.kind} must make a name that is not in force"
            raise line.fail(rule, name, "RELEASE it first")
        self._tensor_of[name] = tensor
        self._num_names[tensor] += 1

    def _unbind(self, name: str) -> None:
        tensor = self._tensor_of.pop(name)
        self._num_names[tensor] -= 1
        if self._num_names[tensor] == 0:
            self._released[tensor] = len(self._operations) - 1

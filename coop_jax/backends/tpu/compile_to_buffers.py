"""Compile to buffers: for an absent TPU, as far as its memory is decided.

XLA:TPU optimizes a step, orders it and assigns its buffers in seconds, and then spends
minutes on code, which nobody runs where there is no TPU. No option ends a compilation
there. (A limit of memory does, but changes the step before.) So it runs in a process of
its own, which is killed once XLA has written out the module and the assignment.

The assignment is also the better figure: a TPU's `temp_size_in_bytes` may be more than
what XLA allocates. XLA itself refuses a step by the sum of its allocations, which is what
`AssignedStep` reports.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import pickle
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from typing import Any

import jax

from coop_jax.base import _compat
from coop_jax.base.absent_topologies import devices_of, recipe_of
from coop_jax.targets import target_of
from coop_jax.xla.protobuf_wire import fields

_MODULE, _ASSIGNMENT, _ALLOCATIONS = 1, 3, 3  # xla.HloProto, xla.BufferAssignmentProto
_SIZE, _IS_PARAMETER, _IS_OUTPUT, _MEMORY = 2, 5, 7, 8  # xla.BufferAllocationProto
_MAIN_MEMORY = 0
_WRITTEN = "*.after_optimizations.hlo.pb"
_WRITTEN_NEXT = "*.after_optimizations_after_buffer_assignment.hlo.pb"
_REFUSED = "RESOURCE_EXHAUSTED"
_SECONDS_BETWEEN_LOOKS = 0.05
_LAST_WORDS = 4000  # characters


@dataclasses.dataclass(frozen=True)
class AssignedBytes:
    """XLA's figures of the assignment, under their names in `CompiledMemoryStats`."""

    argument_size_in_bytes: int
    output_size_in_bytes: int
    alias_size_in_bytes: int
    temp_size_in_bytes: int


@dataclasses.dataclass(frozen=True)
class AssignedStep:
    """A step compiled as far as its buffers: what can be asked of it, as of a
    `jax.stages.Compiled`; it cannot be run.

    Attributes:
        module: `xla.HloModuleProto`, optimized and scheduled.
        figures: the bytes of its allocations in main memory.
        is_refused: whether XLA goes no further because the device's memory is less.
        input_shardings: of its arguments.
    """

    module: bytes = dataclasses.field(repr=False)
    figures: AssignedBytes
    is_refused: bool
    input_shardings: tuple[jax.sharding.Sharding, ...] = dataclasses.field(repr=False)

    def memory_analysis(self) -> AssignedBytes:
        return self.figures

    def runtime_executable(self) -> AssignedStep:
        return self

    def hlo_modules(self) -> list[AssignedStep]:
        return [self]

    def as_serialized_hlo_module_proto(self) -> bytes:
        return self.module


def is_enough_for(device: Any) -> bool:
    """Is it a TPU of `target=` or `targets.mesh`, which is not there?"""
    return device.platform == "tpu" and recipe_of(device) is not None


def compile_until_buffers(
    lowered: Any, device: Any, options: dict[str, Any] | None = None
) -> AssignedStep:
    """Compile a `jax.stages.Lowered` for a device that this is enough for.

    Raises:
        jax.errors.JaxRuntimeError: XLA's, if it gets no further than before its buffers.
    """
    with tempfile.TemporaryDirectory(prefix="coop_jax_") as folder:
        written = {"xla_dump_to": folder, "xla_dump_hlo_as_proto": True}
        devices = _compat.lowered_devices(lowered)
        task = (
            recipe_of(device),
            [one.id for one in devices],
            _compat.module_bytecode(lowered),
            _compat.compile_options(lowered, {**(options or {}), **written}),
        )
        with _child(task, pathlib.Path(folder)) as child:
            while child.poll() is None and not _found(folder, _WRITTEN_NEXT):
                time.sleep(_SECONDS_BETWEEN_LOOKS)
            ended = child.poll() is not None
        message = (pathlib.Path(folder) / "stderr").read_text(errors="replace")
        hlo = _found(folder, _WRITTEN)
        if hlo is None or (ended and child.returncode and _REFUSED not in message):
            raise jax.errors.JaxRuntimeError(
                f"`target={target_of(device).name!r}`: XLA's compilation, in a process of "
                f"its own, ended with exit status {child.returncode}. Its last words: "
                f"{message.strip()[-_LAST_WORDS:] or 'none; is there memory enough?'}"
            )
        proto = dict(fields(hlo.read_bytes()))
    is_refused = ended and child.returncode != 0
    return AssignedStep(
        proto[_MODULE],
        assigned_bytes(proto[_ASSIGNMENT]),
        is_refused,
        _compat.lowered_shardings(lowered),
    )


def assigned_bytes(assignment: bytes) -> AssignedBytes:
    """The sums of an `xla.BufferAssignmentProto`'s allocations in main memory."""
    arguments = outputs = aliased = everything = 0
    for field, value in fields(assignment):
        if field != _ALLOCATIONS:
            continue
        allocation = {
            inner: inner_value
            for inner, inner_value in fields(value)
            if inner in (_SIZE, _IS_PARAMETER, _IS_OUTPUT, _MEMORY)
        }
        if allocation.get(_MEMORY, _MAIN_MEMORY) != _MAIN_MEMORY:
            continue
        size = allocation.get(_SIZE, 0)
        is_argument = bool(allocation.get(_IS_PARAMETER))
        is_output = bool(allocation.get(_IS_OUTPUT))
        everything += size
        arguments += size * is_argument
        outputs += size * is_output
        aliased += size * (is_argument and is_output)
    temporaries = everything - (arguments + outputs - aliased)
    return AssignedBytes(arguments, outputs, aliased, temporaries)


@contextlib.contextmanager
def _child(task: Any, folder: pathlib.Path) -> Iterator[subprocess.Popen]:
    """A process that compiles, ended with the block."""
    environment = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }
    with tempfile.TemporaryFile() as given, open(folder / "stderr", "wb") as stderr:
        pickle.dump(task, given)
        given.seek(0)
        child = subprocess.Popen(
            # -P: not what lies in the working directory, but this package.
            [sys.executable, "-P", "-m", __name__],
            stdin=given,
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            env=environment,
        )
    try:
        yield child
    finally:
        child.kill()
        child.wait()


def _found(folder: str, pattern: str) -> pathlib.Path | None:
    return next(pathlib.Path(folder).glob(pattern), None)


def _compile_task() -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    recipe, ids, module, options = pickle.load(sys.stdin.buffer)
    by_id = {device.id: device for device in devices_of(recipe)}
    try:
        _compat.compile_bytecode([by_id[number] for number in ids], module, options)
    except jax.errors.JaxRuntimeError as error:
        sys.exit(str(error))


def _end_with_parent() -> None:
    """A parent that is killed cannot kill its child, which would go on for minutes."""
    parent = os.getppid()
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


if __name__ == "__main__":
    _compile_task()

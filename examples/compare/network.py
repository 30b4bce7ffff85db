"""`Network`: a training step of the comparison, at a size for each target."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from paper.networks.training_step import Scale, TrainingStep, Wrap


@dataclasses.dataclass(frozen=True)
class Network:
    """A network at several sizes.

    Attributes:
        name: its name in `NETWORKS`.
        build: `build(scale, sizes=..., wrap=...)` makes its training step.
        full: sizes for devices that only compile: the paper's, or the publication's.
        sizes: other sizes, by target. `"cpu"`: what two cores run in seconds, with
            activations that outweigh the parameters. `"tpu v5e"`: what fits into 16 GiB
            as written, because XLA:TPU compiles nothing that does not.
    """

    name: str
    build: Callable[..., TrainingStep]
    full: Any
    sizes: Mapping[str, Any]

    def make_step(self, target: str) -> Callable[[Wrap], Callable]:
        """`make_step` as `coop_jax.compare` takes it."""
        return lambda wrap: self._built(target, wrap=wrap).step

    def step(self, target: str) -> TrainingStep:
        """The step as written, with shapes of its arguments and a way to make them."""
        return self._built(target)

    def _built(self, target: str, **options: Any) -> TrainingStep:
        sizes = self.sizes.get(target, self.full)
        scale = Scale.PAPER if sizes is self.full else Scale.REDUCED
        return self.build(scale, sizes=sizes, **options)

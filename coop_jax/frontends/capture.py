"""Capture: the arguments that a library's own `jit` hands to `jax.jit`."""

from __future__ import annotations

from typing import Any


class Capture:
    """Stands for a jitted function while it is lowered, and keeps its arguments."""

    args: tuple
    kwargs: dict

    def lower(self, *args: Any, **kwargs: Any) -> None:
        self.args, self.kwargs = args, kwargs

"""Custom calls: the handlers of the extension, registered with XLA."""

from __future__ import annotations

import functools

import jax

from coop_jax import _ext


@functools.cache
def register_targets() -> None:
    """Register all handlers for the platforms that they are for; once per process."""
    for platform, handlers in _ext.registrations().items():
        for name, capsule in handlers.items():
            jax.ffi.register_ffi_target(name, capsule, platform=platform)

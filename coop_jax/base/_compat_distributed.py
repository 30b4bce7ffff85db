"""What is private in JAX's distributed runtime: its key-value store, and its exit.

`jax.distributed.initialize` connects every process with one service, which keeps keys and
values. Steps reach it through this module alone.
"""

from __future__ import annotations

import atexit
import time
from typing import Any

import jax
from jax._src import distributed as _distributed

# The other processes have to write their own errors before the service goes.
_EXIT_SECONDS = 3.0


class StoreError(RuntimeError):
    """The service that keeps keys and values does not answer."""


class Store:
    """The key-value store that the processes of one `jax.distributed` job share.

    Arguments:
        client: this process's connection.
    """

    def __init__(self, client: Any) -> None:
        self._client = client

    def put(self, key: str, value: str) -> None:
        """Set the value of a key, which may have one."""
        self._asked(self._client.key_value_set, key, value, allow_overwrite=True)

    def wait_for(self, key: str, seconds: float) -> str | None:
        """The value of a key as soon as it has one; None if it has none by then."""
        timeout_ms = max(1, int(1000 * seconds))
        return self._asked(self._client.blocking_key_value_get, key, timeout_ms)

    def folder(self, prefix: str) -> dict[str, str]:
        """The keys that begin with `prefix`, without it, and their values."""
        rows = self._asked(self._client.key_value_dir_get, prefix) or ()
        return {key.removeprefix(prefix): value for key, value in rows}

    def delete(self, prefix: str) -> None:
        """Forget the keys that begin with `prefix`."""
        self._asked(self._client.key_value_delete, prefix)

    def _asked(self, method: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return method(*args, **kwargs)
        except jax.errors.JaxRuntimeError as error:
            if str(error).startswith(("DEADLINE_EXCEEDED", "NOT_FOUND")):
                return None
            raise StoreError(str(error)) from error


def shared_store() -> Store | None:
    """The store of this process's job; None if `jax.distributed` is not initialized."""
    client = _distributed.global_state.client
    return None if client is None else Store(client)


def exit_without_waiting() -> None:
    """At the exit of this process, do not wait for processes that are gone.

    JAX's own exit is a barrier of all processes. A process that was killed does not come
    to it, which JAX notices after 100 seconds.
    """
    global _is_registered
    if not _is_registered:
        _is_registered = True
        atexit.register(_leave)  # Runs before what JAX registered.


_is_registered = False


def _leave() -> None:
    state = _distributed.global_state
    if state.service is not None:
        time.sleep(_EXIT_SECONDS)
    if state.preemption_sync_manager is not None:
        state.preemption_sync_manager.shutdown()
        state.preemption_sync_manager = None
    _left.append(state.client)  # Its destructor may wait as well.
    state.client = None


_left: list[Any] = []

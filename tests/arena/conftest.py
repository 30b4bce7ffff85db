import pytest

from coop_jax.arena import selection


@pytest.fixture
def copies_cost_nothing(monkeypatch):
    """Small steps have arenas too, though their copies would not pay."""
    monkeypatch.setattr(selection, "_WORTH", 0)
    monkeypatch.setattr(selection, "_MOST_COPYING", float("inf"))
    monkeypatch.setattr(selection, "_LEAST_BYTES", 1024)
    # Few tensors, each a large part of all.
    monkeypatch.setattr(selection, "_SLACK", 0.2)

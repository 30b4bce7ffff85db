import pytest

from coop_jax import sojourns


@pytest.fixture
def copies_cost_nothing(monkeypatch):
    """Small steps have arenas too, though their copies would not pay."""
    monkeypatch.setattr(sojourns, "_WORTH", 0)
    monkeypatch.setattr(sojourns, "_MOST_COPYING", float("inf"))
    monkeypatch.setattr(sojourns, "_LEAST_BYTES", 1024)
    # Few tensors, each a large part of all.
    monkeypatch.setattr(sojourns, "_SLACK", 0.2)

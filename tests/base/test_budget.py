"""Budgets in, bytes out."""

import types

import pytest

from coop_jax.base.budget import check_budget, format_bytes, resolve_budget


@pytest.mark.parametrize(
    ("budget", "expected"),
    [
        (12345, 12345),
        ("12GiB", 12 * 2**30),
        ("750MB", 750_000_000),
        ("1.5 kib", 1536),
        ("7B", 7),
        (".5TB", 500_000_000_000),
        ("60%", 600),
        ("33.3 %", 333),
        ("100%", 1000),
    ],
)
def test_resolved(budget, expected):
    assert resolve_budget(check_budget(budget), 1000, device=None) == expected


def test_device_less_a_margin():
    device = types.SimpleNamespace(memory_stats=lambda: {"bytes_limit": 1000})
    assert resolve_budget(check_budget(" Device "), 0, device) == 950


@pytest.mark.parametrize("budget", ["", "GiB", "12", "12 gigs", "-3MB", "1e3MB", "50%%"])
def test_malformed(budget):
    with pytest.raises(ValueError, match=r"`remat_train_step\(budget=\.\.\.\)` must look"):
        check_budget(budget)


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 bytes"), (1023, "1023 bytes"), (1536, "1.50 KiB"), (3 * 2**40, "3072.00 GiB")],
)
def test_shown(count, text):
    assert format_bytes(count) == text

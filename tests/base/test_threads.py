"""Independent calls at the same time, with the results of calls one by one."""

import threading

import pytest

from coop_jax.base.threads import at_once


def test_calls_run_at_the_same_time_and_results_stay_in_order():
    meeting = threading.Barrier(3, timeout=60)  # Calls one by one would wait in vain.

    def call(item):
        return meeting.wait() >= 0, item

    assert at_once(call, iter("abc")) == [(True, "a"), (True, "b"), (True, "c")]


@pytest.mark.parametrize("items", [(), (3,)])
def test_one_call_needs_no_thread(items):
    def call(item):
        return item, threading.current_thread()

    assert at_once(call, items) == [(i, threading.current_thread()) for i in items]


def test_the_first_error_is_raised():
    def call(item):
        raise ValueError(f"call {item}")

    with pytest.raises(ValueError, match="call 0"):
        at_once(call, range(3))

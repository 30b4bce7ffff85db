"""The smallest bytes that an error names are found again by the search for that budget."""

import pytest
from scale.shard_map_steps import pipeline
from steps import NEEDS_TPU

from coop_jax import InfeasibleBudgetError, remat_train_step, targets


@NEEDS_TPU
@pytest.mark.slow
@pytest.mark.hand
def test_what_was_compiled_for_a_budget_alone_is_not_named():
    """Of this step the plan next to the one that keeps least needs fewer bytes, and the
    search for one byte comes to it, where that for its bytes does not."""
    mesh = targets.mesh("tpu v5e:2x4", {"d": 8})
    step, args = pipeline(mesh, lambda fn: fn, 2, 16, 4096, 1024)
    with pytest.raises(InfeasibleBudgetError) as caught:
        remat_train_step(step, budget=1, donate_argnums=0).plan(*args)
    smallest = caught.value.smallest_bytes
    plan = remat_train_step(step, budget=smallest, donate_argnums=0).plan(*args)
    assert plan.measured_bytes <= smallest

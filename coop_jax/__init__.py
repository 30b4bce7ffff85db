"""coop-jax: a JAX training step under a byte budget.

`remat_train_step(fn, budget="12GiB")` decides which tensors of a step to recompute, and
where they are placed, so that the compiled step fits the budget by XLA's own figure.

    step = coop_jax.remat_train_step(train_step, budget="80%", donate_argnums=0)
    state, loss = step(state, batch)      # called like jax.jit(train_step)
    print(step.plan(state, batch))        # the bytes, the recomputation, the compilations

`compare` sets plans against `jax.checkpoint` policies, and `OnlineArena` is memory for
programs that are not known ahead. `coop_jax.planning` plans graphs without JAX,
`coop_jax.dtr_log` reads logs of DTR, `coop_jax.targets` describes devices. The other
modules are the stages of `coop_jax.pipeline`.
"""

import importlib.metadata

from coop_jax._ext import ArenaExhausted, OnlineArena
from coop_jax.api.fit import fit
from coop_jax.api.largest import largest
from coop_jax.api.train_step import RematTrainStep, remat_train_step
from coop_jax.arena.stats import ArenaStats
from coop_jax.base.errors import InfeasibleBudgetError, PlanFileError
from coop_jax.base.options import PlanOptions
from coop_jax.comparison.compare import compare
from coop_jax.comparison.table import Comparison, Row
from coop_jax.report import Plan

__all__ = [
    "ArenaExhausted",
    "ArenaStats",
    "Comparison",
    "InfeasibleBudgetError",
    "OnlineArena",
    "Plan",
    "PlanFileError",
    "PlanOptions",
    "RematTrainStep",
    "Row",
    "compare",
    "fit",
    "largest",
    "remat_train_step",
]
__version__ = importlib.metadata.version("coop-jax")

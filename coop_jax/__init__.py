"""coop-jax: a JAX training step under a byte budget.

`remat_train_step(fn, budget="12GiB")` decides which tensors of a step to recompute, and
where they are placed, so that the compiled step fits the budget by XLA's own figure.
"""

import importlib.metadata

from coop_jax._ext import ArenaExhausted as ArenaExhausted
from coop_jax._ext import OnlineArena as OnlineArena
from coop_jax.api.fit import fit as fit
from coop_jax.api.train_step import RematTrainStep as RematTrainStep
from coop_jax.api.train_step import remat_train_step as remat_train_step
from coop_jax.arena.stats import ArenaStats as ArenaStats
from coop_jax.base.errors import InfeasibleBudgetError as InfeasibleBudgetError
from coop_jax.base.options import PlanOptions as PlanOptions
from coop_jax.comparison.compare import compare as compare
from coop_jax.comparison.table import Comparison as Comparison
from coop_jax.comparison.table import Row as Row
from coop_jax.report import Plan as Plan

__version__ = importlib.metadata.version("coop-jax")

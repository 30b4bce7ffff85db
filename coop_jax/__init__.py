"""coop-jax: a JAX training step under a byte budget.

`remat_train_step(fn, budget="12GiB")` decides which tensors of a step to recompute, and
where they live, so that the compiled step fits, and has XLA confirm it.
"""

import importlib.metadata

from coop_jax._ext import ArenaExhausted as ArenaExhausted
from coop_jax._ext import OnlineArena as OnlineArena
from coop_jax.arena_stats import ArenaStats as ArenaStats
from coop_jax.compare import compare as compare
from coop_jax.comparison import Comparison as Comparison
from coop_jax.comparison import Row as Row
from coop_jax.errors import InfeasibleBudgetError as InfeasibleBudgetError
from coop_jax.fit import fit as fit
from coop_jax.options import PlanOptions as PlanOptions
from coop_jax.report import Plan as Plan
from coop_jax.train_step import RematTrainStep as RematTrainStep
from coop_jax.train_step import remat_train_step as remat_train_step

__version__ = importlib.metadata.version("coop-jax")

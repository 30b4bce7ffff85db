"""Order for memory: XLA:CPU's other order of a program.

By default XLA:CPU orders a program so that much of it can run at the same time: what has
all its operands comes next, whatever it makes. It has another order, in which nothing is
made long before it is needed. The kernels are the same, and fewer of them can run at the
same time, so a plan gets it only where it misses its budget in the first one.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

ORDER_FOR_MEMORY: MappingProxyType[str, Any] = MappingProxyType(
    {"xla_cpu_scheduler_type": "CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED"}
)
"""The option of XLA:CPU by which nothing is made long before it is needed."""

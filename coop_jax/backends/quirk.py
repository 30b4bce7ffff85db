"""Quirk: a way in which one backend of XLA differs, as a unit that can be switched off.

Every backend lists its own (`backends.cpu.quirks`, `backends.gpu.quirks`,
`backends.tpu.quirks`), and its class asks `Backend.has` wherever one takes effect. A
backend without all of its quirks is as good as `Backend`. The worth of each is measured by
`examples/ablation_table.py`.

The lowerings of the fence (`backends.cpu.fence_call`, `backends.tpu.fence_layouts`) are no
quirks: JAX holds them by platform, and without that of a CPU there is no fence.
"""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Quirk:
    """A way in which one backend of XLA differs.

    Attributes:
        name: by which it is switched off.
        behaviour: of XLA, and what is done about it.
        versions: of JAX and XLA on which it was seen.
        module: of the package, that implements it.
        hooks: members of `Backend` that are overridden for it.
        tests: the file, below `tests`, that holds the behaviour and what is done about it.
            That of the switch is `tests/backends/test_quirks.py`.
    """

    name: str
    behaviour: str
    versions: str
    module: str
    hooks: tuple[str, ...]
    tests: str

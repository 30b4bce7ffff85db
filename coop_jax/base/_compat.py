"""The only module that touches `jax._src` or asks for a JAX version.

Tested with JAX 0.10.2 (`Jaxpr` and `ClosedJaxpr` are two classes) and JAX 0.12.0
(one class, every jaxpr is closed). Everything here takes and returns values that look
the same on both.
"""

from __future__ import annotations

import contextlib
import math
import os
import sys
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import jax
import jax.core
import jax.extend.core as jex
from jax._src import compiler as _compiler
from jax._src import config as _config
from jax._src import core as _core
from jax._src import dispatch as _dispatch
from jax._src import sharding_impls as _sharding_impls
from jax._src import source_info_util as _source_info_util
from jax._src.interpreters import ad as _ad
from jax._src.interpreters import batching as _batching
from jax._src.interpreters import mlir as _mlir
from jax._src.interpreters import pxla as _pxla
from jax._src.lib import _jax as _jaxlib
from jax._src.lib import xla_client as _xla_client
from jax._src.lib.mlir import ir as _ir
from jax._src.lib.mlir.dialects import hlo as _hlo
from jax._src.state import types as _state_types
from jax.experimental.layout import Layout as _Layout

Var = jex.Var
Literal = jex.Literal
DropVar = jex.DropVar
JaxprEqn = jex.JaxprEqn
Primitive = jex.Primitive
new_jaxpr_eqn = jex.new_jaxpr_eqn
primitive_batchers = _batching.primitive_batchers
primitive_jvps = _ad.primitive_jvps
primitive_transposes = _ad.primitive_transposes
instantiate_zeros = _ad.instantiate_zeros
register_lowering = _mlir.register_lowering
lower_fun = _mlir.lower_fun
hlo = _hlo
ir = _ir

_FRONTEND_ATTRIBUTES = "mhlo.frontend_attributes"
_KEY_ATTRIBUTE = "coop_jax_key"


# Modules in which JAX defines primitives of kernel bodies, and those that call kernels.
_KERNELS = (
    "jax._src.pallas.",
    "jax.experimental.pallas.",
    "jax._src.thunky",
    "jax.experimental.thunky",
)
_CALLS_OF_KERNELS = frozenset(("jax._src.pallas.pallas_call", "jax._src.pallas.mpmd"))
# The folder of this package.
_OWN = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "")
_EFFECTS_ON_OPERANDS = (
    _state_types.RefEffect,
    _core.InternalMutableArrayEffect,
    _core.NamedAxisEffect,
)


def is_effect_on_operands(effect: Any) -> bool:
    """Whether an effect is of a reference or a named axis.

    A call has such an effect as far as it is visible outside of the call.
    """
    return isinstance(effect, _EFFECTS_ON_OPERANDS)


def is_effect_on_axes(effect: Any) -> bool:
    """Whether an effect says only that devices along a named axis take part."""
    return isinstance(effect, _core.NamedAxisEffect)


def is_of_programs(primitive: Any) -> bool:
    """Whether a primitive is JAX's or ours and occurs in programs, not only in kernels."""
    # Modules are imported at any time: a new one may define the primitive.
    if primitive not in _of_programs and len(sys.modules) != _num_modules_seen:
        primitives_of_programs()
    return primitive in _of_programs


def primitives_of_programs() -> set[Any]:
    """All primitives that the imported modules of JAX, and ours, define for programs."""
    global _of_programs, _num_modules_seen
    modules: dict[Any, set[str]] = defaultdict(set)
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in ("jax", "coop_jax"):
            for value in list(vars(module).values()):
                if isinstance(value, Primitive):
                    modules[value].add(name)
    _num_modules_seen = len(sys.modules)
    _of_programs = {
        primitive
        for primitive, names in modules.items()
        if not all(map(_is_of_kernels, names))
    }
    return _of_programs


_of_programs: set[Any] = set()
_num_modules_seen = 0


def _is_of_kernels(module: str) -> bool:
    return module.startswith(_KERNELS) and module not in _CALLS_OF_KERNELS


def open_jaxpr(closed: Any) -> tuple[Any, list[Any]]:
    """A jaxpr, closed or not, as (jaxpr with `.eqns`, values of its `.constvars`)."""
    return getattr(closed, "jaxpr", closed), list(getattr(closed, "consts", None) or [])


def is_jaxpr(value: Any) -> bool:
    return isinstance(value, (jex.Jaxpr, jex.ClosedJaxpr))


def num_kernel_programs(eqn: Any) -> int:
    """Programs in the grid of a `pallas_call`; those whose number is not known count one
    along that axis."""
    sizes = eqn.params["grid_mapping"].grid
    return math.prod(size for size in sizes if isinstance(size, int))


def kernel_name(eqn: Any) -> str:
    """The name of a `pallas_call`'s kernel, which XLA's instruction has, too."""
    named = eqn.params.get("name") or eqn.params.get("name_and_src_info")
    return named if isinstance(named, str) else str(getattr(named, "name", ""))


def close_jaxpr(
    constvars: Sequence[Any],
    consts: Sequence[Any],
    invars: Sequence[Any],
    outvars: Sequence[Any],
    eqns: Sequence[Any],
    debug_info: Any,
) -> Any:
    """A closed jaxpr from its parts; effects are those of the equations."""
    effects = frozenset(e for eqn in eqns for e in eqn.effects)
    if debug_info is not None and len(invars) != len(debug_info.arg_names or invars):
        debug_info = None
    if debug_info is None:
        debug_info = _core.DebugInfo("coop_jax", "coop_jax", None, None)
    jaxpr = jex.Jaxpr(
        constvars, invars, outvars, eqns, effects=effects, debug_info=debug_info
    )
    return jex.ClosedJaxpr(jaxpr, list(consts))


def new_var(aval: Any) -> Any:
    return Var(aval)


def jaxpr_as_fun(closed: Any):
    return jex.jaxpr_as_fun(closed)


def scan_sizes(eqn: Any) -> tuple[int, int]:
    """The numbers of constants and of carried values of a `scan` equation."""
    params = eqn.params
    if "num_consts" in params:  # before JAX 0.12
        return params["num_consts"], params["num_carry"]
    consts, carry, _ = params["ft_in"].unpack()
    return len(consts), len(carry)


def is_array(aval: Any) -> bool:
    """Whether a type is that of a value, and not of a token or a reference."""
    return isinstance(aval, jax.core.ShapedArray)


def is_extended(aval: Any) -> bool:
    """Whether the elements are of a type of JAX's own, such as random keys."""
    return jax.dtypes.issubdtype(aval.dtype, jax.dtypes.extended)


def has_explicit_sharding(aval: Any) -> bool:
    """Whether the type's sharding is part of the program: the axes of a mesh are explicit,
    or manual, and not left to XLA."""
    sharding = getattr(aval, "sharding", None)
    if sharding is None or sharding.mesh.empty:
        return False
    return not sharding.mesh.are_all_axes_auto


def broadcast_equation(atom: Any, shape: tuple[int, ...], like: Any) -> Any:
    """A `broadcast_in_dim` equation of an operand with as many axes.

    Source information and context are those of the equation `like`.
    """
    aval = atom.aval.update(shape=shape, weak_type=False)
    return new_jaxpr_eqn(
        [atom],
        [new_var(aval)],
        jex.primitives.broadcast_in_dim_p,
        {
            "shape": shape,
            "broadcast_dimensions": tuple(range(len(shape))),
            "sharding": None,
        },
        frozenset(),
        like.source_info,
        like.ctx,
    )


def convert_equation(atom: Any, dtype: Any, like: Any) -> Any:
    """A `convert_element_type` equation of an operand.

    Source information and context are those of the equation `like`.
    """
    aval = atom.aval.update(dtype=dtype, weak_type=False)
    return new_jaxpr_eqn(
        [atom],
        [new_var(aval)],
        jex.primitives.convert_element_type_p,
        {"new_dtype": dtype, "weak_type": False, "sharding": None},
        frozenset(),
        like.source_info,
        like.ctx,
    )


def is_traced(leaves: Sequence[Any]) -> bool:
    """Whether any of the leaves is a tracer, as inside an outer transformation."""
    return any(isinstance(leaf, jax.core.Tracer) for leaf in leaves)


def with_name_scope(eqn: Any, name: str) -> Any:
    """The equation with a name scope put around its own name stack."""
    info = eqn.source_info
    stack = _source_info_util.new_name_stack(name) + info.name_stack
    return eqn.replace(source_info=info.replace(name_stack=stack))


def with_inner_name_scope(eqn: Any, name: str) -> Any:
    """The equation with a name scope at the end of its name stack."""
    info = eqn.source_info
    stack = info.name_stack + _source_info_util.new_name_stack(name)
    return eqn.replace(source_info=info.replace(name_stack=stack))


def nest_source_info(outer: Any, inner: Any) -> Any:
    """Source info of an inlined equation: the caller's name stack, then its own.

    Library code that JAX hides (the body of `relu`), or that a library has under `jit`, is
    traced where no line of the user's is in sight; it gets the caller's traceback.
    """
    nested = inner.replace(name_stack=outer.name_stack + inner.name_stack)
    shown, is_users = _line_shown(inner.traceback)
    if not is_users and (shown is None or _line_shown(outer.traceback)[1]):
        nested = nested.replace(traceback=outer.traceback)
    return nested


def source_line(eqn: Any) -> str:
    """`model.py:12 (Block.__call__)`: the user's line that an equation came from.

    The innermost frame outside installed packages, so that a Flax layer is named by the
    model that uses it; without one, the innermost that JAX shows.
    """
    shown, _ = _line_shown(eqn.source_info.traceback)
    if shown is None:
        return "an unknown line"
    file_name = os.path.basename(shown.file_name)
    return f"{file_name}:{shown.start_line} ({shown.function_name})"


def _line_shown(traceback: Any) -> tuple[Any, bool]:
    """The frame that `source_line` shows, None if there is none, and whether it is outside
    of installed packages, and of this one wherever it lies."""
    shown = None
    for frame in _source_info_util.user_frames(traceback):
        if not ("-packages" in frame.file_name or frame.file_name.startswith(_OWN)):
            return frame, True
        shown = shown or frame
    return shown, False


def last_transformation(eqn: Any) -> str | None:
    """The name of the last transformation that an equation went through: `"jvp"` on the way
    forward of a gradient, `"transpose"` on its way back; None if there was none."""
    stack = eqn.source_info.name_stack.stack
    names = (one.name for one in stack if isinstance(one, _source_info_util.Transform))
    return next(names, None)


def name_stack(eqn: Any) -> str:
    return str(eqn.source_info.name_stack)


def lowering_context(eqn: Any) -> tuple[Any, Any]:
    """What an equation's context asks of its lowering: where it computes, and metadata."""
    context = eqn.ctx
    return getattr(context, "compute_type", None), getattr(context, "xla_metadata", None)


def is_unspecified(sharding: Any) -> bool:
    return isinstance(sharding, _sharding_impls.UnspecifiedValue)


def physical_aval(aval: Any) -> Any:
    """The array type that stores `aval` (key types are stored as uint32 words)."""
    return _core.physical_aval(aval)


def require_devices_during_lowering(primitive: Any) -> None:
    """Have `ctx` carry the device assignment when the primitive is lowered."""
    _dispatch.prim_requires_devices_during_lowering.add(primitive)


def num_lowering_devices(ctx: Any) -> int:
    """The number of devices over which XLA partitions the module that is being lowered.

    Inside of a `shard_map`, along the axes that it leaves to XLA.
    """
    axis_context = ctx.module_context.axis_context
    manual_axes = getattr(axis_context, "manual_axes", None)
    if manual_axes is not None:
        sizes = axis_context.mesh.shape.items()
        return math.prod(size for name, size in sizes if name not in manual_axes)
    count = getattr(axis_context, "num_devices", None)
    return 1 if count is None else int(count)


def identity_call(target: str, operands: Sequence[Any]) -> Sequence[Any]:
    """A typed-FFI custom call whose results are its operands, in their place.

    XLA does not check the aliases that such a call declares. It chooses a layout for the
    operand and one for the result, and no data moves: the caller has to constrain both
    layouts to the same.
    """
    types = [operand.type for operand in operands]
    call = _mlir.custom_call(
        target,
        result_types=types,
        operands=operands,
        api_version=4,
        operand_output_aliases={i: i for i in range(len(types))},
        backend_config={},
    )
    return call.results


def with_layout(ctx: Any, operand: Any, aval: Any, order: tuple[int, ...]) -> Any:
    """The operand with a layout: `order` lists its dimensions, the outermost first."""
    return _mlir.wrap_with_layout_op(ctx, operand, aval, _Layout(order), aval)


def add_to_cache_key(lowered: Any, text: str) -> None:
    """Make a text part of a lowered module's key in JAX's compilation cache.

    The key depends on a module's computation, not on the names of its operations. A
    frontend attribute of the module is part of the key, and XLA compiles the same program
    with or without it.
    """
    module = lowered.compiler_ir("stablehlo")
    with module.context:
        attributes = module.operation.attributes
        known = {}
        if _FRONTEND_ATTRIBUTES in attributes:
            known = {a.name: a.attr for a in attributes[_FRONTEND_ATTRIBUTES]}
        known[_KEY_ATTRIBUTE] = _ir.StringAttr.get(text)
        attributes[_FRONTEND_ATTRIBUTES] = _ir.DictAttr.get(known)


def compiled_afresh(lowered: Any) -> contextlib.AbstractContextManager[Any]:
    """A context in which compiling a module does not use the compilation cache.

    JAX decides once per process, at the first compilation that asks, if the cache is used
    at all: turned off here, it would stay on or be off for the user's own functions. So
    the module gets a key that is never written.
    """
    add_to_cache_key(lowered, "afresh")
    return _config.persistent_cache_min_compile_time_secs(math.inf)


def is_compilation_cache_enabled() -> bool:
    """Whether a compiled program may come from JAX's compilation cache."""
    return bool(_config.compilation_cache_dir.value)


def trace_context() -> Any:
    """The global state that changes how a function is traced (x64, precision, mesh)."""
    return _config.trace_context()


def default_device() -> Any:
    """The device that `jit` uses for arguments without a placement."""
    device = _config.default_device.value
    if device is None or isinstance(device, str):
        return jax.devices(device)[0]
    return device


def module_bytecode(lowered: Any) -> bytes:
    """The StableHLO module of a `jax.stages.Lowered`, serialized."""
    return _mlir.module_to_bytecode(lowered.compiler_ir("stablehlo"))


def lowered_devices(lowered: Any) -> tuple[Any, ...]:
    """The devices that a `jax.stages.Lowered` is partitioned over, in its order."""
    return tuple(lowered._lowering._device_list)


def lowered_shardings(lowered: Any) -> tuple[Any, ...]:
    """The shardings of a lowering's arguments; one on its devices where none was asked
    for."""
    everywhere = _sharding_impls.GSPMDSharding.get_replicated(
        lowered._lowering._device_list
    )
    return tuple(
        everywhere if is_unspecified(sharding) else sharding
        for sharding in lowered._lowering.compile_args["in_shardings"]
    ) or (everywhere,)


def compile_options(lowered: Any, overrides: dict[str, Any]) -> bytes:
    """The compile options that JAX gives XLA for a lowering, serialized."""
    devices, args = lowered_devices(lowered), lowered._lowering.compile_args
    to_inputs, to_outputs = _pxla.get_prop_to_input_output(
        args["in_shardings"], args["out_shardings"], len(args["ordered_effects"])
    )
    options = _compiler.get_compile_options(
        num_replicas=1,
        num_partitions=len(devices),
        device_assignment=[list(devices)],
        env_options_overrides=overrides,
    )
    if len(devices) > 1:
        build = options.executable_build_options
        build.allow_spmd_sharding_propagation_to_parameters = list(to_inputs)
        build.allow_spmd_sharding_propagation_to_output = list(to_outputs)
    options.parameter_is_tupled_arguments = args["tuple_args"]
    return options.SerializeAsString()


def compile_bytecode(devices: Sequence[Any], module: bytes, options: bytes) -> Any:
    """Compile a serialized module with serialized options for devices."""
    with _mlir.make_ir_context():
        return _compiler.backend_compile_and_load(
            devices[0].client,
            _ir.Module.parse(module),
            _xla_client.DeviceList(tuple(devices)),
            _xla_client.CompileOptions.ParseFromString(options),
            [],
        )


def input_shardings(compiled: Any) -> list[Any]:
    """The shardings of a compiled function's arguments, in order.

    Those of the references that it captured are among them; its own `input_shardings`
    raises for these.
    """
    flat = getattr(compiled, "_input_shardings_flat", None)
    return jax.tree.leaves(compiled.input_shardings if flat is None else list(flat()))


def is_absent(device: Any) -> bool:
    """Whether the device is absent: it comes from a topology description."""
    return isinstance(getattr(device, "client", None), _jaxlib.CompileOnlyPyClient)

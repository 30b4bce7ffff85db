"""Purity: which equations may be merged, run again, left out or moved, and why.

A plan is only as correct as this table. An equation gets no permission if its primitive
is in none of the classes, or has the name of one of JAX's or ours and is another: it runs
as often as it is written, in the order in which it is written.

JAX's effects come first: an equation that has one gets no permission either, but for the
named axes of what devices compute together. They are not enough: `lax.rng_uniform` has
none and is another number at every call.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from coop_jax.base import _compat
from coop_jax.trace.high_level import expanded


@dataclasses.dataclass(frozen=True)
class Purity:
    """A class of primitives.

    Attributes:
        reason: why it has its permissions, or lacks them.
        may_merge: whether two with equal operands and parameters may become one.
        may_run_again: whether a recomputation may evaluate it another time.
        may_vanish: whether it may be left out where nothing reads its results.
        may_move: whether it may change places with others that no value connects it to.
        is_call: it has the permissions that its jaxprs have. Without a jaxpr it gets none.
        is_opaque: its jaxpr describes a kernel, and its effects are complete: the jaxpr is
            not looked into.
        is_local: whether it has all permissions inside of a call. Its effects outside of
            the call is an effect of the call.
        is_sent: whether devices send each other its operands or results.
    """

    reason: str
    may_merge: bool = False
    may_run_again: bool = False
    may_vanish: bool = False
    may_move: bool = False
    is_call: bool = False
    is_opaque: bool = False
    is_local: bool = False
    is_sent: bool = False


def _permitted(reason: str, **flags: bool) -> Purity:
    everything = dict.fromkeys(
        ("may_merge", "may_run_again", "may_vanish", "may_move"), True
    )
    return Purity(reason, **{**everything, **flags})


UNKNOWN = Purity("Nobody has said what it does.")

FUNCTION = _permitted("Its results are a function of its operands and parameters.")
CALL = _permitted("It does what the equations do that it calls.", is_call=True)
KERNEL = _permitted(
    "JAX, too, merges, repeats and leaves out a kernel or a foreign function that does not "
    "say that it has side effects.",
    is_opaque=True,
)
COLLECTIVE = _permitted(
    "A function of what all devices hold, which all devices have to run equally often: a "
    "plan is one program for all of them. What is sent has a price (`costs.sent_bytes`).",
    is_sent=True,
)
PROMISED = Purity(
    "Python that promises to be a function: JAX leaves it out, but merges it as little as "
    "it repeats it, and a plan does not know its price.",
    may_vanish=True,
    may_move=True,
)
UNSET = Purity(
    "Memory whose contents nobody has set: another one holds something else. Inside of a "
    "call it is what differentiation puts in the place of another branch's residuals, and "
    "no gradient reads it.",
    may_vanish=True,
    may_move=True,
    is_local=True,
)
STATEFUL = Purity("It reads and changes a state that no operand shows.")
REFERENCE = Purity(
    "It makes, reads, writes or ends a reference, and what is read depends on when.",
    is_local=True,
)
ORDERED = Purity("It speaks to the host, to other devices or to JAX, once and in its turn.")
HANDLE = Purity("A half of a pair: what one half has begun, the other one ends, once.")
OTHER_PROGRAM = Purity("What it calls cannot be looked into.")

_CLASSES: tuple[tuple[Purity, str], ...] = (
    (
        FUNCTION,
        # Elementwise.
        "abs acos acosh add add_any and asin asinh atan atan2 atanh bessel_i0e bessel_i1e "
        "bitcast_convert_type cbrt ceil clamp clz complex conj "
        "convert_element_type copy cos "
        "cosh digamma div eq eq_to erf erf_inv erfc exp exp2 expm1 floor ge gt igamma "
        "igamma_grad_a igammac imag integer_pow is_finite le le_to lgamma log log1p log2 "
        "logistic lt lt_to max min mul mulhi ne neg nextafter not one_minus_square or "
        "polygamma polynomial population_count pow real reduce_precision "
        "regularized_incomplete_beta rem round rsqrt select_n shift_left "
        "shift_right_arithmetic shift_right_logical sign sin sinh sqrt square sub tan tanh "
        "xor zeta "
        # Shapes, indices, order.
        "argmax argmin approx_top_k broadcast_in_dim broadcast_to concatenate dim_as_value "
        "dimension_size dynamic_slice dynamic_update_slice gather iota iota_2x32_shape pad "
        "reshape rev scatter scatter-add scatter-max scatter-min scatter-mul scatter-sub "
        "slice sort split squeeze stack tile top_k transpose unstack zeros_like "
        # Products, reductions, windows, transforms.
        "conv_general_dilated cumlogsumexp cummax cummin cumprod cumsum dot_general fft "
        "ragged_dot_general reduce reduce_and reduce_max reduce_min reduce_or reduce_prod "
        "reduce_sum reduce_window reduce_window_max reduce_window_min reduce_window_sum "
        "reduce_xor scaled_dot scaled_matmul scaled_matmul_wrapper select_and_gather_add "
        "select_and_scatter select_and_scatter_add "
        "dot_product_attention_bwd dot_product_attention_bwd_wrapper "
        "dot_product_attention_fp8_bwd dot_product_attention_fp8_bwd_wrapper "
        "dot_product_attention_fp8_fwd dot_product_attention_fp8_fwd_wrapper "
        "dot_product_attention_fwd dot_product_attention_fwd_wrapper "
        # Linear algebra.
        "cholesky cholesky_update eig eigh geqp3 geqrf hessenberg householder_product lu "
        "lu_pivots_to_permutation ormqr qr schur svd symmetric_product triangular_solve "
        "tridiagonal tridiagonal_solve "
        # Random bits of a key that is an operand.
        "philox2x32 philox4x32 random_bits random_clone random_fold_in random_gamma "
        "random_seed random_split random_unwrap random_wrap rng_bit_generator threefry2x32 "
        "threefry4x32 "
        # Sparse arrays.
        "bcoo_dot_general bcoo_dot_general_sampled bcoo_extract bcoo_fromdense "
        "bcoo_sort_indices bcoo_spdot_general bcoo_sum_duplicates bcoo_todense "
        "bcoo_transpose bcsr_dot_general bcsr_extract bcsr_fromdense bcsr_todense "
        "coo_fromdense coo_matmat coo_matvec coo_spmm coo_spmv coo_todense csr_fromdense "
        "csr_matmat csr_matvec csr_spmm csr_spmv csr_todense spsolve todense "
        # The operand on another device, in another type or with a name.
        "consume device_put from_edtype layout_constraint name "
        "optimization_barrier preduced "
        "pvary reduced_vary_cast reduced_vary_cast_p relayout reshard shard_alike "
        "sharding_constraint stop_gradient tie to_edtype vary_unreduced_cast "
        "vary_unreduced_cast_p with_memory_space_constraint xla_metadata_value "
        "axis_index platform_index "
        # Ours.
        "coop_after coop_fence coop_fence_call coop_pool_gradient coop_to_shards "
        "coop_to_whole",
    ),
    (
        CALL,
        "call call_hi_primitive closed_call composite compute_on cond cudnn_fusion "
        "custom_jvp_call custom_jvp_call_jaxpr custom_linear_solve custom_partitioning "
        "custom_vjp_call custom_vmap_call eval_jaxpr fused_call jit linear_call "
        "program_order remat2 remat_opt run_state scan shard_map while "
        "xla_metadata_call",
    ),
    (KERNEL, "ffi_call pallas_call"),
    (
        COLLECTIVE,
        "all_gather all_gather_invariant all_gather_reduced all_to_all pbroadcast "
        "pbroadcast_dynamic pmax pmin ppermute psum psum_invariant ragged_all_to_all "
        "reduce_scatter unreduced_pmax unreduced_pmin unreduced_psum "
        "unreduced_reduce_scatter",
    ),
    (PROMISED, "pure_callback"),
    (UNSET, "coop_empty_arena empty empty2"),
    # cuDNN seeds the dropout of a recurrent network itself.
    (STATEFUL, "coop_exchange rng_uniform rnn_bwd rnn_fwd"),
    (
        REFERENCE,
        "accum_grad_in_ref addupdate empty_ref free_ref freeze get new_ref swap",
    ),
    (
        ORDERED,
        "after_all assert_consumed_value box_get box_set buffer_callback check "
        "create_token dce_sink debug_callback debug_print "
        "global_array_to_host_local_array "
        "host_local_array_to_global_array inspect_sharding io_callback log_extend log_read "
        "new_box new_log precv psend shape_assertion stage unreachable",
    ),
    (
        HANDLE,
        "all_gather_done all_gather_reduced_start all_gather_start all_to_all_done "
        "all_to_all_start create_linear pbroadcast_done pbroadcast_start pin ppermute_done "
        "ppermute_start psum_done psum_invariant_start psum_start reduce_scatter_done "
        "reduce_scatter_start unpin unreduced_psum_start unreduced_reduce_scatter_start",
    ),
    (
        OTHER_PROGRAM,
        "call_exported call_hi_primitive_linearized custom_lin "
        "mosaic_gpu_p mpmd_map tpu_custom_call",
    ),
)

CLASS_OF: dict[str, Purity] = {
    name: purity for purity, names in _CLASSES for name in names.split()
}


def class_of(primitive: Any) -> Purity:
    """The class of a primitive: by its name, if it is JAX's own or ours."""
    # A primitive of another library, or of kernels, may have the name of a known one.
    if not _compat.is_of_programs(primitive):
        return UNKNOWN
    return CLASS_OF.get(primitive.name, UNKNOWN)


def may_merge(eqn: Any) -> bool:
    """Whether the equation may be merged with an equal one."""
    return _has(eqn, "may_merge")


def may_run_again(eqn: Any) -> bool:
    """Whether a recomputation may evaluate the equation another time."""
    return _has(eqn, "may_run_again")


def may_vanish(eqn: Any) -> bool:
    """Whether the equation may be left out where nothing reads its results."""
    return _has(eqn, "may_vanish")


def may_move(eqn: Any) -> bool:
    """Whether the equation may change places with others that no value connects it to."""
    return _has(eqn, "may_move")


def is_collective(eqn: Any) -> bool:
    """Whether devices send each other the equation's operands or results."""
    return class_of(eqn.primitive).is_sent


def _has(eqn: Any, permission: str) -> bool:
    is_function = all(map(_compat.is_effect_on_axes, eqn.effects))
    return is_function and _has_class(eqn, permission)


def _has_class(eqn: Any, permission: str) -> bool:
    """Whether an equation, its inner ones included, has a permission."""
    purity = class_of(eqn.primitive)
    if not getattr(purity, permission) or _says_side_effects(eqn):
        return False
    if purity.is_opaque:
        return True
    called = list(_called(eqn))
    if purity.is_call and not called:
        return False
    return all(_has_inside(inner, permission) for jaxpr in called for inner in jaxpr.eqns)


def _has_inside(eqn: Any, permission: str) -> bool:
    """Whether an equation of a called jaxpr has a permission.

    A change of references and named axes outside of the call is also an effect of the
    call.
    """
    if not all(map(_compat.is_effect_on_operands, eqn.effects)):
        return False
    return class_of(eqn.primitive).is_local or _has_class(eqn, permission)


def _called(eqn: Any) -> Iterator[Any]:
    expansion = expanded(eqn)
    if expansion is not None:
        yield _compat.open_jaxpr(expansion)[0]
    for value in eqn.params.values():
        for nested in value if isinstance(value, (tuple, list)) else (value,):
            if _compat.is_jaxpr(nested):
                yield _compat.open_jaxpr(nested)[0]


def _says_side_effects(eqn: Any) -> bool:
    """Whether a kernel declares side effects to its compiler, but not to JAX.

    Kernels of several devices have to be run by all of them equally often.
    """
    params = eqn.params.get("compiler_params")
    has_side_effects = getattr(params, "has_side_effects", False)
    is_pure = not has_side_effects or getattr(has_side_effects, "name", "") == "PURE"
    return not is_pure or getattr(params, "collective_id", None) is not None

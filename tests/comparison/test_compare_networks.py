"""The networks of the comparison: blocks that are wrapped compute the same loss."""

import dataclasses
import sys

import jax
import numpy as np
import pytest
from compare import records
from compare.networks import NETWORKS
from compare.summary import write_summary
from paper.networks import (
    bilstm,
    gpt3,
    unet,
)
from paper.networks.training_step import UNOPTIMISED, Scale

from coop_jax.comparison.checkpoint_policies import unwrapped, wrap_with
from coop_jax.comparison.recompute_counts import executed, saved_names
from coop_jax.comparison.table import Comparison, Row, at

NOTHING = wrap_with(jax.checkpoint_policies.nothing_saveable)
TRANSFORMERS = {"gpt2", "gpt3", "vit", "bert_large", "swin"}
PAPER = {"bilstm": bilstm, "gpt3": gpt3, "unet": unet}
# Blocks of every kind of wrapper: Flax's two module systems, with dropout and with batch
# statistics, and functions that are lifted. As small as they get: compiling is what takes.
TINY = {
    "bilstm": bilstm.Sizes(batch=2, sequence=4, inputs=3, hidden=4),
    "unet": unet.Sizes(batch=1, height=8, width=8, features=(2, 4)),
    "gpt3": gpt3.Sizes(batch=1, sequence=8, vocabulary=17, width=8, layers=1, heads=2),
}
every_network = pytest.mark.parametrize("name", NETWORKS)


def counted(step, args):
    traced = jax.jit(step).trace(*args)
    return executed(traced.jaxpr, (False,) * len(jax.tree.leaves(args))), traced


@pytest.mark.slow
@every_network
def test_wrapped_blocks_differ_by_recomputation_alone(name):
    network = NETWORKS[name]
    args = network.step("cpu").args
    make_step = network.make_step("cpu")
    unmodified, traced = counted(make_step(unwrapped), args)
    wrapped, _ = counted(make_step(NOTHING), args)
    assert len(wrapped.program.eqns) == len(unmodified.program.eqns)
    assert 1.1 < wrapped.flops / unmodified.flops < 1.5
    assert ({"context", "mlpwi", "mlpwo"} <= saved_names(traced.jaxpr)) == (
        name in TRANSFORMERS
    )


@pytest.mark.parametrize("name", TINY)
def test_wrapped_blocks_give_the_same_loss(name):
    build = PAPER[name].training_step
    args = build(Scale.REDUCED, TINY[name]).concrete(seed=0)
    losses = []
    for wrap in (unwrapped, NOTHING):
        step = build(Scale.REDUCED, TINY[name], wrap).step
        jitted = jax.jit(step, compiler_options=UNOPTIMISED)
        losses.append(float(jitted(*args)[1]))
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-6)


@every_network
def test_sizes(name):
    network = NETWORKS[name]
    assert network.name == name
    assert type(network.sizes["cpu"]) is type(network.full)
    assert network.full not in network.sizes.values()


def test_rows_on_disk_are_read_as_they_were(tmp_path):
    rows = [
        Row("unmodified", "unmodified", None, 5 * 2**20, 4 * 2**20, 100, 0.5, 1.0, 1),
        Row("dots", "checkpoint", None, None, 3 * 2**20, 110, 0.75, 1.5, 1),
        Row("tight", "checkpoint", None, None, 2**20, 120, 0.875, 1.75, 1),
        Row("by default", "checkpoint", measured_bytes=5, note="a, note"),
        Row(at("dots"), "coop_jax", 3 * 2**20, 2 * 2**20, 2 * 2**20, 105, 0.625, None, 4),
        Row("coop_jax at 1 B", "coop_jax", 1, note="infeasible, at least 2 B"),
    ]
    assert records.read(tmp_path, "net") == []
    for row in rows:
        records.append(tmp_path, "net", row)
    assert records.read(tmp_path, "net") == rows
    records.write_table(tmp_path, "net", Comparison("cpu", tuple(rows)))
    summary = write_summary(tmp_path, ["net", "other"]).read_text()
    assert "| net | dots | 3 | 1.500 | 2 | 1.250 | 1.50 |  |" in summary
    assert "| net | tight | 1 | 1.750 | does not fit |  |  |  |" in summary
    assert "1 of 2 policy rows are beaten" in summary
    assert "2 rows: median error 12.5%, worst 25.0%" in summary
    assert "for a budget: median 2, at most 2." in summary
    assert "rank correlation: median 1.00, least 1.00 (net)" in summary
    assert "Measured times" not in summary
    table = (tmp_path / "net.md").read_text()
    assert "infeasible, at least 2 B" in table
    assert sys.version.split()[0] in table


def test_rows_that_ran_are_compared_by_price_and_by_the_clock(tmp_path):
    rows = [
        Row("unmodified", "unmodified", None, 5 * 2**20, 4 * 2**20, 9, 0.5, 1.0, 1),
        Row("dots", "checkpoint", None, None, 3 * 2**20, 9, 0.5, 1.25, 1),
        Row("tight", "checkpoint", None, None, 2**20, 9, 0.5, 2.0, 1),
        Row(at("dots"), "coop_jax", 3 * 2**20, 2 * 2**20, 2 * 2**20, 9, 0.5, 1.5, 4),
        Row(at("tight"), "coop_jax", 2**20, 2**20, 2**20, 9, 0.5, 2.0, 4),
    ]
    for row, seconds in zip(rows, (0.5, 0.6, 0.75, 0.6, 0.75), strict=True):
        priced = {"product_flops": 10, "executable_seconds": seconds}
        records.append(tmp_path, "net", dataclasses.replace(row, **priced))
    by_default = Row("by default", "checkpoint", measured_bytes=5, note="a")
    records.append(tmp_path, "net", by_default)
    summary = write_summary(tmp_path, ["net"]).read_text()
    assert "| net | dots | 3 | 1.200 | 2 | 1.200 | 1.000 | 1.000 | 1.25 | 1.50 |" in summary
    assert "2 of 2 policy rows are beaten" in summary
    assert "executable's seconds. Ours relative to the policy's" in summary
    assert "median 1.10, at most 1.02 in 1 of 2 rows, at most 1.20." in summary

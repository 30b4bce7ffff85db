"""The report says what was done and what it costs."""

import dataclasses
import functools
import re

from steps import QUICK, mlp_arguments, mlp_step

import coop_jax


@functools.cache
def planned():
    step = coop_jax.remat_train_step(
        mlp_step, budget="60%", planner=QUICK, donate_argnums=0
    )
    return step.plan(*mlp_arguments())


def test_report_of_a_planned_step():
    plan = planned()
    text = str(plan)
    for name in (
        "unmodified",
        "budget",
        "predicted",
        "measured",
        "recomputed",
        "compilations",
    ):
        assert name in text
    assert re.search(r"budget +\S+ \w+ +60\.0%", text)
    assert f"{plan.num_fences} fences" in text
    assert re.search(r"\d+ x \w+ at steps\.py:\d+ \(mlp_step.*\), \S+ FLOPs", text)
    assert sum(item.flops for item in plan.recomputations) == plan.recomputed_flops
    work = [item.flops for item in plan.recomputations]
    assert work == sorted(work, reverse=True)


def test_long_reports_are_cut():
    plan = planned()
    item = plan.recomputations[0]
    longer = dataclasses.replace(plan, recomputations=(item,) * 9)
    assert str(longer).count(" x ") == 5
    assert "and 4 more lines" in str(longer)

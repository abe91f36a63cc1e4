"""The host's clock: its parts add up, and more to issue never takes less."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from traincast.estimate.calibrated.host import (
    GROUPS,
    IN_NETWORKS,
    host_parts,
    host_table,
    op_cost,
)
from traincast.estimate.calibrated.library import profile_for
from traincast.estimate.calibrated.profile import Host
from traincast.estimate.program import Kernels, Program, kernels_of, program_of
from traincast.graph import Graph
from traincast.graph.evaluation import evaluated
from traincast.graph.precision import PRECISIONS
from traincast.hardware import load_device
from traincast.ingest import zoo_graph

NETWORKS = ["resnet18", "gpt2-small", "mobilenet-v2", "lenet5"]


def host() -> Host:
    profile = profile_for(load_device("h200"))
    assert profile is not None
    assert profile.host is not None
    return profile.host


def lowered(graph: Graph, precision: str) -> tuple[Program, Kernels]:
    program = program_of(graph, PRECISIONS[precision], "nchw")
    return program, kernels_of(program, 8, graph.seq)


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("precision", ["fp32", "amp_bf16"])
def test_parts_add_up_to_the_table(name: str, precision: str) -> None:
    program, kernels = lowered(zoo_graph(name), precision)
    counts = np.bincount(program.op_class, minlength=len(program.classes))
    table = host_table(host(), program, kernels, training=True)
    unit = op_cost(host(), "add")[1]
    for phase, form in ((0, 1), (1, 2)):
        parts = host_parts(host(), program, kernels, form)
        total = sum(IN_NETWORKS[p.group][form] * p.seconds * counts[p.op_class] for p in parts)
        whole = total + IN_NETWORKS["pass"][form] * unit
        assert table[:, phase].sum() == pytest.approx(whole * host().scale)
    assert (table >= 0).all()


def test_every_group_has_factors() -> None:
    assert set(GROUPS.values()) <= set(IN_NETWORKS)


@pytest.mark.parametrize("name", NETWORKS)
def test_autocast_and_gradients_are_more_to_issue(name: str) -> None:
    graph = zoo_graph(name)
    plain, cast = (
        host_table(host(), *lowered(graph, p), training=True).sum(axis=0)
        for p in ("fp32", "amp_bf16")
    )
    assert (cast >= plain).all()
    alone = host_table(host(), *lowered(evaluated(graph), "fp32"), training=False).sum(axis=0)
    assert alone[0] < plain[0]
    assert alone[1] == 0


def test_more_launches_are_never_cheaper() -> None:
    program, kernels = lowered(zoo_graph("gpt2-small"), "fp32")
    more = kernels._replace(launches=kernels.launches + 6)
    before, after = (host_table(host(), program, k, training=True) for k in (kernels, more))
    assert (after >= before).all()
    assert after.sum() > before.sum()


def test_what_a_call_issues_after_its_first_op_has_no_python_of_its_own() -> None:
    graph = zoo_graph("gpt2-small")
    inner = replace(
        graph,
        ops=tuple(
            replace(op, attrs={**op.attrs, "inner": True}) if op.kind == "linear" else op
            for op in graph.ops
        ),
    )
    apart, within = (
        host_table(host(), *lowered(g, "fp32"), training=True).sum(axis=0) for g in (graph, inner)
    )
    assert within[0] < apart[0]
    assert within[1] == pytest.approx(apart[1])

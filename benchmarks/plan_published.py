"""Layer-wise plans beside the published ones: throughput, volumes, the strategy of VGG-16.

    python benchmarks/plan_published.py

Figures 7 and 8 and table 5 of Z. Jia, S. Lin, C. R. Qi, A. Aiken, "Exploring Hidden Dimensions in
Parallelizing Convolutional Neural Networks", ICML 2018, read off its vector graphics: images/s and
GiB a step on 2, 4, 8 and 16 P100 (four a node, NVLink, 100 Gb/s between nodes), 32 images each.
"""

from __future__ import annotations

from dataclasses import replace

from traincast.estimate.optimizer import optimizer_named
from traincast.estimate.registry import estimator_for
from traincast.graph import Graph
from traincast.graph.precision import precision_named
from traincast.hardware import load_cluster
from traincast.ingest import resolve
from traincast.search.layerwise import Plan, make_plan
from traincast.simulate.layerwise import Outcome, Setting, evaluate
from traincast.simulate.step import Plan as Step

CLUSTERS = {2: "1x2xp100", 4: "1x4xp100", 8: "2x4xp100", 16: "4x4xp100"}
THROUGHPUT = {
    ("alexnet", "model"): (1303, 1824, 2460, 3303),
    ("alexnet", "data"): (1181, 1760, 2484, 3230),
    ("alexnet", "hybrid"): (1400, 2029, 3043, 4260),
    ("alexnet", "layer-wise"): (1492, 2741, 4934, 9045),
    ("vgg16", "model"): (313, 502, 778, 1048),
    ("vgg16", "data"): (343, 632, 1080, 1660),
    ("vgg16", "hybrid"): (360, 700, 1216, 1990),
    ("vgg16", "layer-wise"): (364, 727, 1417, 2715),
    ("inception_v3", "model"): (220, 264, 224, 160),
    ("inception_v3", "data"): (305, 503, 966, 1690),
    ("inception_v3", "hybrid"): (310, 522, 992, 1745),
    ("inception_v3", "layer-wise"): (316, 632, 1248, 2430),
}
VOLUME = {
    ("alexnet", "data"): (1.113, 2.227, 4.454, 8.908),
    ("alexnet", "hybrid"): (0.049, 0.121, 0.338, 1.060),
    ("alexnet", "layer-wise"): (0.049, 0.097, 0.195, 0.390),
    ("vgg16", "model"): (3.603, 7.206, 14.413, 28.827),
    ("vgg16", "data"): (2.056, 4.112, 8.225, 16.451),
    ("vgg16", "hybrid"): (0.238, 0.541, 1.336, 3.688),
    ("vgg16", "layer-wise"): (0.207, 0.335, 0.686, 1.627),
    ("inception_v3", "model"): (3.446, 6.892, 13.783, 27.567),
    ("inception_v3", "data"): (0.354, 0.709, 1.418, 2.837),
    ("inception_v3", "hybrid"): (0.326, 0.656, 1.328, 2.718),
    ("inception_v3", "layer-wise"): (0.281, 0.563, 1.125, 2.251),
}


def network(name: str) -> Graph:
    """Return a network; Inception-v3 without its second classifier."""
    graph = resolve(name)
    if name != "inception_v3":
        return graph
    loss = next(op for op in graph.ops if op.kind == "cross_entropy")
    needed, ops = {loss.outputs[0]}, []
    for op in reversed(graph.ops):
        if needed & set(op.outputs):
            needed.update(op.inputs)
            ops.append(op)
    used = needed | {n for op in ops for n in op.outputs}
    tensors = {n: t for n, t in graph.tensors.items() if n in used}
    return replace(graph, ops=tuple(reversed(ops)), tensors=tensors, loss=loss.outputs[0])


ALONE = {"alexnet": 745, "vgg16": 184, "inception_v3": 157}
"""Images/s on one P100 (figure 7): compute is stretched to it, so that the rest is predicted."""


def plan(graph: Graph, shape: str, objective: str) -> Plan:
    """Return the best plan with 32 samples a device in float32, SGD with momentum."""
    cluster = load_cluster(shape)
    setting = Setting(
        cluster=cluster,
        estimator=estimator_for("auto", cluster.device),
        precision=precision_named("fp32"),
        plan=Step(batch=32 * cluster.devices, seq=0, optimizer=optimizer_named("momentum")),
        objective=objective,
        scheme="server" if objective == "published" else "auto",
    )
    plain = replace(setting, cluster=load_cluster("1x1xp100"), plan=replace(setting.plan, batch=32))
    alone = make_plan(graph, plain).best.step_s
    return make_plan(graph, replace(setting, pace=32 / ALONE[graph.name] / alone))


def main() -> None:
    """Print the tables."""
    names = ("alexnet", "vgg16", "inception_v3")
    graphs = {name: network(name) for name in names}
    for objective in ("published", "overlap"):
        plans = {
            (name, n): plan(graphs[name], shape, objective)
            for name in names
            for n, shape in CLUSTERS.items()
        }
        print(f"\n### images/s, objective {objective}: predicted (measured, error)\n")
        print("| network | strategy | 2 | 4 | 8 | 16 |\n|---|---|---|---|---|---|")
        for (name, strategy), real in THROUGHPUT.items():
            cells = []
            for n, measured in zip(CLUSTERS, real, strict=True):
                found = 32 * n / _outcome(plans[name, n], strategy).step_s
                cells.append(f"{found:.0f} ({measured}, {found / measured - 1:+.0%})")
            print(f"| {name} | {strategy} | {' | '.join(cells)} |")
        if objective == "published":
            _volumes(plans)
            _table5(plans["vgg16", 4])


def _outcome(found: Plan, strategy: str) -> Outcome:
    return found.best if strategy == "layer-wise" else found.baselines[strategy]


def _volumes(plans: dict[tuple[str, int], Plan]) -> None:
    print("\n### GiB a step: ours (published, error)\n")
    print("| network | strategy | 2 | 4 | 8 | 16 |\n|---|---|---|---|---|---|")
    for (name, strategy), real in VOLUME.items():
        cells = []
        for n, published in zip(CLUSTERS, real, strict=True):
            moved = _outcome(plans[name, n], strategy).communication_bytes / 2**30
            cells.append(f"{moved:.3f} ({published:.3f}, {moved / published - 1:+.1%})")
        print(f"| {name} | {strategy} | {' | '.join(cells)} |")


def _table5(found: Plan) -> None:
    """Price the published strategy of VGG-16 on four devices by our costs."""
    tables = found.tables
    wanted = []
    for layer in tables.network.layers:
        if layer.kind in ("conv", "pool"):
            late = int(layer.name.split(".")[1]) >= 24
            wanted.append({"height": 2, "width": 2} if late else {"sample": 4})
        elif layer.kind == "linear":
            wanted.append({"channel": 2 if layer.name.endswith("6") else 4})
        else:
            wanted.append({})
    choice = [c.nearest(d) for c, d in zip(tables.configs, wanted, strict=True)]
    theirs = evaluate(tables, choice)
    print(
        f"\nVGG-16 on 4: ours {found.best.step_s * 1e3:.1f} ms, the published strategy "
        f"{theirs.step_s * 1e3:.1f} ms by our costs (+{theirs.step_s / found.best.step_s - 1:.1%})"
    )
    for layer in found.layers:
        print(f"  {layer.name} {layer.op}: {layer}")


if __name__ == "__main__":
    main()

"""Layer-wise plans beside the published ones: throughput, volumes, the strategy of VGG-16.

    python benchmarks/plan_published.py

Figures 7 and 8 and table 5 of Z. Jia, S. Lin, C. R. Qi, A. Aiken, "Exploring Hidden Dimensions in
Parallelizing Convolutional Neural Networks", ICML 2018, read off its vector graphics: images/s and
GiB a step on 2, 4, 8 and 16 P100 (four a node, NVLink, 100 Gb/s between nodes), 32 images each.
"""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np

from traincast.estimate.optimizer import optimizer_named
from traincast.estimate.registry import estimator_for
from traincast.graph import Graph, Size
from traincast.graph.precision import precision_named
from traincast.hardware import load_cluster
from traincast.ingest import resolve
from traincast.parallel.layers import Layer
from traincast.report.plan import blocks
from traincast.search.layerwise import Plan, make_plan
from traincast.search.strategies import Search
from traincast.simulate.layerwise import Outcome, Setting, Tables, build_tables, evaluate
from traincast.simulate.step import Plan as Step
from traincast.simulate.terms import pace_of

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


SERVER = 2e9
"""Bytes/s of the parameter server of figure 3: the gradients of Inception-v3's last layer,
2,049,000 weights, take 16.4, 32.8, 65.5 and 131 ms on 2, 4, 8 and 16 devices, and 8 bytes a weight
and device are there and back."""


def network(name: str) -> Graph:
    """Return a network as published."""
    graph = resolve(name)
    if name == "alexnet":
        return _wider(graph)
    return _one_loss(graph) if name == "inception_v3" else graph


def _wider(graph: Graph) -> Graph:
    """Return AlexNet with a last feature map of 7 × 7: 74,732,328 weights, as figure 8 implies."""
    sizes = {Size(6): Size(7), Size(9216): Size(12544)}
    tensors = {
        name: replace(tensor, shape=tuple(sizes.get(s, s) for s in tensor.shape))
        for name, tensor in graph.tensors.items()
    }
    return replace(graph, tensors=tensors)


def _one_loss(graph: Graph) -> Graph:
    """Return Inception-v3 without its second classifier."""
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


def setting_of(shape: str, objective: str = "published", estimator: str = "auto") -> Setting:
    """Return 32 samples a device in float32, SGD with momentum."""
    cluster = load_cluster(shape)
    return Setting(
        cluster=cluster,
        estimator=estimator_for(estimator, cluster.device),
        precision=precision_named("fp32"),
        plan=Step(batch=32 * cluster.devices, seq=0, optimizer=optimizer_named("momentum")),
        objective=objective,
        scheme="server" if objective == "published" else "auto",
    )


def paced(graph: Graph, setting: Setting) -> Setting:
    """Return a setting whose compute is stretched to the measured speed of one device."""
    return replace(setting, pace=pace_of(graph, setting, 32 / ALONE[graph.name]))


def main() -> None:
    """Print the tables."""
    names = ("alexnet", "vgg16", "inception_v3")
    graphs = {name: network(name) for name in names}
    for objective in ("published", "overlap"):
        plans = {
            (name, n): make_plan(graphs[name], paced(graphs[name], setting_of(shape, objective)))
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
            _table5(graphs["vgg16"])
            print("\nVGG-16 on 4, block 5 by height as much faster as figure 1 has it:")
            for block in blocks(faster_rows(graphs["vgg16"]).layers):
                print(f"  {block.name}: {block.layers[0]}")


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


def _table5(graph: Graph) -> None:
    """Print the strategy of VGG-16 on four devices, and what the published one costs by ours."""
    for estimator, stretched, server in itertools.product(
        ("auto", "roofline"), (False, True), (None, SERVER)
    ):
        setting = replace(setting_of("1x4xp100", estimator=estimator), server_bandwidth=server)
        found = make_plan(graph, paced(graph, setting) if stretched else setting)
        print(
            f"\nVGG-16 on 4, {estimator}{', stretched' if stretched else ''}, "
            f"{'servers on all devices' if server is None else 'one server of 2 GB/s'}: "
            f"{found.best.step_s * 1e3:.1f} ms"
        )
        for block in blocks(found.layers):
            print(f"  {block.name}: {block.layers[0]}")
        tables = found.tables
        theirs = evaluate(tables, _published(tables))
        print(f"  table 5 of the paper: +{theirs.step_s / found.best.step_s - 1:.1%}")
        late = [_late(layer) for layer in tables.network.layers]
        allowed = [
            (c.parts < 4) | (c.degree("height") * c.degree("width") > 1) if last else c.parts > 0
            for c, last in zip(tables.configs, late, strict=True)
        ]
        near = Search(tables, allowed).run().best[0]
        print(
            f"  best with height, width or fewer devices in block 5: "
            f"+{near.step_s / found.best.step_s - 1:.1%}"
        )
        i = late.index(True)
        compute = tables.shards.forward[i] + tables.shards.backward[i]
        for degrees in ({"sample": 4}, {"height": 2, "width": 2}, {"channel": 4}):
            took = compute[tables.configs[i].nearest(degrees)]
            print(f"  {tables.network.layers[i].name} {degrees}: {took * 1e3:.2f} ms of compute")


def faster_rows(graph: Graph, ratio: float = 18.1 / 24.3) -> Plan:
    """Return the plan of VGG-16 on four devices if splits by height made block 5 faster.

    Figure 1 has 18.1 ms for a convolution of block 4 split by height, 24.3 ms by sample.
    """
    tables = build_tables(graph, setting_of("1x4xp100"))
    shards = tables.shards
    factors = [
        np.where(configs.degree("height") > 1, ratio, 1.0) if _late(layer) else 1.0
        for layer, configs in zip(tables.network.layers, tables.configs, strict=True)
    ]
    quick = replace(
        shards,
        forward=[t * f for t, f in zip(shards.forward, factors, strict=True)],
        backward=[t * f for t, f in zip(shards.backward, factors, strict=True)],
    )
    tables = replace(tables, shards=quick)
    found = Search(tables, [c.parts > 0 for c in tables.configs]).run()
    return Plan(tables=tables, best=found.best[0], baselines={}, bound_s=found.bound, search_s=0.0)


def _late(layer: Layer) -> bool:
    """Tell whether a layer is a convolution or pool of the last block."""
    return layer.kind in ("conv", "pool") and int(layer.name.split(".")[1]) >= 24


def _published(tables: Tables) -> list[int]:
    """Return the strategy of table 5."""
    wanted = []
    for layer in tables.network.layers:
        if layer.kind in ("conv", "pool"):
            wanted.append({"height": 2, "width": 2} if _late(layer) else {"sample": 4})
        elif layer.kind == "linear":
            wanted.append({"channel": 2 if layer.name.endswith("6") else 4})
        else:
            wanted.append({})
    return [c.nearest(d) for c, d in zip(tables.configs, wanted, strict=True)]


if __name__ == "__main__":
    main()

"""What `traincast predict` and `traincast scale` do with a saved plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from traincast.cli.options import load_model
from traincast.errors import InvalidValueError

if TYPE_CHECKING:
    from traincast.graph import Graph
    from traincast.parallel.strategy import Strategy
    from traincast.simulate.scale import ScaleRow
    from traincast.simulate.study import Request
    from traincast.simulate.terms import Terms


class Sizes(NamedTuple):
    """What a user wants instead of the plan's own."""

    batch: int | str | None = None
    """Samples for each device."""
    seq: int | None = None
    image: int | None = None


def predict_plan(
    path: str,
    given: Terms,
    sizes: Sizes,
    run: Mapping[str, Any],
    json: bool,
) -> None:
    """Show what a saved plan takes: on its own terms, or on those that are given instead."""
    from traincast.report.output import show
    from traincast.report.planned import Run, priced_dict, priced_panel
    from traincast.simulate.planned import data_parallel, price_strategy
    from traincast.simulate.terms import setting_for

    strategy, terms, graph = load_plan(path, given, sizes)
    setting = setting_for(terms, terms.place(), strategy.batch, strategy.seq)
    found = price_strategy(graph, strategy, setting)
    data = data_parallel(found)
    samples = (run["dataset_size"] or 0) * (run["epochs"] or 1.0)
    if run["tokens"] is not None:
        if not strategy.seq:
            raise InvalidValueError(f"{graph.name} has no tokens; give --dataset-size instead")
        samples = run["tokens"] / strategy.seq
    whole = Run(samples=samples, price_per_hour=run["price_per_hour"])
    show(priced_dict(found, data, whole) if json else priced_panel(found, data, whole))


def scale_plan(
    model: str, given: Terms, sizes: Sizes, request: Request, asked: bool
) -> tuple[str, str, list[ScaleRow]]:
    """Return the model's name, a title and the rows of a plan, or of plans for each device count.

    `asked` says whether the user named strategies; a plan is set beside data, hybrid and model.
    """
    from traincast.search.scaling import SAVED, Sweep, layerwise_rows
    from traincast.simulate.terms import is_plan

    saved, wanted = None, request.strategies
    if is_plan(model):
        saved, terms, graph = load_plan(model, given, sizes)
        wanted = (SAVED, *(request.strategies if asked else ("data", "hybrid", "model")))
        batch = saved.batch
        if request.scaling == "weak":
            batch = max(1, saved.batch // saved.devices)
        seq = saved.seq
    else:
        most = max(request.devices, default=8)
        terms = given if given.cluster else replace(given, cluster=f"{most}x{request.device}")
        terms.place()
        graph = load_model(model, image=sizes.image, seq=sizes.seq)
        batch, seq = request.batch or graph.batch, sizes.seq or graph.seq
    sweep = Sweep(
        terms=terms,
        batch=batch,
        seq=seq,
        counts=request.devices,
        strategies=tuple(dict.fromkeys(wanted)),
        scaling=request.scaling,
        measured_s=request.measured_s,
    )
    title = (
        f"{graph.name} on {terms.cluster}, {request.scaling} scaling, {terms.estimator or 'auto'}"
    )
    return graph.name, title, layerwise_rows(graph, sweep, saved)


def load_plan(path: str, given: Terms, sizes: Sizes) -> tuple[Strategy, Terms, Graph]:
    """Return a saved plan with other sizes where asked, its terms, and its model's graph."""
    from traincast.simulate.terms import read_plan

    strategy, made = read_plan(path)
    terms = given.over(made)
    if isinstance(sizes.batch, str):
        raise InvalidValueError("--batch max is for one device; give the samples for each device")
    strategy = replace(
        strategy,
        batch=sizes.batch * strategy.devices if sizes.batch else strategy.batch,
        seq=sizes.seq or strategy.seq,
        image=sizes.image or strategy.image,
    )
    graph = load_model(strategy.model, image=strategy.image, seq=sizes.seq)
    return strategy, terms, graph


def refuse(options: Mapping[str, bool]) -> None:
    """Raise for the first option that was given and means nothing for a plan."""
    for name, given in options.items():
        if given:
            raise InvalidValueError(f"{name} does not go with a layer-wise plan; leave it out")

"""The page docs/accuracy.md: tables made from the suites, and the words around them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from accuracy_ablation import REFITTED, Ends, Guess, alike, inside, left_out, percentiles
from accuracy_causes import FAR, UNMEASURED, Facts, error_of, shares
from accuracy_suites import Short, Suite
from traincast.simulate.summary import QUIET_STEPS, Summary, fit_verdicts, grouped, summarise
from traincast.simulate.validate import ValidatedRow

Judged = Sequence[tuple[ValidatedRow, Facts]]
COLUMNS = {
    "step_ms": "step", QUIET_STEPS: "step, quiet runs", "fwd_ms": "forward", "bwd_ms": "backward",
    "opt_ms": "optimizer", "infer_ms": "forward alone", "peak_gib": "peak memory",
}  # fmt: skip
HEADS = ("rows", "MAPE", "median", "p90", "bias", "in interval")
WITHIN = (0.05, 0.1, 0.2, 0.3, 0.5)
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
INTRO = """\
# Accuracy

How far predicted training steps lie from measured ones. One command measures it all and writes
this page; nothing here is typed in by hand but the words.

```sh
python benchmarks/accuracy.py            # writes this page and its charts, in about ten minutes
python benchmarks/accuracy.py --quick    # the H200's suites alone, in about two; prints
python benchmarks/accuracy.py --cpu      # with runs on this machine's CPU, measured meanwhile
```

Of e = predicted / measured − 1: *MAPE* is the mean of |e|, *median* and *p90* are the median and
the 90th percentile of |e|, *bias* is the mean of e (above zero where predictions are too long),
*in interval* is the share of measured values inside the 90 % interval that came with the
prediction. *Quiet* runs are those whose steps lie within 15 % of each other ((p90 − p10) / median).
Run again on another machine of the same kind, quiet runs of the first suite came back within 1.5 %
on average, the others within 12 %: no prediction can do better."""
ALTERNATIVES = """\
## Against the alternatives

The mean |error| of the step, the same runs for every line. *traincast* is what a user gets without
asking: the H200's own profile, partial profiles of other devices; on the RTX 3090 one carried over
from another device, since the shipped one was adjusted to these very runs. *roofline* knows the
datasheet and a few efficiencies, which were fitted to the first suite's runs; *paleo* is Paleo's
model (Qi, Sparks & Talwalkar, ICLR 2017), which knows neither reduced precision nor today's
convolution algorithms."""
QUOTED = """\
And what cannot be run here. The first was measured for this project, on the first suite. The other
figures are their authors', **on other devices and other networks**.

| | off by | on |
|---|---:|---|
| PyTorch's own runtime estimator | 62 % | the first suite; it refuses one case in six |
| Habitat (Yu et al., USENIX ATC 2021) | 11.8 % | five networks, six GPUs; from another GPU's run |
| NeuSight (Lee et al., ASPLOS 2025) | 2–10 % | transformers; 2.3 % for GPT-3 on an H100 |"""
ABLATION = """\
## What each part contributes

The H200's suites, predicted with one part of the calibrated model switched off at a time. *Waves*:
how far the tiles of a product fill the multiprocessors. *Correction by shape*: the smooth function
that tells how a shape differs from what three physical numbers say. *Lowering*: copies, casts and
layout changes that eager PyTorch launches and no op of a graph shows. *Host*: what issuing each op
costs."""
WAVES = """\
The kernels' models were fitted with waves, so that switching those off in the prediction alone is
unfair. The line *fitted without waves* fits products and convolutions again to the same measured
kernels, which changes the MAPE by {} points on the first suite and by {} on the held-out one: where
shapes were measured, as nearly all here, the correction by shape makes up for waves."""
INTERVALS = """\
## Intervals

Ways to make a 90 % interval from the 5th and 95th percentile of measured / predicted: for each
regime (whichever clock is slower), or one for all; and as shipped, where the interval of a step
that the device bounds also depends on how unsure its kernels are
([how](calibrated.md#intervals)). *Width* is the upper end over the lower one, as shipped at the
middle spread of kernels. The share of runs inside is given for the first suite (eager) and for the
held-out one, there also by regime. The shipped percentiles come from the first suite and two with
networks written by hand, the held-out one has no part in them; the last line makes them anew for
each network of the first, without its runs."""
KNOWN = """\
## Known causes

- **The host of a virtual machine.** Most of the largest errors are runs bound by the host. Its pace
  varies by a quarter from run to run, and by more from one machine to the next of the same kind; a
  profile has one pace. What the host takes for a forward pass alone, measured twice for 128
  networks in two precisions, differs by 24 % on average beyond what all have in common (20 %
  recorded for autograd, 15 % backward); predictions for networks left out are 18 to 20 % off
  (`python benchmarks/fit_host.py`). No model gets much closer. Networks whose device takes nearly
  as long as the host are taken for host-bound on a machine with a faster host, and come out too
  long.
- **Convolutions in fp32.** cuDNN takes fast algorithms (Winograd's) for some 3×3 shapes, slow ones
  for their neighbours: 256 to 256 channels reach 125 TFLOP/s on 56 pixels in one gradient, 27 in
  the forward pass, 8 on 64 pixels. What was measured is met; what lies between is a guess.
- **Depthwise convolutions with 7×7 windows** (ConvNeXt) in fp32 and TF32: half of a recorded step
  is their weight gradient, for which cuDNN changes its algorithm with the number of channels.
- **Caches.** Kernels are timed again and again on the same tensors, which then lie in the device's
  cache. In networks they were recorded to take 12 % longer on average, sums 18 % and
  concatenations 38 %, which is added (`cold_seconds`); how much it is for one kernel depends on
  what ran before.
- **Attention with a learned bias** in 16 bits runs in a kernel of its own, at a third of the speed
  of the one that it is taken for.
- **Workspaces of cuDNN** in fp32 convolutions, which its fast algorithms take as they like: peak
  memory of VGG or a diffusion network comes out too low by up to a third, or half.
- **Releases of cuDNN.** RegNets and NFNets, which have grouped convolutions, took up to 6.7 times
  as long on an RTX 3090 in NHWC under PyTorch 1.10 and 1.11 as under 1.12. A profile carried over
  from a device with cuDNN 9 knows nothing of it.
- **The optimizer** takes one or two per cent of most steps; between two events that are so close,
  whatever the host does in between counts.
- **Compiled programs.** What Inductor fuses is derived by rule; which of several kernels it picks
  in the end is not known.
- **Other GPUs' published steps** come with hosts, clocks and libraries that nobody wrote down, and
  cuDNN 4 to 7 chose other algorithms than today's."""


def percent(value: float | None, digits: int = 1, sign: bool = False) -> str:
    """Return a fraction as a percentage; a dash for what is not known."""
    if value is None or not np.isfinite(value):
        return "–"
    text = f"{100 * value:{'+' if sign else ''}.{digits}f}"
    if not float(text):
        text = text.lstrip("+-")
    return f"{text} %".replace("-", "−")


def table(heads: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1) -> str:
    """Return a Markdown table; all but the first `left` columns are aligned to the right."""
    rule = ["---"] * left + ["---:"] * (len(heads) - left)
    lines = ["| " + " | ".join(cells) + " |" for cells in (heads, *rows)]
    return "\n".join([lines[0], "|" + "|".join(rule) + "|", *lines[1:]])


def summary_cells(s: Summary) -> list[str]:
    """Return the cells of a summary, as HEADS names them."""
    rows = f"{s.rows}" + (f" ({s.failed} failed)" if s.failed else "")
    return [rows, percent(s.mape), percent(s.median), percent(s.p90), percent(s.bias, sign=True),
            percent(s.coverage, 0)]  # fmt: skip


def short_cells(e: Short) -> list[str]:
    """Return MAPE, median, p90 and bias."""
    return [percent(e.mape), percent(e.median), percent(e.p90), percent(e.bias, sign=True)]


def networks(suite: Suite) -> int:
    """Return how many networks a suite has."""
    return len({row.model for row in suite.rows})


def glance(suites: Sequence[Suite]) -> str:
    """Return the table of all suites."""
    heads = ("suite", "runs", "networks", "step MAPE", "quiet runs", "p90", "bias", "in interval",
             "memory MAPE", "fits")  # fmt: skip
    rows = []
    for suite in suites:
        if suite.missing:
            rows.append([suite.title, f"– ({suite.missing})", *["–"] * (len(heads) - 2)])
            continue
        found = summarise(suite.rows)
        step, quiet, memory = (found.get(n) for n in ("step_ms", QUIET_STEPS, "peak_gib"))
        assert step is not None
        judged, right = fit_verdicts(suite.rows)
        rows.append([
            f"[{suite.title}](#{anchor(suite.title)})", str(step.rows), str(networks(suite)),
            f"**{percent(step.mape)}**", percent(quiet.mape if quiet else None), percent(step.p90),
            percent(step.bias, sign=True), percent(step.coverage, 0),
            percent(memory.mape if memory else None), f"{right} of {judged}" if judged else "–",
        ])  # fmt: skip
        for name, e in suite.further.items():
            mape, _, p90, bias = short_cells(e)
            rows.append([f"… {name}", str(e.runs), "", mape, "", p90, bias, "", "", ""])
    return table(heads, rows)


def anchor(title: str) -> str:
    """Return a heading's anchor, as Markdown viewers make it."""
    kept = (c if c.isalnum() else "-" if c in " -" else "" for c in title.lower())
    return "".join(kept)


def section(suite: Suite, chart: str, every: Judged, listed: Judged) -> str:
    """Return one suite: its errors, their distribution, the chart, the worst rows and why.

    `every` has all rows with their facts, where those were computed; `listed` the worst ones.
    """
    parts = [f"## {suite.title}", suite.about, f"*Fitted on it:* {suite.fitted}"]
    if suite.missing:
        return "\n\n".join([*parts, f"Not judged: {suite.missing}."])
    found = summarise(suite.rows)
    rows = [[COLUMNS[name], *summary_cells(s)] for name, s in found.items() if s.rows]
    rows += [
        [f"step, {name}", str(e.runs), *short_cells(e), "–"] for name, e in suite.further.items()
    ]
    parts.append(table(("column", *HEADS), rows))
    judged, right = fit_verdicts(suite.rows)
    oom = sum(row.out_of_memory for row in suite.rows)
    if oom:
        parts.append(f"Whether a run fits was right for {right} of {judged} runs; {oom} did not.")
    failed = [row for row in suite.rows if row.problem is not None]
    if failed:
        why = sorted({f"`{r.model}`: {_first(r.problem, r.model)}" for r in failed})
        parts.append(f"{len(failed)} runs could not be predicted:\n\n" + "\n".join(
            f"- {line}" for line in why))  # fmt: skip
    parts += [f"![Predicted against measured steps]({chart})", distribution(suite.rows)]
    told = groups(suite, every)
    parts += [told] if told else []
    parts.append(f"The {len(listed)} furthest off:\n\n" + worst_table(listed))
    return "\n\n".join(parts)


def _first(problem: str | None, model: str) -> str:
    """Return the first line of a problem, without the model's name."""
    return (problem or "").splitlines()[0].removeprefix(f"{model}: ").rstrip(":")


def distribution(rows: Sequence[ValidatedRow]) -> str:
    """Return how the errors of the step are spread."""
    off = np.array([error_of(r) for r in rows if r.problem is None and "step_ms" in r.measured])
    within = [percent(float(np.mean(np.abs(off) <= limit)), 0) for limit in WITHIN]
    ends = [percent(float(q), 0, sign=True) for q in np.quantile(off, QUANTILES)]
    heads = [f"within {limit:.0%}".replace("%", " %") for limit in WITHIN]
    heads += [f"e at {q:.0%}".replace("%", " %") for q in QUANTILES]
    return table(heads, [[*within, *ends]], left=0)


def groups(suite: Suite, every: Judged) -> str:
    """Return the step's errors by setting, and by what they come from where that is known."""
    lines = []
    for by in ("mode", "precision", "layout", "bound", "device"):
        found = grouped(suite.rows, by)
        found = {name: s for name, s in found.items() if s.mape is not None}
        if len(found) > 1:
            lines += [[f"{by}: {name}", *summary_cells(s)] for name, s in found.items()]
    text = "The step by setting:\n\n" + table(("", *HEADS), lines) if lines else ""
    if every:
        rows = [
            [c, str(n), percent(mean), percent(share, 0)] for c, n, mean, share in shares(every)
        ]
        text += "\n\nThe step by what its error comes from (see below):\n\n" + table(
            ("cause", "rows", "mean error", "share of all errors"), rows
        )
    return text


def worst_table(listed: Judged) -> str:
    """Return runs with the facts that tell why they are off."""
    heads = ("run", "cause", "longest kernels", "error in, ms", "measured", "predicted", "error",
             "device / host", "spread", "not measured")  # fmt: skip
    told = ("device",) if len({row.device for row, _ in listed}) > 1 else ()
    rows = []
    for row, facts in listed:
        given = [row.given.get(n, "") for n in (*told, "batch", "seq", "precision", "layout")]
        given += [row.given.get("mode", "")]
        longest = [f"{name} {percent(v, 0)}" for name, v in list(facts.groups.items())[:2]]
        rows.append([
            " ".join([f"`{row.model}`", *filter(None, given)]), facts.cause,
            ", ".join(longest) or "–",
            facts.phase.replace("-", "−") or "–",
            f"{row.measured['step_ms']:.1f}", f"{row.predicted['step_ms']:.1f}",
            percent(error_of(row), 0, sign=True),
            f"{1e3 * facts.device_s:.1f} / {1e3 * facts.host_s:.1f}",
            percent(facts.spread, 0), percent(facts.unmeasured, 0),
        ])  # fmt: skip
    return table(heads, rows, left=4)


def legend() -> str:
    """Return how causes are told."""
    return f"""\
## How causes are told

Causes are computed and may be wrong: a kernel that really takes far longer than predicted does not
show among those predicted to take longest.

Times are in ms. *device / host* are the two clocks as predicted; the step is the longer one.
*Longest kernels* have the largest share in the device's clock. *Spread* is (p90 − p10) / median of
the measured steps. *Not measured* is the share of the device's clock in kernels whose shape is
unlike any that was measured (likeness under {FAR:.2f} of 1, two of the distances over which their
model takes shapes to be alike), or which the model of another kind stands in for. *Error in* is the
phase with the largest part of the error. The cause is the first that applies:

1. *noisy run*: the spread is above 15 %;
2. *release of PyTorch*: another one ran the same network 1.5 times as fast or faster;
3. *host taken for too slow*: the host is predicted to be the slower clock, but the device's alone
   is at most half as far off;
4. *host's pace*: the host is predicted to be the slower clock;
5. *shapes not measured*: {UNMEASURED:.0%} or more of the device's clock;
6. *both clocks close*: less than 15 % apart, so that they slow each other down;
7. otherwise the kernels that are predicted to take longest.""".replace("20%", "20 %")


def alternatives(suites: Sequence[Suite]) -> str:
    """Return the table of estimators by suite."""
    shown = [s for s in suites if not s.missing]
    names = list(dict.fromkeys(n for s in shown for n in s.others))

    def cell(rows: Sequence[ValidatedRow] | None) -> str:
        if rows is None:
            return "–"
        step = summarise(rows)["step_ms"]
        return percent(step.mape) + (f" ({step.failed} failed)" if step.failed else "")

    rows = [["**traincast**", *(f"**{cell(s.rows)}**" for s in shown)]]
    rows += [[name, *(cell(s.others.get(name)) for s in shown)] for name in names]
    told = table(("", *(s.title for s in shown)), rows)
    return "\n\n".join([ALTERNATIVES, told, QUOTED])


def ablation_tables(found: Mapping[str, Mapping[str, Guess]], titles: Mapping[str, str]) -> str:
    """Return a table for each suite: every variant's errors, of all and of quiet runs."""
    parts = [ABLATION]
    for suite, title in titles.items():
        rows = [
            [name, *(percent(v, sign=i == 2) for q in (False, True)
                     for i, v in enumerate(guesses[suite].errors(q)))]
            for name, guesses in found.items()
        ]  # fmt: skip
        guess = found["everything"][suite]
        heads = ("MAPE", "p90", "bias", "quiet: MAPE", "p90", "bias")
        runs = f"{len(guess.measured)} runs, {int(guess.quiet.sum())} of them quiet"
        parts.append(f"{title}: {runs}.\n\n" + table(("", *heads), rows))
    if REFITTED in found:
        gained = [
            100
            * (found[REFITTED][key].errors(False)[0] - found["everything"][key].errors(False)[0])
            for key in ("h200", "held-out")
        ]
        parts.append(WAVES.format(*(f"{points:+.1f}".replace("-", "−") for points in gained)))
    return "\n\n".join(parts)


def intervals(first: Guess, second: Guess, shipped: Ends) -> str:
    """Return how many runs fall inside intervals made in different ways."""
    plain = [alike(first), alike(second)]
    made = {
        "first suite, by regime": (percentiles(plain[0], split=True), plain),
        "first suite, one for all": (percentiles(plain[0], split=False), plain),
        "as shipped, but all kernels as sure": (shipped, plain),
        "as shipped": (shipped, [first, second]),
    }
    rows = []

    def line(name: str, widths: Sequence[str], one: np.ndarray, two: np.ndarray) -> None:
        bound = second.host_bound
        held = [one, two, two[bound], two[~bound]]
        rows.append([name, *widths, *(percent(float(h.mean()), 0) for h in held)])

    for name, (ends, (one, two)) in made.items():
        widths = [f"{low:.2f} to {high:.2f} ({high / low:.2f})" for low, high in
                  (ends["host"], ends["device"])]  # fmt: skip
        line(name, widths, inside(one, ends), inside(two, ends))
    alone = percent(float(left_out(first).mean()), 0)
    rows.append(["as shipped, but each network left out", "", "", alone, "", "", ""])
    heads = ("interval", "host-bound (width)", "device-bound (width)", "first suite",
             "held out", "host-bound", "device-bound")  # fmt: skip
    return "\n\n".join([INTERVALS, table(heads, rows)])

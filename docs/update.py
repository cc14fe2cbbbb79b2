"""Make the tables and pictures of README.md and docs/: `python docs/update.py COMMAND …`, where COMMAND is

maps         the tables of the maps and of their parameters, from what each states of itself           make readme
types        what type checkers know of functions that are made by name: `__init__.pyi` of sm.distributed and sm.dask
compare      trains as `softmaxima compare` does; docs/maps.png, docs/compare.json and its table       make readme
confirmation how often what compare recommends is confirmed by other data; two tables, in 20 minutes      make confirmation
bench        what `softmaxima bench` left in benchmarks/, for all pages; their pictures and tables               make bench
policies     learns two tasks of gymnasium at many temperatures; docs/policy.json, a picture and a table   make policy
mixture      trains mixtures of maps on ten tables beside compare's choice; docs/mixture.json, a picture, two tables  make policy
gallery      runs the examples of docs/gallery.md; docs/gallery.json, their pictures and tables, in a minute  make gallery
robustness   trains on digits with every loss and attacks; docs/robust-study.json, a picture, tables, in 8 minutes  make robust
private      what noise costs; docs/private.json, a picture and tables                                    make private
shared       what secret shares cost, in 2 minutes; docs/shared.json, a picture and a table              make private
federated    what clients' largest scores tell; docs/federated.json, a picture and tables                make private
graph-study  trains graph networks with every aggregation; docs/graph-study.json, a picture, a table         make graph-study
compare-attention  `softmaxima compare attention`; docs/attention.json, two pictures and tables, 5 minutes    make compare-attention
compare-heads  `softmaxima compare heads`; docs/compare-heads.json and tables, in 8 minutes                make compare-heads
compare-estimators  `softmaxima compare estimators`; its json, a picture and tables, 10 minutes           make compare-estimators
temperature  probabilities and schedules against τ; two pictures                                        make temperature
calibration  temperature scaling beside scikit-learn's; a table                                         make temperature
sampling     bias and variance of every estimator of a gradient; docs/sampling.png and a table          make temperature
precision    errors of logsumexp in units in the last place                                            make logsumexp
bounds       intervals of logsumexp on several kinds of rows; docs/bounds.png and two tables           make logsumexp
estimators   intervals against the scores read; docs/estimators.png and a table of how many were right make logsumexp
times        what estimates take beside sums, in memory and on disk (400 MB in the folder for temporaries) make logsumexp

Each table goes between its markers, in whichever page has them. Needs a Chromium to draw the pictures.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import functools
import inspect
import io
import json
import os
import platform
import re
import runpy
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import torch

from softmaxima.attn import attention
from softmaxima.base.writing import write_bytes, write_text
from softmaxima.maps import REGISTRY as MAPS
from softmaxima.maps import Map
from softmaxima_lab.bench.machine import commit, machine
from softmaxima_lab.bench.record import read
from softmaxima_lab.calibrate import calibration_peers
from softmaxima_lab.commands.terminal import progress_bar
from softmaxima_lab.compare import confirmation, engine
from softmaxima_lab.compare.attention import compared, offered
from softmaxima_lab.compare.attention_tasks import digits_task, text_task
from softmaxima_lab.compare.estimators import vae_task
from softmaxima_lab.compare.estimators_plan import USUAL as OF_ESTIMATORS
from softmaxima_lab.compare.estimators_plan import planned as estimators_planned
from softmaxima_lab.compare.heads_pictures import digits_task as digits_of_heads
from softmaxima_lab.compare.heads_pictures import mnist_task
from softmaxima_lab.compare.heads_plan import TASKS
from softmaxima_lab.compare.heads_plan import Settings as HeadsSettings
from softmaxima_lab.compare.heads_text import text_task as text_of_heads
from softmaxima_lab.compare.pixels import digits
from softmaxima_lab.compare.record import as_json as comparison_json
from softmaxima_lab.compare.settings import Settings as SeedSettings
from softmaxima_lab.compare.table import Settings, compare
from softmaxima_lab.compare.table_saved import as_json
from softmaxima_lab.compare.turns import one_thread
from softmaxima_lab.pages import bench as bench_report
from softmaxima_lab.pages import bench_figures, bench_maps, bench_tables
from softmaxima_lab.pages import calibration as calibration_report
from softmaxima_lab.pages import confirmation as confirmation_report
from softmaxima_lab.pages import estimators as estimators_report
from softmaxima_lab.pages import gallery as gallery_report
from softmaxima_lab.pages import graph_study as graph_study_report
from softmaxima_lab.pages import lse_bounds as bounds_report
from softmaxima_lab.pages import mixtures as mixtures_report
from softmaxima_lab.pages import policies as policies_report
from softmaxima_lab.pages import precision as precision_report
from softmaxima_lab.pages import private as private_report
from softmaxima_lab.pages import ranks as ranks_report
from softmaxima_lab.pages import robustness as robustness_report
from softmaxima_lab.pages import sampling as sampling_report
from softmaxima_lab.pages import temperature as temperature_report
from softmaxima_lab.pages.columns import markdown_table
from softmaxima_lab.pages.compare_attention import REPORT as OF_ATTENTION
from softmaxima_lab.pages.compare_attention_figures import figures as attention_figures
from softmaxima_lab.pages.compare_estimators import REPORT as OF_VAE
from softmaxima_lab.pages.compare_estimators_figures import picture as compare_estimators_picture
from softmaxima_lab.pages.compare_heads import REPORT as OF_HEADS
from softmaxima_lab.pages.compare_table import columns, twins
from softmaxima_lab.pages.compare_table_figures import simplex_figure
from softmaxima_lab.pages.comparison import Report, markdown
from softmaxima_lab.pages.gallery_figures import PICTURES
from softmaxima_lab.pages.markdown import table
from softmaxima_lab.pages.types import types_of_rooms
from softmaxima_lab.studies import (
    estimators,
    federated_top,
    gradient_estimators,
    graph_study,
    lse_bounds,
    mixtures,
    policies,
    private_sums,
    robustness_study,
    shared_sums,
)
from softmaxima_lab.studies.precision import precision
from softmaxima_lab.tables.tables import read_table
from softmaxima_lab.tables.texts import read_text

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
COLUMNS_OF_PICTURE = 7

Blocks = dict[str, str]  # the name of a place in a page → what is written there


def compare_blocks() -> Blocks:
    """Train, write the numbers, draw the maps, and give the table."""
    comparison = compare(read_table(None, None), Settings())
    plot = simplex_figure(comparison).plot
    rows = -(-plot.layout.meta["panels"] // COLUMNS_OF_PICTURE)
    plot.update_layout(template="simple_white", grid={"rows": rows, "columns": COLUMNS_OF_PICTURE}, width=1000, height=160 * rows)
    draw(plot, DOCS / "maps.png")
    numbers = as_json(comparison, folds=False)
    write_text(DOCS / "compare.json", json.dumps(made_on() | numbers, indent=1) + "\n")
    taken = comparison.recommendation
    shown = markdown_table("pair", columns(comparison), comparison.results, comparison.taken)
    words = f"**{taken.headline}.** {taken.reason}"
    return {"compare": f"{shown}\n\n{words}\n\n{caption('make readme', twins(comparison))}"}


def confirmation_blocks() -> Blocks:
    """How often recommendations are confirmed, for each table and for each metric."""
    processes = os.cpu_count() or 1
    with progress_bar() as progress:
        task = progress.add_task("halves", total=confirmation.splits())
        found = confirmation.confirmation(processes=processes, advanced=lambda: progress.advance(task))
    note = f"{confirmation_report.CAPTION} {confirmation_report.verdict(found)}"
    return {
        "confirmation": f"{confirmation_report.by_table(found)}\n\n{caption('make confirmation', note, threads=1)}",
        "metrics": f"{confirmation_report.by_metric(found)}",
    }


def types_blocks() -> Blocks:
    """Write the types of the rooms that have a form of every map and loss; no table."""
    for room, text in types_of_rooms().items():
        write_text(ROOT / "src" / "softmaxima" / room / "__init__.pyi", text)
    return {}


MASS = {"one": "1", "at most one": "at most 1", "zero or one": "0 or 1"}


def maps_blocks() -> Blocks:
    """The table of maps: formula, whether finite scores can get zero, and the sum."""
    rows = []
    for map in sorted(MAPS.values(), key=_place):
        names = ", ".join(parameter.name for parameter in map.params)
        called = f"`{map.name}({names})`" if names else f"`{map.name}`"
        rows.append([called, map.formula, "yes" if map.properties.sparse else "no", MASS.get(_mass(map), names)])
    headings = ["`map=`", "parameters beside it, and their defaults", "may be a tensor"]
    beside = [_beside(map) for map in sorted(MAPS.values(), key=_place) if not map.properties.logarithmic]
    return {
        "maps": table(["map", "p_i", "zeros", "sum"], rows, left=range(4)),
        "parameters": table(headings, beside, left=range(3)),
    }


def _beside(map: Map) -> list[str]:
    """What stands beside the map's name in a call, and what of it may be a tensor."""
    values = [f"torch.{each.default.__name__}" if callable(each.default) else repr(each.default) for each in map.params]
    taken = inspect.signature(attention).parameters
    names = ["map_" + each.name if each.name in taken else each.name for each in map.params]
    defaults = [f"`{name}={value}`" for name, value in zip(names, values, strict=True)]
    learns = [f"`{name}`" for name, each in zip(names, map.params, strict=True) if each.gradient is not None]
    return [f"`{map.name}`", ", ".join(defaults) or "none", ", ".join(learns)]


def _place(map: Map) -> tuple[int, bool, bool, str]:
    claims = map.properties
    return [*MASS, None].index(_mass(map)), claims.sparse, claims.logarithmic, map.name


def _mass(map: Map) -> str | None:
    """What a map's mass is called, None where it depends on parameters."""
    return map.properties.mass if isinstance(map.properties.mass, str) else None


def bench_blocks() -> Blocks:
    """The tables and pictures of all that was measured."""
    found = {path.stem: read(path) for path in (ROOT / "benchmarks").glob("*.json")}
    quiet, busy, gpu = (found[f"maps-{name}"] for name in ("cpu", "cpu-busy", "gpu"))
    attention, graph, ranks = (found[f"{name}-cpu"] for name in ("attention", "graph", "ranks"))
    draw(bench_figures.of_maps(quiet), DOCS / "bench.png")
    draw(bench_figures.of_attention(attention), DOCS / "attention-speed.png")
    draw(bench_figures.of_graph(graph), DOCS / "graph.png")
    draw(ranks_report.picture(ranks), DOCS / "ranks.png")
    made_with = bench_tables.made_with(quiet, bench_maps.MAPS)
    picture = "![Time of each peer divided by that of softmaxima, for every map and loss](docs/bench.png)"
    results = "All results: [maps-cpu.json](benchmarks/maps-cpu.json), [maps-cpu-busy.json](benchmarks/maps-cpu-busy.json)."
    beside = bench_maps.beside_others(quiet, busy)
    note = f"*{bench_maps.TABLE_CAPTION} {beside} {results} `make bench`, {made_with}.*"
    timed = bench_tables.in_markdown(bench_tables.tables(gpu, bench_maps.MAPS, lambda result: result.seconds is not None))
    of_attention = "![Time of a forward and of both passes, and memory, against the length](attention-speed.png)"
    of_graph = "![Nanoseconds an edge of ours and torch_geometric's, forward and both passes](graph.png)"
    of_ranks = "![Time against the number of ranks, of a step, measured, and of its messages, by a model](ranks.png)"
    return {
        "bench": f"{bench_maps.chosen_table(quiet)}\n\n{picture}\n\n{note}",
        "speed": f"{bench_maps.chosen_table(quiet, bench_maps.LOGSUMEXP_ROWS)}\n\n*`make bench`, {made_with}.*",
        "bench-gpu": f"{timed}\n\n{bench_maps.MAPS.says(gpu)}\n\n*{bench_tables.made_with(gpu, bench_maps.MAPS)}.*",
        "bench-attention": f"{of_attention}\n\n{bench_tables.markdown(attention, page=bench_report.ATTENTION)}",
        "bench-attention-gpu": bench_tables.markdown(found["attention-gpu"], page=bench_report.ATTENTION),
        "bench-heads": bench_tables.markdown(found["heads-cpu"], found["heads-cpu-bfloat16"], page=bench_report.HEADS),
        "bench-graph": f"{of_graph}\n\n{bench_tables.markdown(graph, page=bench_report.GRAPH)}",
        "bench-ranks": f"{of_ranks}\n\n{ranks_report.markdown(ranks)}",
        "bench-dask": bench_tables.markdown(found["dask-cpu"], page=bench_report.DASK),
    }


def graph_study_blocks() -> Blocks:
    """Train networks with every aggregation on every task, and show what they reach."""
    with progress_bar() as progress:
        task = progress.add_task("", total=len(graph_study.TASKS) * len(graph_study.names()))
        done = lambda what: progress.update(task, advance=1, description=what)
        found = graph_study.run(processes=os.cpu_count() or 1, done=done)
    ceilings = graph_study.ceilings(range(len(found[0].accuracies)))
    graph_study.write(found, ceilings, {**made_on(), "threads": 1}, DOCS / "graph-study.json")
    return show_graph_study(found, ceilings)


def show_graph_study(found: Sequence[graph_study.Trained], ceilings: Mapping[str, Sequence[float]]) -> Blocks:
    """The table and the picture of what networks reached."""
    draw(graph_study_report.picture(found, ceilings), DOCS / "graph-study.png")
    picture = "![Accuracy of each aggregation on each task, with standard errors](graph-study.png)"
    note = caption("make graph-study", f"{graph_study_report.CAPTION} {len(found[0].accuracies)} seeds.", threads=1)
    said = graph_study_report.sentence(found)
    return {"graph-study": f"{said}\n\n{picture}\n\n{graph_study_report.markdown_table(found, ceilings)}\n\n{note}"}


def gallery_blocks() -> Blocks:
    """Run the examples of the gallery, write the numbers, and show them."""
    found = {}
    with one_thread(), progress_bar() as progress, contextlib.redirect_stdout(io.StringIO()):
        task = progress.add_task("", total=len(PICTURES))
        for name in PICTURES:
            progress.update(task, description=name)
            found[name] = runpy.run_path(str(ROOT / "examples" / f"{name}.py"))["main"]()
            progress.advance(task)
    versions = {name: metadata.version(name) for name in ("softmaxima", "torch", "numpy", "scipy", "scikit-learn")}
    path = DOCS / "gallery.json"
    write_text(path, json.dumps(made_on() | {"threads": 1, "versions": versions, "results": found}) + "\n")
    return show_gallery(json.loads(path.read_text())["results"])


def show_gallery(found: dict[str, Any]) -> Blocks:
    """A picture, a table and a caption for each example."""
    blocks = {}
    for name, picture in PICTURES.items():
        page = name.replace("_", "-")
        draw(picture(found[name]), DOCS / f"gallery-{page}.png")
        note = caption("make gallery", gallery_report.CAPTIONS[name], threads=1)
        shown = f"![{gallery_report.CAPTIONS[name]}](gallery-{page}.png)"
        blocks[f"gallery-{page}"] = f"{shown}\n\n{gallery_report.TABLES[name](found[name])}\n\n{note}"
    return blocks


def robustness_blocks() -> Blocks:
    """Train on digits in every way, attack, and show what withstands."""
    with one_thread(), progress_bar() as progress:
        task = progress.add_task("", total=robustness_study.steps())
        found = robustness_study.run(starting=lambda what: progress.update(task, advance=1, description=what))
    versions = {name: metadata.version(name) for name in ("torch", "adversarial-robustness-toolbox", "scikit-learn")}
    robustness_study.write(found, made_on() | {"versions": versions}, DOCS / "robust-study.json")
    return show_robustness(found)


def show_robustness(found: robustness_study.Study) -> Blocks:
    """The tables and the picture of what withstood attacks."""
    draw(robustness_report.picture(found), DOCS / "robust-study.png")
    picture = "![Accuracy under attack by loss and by temperature at test time, and what detectors see](robust-study.png)"
    seeds = f"{found.pictures} pictures, {len(found.trained[0].blind)} seeds."
    note = lambda *said: caption("make robust", " ".join(said), threads=1)
    return {
        "robust-verdicts": robustness_report.sentences(found),
        "robust-study": f"{picture}\n\n{robustness_report.trained_table(found)}\n\n{note(robustness_report.CAPTION, seeds)}",
        "robust-test-time": f"{robustness_report.at_test_table(found)}\n\n{note(robustness_report.AT_TEST_CAPTION, seeds)}",
        "robust-peers": f"{robustness_report.peers_table(found)}\n\n{note(robustness_report.PEERS_CAPTION)}",
        "robust-detectors": f"{robustness_report.detection_table(found)}\n\n{note(robustness_report.DETECTION_CAPTION, seeds)}",
    }


def private_blocks() -> Blocks:
    """Release sums and choices with noise, write the numbers, draw them, and give the tables."""
    with one_thread(), progress_bar() as progress:
        task = progress.add_task("", total=None)
        said = lambda what: progress.update(task, description=what)
        added, voted = private_sums.sums(said), private_sums.votes(said)
    _keep("private", "opendp", sums=added, votes=voted)
    draw(private_report.private_picture(added, voted), DOCS / "private.png")
    picture = "![Error of a released sum, and accuracy of classes that teachers vote for, against ε](private.png)"
    note = caption("make private", private_report.PRIVATE_CAPTION, threads=1)
    shown = private_report.private_tables(added, voted)
    return {"private": f"{private_sums.verdict(added, voted)}.\n\n{picture}\n\n{shown}\n\n{note}"}


def shared_blocks() -> Blocks:
    """Sum scores that parties share, write the numbers, draw them, and give the table."""
    with progress_bar() as progress:
        task = progress.add_task("", total=len(shared_sums.CASES))
        found = shared_sums.run(lambda what: progress.update(task, advance=1, description=what))
    _keep("shared", "mpyc", results=found)
    draw(private_report.shared_picture(found), DOCS / "shared.png")
    picture = "![Cost of secret shares against the number of scores, and errors against bits](shared.png)"
    note = caption("make private", private_report.SHARED_CAPTION)
    return {"secure": f"{shared_sums.verdict(found)}.\n\n{picture}\n\n{private_report.shared_table(found)}\n\n{note}"}


def federated_blocks() -> Blocks:
    """Merge what clients tell, write the numbers, draw them, and give the tables."""
    with one_thread(), progress_bar() as progress:
        task = progress.add_task("", total=len(federated_top.SOURCES))
        known = federated_top.run(lambda what: progress.update(task, advance=1, description=what))
    noises = federated_top.noises()
    _keep("federated", "opendp", known=known, noises=noises)
    draw(private_report.federated_picture(known), DOCS / "federated.png")
    picture = "![Width of the interval, and error of what was sent alone, against k](federated.png)"
    note = caption("make private", private_report.FEDERATED_CAPTION, threads=1)
    shown = private_report.federated_tables(known, noises)
    return {"federated": f"{federated_top.verdict(known)}.\n\n{picture}\n\n{shown}\n\n{note}"}


def _keep(name: str, library: str, **results: Sequence[Any]) -> None:
    """Write the numbers of a page, with the versions of what made them."""
    versions = {package: metadata.version(package) for package in ("softmaxima", library, "numpy", "torch")}
    facts = {what: [dataclasses.asdict(each) for each in found] for what, found in results.items()}
    write_text(DOCS / f"{name}.json", json.dumps(made_on() | {"versions": versions} | facts, indent=1, ensure_ascii=False) + "\n")


def policies_blocks() -> Blocks:
    """Learn the tasks at every temperature, and show how soon."""
    with one_thread(), progress_bar() as progress:
        seeds = policies.TUNED_ON + policies.TESTED_ON
        bar = progress.add_task("learners", total=len(policies.TASKS) * len(policies.METHODS) * seeds)
        found = [each for task in policies.TASKS for each in policies.learn(task, advanced=lambda n: progress.advance(bar, n))]
    policies.write(found, made_on(), DOCS / "policy.json")
    return show_policies(found)


def show_policies(found: Sequence[policies.Trained]) -> Blocks:
    """The sentences, the picture and the table of how soon tasks were solved."""
    draw(policies_report.picture(found), DOCS / "policy.png")
    picture = "![The episode at which each seed has solved a task, by temperature; lines are means](policy.png)"
    note = caption("make policy", policies_report.CAPTION, threads=1)
    return {"policy": f"{policies_report.sentence(found)}\n\n{picture}\n\n{policies_report.markdown_table(found)}\n\n{note}"}


def mixture_blocks() -> Blocks:
    """Train mixtures, compare's choice and softmax on every fold of ten tables."""
    with one_thread(), progress_bar() as progress:
        bar = progress.add_task("folds", total=len(mixtures.KNOWN) * mixtures.FOLDS)
        found = mixtures.run(advanced=lambda: progress.advance(bar))
    mixtures.write(found, made_on(), DOCS / "mixture.json")
    return show_mixtures(found)


def show_mixtures(found: Sequence[mixtures.Chosen]) -> Blocks:
    """The sentence, the picture and the tables of what was chosen and gained."""
    draw(mixtures_report.picture(found), DOCS / "mixture.png")
    picture = "![What each way of choosing gains over softmax on each table, and on all with intervals](mixture.png)"
    note = caption("make policy", mixtures_report.CAPTION, threads=1)
    return {"mixture": f"{mixtures_report.sentence(found)}\n\n{picture}\n\n{mixtures_report.markdown(found)}\n\n{note}"}


def compared_with_seeds(report: Report, tasks: Sequence[Any], settings: SeedSettings) -> engine.Study:
    """What a comparison finds."""
    with progress_bar() as progress:
        bar = progress.add_task("steps", total=engine.total_steps(report.comparison, tasks, settings))
        return engine.compare(report.comparison, tasks, settings, lambda steps: progress.advance(bar, steps))


def comparison_blocks(report: Report, study: engine.Study, file: str, pictures: Sequence[str] = ()) -> Blocks:
    """Write what the tables of a comparison show, and give its pictures, tables and explanations."""
    numbers = made_on() | {"threads": 1} | comparison_json(study, runs=False)
    write_text(DOCS / file, json.dumps(numbers, indent=1, ensure_ascii=False) + "\n")
    name = f"compare-{study.comparison.name}"
    note = f"{caption(f'make {name}', threads=1)} All numbers: [{file}]({file})."
    return {name: "\n\n".join((*pictures, markdown(report, study), note))}


def compare_attention_blocks() -> Blocks:
    """Train Transformers with every map, and draw what a head looks at."""
    chosen = compared(offered())
    study = compared_with_seeds(OF_ATTENTION, [text_task(read_text(None), chosen), digits_task(chosen)], SeedSettings())
    return attention_study_blocks(study)


def attention_study_blocks(study: engine.Study) -> Blocks:
    """The numbers, pictures and tables of a comparison of attention."""
    pictures = []
    for finding in study.findings:
        name, columns = finding.task.name, COLUMNS_OF_PICTURE
        shown = next(figure for figure in attention_figures(finding) if figure is not None and figure.id == f"{name}-weights")
        rows = -(-shown.plot.layout.meta["panels"] // columns)
        shown.plot.update_layout(template="simple_white", grid={"rows": rows, "columns": columns}, width=1000, height=160 * rows)
        shown.plot.update_xaxes(visible=False)
        shown.plot.update_yaxes(visible=False)
        draw(shown.plot, DOCS / f"attention-{name}.png")
        pictures.append(f"![{shown.title}, by map](attention-{name}.png)\n\n*{shown.reading}*")
    return comparison_blocks(OF_ATTENTION, study, "attention.json", pictures)


def compare_heads_blocks() -> Blocks:
    """Train with every last layer."""
    settings = HeadsSettings()
    text = text_of_heads(read_text(None), settings, TASKS["text"])
    study = compared_with_seeds(OF_HEADS, [text, digits_of_heads(TASKS["digits"]), mnist_task(TASKS["mnist"])], settings)
    return comparison_blocks(OF_HEADS, study, "compare-heads.json")


def compare_estimators_blocks() -> Blocks:
    """Train a VAE with every estimator, and draw how well it learns."""
    study = compared_with_seeds(OF_VAE, [vae_task(digits(), estimators_planned(()))], SeedSettings(*OF_ESTIMATORS))
    return estimators_study_blocks(study)


def estimators_study_blocks(study: engine.Study) -> Blocks:
    """The numbers, picture and tables of a comparison of estimators."""
    draw(compare_estimators_picture(study.findings[0]), DOCS / "compare-estimators.png")
    picture = "![ELBO against the steps, and the SNR of a step's gradient, by estimator](compare-estimators.png)"
    return comparison_blocks(OF_VAE, study, "compare-estimators.json", [picture])


def temperature_blocks() -> Blocks:
    """Draw what τ does to five scores, and how schedules go."""
    made = caption("make temperature")
    draw(temperature_report.curves(), DOCS / "temperature.png")
    draw(temperature_report.schedules(), DOCS / "schedules.png")
    return {
        "temperature": f"![Probabilities of five scores against the temperature, by map](temperature.png)\n\n{made}",
        "schedules": f"![Temperature against steps, by schedule](schedules.png)\n\n{made}",
    }


def calibration_blocks() -> Blocks:
    """What scaling by a temperature is worth on held-out rows, beside scikit-learn's, and what it takes."""
    with one_thread():
        table = calibration_report.beside_others_table(calibration_peers.beside_others())
    return {"calibration": f"{table}\n\n{caption('make temperature', calibration_report.BESIDE_OTHERS, threads=1)}"}


def sampling_blocks() -> Blocks:
    """The bias and the variance of every estimator, and against the temperature of those that have one."""
    rows, found = gradient_estimators.measure_estimators(), gradient_estimators.measure_temperatures()
    draw(sampling_report.picture(found, rows), DOCS / "sampling.png")
    note = caption("make temperature", sampling_report.CAPTION)
    return {"sampling": f"{sampling_report.markdown_table(rows)}\n\n{sampling_report.PICTURE}\n\n{note}"}


def precision_blocks() -> Blocks:
    """The errors of every method on every hard row."""
    note = caption("make logsumexp", precision_report.CAPTION)
    return {"precision": f"{precision_report.markdown_table(precision())}\n\n{note}"}


def bounds_blocks() -> Blocks:
    """Every bound on a few rows, by how much bounds narrow log n, and what leaving small terms out saves."""
    result = lse_bounds.run()
    draw(bounds_report.picture(lse_bounds.place()), DOCS / "bounds.png")
    narrowing, sparsity = bounds_report.narrowing_table(result), bounds_report.sparsity_table(lse_bounds.sparsify())
    note = f"{bounds_report.NARROWING_CAPTION} {bounds_report.verdict(result)}"
    return {
        "bounds": f"![Intervals of every bound on four kinds of rows](bounds.png)\n\n{caption('make logsumexp')}",
        "narrowing": f"{narrowing}\n\n{caption('make logsumexp', note)}",
        "sparsity": f"{sparsity}\n\n{caption('make logsumexp', bounds_report.SPARSITY_CAPTION)}",
    }


def estimators_blocks() -> Blocks:
    """The interval of every estimator against the scores that it read, and how many intervals held the truth."""
    works = estimators.measure_budgets({**estimators.standard_subjects(), **estimators.indexed_subjects()})
    draw(estimators_report.picture(works), DOCS / "estimators.png")
    picture = "![Both ends of each estimator's interval against the scores read, for five sources](estimators.png)"
    note = caption("make logsumexp", estimators_report.CAPTION)
    return {"estimators": f"{picture}\n\n{estimators_report.coverage_table(works)}\n\n{note}"}


def times_blocks() -> Blocks:
    """Seconds of sums and of estimates of the same scores."""
    with tempfile.TemporaryDirectory() as folder:
        table = estimators_report.times_table(estimators.measure_times(folder))
    return {"times": f"{table}\n\n{caption('make logsumexp', estimators_report.TIMES_CAPTION, threads=1)}"}


COMMANDS = {
    "maps": maps_blocks,
    "types": types_blocks,
    "compare": compare_blocks,
    "confirmation": confirmation_blocks,
    "bench": bench_blocks,
    "graph-study": graph_study_blocks,
    "gallery": gallery_blocks,
    "robustness": robustness_blocks,
    "private": private_blocks,
    "shared": shared_blocks,
    "federated": federated_blocks,
    "policies": policies_blocks,
    "mixture": mixture_blocks,
    "compare-attention": compare_attention_blocks,
    "compare-heads": compare_heads_blocks,
    "compare-estimators": compare_estimators_blocks,
    "temperature": temperature_blocks,
    "sampling": sampling_blocks,
    "calibration": calibration_blocks,
    "precision": precision_blocks,
    "bounds": bounds_blocks,
    "estimators": estimators_blocks,
    "times": times_blocks,
}


@functools.cache
def made_on() -> dict[str, Any]:
    """When, where and from which commit, as it was when this was asked first."""
    facts = machine()
    return {
        "date": datetime.date.today().isoformat(),
        "machine": facts["processor"],
        "threads": facts["threads"],
        "commit": commit(),
    }


def caption(command: str, note: str = "", threads: int | None = None) -> str:
    """What made a figure, when and where; on so many threads, or as many as torch takes."""
    made = made_on()
    threads = threads or made["threads"]
    machine = f"{made['machine']}, {threads} thread{'s' * (threads != 1)}"
    versions = f"torch {torch.__version__}, Python {platform.python_version()}"
    made_by = f"`{command}`, {made['date']}, commit {made['commit']}, {machine}, {versions}."
    return f"*{f'{note} {made_by}'.strip()}*"


def draw(plot: go.Figure, path: Path) -> None:
    """The figure, in its own size, as a PNG of twice as many pixels, complete or not at all."""
    chromium = next((found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None)
    if chromium is None:
        raise SystemExit("the pictures are drawn with Chromium; install the package chromium")
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "figure.html"
        page.write_text(plot.to_html(include_plotlyjs=True, config={"staticPlot": True}))
        command = [
            chromium, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--force-device-scale-factor=2",
            f"--user-data-dir={folder}/profile", f"--window-size={plot.layout.width + 16},{plot.layout.height + 16}",
            "--virtual-time-budget=20000", f"--screenshot={folder}/figure.png", page.as_uri(),
        ]  # fmt: skip
        subprocess.run(command, check=True, capture_output=True)
        write_bytes(path, (Path(folder) / "figure.png").read_bytes())


def write(name: str, text: str) -> None:
    """Put a block between its markers, in the page that has them."""
    for page in (ROOT / "README.md", *sorted(DOCS.glob("*.md"))):
        before = page.read_text()
        block = re.compile(rf"(<!-- {name}: written by .*? -->\n).*?(<!-- end of {name} -->)", re.DOTALL)
        after, found = block.subn(lambda markers: f"{markers[1]}{text}\n{markers[2]}", before)
        if found:
            write_text(page, after)
            return
    raise SystemExit(f"no page has the markers of {name}")


def main() -> None:
    commands = sys.argv[1:]
    if not commands or set(commands) - COMMANDS.keys():
        raise SystemExit(f"usage: python docs/update.py {'|'.join(COMMANDS)} …")
    made_on()  # before anything is written, for that makes the commit a dirty one
    for command in commands:
        for name, text in COMMANDS[command]().items():
            write(name, text)


if __name__ == "__main__":
    main()

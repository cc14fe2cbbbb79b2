"""What the examples of the gallery found beside what is true, in tables. Each takes what an example's `main` returns."""

from __future__ import annotations

import contextlib
import io
import math
import runpy
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean, stdev
from typing import Any

from softmaxima_lab.pages.documents import Block, Entry, Picture, Told
from softmaxima_lab.pages.gallery_figures import PICTURES
from softmaxima_lab.pages.markdown import table

Found = Mapping[str, Any]


def maximum_entropy(found: Found) -> str:
    """Dice, and what of the weights is known without knowing them."""
    dice = found["dice"]
    rows = [
        (f"p({face}) of dice with mean 4.5", f"{own:.9f}", f"{true:.9f}")
        for face, own, true in zip(range(1, 7), dice["found"], dice["exact"], strict=True)
    ]
    ratio = fmean(a / b for a, b in zip(found["scatter"], found["errors"], strict=True))
    intervals = f"{len(found['names'])} weights in {found['repeats']} repeats"
    rows += [
        ("duality gap after the last step, nats", f"{found['gaps'][-1]:.0e}", "0"),
        (f"intervals of 95 % that hold the weight, {intervals}", f"{100 * found['within']:.1f} %", "95 %"),
        ("scatter of the repeats / standard error", f"{ratio:.3f}", "1"),
    ]
    return table(["", "found", "truth"], rows)


def tagging(found: Found) -> str:
    """A line a tagger, and one a length."""

    def line(name: str, each: Found) -> list[str]:
        less = "" if name == "truth" else f"{100 * each['less']:+.2f} ± {100 * each['error']:.2f}".replace("-", "−")
        share = [f"{each['support']:.2f}", f"{each['distance']:.4f}"] if "support" in each else ["", ""]
        return [name, f"{100 * each['right']:.2f}", less, *share]

    head = ["tagger", "right, %", "beside the truth, points", "tags with a share", "mean distance from P"]
    taggers = table(head, [line(name, each) for name, each in found["taggers"].items()])
    times = [[length, *(f"{each:.2f}" for each in pair)] for length, pair in found["milliseconds"].items()]
    return f"{taggers}\n\n{table(['words in one sentence', 'by halves, ms', 'in order, ms'], times)}"


def partition_function(found: Found) -> str:
    """A line a number of steps."""
    rows = [
        [
            str(row["steps"]),
            f"{row['effective']:.1f}",
            f"{row['ratio']:.4f} ± {row['error']:.4f}",
            f"{row['bias']:+.4f}".replace("-", "−"),
            f"{row['scatter']:.4f}",
            f"{100 * row['coverage']:.1f}",
        ]
        for row in found["rows"]
    ]
    truth = ["truth", str(found["chains"]), "1", "0", "0", "95"]
    head = ["steps", f"effective of {found['chains']} chains", "mean Ẑ/Z", "mean log Ẑ − log Z", "scatter", "intervals with Z, %"]
    return table(head, [*rows, truth])


def ising_torus(found: Found) -> str:
    """Far from the critical point, and at it."""
    far = table(
        ["at β = 0.3", "log Z a spin", "energy", "heat capacity"],
        [
            [name.replace("onsager", "Onsager, ∞"), *(f"{value:.8f}".replace("-", "−") for value in each)]
            for name, each in found["far"].items()
        ],
    )
    charges = [[f"{width} × 1024", f"{value:.5f}"] for width, value in found["charges"].items()]
    return f"{far}\n\n{table(['at β_c', '(log Z a spin − Onsager) · 6L²/π'], [*charges, ['central charge', '0.50000']])}"


def class_codes(found: Found) -> str:
    """Networks that are right, and codes of no class."""
    tasks = found["tasks"]
    names = ["softmax", "bits", "nearest code", "no class", "mass on none"]
    head = [
        "%",
        "softmax right",
        "bits right",
        "nearest code right",
        "bits of no class",
        "probability of no class",
        "gain of softmax",
    ]
    gains = {name: [a - b for a, b in zip(of["softmax"], of["nearest code"], strict=True)] for name, of in tasks.items()}
    rows = [[name, *(_mean(of[key], 100, 2) for key in names), _mean(gains[name], 100, 2)] for name, of in tasks.items()]
    best = f"{100 * found['most']:.2f}"
    blocks = [[str(k), str(found["bits"][k - 1]), f"{found['bits'][k - 1] / k:.4f}"] for k in (1, 2, 3, 5, 12, 41, 53)]
    messages = table(["symbols in a block", "bits", "bits a symbol"], [*blocks, ["∞", "", f"{math.log2(3):.4f}"]])
    return f"{table(head, [*rows, ['triangle, the best there is', best, '', '', '0', '0', '']])}\n\n{messages}"


def click_rates(found: Found) -> str:
    """A line a model."""
    head = [
        "trained",
        "views of which all are kept",
        "calibration error, %",
        "regret, 10⁻³ nats",
        "ten best, %",
        "auction, %",
        "charged / worth",
    ]
    keys = (("calibration error", 100), ("regret", 1000), ("ten best", 100), ("auction", 100), ("charged", 1))
    seen = dict.fromkeys(found["models"], 0) | dict.fromkeys(("and a temperature", "and a scale and bias"), found["kept"])
    rows = [[name, str(seen[name]), *(_mean(each[key], scale, 2) for key, scale in keys)] for name, each in found["models"].items()]
    return table(head, [*rows, ["the truth", "", "0", "0", "100", "100", "1"]])


def _mean(values: Sequence[float], scale: float, digits: int) -> str:
    """The mean ± its standard error."""
    error = stdev(values) / len(values) ** 0.5
    return f"{scale * fmean(values):.{digits}f} ± {scale * error:.{digits}f}".replace("-", "−")


TABLES: dict[str, Callable[[Found], str]] = {
    each.__name__: each for each in (maximum_entropy, tagging, partition_function, ising_torus, class_codes, click_rates)
}
CAPTIONS = {
    "maximum_entropy": "Left: dice of mean 4.5. Middle: weights of one table of counts ± 1.96 standard errors, against the true "
    "ones. Right: the duality gap at each of Newton's steps, from where it is known.",
    "tagging": "How likely each tag is at each place of one sentence, white being exactly 0; crosses are the tags that there were. "
    "In the table, means ± standard errors over sentences, paired, of one language and one training set; times are of log Z and "
    "its slope, the least of five turns.",
    "partition_function": "log Ẑ − log Z of every run, by the number of steps; lines are medians, boxes hold half of the runs.",
    "ising_torus": "Energy and heat capacity a spin of tori, and of the infinite lattice; dotted: the critical point. "
    "Right: (log Z a spin − Onsager) · 6L²/π at the critical point, of tori with 1024 rows.",
    "class_codes": "Left: the class that linear networks give to each point, grey being none; crosses are the three centres. "
    "Right: bits a symbol in blocks of K symbols of three. In the table, means ± standard errors over seeds; the gain is on the "
    "nearest code, in points, paired by seed.",
    "click_rates": "Left: mean rate and mean p of twenty groups of views of like p, of the last seed. Right: what is lost of the "
    "best possible by choices that p makes. In the table, means ± standard errors over seeds; the last two models have also seen "
    "views of which all are kept, beside the log.",
}


def blocks(found: Found) -> list[Block]:
    """A picture, a table and a caption for each example."""

    def block(name: str, of: Found, caption: str) -> Block:
        place = f"gallery-{name.replace('_', '-')}"
        return Block(place, (Picture(f"{place}.png", PICTURES[name](of), caption), TABLES[name](of)), caption)

    return [block(name, found[name], caption) for name, caption in CAPTIONS.items()]


def measured(told: Told) -> dict[str, Any]:
    """What the examples return, without what they print."""
    found = {}
    with contextlib.redirect_stdout(io.StringIO()):
        for name in PICTURES:
            told(name)
            found[name] = runpy.run_path(f"examples/{name}.py")["main"]()
    return found


ENTRY = Entry(
    "gallery",
    "runs the examples of docs/gallery.md, whose truth is known, in a minute",
    blocks,
    measured,
    "gallery.json",
    dict[str, Any],
    steps=lambda: len(PICTURES),
    threads=1,
)

r"""Click rates from a log that kept every click and few of the others: what mends them, and for whom it matters.

    P(click | kept) = σ(x),   kept with probability 1 or r_s          P(click) = σ(x + log r_s)

A view without a click from source s, the web or a phone, is kept with probability r_s, so that the log-odds of what is in the
log are too large by −log r_s. Models are trained on the log as it is; the same, corrected by the one rate at which views are kept
over all; with −log r_s added to the scores in training, so that x itself has the log-odds of a click; and that, over a temperature,
or with a scale and a bias for each class, which are found on a day of which all was kept, by views that the others do not see.

The truth is known, for the clicks are drawn from it: P of every view. Calibration error is |mean p − mean P| in twenty groups of
views of like p, and regret what p costs in log loss. Of a hundred items for a user the ten with the largest p are taken; and the
one is shown of the largest bid · p, as in an auction, for which it is charged as if p were right.

    python examples/click_rates.py
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Annotated, Any

import torch
from torch import Tensor, nn

import softmaxima as sm
from softmaxima_lab.commands.example import count, run

ITEMS, FEATURES, CHOICE, SHOWN, GROUPS = 500, 10, 100, 10, 20
KEPT = torch.tensor([0.5, 0.02])  # r of the two sources
MODELS = ("as logged", "one rate", "rate of each source", "and a temperature", "and a scale and bias")
SCALES = {"regret": 1000, "charged": 1}  # and 100 of all else
Rate = Callable[[Tensor, Tensor], Tensor]  # of features and items


@dataclass(frozen=True)
class World:
    """A click has the log-odds ⟨w, features⟩ + b_item; the second source is seen with some items more often than with others."""

    weights: Tensor  # [features]
    items: Tensor  # [items]
    on_second: Tensor  # [items], how often an item is seen there

    def rate(self, x: Tensor, item: Tensor) -> Tensor:
        """P(click)."""
        return torch.sigmoid(x @ self.weights + self.items[item])

    def views(self, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """(features [count, features], items, sources, clicks)."""
        x, item = torch.randn(count, FEATURES, generator=generator), torch.randint(ITEMS, (count,), generator=generator)
        source = torch.bernoulli(self.on_second[item], generator=generator).long()
        return x, item, source, torch.bernoulli(self.rate(x, item), generator=generator).bool()


def world(generator: torch.Generator) -> World:
    """About three clicks in a hundred views."""
    random = lambda *shape: torch.randn(*shape, generator=generator)
    return World(random(FEATURES) / FEATURES**0.5, random(ITEMS) - 4.5, torch.rand(ITEMS, generator=generator).square())


class LogOdds(nn.Module):
    """The same form of log-odds, to be learnt. It is not told the source."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.items = nn.Linear(FEATURES, 1), nn.Embedding(ITEMS, 1)
        nn.init.zeros_(self.items.weight)

    def forward(self, x: Tensor, item: Tensor) -> Tensor:
        return (self.linear(x) + self.items(item)).squeeze(-1)


def trained(log: tuple[Tensor, Tensor, Tensor], offset: Tensor | float, steps: int = 60) -> LogOdds:
    """Of least log loss of clicks with the log-odds x + offset, which is −log r_s or 0: softplus(∓(x + offset))."""
    x, item, clicked = log
    model, sign = LogOdds(), 1 - 2 * clicked.float()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=steps, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        value = sm.softplus(sign * (model(x, item) + offset)).mean()
        value.backward()
        return value

    optimizer.step(loss)  # pyright: ignore[reportArgumentType]
    return model.requires_grad_(False)


def day(views: int) -> int:
    """How many views of which all are kept a log of so many comes with."""
    return views // 4


def learnt(seed: int, views: int) -> tuple[World, dict[str, Rate], float]:
    """The truth, p of each model, and the temperature of the last but one."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    truth = world(generator)
    x, item, source, clicked = truth.views(views, generator)
    kept = clicked | (torch.rand(views, generator=generator) < KEPT[source])
    log = x[kept], item[kept], clicked[kept]
    plain, corrected = trained(log, 0.0), trained(log, -KEPT[source[kept]].log())
    one_rate = (kept & ~clicked).sum() / (~clicked).sum()
    two = lambda log_odds: torch.stack((torch.zeros_like(log_odds), log_odds), -1)  # whose softmax is σ
    x, item, _, clicked = truth.views(day(views), generator)  # all of which are kept
    found = two(corrected(x, item)), clicked.long()
    tempered, scaled = sm.calibrate_temperature(*found), sm.calibrate_scaling(*found, "vector")
    rates: tuple[Rate, ...] = (
        lambda x, item: torch.sigmoid(plain(x, item)),
        lambda x, item: torch.sigmoid(plain(x, item) + one_rate.log()),
        lambda x, item: torch.sigmoid(corrected(x, item)),
        lambda x, item: tempered(two(corrected(x, item)))[..., 1],
        lambda x, item: scaled(two(corrected(x, item)))[..., 1],
    )
    return truth, dict(zip(MODELS, rates, strict=True)), tempered.temperature


@dataclass(frozen=True)
class Choice:
    """Users with a choice of items: p and P(click) of each, and what its advertiser bids for a click, [users, items]."""

    p: Tensor
    exact: Tensor
    bid: Tensor

    def groups(self) -> tuple[Tensor, Tensor]:
        """The means of p and of P in groups of like p."""
        order = self.p.flatten().argsort().view(GROUPS, -1)
        return self.p.flatten()[order].mean(1), self.exact.flatten()[order].mean(1)

    def measured(self) -> dict[str, float]:
        """What p is worth."""
        p, exact, (own, true) = self.p, self.exact, self.groups()
        regret = torch.special.xlogy(exact, exact / p) + torch.special.xlogy(1 - exact, (1 - exact) / (1 - p))
        shown = (self.bid * p).argmax(1, keepdim=True)
        worth, charged = ((self.bid * rate).gather(1, shown).sum() for rate in (exact, p))
        return {
            "calibration error": float((own - true).abs().mean()),
            "regret": float(regret.mean()),
            "ten best": float(exact.gather(1, p.topk(SHOWN).indices).sum() / exact.topk(SHOWN).values.sum()),
            "auction": float(worth / (self.bid * exact).amax(1).sum()),
            "charged": float(charged / worth),
        }


def choice(truth: World, rate: Rate, seed: int, users: int = 1000) -> Choice:
    """Of users whom no model has seen."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(users, 1, FEATURES, generator=generator).expand(-1, CHOICE, -1)
    item = torch.randint(ITEMS, (users, CHOICE), generator=generator)
    bid = torch.randn(users, CHOICE, generator=generator).exp()
    return Choice(rate(x, item).double(), truth.rate(x, item).double(), bid)


def main(
    seeds: Annotated[int, count("How many worlds and logs.", least=2)] = 5,
    views: Annotated[int, count("Of a log, before it is thinned.", least=1000)] = 50_000,
) -> dict[str, Any]:
    """Prints the table; returns its numbers, one for each seed."""
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in MODELS}
    temperatures, groups = [], {}
    for seed in range(seeds):
        truth, rates, temperature = learnt(seed, views)
        temperatures.append(temperature)
        for name, rate in rates.items():
            made = choice(truth, rate, 1000 + seed)
            runs[name].append(made.measured())
            groups[name] = [means.tolist() for means in made.groups()]  # of the last seed
    results = {name: {key: [run[key] for run in each] for key in each[0]} for name, each in runs.items()}
    print(f"{views} views, of those without a click {KEPT[0]:.0%} and {KEPT[1]:.0%} kept")
    print(f"the last two also see {day(views)} other views, all of which are kept")
    print(
        f"means and standard errors of {seeds} seeds, in %; the regret in thousandths of a nat, charged as a multiple of its worth"
    )
    print(f"{'trained':20}" + "".join(f"{key:>19}" for key in results[MODELS[0]]))
    for name, columns in results.items():
        scaled = ([SCALES.get(key, 100) * value for value in values] for key, values in columns.items())
        cells = (f"{fmean(values):.2f} ± {stdev(values) / seeds**0.5:.2f}" for values in scaled)
        print(f"{name:20}" + "".join(f"{cell:>19}" for cell in cells))
    print(f"the temperature: {fmean(temperatures):.3f}")
    return {"seeds": seeds, "views": views, "kept": day(views), "temperatures": temperatures, "models": results, "groups": groups}


if __name__ == "__main__":
    run(main, __doc__)

r"""A recommender of 10⁶ items: trained with a few thousand negatives a step, searched exactly and by FAISS.

The catalogue is made up, so that the truth is known: a user is a vector u, clusters have centres μ_k, and an item is taken with

    P(c | u) = P(k | u) P(c | k),     P(k | u) = softmax(⟨u, μ_k⟩)_k,     P(c | k) ∝ 1/rank of c in its cluster

Items are numbered by falling popularity. Two models learn a vector for each item and a network from users to queries:

    SampledSoftmax    negatives from a log-uniform sampler, shared by the batch
    InBatchSoftmax    negatives are the other users' items, corrected by the frequencies that are learned from the batches

Recall@k is the probability that a user's next item is among the k that were found, Σ P(c | u), of which the truth's own k best have
the most. FAISS looks into a few of the lists into which it parts the items, and so finds less in less time.

    pip install 'softmaxima[ann]'
    python examples/recommender.py
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import torch
from torch import Tensor, nn

import softmaxima as sm
from softmaxima_lab.commands.example import count, run

if TYPE_CHECKING:
    import faiss


@dataclass(frozen=True)
class Catalogue:
    """Users' taste and items' popularity, as they are."""

    centres: Tensor  # [clusters, features]
    cluster: Tensor  # [items], of each item
    log_share: Tensor  # [items], log P(c | its cluster)
    members: Tensor  # [clusters, size], the items of each cluster by falling share

    @property
    def items(self) -> int:
        return self.cluster.numel()

    def users(self, count: int, generator: torch.Generator) -> Tensor:
        """[count, features]."""
        return torch.randn(count, self.centres.shape[1], generator=generator)

    def takes(self, users: Tensor, generator: torch.Generator) -> Tensor:
        """The item that each user takes next."""
        cluster = torch.multinomial((users @ self.centres.T).softmax(-1), 1, generator=generator).squeeze(-1)
        rank = torch.multinomial(self.log_share[self.members[0]].exp(), len(users), replacement=True, generator=generator)
        return self.members[cluster, rank]

    def probability(self, users: Tensor, items: Tensor) -> Tensor:
        """P(c | u) of items [users, k]."""
        log_p = (users @ self.centres.T).log_softmax(-1).gather(-1, self.cluster[items])
        return (log_p + self.log_share[items]).exp()

    def best(self, users: Tensor, k: int) -> Tensor:
        """The k items of the largest P(c | u), [users, k]: of the first k of each cluster, for a later one is behind k others."""
        first = self.members[:, :k].reshape(1, -1).expand(len(users), -1)
        return first.gather(-1, self.probability(users, first).topk(k).indices)


def make_catalogue(clusters: int, size: int, features: int = 16, generator: torch.Generator | None = None) -> Catalogue:
    centres = torch.randn(clusters, features, generator=generator) * (2.5 / features**0.5)
    share = 1 / torch.arange(1, size + 1)
    log_share = (share / share.sum()).log().repeat(clusters)  # [clusters · size]
    # Of users of the standard normal distribution the mean of exp⟨u, μ⟩ is exp(‖μ‖²/2): nearly the clusters' popularity.
    popularity = log_share + (centres.square().sum(-1) / 2).repeat_interleave(size)
    order = popularity.argsort(descending=True)
    return Catalogue(centres, order // size, log_share[order], order.argsort().view(clusters, size))


def network(features: int, size: int) -> nn.Module:
    """From users to queries."""
    return nn.Sequential(nn.Linear(features, 64), nn.ReLU(), nn.Linear(64, size))


@dataclass(frozen=True)
class Recommender:
    """What search needs: a score is ⟨query, vector⟩ + bias."""

    query: nn.Module
    vectors: Tensor  # [items, size]
    bias: Tensor | None  # [items]

    @torch.no_grad()
    def exact(self, users: Tensor, k: int) -> Tensor:
        queries = self.query(users)
        scores = (part @ self.vectors.T if self.bias is None else part @ self.vectors.T + self.bias for part in queries.split(64))
        return torch.cat([part.topk(k).indices for part in scores])

    @torch.no_grad()
    def index(self, lists: int) -> faiss.Index:
        """Vectors in `lists` clusters; the bias is one feature more, of which queries have 1."""
        import faiss

        vectors = self._with(self.vectors, self.bias)
        index = faiss.IndexIVFFlat(faiss.IndexFlatIP(vectors.shape[1]), vectors.shape[1], lists, faiss.METRIC_INNER_PRODUCT)
        index.cp.niter = 5
        index.cp.max_points_per_centroid = 64
        index.train(vectors.numpy())
        index.add(vectors.numpy())
        return index

    @torch.no_grad()
    def approximate(self, index: Any, users: Tensor, k: int, probes: int) -> Tensor:
        """The k best of the `probes` clusters that are nearest to the query."""
        queries = self.query(users)
        index.nprobe = probes
        return torch.from_numpy(index.search(self._with(queries, torch.ones(len(queries))).numpy(), k)[1])

    def _with(self, x: Tensor, last: Tensor | None) -> Tensor:
        return x if self.bias is None or last is None else torch.cat((x, last.unsqueeze(-1)), -1)


def train(
    name: str,
    catalogue: Catalogue,
    loss: Callable[[Tensor, Tensor], Tensor],
    query: nn.Module,
    table: nn.Module,
    steps: int,
    batch: int,
) -> None:
    """Batches of what new users take. The table's gradients are sparse, and Adagrad moves what has one."""
    generator = torch.Generator().manual_seed(1)
    torch.sparse.check_sparse_tensor_invariants.disable()  # Adagrad warns that it does not ask
    optimizers = [torch.optim.Adam(query.parameters(), lr=3e-3), torch.optim.Adagrad(table.parameters(), lr=0.3)]
    begin = last = time.perf_counter()
    for step in range(1, steps + 1):
        users = catalogue.users(batch, generator)
        value = loss(query(users), catalogue.takes(users, generator))
        value.backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        if step == steps or time.perf_counter() - last > 5:
            last = time.perf_counter()
            print(f"  {name}: step {step} of {steps}, loss {value.item():.3f}, {last - begin:.0f} s", flush=True)


def by_sampled_softmax(catalogue: Catalogue, size: int, samples: int, steps: int, batch: int) -> Recommender:
    query = network(catalogue.centres.shape[1], size)
    head = sm.SampledSoftmax(size, catalogue.items, samples, "log_uniform", sparse=True, generator=2)
    with torch.no_grad():
        head.bias.copy_(-torch.arange(1, catalogue.items + 1).log())  # Zipf's law, to begin with
    train("SampledSoftmax", catalogue, head, query, head, steps, batch)
    return Recommender(query, head.weight.detach(), head.bias.detach())


def by_in_batch_softmax(catalogue: Catalogue, size: int, steps: int, batch: int) -> Recommender:
    query, table = network(catalogue.centres.shape[1], size), nn.Embedding(catalogue.items, size, sparse=True)
    nn.init.uniform_(table.weight, -(size**-0.5), size**-0.5)
    loss = sm.InBatchSoftmax(sm.StreamingFrequency(4 * catalogue.items))
    train("InBatchSoftmax", catalogue, lambda q, items: loss(q, table(items), items), query, table, steps, batch)
    return Recommender(query, table.weight.detach(), None)


def main(
    clusters: Annotated[int, count("Of items, each with a centre.")] = 1000,
    size: Annotated[int, count("Items of a cluster.")] = 1000,
    features: Annotated[int, count("Of a vector.")] = 32,
    samples: Annotated[int, count("Negatives of a step.")] = 2048,
    steps: Annotated[int, count("Of training.")] = 800,
    batch: Annotated[int, count("Users of a step.")] = 1024,
    tests: Annotated[int, count("Other users, of whom recall is measured.")] = 512,
    k: Annotated[int, count("How many items are found for each.")] = 100,
    lists: Annotated[int, count("Into which FAISS parts the items.")] = 1024,
    probes: Annotated[int, count("Lists that FAISS looks into.")] = 64,
) -> dict[str, tuple[float, float]]:
    """Prints the table; returns recall@k by exact search and by FAISS of each model, and of the truth and of popularity alone."""
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    catalogue = make_catalogue(clusters, size, generator=generator)
    users = catalogue.users(tests, generator)
    recall = lambda found: float(catalogue.probability(users, found).sum(-1).mean())
    best, popular = recall(catalogue.best(users, k)), recall(torch.arange(k).expand(tests, k))
    print(f"{catalogue.items} items, {steps} steps of {batch} users, recall@{k} of {tests} other users", flush=True)
    results = {"truth": (best, best), "popularity": (popular, popular)}
    table = []
    for name, learn in (
        ("SampledSoftmax", lambda: by_sampled_softmax(catalogue, features, samples, steps, batch)),
        ("InBatchSoftmax", lambda: by_in_batch_softmax(catalogue, features, steps, batch)),
    ):
        model = learn()
        begin = time.perf_counter()
        exact = model.exact(users, k)
        middle = time.perf_counter()
        index = model.index(lists)
        built = time.perf_counter()
        near = model.approximate(index, users, k, probes)
        times = (middle - begin, time.perf_counter() - built)
        print(f"  {name}: FAISS index in {built - middle:.0f} s", flush=True)
        results[name] = recall(exact), recall(near)
        shared = (exact.unsqueeze(-1) == near.unsqueeze(-2)).any(-1).double().mean().item()
        table.append((name, *results[name], shared, *(1e3 * each / tests for each in times)))
    print(f"recall@{k}             exact search    FAISS    of the exact k   ms a query: exact    FAISS")
    for name, exact, near, shared, slow, fast in table:
        print(f"{name:20s} {exact:14.4f} {near:8.4f} {shared:17.3f} {slow:20.2f} {fast:8.2f}")
    print(f"{'popularity alone':20s} {popular:14.4f}\n{'best possible':20s} {best:14.4f}")
    return results


if __name__ == "__main__":
    run(main, __doc__, needs=("faiss",))

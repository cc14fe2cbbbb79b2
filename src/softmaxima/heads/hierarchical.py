r"""HierarchicalSoftmax: p(class) = Π p(child | node) along the path of the class in a tree; a loss costs O(depth)."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from softmaxima.base.arguments import check_place
from softmaxima.base.numbers import check_choice, check_count
from softmaxima.base.public import public
from softmaxima.heads import tree_descent
from softmaxima.heads.factored import FactoredHead
from softmaxima.heads.tree_paths import TABLES, Layer, path_losses, rows_of, tables
from softmaxima.heads.trees import Tree, check_frequencies

SAVED = ("tree_children", "tree_counts")  # what the state dict has of a tree, from which its other tables follow


@public
class HierarchicalSoftmax(FactoredHead):
    r"""A softmax over very many classes that decides node by node of a tree whose leaves are the classes.

    p(class) = Π p(child | node) over the nodes of its path. At a node of two children p(first) = σ(s) and p(second) = σ(−s) with
    one score s = (w·h + b)/τ, as in word2vec; at a node of more p(i) = e^{s_i}/Σ_j e^{s_j} with a score for each; a node of one
    child decides nothing. So a binary tree of V classes has V − 1 rows of parameters.

    Args:
        in_features: the size of h.
        classes: V, or a `Tree`.
        tree: "balanced" (binary, of the smallest depth), "huffman" (binary, of the smallest mean depth under `frequencies`) or
            "clusters" (two levels, ⌈√V⌉ clusters; with frequencies the frequent classes are in small ones). For any other tree give
            it as `classes`: `Tree.balanced(V, 16)`, `Tree.of([[0, 1], [2, 3, 4]])`.
        frequencies: one number of at least 0 for each class, in any order.
        bias: whether scores have one.
        temperature: τ > 0, a number, a tensor of one, or a module such as `Positive`, which learns.
        class_weight: one weight a class, as `weight` of `cross_entropy`.
        ignore_index, reduction: as of `cross_entropy`.
        sparse: give the parameters sparse gradients, of the rows on the batch's paths, as `nn.Embedding` does.
        device, dtype: of the parameters.

    Shapes: forward(hidden, target) takes (…, in_features) and class indices (…), and gives the loss in nats, −log p of the target,
    reduced. `log_prob(hidden)` is (…, V), `predict(hidden, k)` and `topk(hidden, k)` (…, k), `sample(hidden, shape)` (*shape, …).

    There is no label_smoothing, which needs the scores of all classes. Scores and sums are float32 at least, also under autocast:
    of half precision the loss, `log_prob` and the gradients of hidden states and layers are those of float32, rounded once. The
    state dict holds the tree; one that is loaded replaces the module's, if it has as many classes and rows of parameters.
    torch.compile leaves the head out of its graph, and refuses fullgraph=True.

    Raises:
        TypeError, ValueError or IndexError, before any work: shapes and dtypes, a target out of range, what is no tree.

    Cost of the loss: the rows of parameters on a label's path, log₂ V on average in a balanced tree, fewer in Huffman's, about 2√V
    in clusters of equal size; a few numbers for each decision, and blocks that stay below 64 MiB. The gradient has the parameters'
    size unless it is sparse. `topk` is exact. It goes down to k classes, the best children first, and then looks at the nodes more
    probable than the k-th, the best first, ever more at a time; a row of which very many are left is computed in full, as by
    `log_prob`, which costs as much as a softmax over V.

    Sources: Goodman (2001), arXiv:cs/0108006; Morin and Bengio (2005), "Hierarchical probabilistic neural network language model";
    Mikolov et al. (2013), arXiv:1310.4546.

    >>> import torch
    >>> from softmaxima.heads.hierarchical import HierarchicalSoftmax
    >>> head = HierarchicalSoftmax(16, 1000, tree="huffman", frequencies=1 / torch.arange(1.0, 1001))
    >>> head.tree
    Tree(classes=1000, nodes=999, depth=13)
    >>> hidden, target = torch.randn(8, 16), torch.arange(8)
    >>> head(hidden, target).backward()
    >>> head.log_prob(hidden).exp().sum(-1).allclose(torch.ones(8))
    True
    >>> head.predict(hidden, k=3).equal(head.log_prob(hidden).topk(3).indices)
    True
    """

    def __init__(
        self,
        in_features: int,
        classes: int | Tree,
        *,
        tree: str = "balanced",
        frequencies: Any = None,
        bias: bool = True,
        temperature: float | Tensor | nn.Module = 1.0,
        class_weight: Tensor | None = None,
        ignore_index: int = -100,
        reduction: str = "mean",
        sparse: bool = False,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        name = type(self).__name__
        own = check_place(name, device, dtype)
        super().__init__(
            in_features,
            _count(name, classes),
            class_weight=class_weight,
            temperature=temperature,
            ignore_index=ignore_index,
            reduction=reduction,
            sparse=sparse,
            **own,
        )
        made = _made(name, classes if isinstance(classes, Tree) else self.classes, tree, frequencies)
        rows = int(rows_of(made.counts).sum())
        self.weight = nn.Parameter(torch.empty(rows, self.in_features, **own))
        self.bias = nn.Parameter(torch.empty(rows, **own)) if bias else None
        self._hold_tree(made, self.weight.device)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """As of `nn.Linear`: uniform within ±1/√in_features."""
        for parameter in (self.weight, self.bias):
            if parameter is not None:
                parameter.uniform_(-1 / math.sqrt(self.in_features), 1 / math.sqrt(self.in_features))

    def _hold_tree(self, tree: Tree, device: Any) -> None:
        self.tree = tree
        for what, table in tables(tree).items():
            self.register_buffer(f"tree_{what}", table.to(device, copy=True), persistent=f"tree_{what}" in SAVED)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *others: Any, **named: Any) -> None:
        """Take the tree of the state dict first; what else there is, it is loaded as of any module."""
        own = [state_dict[prefix + what] for what in SAVED if prefix + what in state_dict]
        if len(own) == len(SAVED):
            try:
                tree = Tree(*own)
                if tree.classes != self.classes or int(rows_of(tree.counts).sum()) != len(self.weight):
                    raise ValueError(
                        f"it is {tree}, and the module has {self.tree}; build the module with Tree({', '.join(SAVED)})"
                    )
            except (TypeError, ValueError) as error:
                others[-1].append(f"{type(self).__name__}: the tree of the state dict does not fit: {error}")
                return
            self._hold_tree(tree, own[0].device if self.weight.is_meta else self.weight.device)
        super()._load_from_state_dict(state_dict, prefix, *others, **named)

    @property
    def _first_weight(self) -> Tensor:
        return self.weight

    def _layer(self) -> Layer:
        own = {what: getattr(self, f"tree_{what}") for what in TABLES}
        return Layer(self.weight, self._over_temperature(self.bias), **own, sparse=self.options["sparse"])

    def _losses(self, states: Tensor, labels: Tensor, left_out: Tensor | None, reduction: str) -> Tensor:
        losses = path_losses(self._layer(), states, labels, left_out)
        return losses if reduction == "none" else losses.sum()

    def _log_prob(self, states: Tensor) -> Tensor:
        return tree_descent.log_prob(self._layer(), self.tree.levels, states)

    def _best(self, states: Tensor, k: int) -> tuple[Tensor, Tensor]:
        return tree_descent.best(self._layer(), self.tree.levels, states, k)

    def _draw(self, states: Tensor, times: int, generator: torch.Generator | None) -> Tensor:
        return tree_descent.draw(self._layer(), states, times, generator)

    def extra_repr(self) -> str:
        return f"{self.in_features}, {self.tree}, bias={self.bias is not None}, {super().extra_repr()}"


def _count(name: str, classes: Any) -> int:
    """V."""
    if isinstance(classes, (list, tuple)):
        raise TypeError(f"{name}: classes must be an int or a Tree, got {type(classes).__name__}; call Tree.of(classes)")
    return classes.classes if isinstance(classes, Tree) else check_count(name, "classes", classes)


def _made(name: str, classes: Any, tree: Any, frequencies: Any) -> Tree:
    if isinstance(classes, Tree):
        if tree != "balanced" or frequencies is not None:
            raise TypeError(f"{name}: tree and frequencies are for a number of classes, got them beside {classes}; leave them out")
        return classes
    kind = check_choice(name, "tree", tree, ("balanced", "huffman", "clusters"))
    if frequencies is not None:
        frequencies = check_frequencies(name, frequencies, classes)
    if (frequencies is None and kind == "huffman") or (frequencies is not None and kind == "balanced"):
        raise ValueError(f"{name}: tree={kind!r} {'needs' if frequencies is None else 'takes no'} frequencies")
    if kind == "huffman":
        return Tree.huffman(frequencies)
    return Tree.balanced(classes) if kind == "balanced" else Tree.clusters(classes, frequencies=frequencies)

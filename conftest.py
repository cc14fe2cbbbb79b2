"""One case a registered map and example of its parameters; `--maps` restricts them. Every property file iterates these."""

from __future__ import annotations

import functools
import math
import os
import random
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import hypothesis
import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from softmaxima.kernels.devices import has_kernel
from softmaxima.losses import REGISTRY as LOSSES
from softmaxima.losses import Loss
from softmaxima.maps import REGISTRY, Map, Properties

if "PYTEST_XDIST_WORKER" in os.environ:
    torch.set_num_threads(1)  # there is a worker for each core

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
ON_TRITON = os.environ.get("SOFTMAXIMA_BACKEND") == "triton"
DEVICE = "cuda" if ON_TRITON and not INTERPRETED else "cpu"  # of tensors for kernels that conftest does not bring there
if INTERPRETED:
    import triton.language
    from triton.language import standard
    from triton.runtime import interpreter

    from softmaxima.kernels.triton import rows as row_kernels

    # Triton's interpreter replaces triton.language anew at each call of a function: three quarters of its time. Once is enough.
    for jitted in (row_kernels.add, standard.sum):
        interpreter._patch_lang(jitted.fn)
    interpreter._patch_lang = lambda function: interpreter._LangPatchScope()

    # It cuts bfloat16 off where a GPU rounds it.
    BFLOAT16 = (triton.language.bfloat16, triton.language.float32)
    convert = interpreter._convert_float

    def rounded(x: Any, source: Any, target: Any, rounding: Any) -> Any:
        if (source, target) == BFLOAT16:
            return (x.view("uint16").astype("uint32") << 16).view("float32")
        if (target, source) == BFLOAT16:
            return torch.from_numpy(x.view("float32")).to(torch.bfloat16).view(torch.uint16).numpy()
        return convert(x, source, target, rounding)

    interpreter._convert_float = rounded

    # It multiplies the bits of bfloat16, not their numbers.
    dot = interpreter.InterpreterBuilder.create_dot

    def multiplied(self: Any, a: Any, b: Any, *others: Any) -> Any:
        wide = triton.language.float32
        pair = [
            interpreter.TensorHandle(rounded(x.data, triton.language.bfloat16, wide, None), wide)
            if x.dtype.scalar == triton.language.bfloat16
            else x
            for x in (a, b)
        ]
        return dot(self, *pair, *others)

    interpreter.InterpreterBuilder.create_dot = multiplied

elif ON_TRITON:
    # On a GPU, where the tensors of the tests go and come back; those that are there stay.
    from softmaxima.kernels.triton import library

    def there_and_back(function: Callable[..., Any]) -> Callable[..., Any]:
        def moved(value: Any, device: str) -> Any:
            return tree_map(lambda leaf: leaf.to(device) if isinstance(leaf, Tensor) else leaf, value)

        def called(*arguments: Any, **options: Any) -> Any:
            given = [leaf for leaf in tree_leaves((arguments, options)) if isinstance(leaf, Tensor)]
            result = function(*moved(arguments, "cuda"), **moved(options, "cuda"))
            return result if all(leaf.is_cuda for leaf in given) else moved(result, "cpu")

        return called

    for kernel in ("forward", "backward", "logsumexp", "logsumexp_backward", "loss", "scale_rows"):
        setattr(library, kernel, there_and_back(getattr(library, kernel)))

# `make test` tries a quarter of the examples that `make test-all` does, by --hypothesis-profile=thorough; the interpreter fewer.
EXAMPLES = 60
for profile, share in (("default", 4), ("thorough", 1)):
    examples = 5 if INTERPRETED else EXAMPLES // share
    hypothesis.settings.register_profile(profile, deadline=None, max_examples=examples, derandomize=True)
hypothesis.settings.load_profile("default")


def is_thorough() -> bool:
    """Whether this is `make test-all`."""
    return hypothesis.settings().max_examples == EXAMPLES


def some(examples: Iterable[Any], *of: Any) -> Sequence[Any]:
    """All in `make test-all`; else a quarter, others for each map or dtype that they are `of`. The interpreter's are few."""
    examples = list(examples)
    if is_thorough() or INTERPRETED:
        return examples
    drawn = random.Random(" ".join(map(str, of))).sample(range(len(examples)), math.ceil(len(examples) / 4))
    return [examples[place] for place in sorted(drawn)]


def in_one_direction(check: Callable[..., bool]) -> Callable[..., bool]:
    """A check of derivatives that takes one direction of all, instead of each, but in `make test-all`."""
    return lambda *arguments, **options: check(*arguments, fast_mode=not is_thorough(), **options)


# Before the tests import them.
torch.autograd.gradcheck = in_one_direction(torch.autograd.gradcheck)
torch.autograd.gradgradcheck = in_one_direction(torch.autograd.gradgradcheck)


def at_most(examples: int) -> hypothesis.settings:
    """So many, instead of EXAMPLES, of a property whose examples are dear; the same share of them as of others."""
    own = hypothesis.settings().max_examples
    return hypothesis.settings(max_examples=examples if INTERPRETED else max(1, examples * own // EXAMPLES))


# The interpreter is slow, and the GPU kernels know half precision only where they read and write.
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)[: 2 if INTERPRETED else 4]

# How far a probability may be from the float64 reference, in absolute terms.
TOLERANCE = {
    torch.float64: 1e-11,  # the reference of entmax loses 1/β = 20 times the rounding of its threshold at α = 1.05
    torch.float32: 3e-6,  # exp of a float32 argument of 30 has a relative error of 30·2⁻²⁴
    torch.bfloat16: 2**-9 + 3e-6,  # half a unit in the last place below 1
    torch.float16: 2**-12 + 3e-6,
}


@dataclass(frozen=True)
class Case:
    """A map with values for its parameters."""

    map: Map
    params: dict[str, Any]

    def __call__(self, x: Any, dim: int = -1, **options: Any) -> Any:
        return self.map(x, dim, **self.params, **options)

    def probabilities(self, x: Tensor, dim: int = -1, **options: Any) -> Tensor:
        """p, also for maps that return log p."""
        out = self(x, dim, **options)
        return out.exp() if self.claims.logarithmic else out

    def reference(self, x: Tensor) -> Tensor:
        return self.map.reference(x, **self.params)

    @property
    def claims(self) -> Properties:
        return self.map.properties

    def largest_mass(self, x: Tensor, dim: int = -1) -> Tensor:
        """The most that Σp is."""
        return self.claims.largest_mass((x > -math.inf).sum(dim), **self.params)

    @property
    def nothing(self) -> float:
        """What a masked score gets."""
        return -math.inf if self.claims.logarithmic else 0.0

    def __str__(self) -> str:
        values = ",".join(f"{k}={getattr(v, '__name__', v)}" for k, v in self.params.items())
        return f"{self.map.name}({values})"


def exhaustively(*values: Any) -> Any:
    """Values of a parametrised test that are tried where everything is, and not in every run."""
    return pytest.param(*values, marks=pytest.mark.exhaustive)


def chosen(examples: Sequence[Any]) -> Sequence[Any]:
    """All, or two of them in the interpreter."""
    return examples if not INTERPRETED else (examples[0], examples[-1])[: len(examples)]


def cases(map: Map) -> Iterator[Case]:
    defaults = {parameter.name: parameter.default for parameter in map.params}
    if not map.params:
        yield Case(map, {})
    for parameter in map.params:
        for value in chosen(parameter.examples):
            yield Case(map, defaults | {parameter.name: value})


def has_gpu_kernel(map: Map) -> bool:
    return map.kernel is not None and has_kernel("cpu", map.kernel.key)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--maps", default="", help="comma-separated names of the maps to test; all by default")


@pytest.hookimpl(trylast=True)  # after marks and -k have chosen
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Of a whole folder, and not in `make test-all`: each value that a test is parametrized by, instead of each combination."""
    by_name = config.getoption("maps") or config.getoption("keyword") or not all(os.path.isdir(path) for path in config.args)
    if by_name or is_thorough():
        return
    of_each: dict[str, list[pytest.Function]] = {}
    for item in items:
        if isinstance(item, pytest.Function) and hasattr(item, "callspec"):
            of_each.setdefault(item.nodeid.partition("[")[0], []).append(item)
    left_out = {item for name, each in of_each.items() for item in set(each) - set(covering(name, each))}
    items[:] = [item for item in items if item not in left_out]
    config.hook.pytest_deselected(items=list(left_out))


def covering(name: str, items: Sequence[pytest.Function]) -> list[pytest.Function]:
    """Few of the cases of a test in which each value of each of its parameters is."""
    drawn = random.Random(name).sample(items, len(items))
    seen: set[tuple[int, str]] = set()
    chosen = []
    for least in (len(drawn[0].callspec._idlist), 1):  # first those of which all is new
        for item in drawn:
            unseen = set(enumerate(item.callspec._idlist)) - seen
            if len(unseen) >= least:
                seen |= unseen
                chosen.append(item)
    return chosen


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    names = [name for name in metafunc.config.getoption("--maps").split(",") if name]
    maps = [REGISTRY[name] for name in names or REGISTRY]
    if ON_TRITON and not names:
        maps = [map for map in maps if has_gpu_kernel(map)]
    if "case" in metafunc.fixturenames:
        metafunc.parametrize("case", [case for map in maps for case in cases(map)], ids=str)
    if "learnable" in metafunc.fixturenames:
        learnable = [(case, p) for map in maps for case in cases(map) for p in map.params if p.gradient is not None]
        metafunc.parametrize("learnable", learnable, ids=lambda pair: f"{pair[0]}-{pair[1].name}")
    if "loss" in metafunc.fixturenames:
        examples = [LossCase(loss, options) for loss in LOSSES.values() for options in chosen(loss.examples)]
        metafunc.parametrize("loss", examples, ids=str)
    if "dtype" in metafunc.fixturenames:
        metafunc.parametrize("dtype", DTYPES, ids=lambda dtype: str(dtype).removeprefix("torch."))


@dataclass(frozen=True)
class LossCase:
    """A loss with values for its options."""

    loss: Loss
    options: dict[str, Any]

    def __call__(self, x: Any, target: Any, **options: Any) -> Any:
        return self.loss.function(x, target, **self.options, **options)

    def scores(self, *shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
        """Scores in the loss's domain."""
        x = 2 * torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        return (torch.tanh(x) if self.loss.on_cosines else x).to(dtype)

    def __str__(self) -> str:
        return f"{self.loss.name}({','.join(f'{k}={v}' for k, v in self.options.items())})"


def is_gone(group: int) -> bool:
    """Whether no process of a group is left."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return True
    return False


def normal(*shape: int, seed: int = 0, scale: float = 2.0, dtype: torch.dtype = torch.float64) -> Tensor:
    """Scores without ties."""
    generator = torch.Generator().manual_seed(seed)
    return (scale * torch.randn(shape, generator=generator, dtype=torch.float64)).to(dtype)


@st.composite
def rows(draw: st.DrawFn, dtype: torch.dtype = torch.float64, masks: bool = True) -> Tensor:
    """Up to 4 rows of up to 12 scores in [−30, 30], with ties and −∞, never a row of −∞ alone."""
    height, width = draw(st.integers(1, 4)), draw(st.integers(1, 12))
    ordinary = st.floats(-30, 30, width=32)
    score = st.one_of(ordinary, st.sampled_from([-1.0, 0.0, 0.5, 1.0, 2.0]))
    if masks:
        score = st.one_of(score, score, score, st.just(-math.inf))
    table = [[draw(ordinary)] + [draw(score) for _ in range(width - 1)] for _ in range(height)]
    return torch.tensor(table, dtype=dtype)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Tests of what is made once, for a file or as ranks for several, go to one worker of pytest-xdist, each other to any."""
    from xdist.scheduler import LoadScopeScheduling

    @functools.cache
    def whole(file: str) -> str | None:
        text = (config.rootpath / file).read_text()
        if "from processes import" in text:
            return "ranks"
        return file if re.search(r'^@pytest.fixture\(.*scope="module"', text, re.MULTILINE) else None

    class Scheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return whole(nodeid.split("::")[0]) or nodeid

    return Scheduling(config, log) if config.getoption("dist") == "load" else None


@pytest.fixture(scope="session")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Processes for groups of ranks."""
    from processes import Pool  # of tests/distributed, whose tests alone need it

    pool = Pool(tmp_path_factory.mktemp("ranks"))
    yield pool
    pool.close()


@pytest.fixture
def three(pool: Any) -> Any:
    """Three ranks."""
    return pool.group(range(3))


@pytest.fixture
def four(pool: Any) -> Any:
    return pool.group(range(4))


@pytest.fixture
def one(pool: Any) -> Any:
    """One rank, that is not of the three."""
    return pool.group([3])


Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture) -> Run:
    """(exit code, stdout, stderr) of a command of `softmaxima` in this process."""

    from softmaxima_lab.commands import main

    def run(*arguments: str) -> tuple[int, str, str]:
        code = 0
        try:
            main(arguments)
        except SystemExit as end:
            code = int(end.code or 0)
        return code, *capsys.readouterr()

    return run


@pytest.fixture
def softmaxima_lse(run: Run) -> Run:
    return partial(run, "lse")

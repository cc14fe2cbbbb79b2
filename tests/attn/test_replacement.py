"""replace_attention: models whose code calls torch's attention get another map, and everything else of them stays."""

from __future__ import annotations

import copy
import functools
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.functional import scaled_dot_product_attention as sdpa
from torch.utils.checkpoint import checkpoint

import softmaxima as sm

# Modules as people write them -----------------------------------------------------------------------------------------------------


class Attention(nn.Module):
    """As timm's `Attention` is written."""

    def __init__(self, dim: int = 16, num_heads: int = 2, fused_attn: bool = True) -> None:
        super().__init__()
        self.num_heads, self.head_dim, self.fused_attn = num_heads, dim // num_heads, fused_attn
        self.scale = self.head_dim**-0.5
        self.qkv, self.proj = nn.Linear(dim, dim * 3), nn.Linear(dim, dim)
        self.attn_drop = nn.Dropout(0.0)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, size = x.shape
        qkv = self.qkv(x).reshape(batch, length, 3, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0)
        if self.fused_attn:
            x = functional.scaled_dot_product_attention(q, k, v, dropout_p=self.attn_drop.p if self.training else 0.0)
        else:
            attn = (q * self.scale @ k.transpose(-2, -1)).softmax(dim=-1)
            x = self.attn_drop(attn) @ v
        return self.proj(x.transpose(1, 2).reshape(batch, length, size))


class Block(nn.Module):
    def __init__(self, attn: nn.Module) -> None:
        super().__init__()
        self.norm, self.attn = nn.LayerNorm(16), attn

    def forward(self, x: Tensor) -> Tensor:
        return x + self.attn(self.norm(x))


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    return functional.scaled_dot_product_attention(q, k, v, mask, 0.0, mask is None, scale=0.5)


class ByHelpers(nn.Module):
    """Calls it in a function that a method calls."""

    def __init__(self, mask: Tensor | None = None) -> None:
        super().__init__()
        self.mask = mask

    def forward(self, x: Tensor) -> Tensor:
        return self.mix(x)

    def mix(self, x: Tensor) -> Tensor:
        return attend(x / 4, x, x, self.mask)


def by_closure() -> nn.Module:
    mine = functional.scaled_dot_product_attention

    class ByClosure(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return mine(x / 4, x, x) if x.ndim else late

    model = ByClosure()
    assert sm.replace_attention(copy.deepcopy(model), "sparsemax").replaced
    late = 0
    return model


class ByAnotherName(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return sdpa(x / 4, x, x)


class ByOperation(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.ops.aten.scaled_dot_product_attention(x / 4, x, x)


class ByOverload(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.ops.aten.scaled_dot_product_attention.default(x / 4, x, x)


class ByCheckpoint(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(attend, x, x, x, None, use_reentrant=False)


class ByHand(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.softmax(x @ x.mT, -1) @ x


class WithASoftmax(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.normalise = nn.Softmax(-1)

    def forward(self, x: Tensor) -> Tensor:
        return self.normalise(x @ x.mT) @ x


class ByTorchsFunction(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        y, eye = x.mT.contiguous().mT, torch.eye(16)
        options = {"training": False, "need_weights": False}
        return functional.multi_head_attention_forward(
            y, y, y, 16, 2, torch.cat((eye, eye, eye)), None, None, None, False, 0.0, eye, None, **options
        )[0]


class Mine(nn.MultiheadAttention):
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return super().forward(*args, **kwargs)


class Outer(nn.Module):
    """Calls it beside a module that computes a softmax, or does not."""

    def __init__(self, inside: nn.Module, calls: bool) -> None:
        super().__init__()
        self.inside, self.calls = inside, calls

    def forward(self, x: Tensor) -> Tensor:
        x = self.inside(x)
        return functional.scaled_dot_product_attention(x, x, x) if self.calls else x


def vit() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(Block(Attention()), Block(Attention())).eval()


def encoder(**options: Any) -> nn.TransformerEncoder:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    return nn.TransformerEncoder(layer, 2, **options).eval()


X = 3 * torch.randn(2, 5, 16, generator=torch.Generator().manual_seed(0))
PADDING = torch.arange(5) >= torch.tensor([[5], [3]])
MODELS: dict[str, Callable[[], nn.Module]] = {"vit": vit, "encoder": encoder, "helpers": ByHelpers}
every_model = pytest.mark.parametrize("build", MODELS.values(), ids=MODELS)


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    """Models this small wait for each other's threads longer than they compute."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


# What is replaced ----------------------------------------------------------------------------------------------------------------


@every_model
def test_with_softmax_nothing_changes(build: Callable[[], nn.Module]):
    model, theirs = build(), build()
    report = sm.replace_attention(model, "softmax")
    assert report.replaced
    assert not report.kept
    x, y = X.clone().requires_grad_(), X.clone().requires_grad_()
    torch.testing.assert_close(model(x), theirs(y), rtol=1e-5, atol=1e-5)
    model(x).square().sum().backward()
    theirs(y).square().sum().backward()
    for ours, other in zip((x, *model.parameters()), (y, *theirs.parameters()), strict=True):
        torch.testing.assert_close(ours.grad, other.grad, rtol=1e-4, atol=1e-4)


@every_model
@pytest.mark.parametrize("grad", [False, True])
def test_another_map_is_another_model_until_it_is_undone(build: Callable[[], nn.Module], grad: bool):
    model = build()
    parameters, state, classes = list(model.parameters()), list(model.state_dict()), [type(m) for m in model.modules()]
    with torch.set_grad_enabled(grad):
        before = model(X)
        report = sm.replace_attention(model, "sparsemax", temperature=0.5)
        after = model(X)
        assert (after - before).abs().max() > 1e-2
        assert list(model.state_dict()) == state
        assert all(a is b for a, b in zip(model.parameters(), parameters, strict=True))
        report.undo()
        assert torch.equal(model(X), before)
    assert [type(m) for m in model.modules()] == classes
    assert not any(hasattr(m, name) for m in model.modules() for name in ("_asked", "temperature", "map"))


@torch.no_grad()
def test_an_encoder_leaves_its_fused_path_and_takes_padding():
    model, theirs = encoder(), encoder(enable_nested_tensor=False)
    report = sm.replace_attention(model, "softmax")
    assert report.replaced == {
        "": "use_nested_tensor=False, for attention with a map takes no nested tensors",
        "layers.0.self_attn": "MultiheadAttention, with softmax",
        "layers.1.self_attn": "MultiheadAttention, with softmax",
    }
    found, expected = (m(X, src_key_padding_mask=PADDING)[~PADDING] for m in (model, theirs))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    report.undo()
    assert model.use_nested_tensor
    sm.replace_attention(model, "sparsemax")
    layer, inside = model.layers[0], model.layers[0].self_attn
    assert isinstance(inside, sm.MultiheadAttention)
    p = inside(X, X, X, average_attn_weights=False)[1]
    assert (p == 0).any()
    y = layer.norm1(X + inside(X, X, X)[0])
    torch.testing.assert_close(layer(X), layer.norm2(y + layer.linear2(layer.linear1(y).relu())))


@torch.no_grad()
def test_a_transformer_with_a_decoder_has_it_in_every_layer():
    torch.manual_seed(0)
    model = nn.Transformer(16, 2, 1, 2, 32, dropout=0.0, batch_first=True).eval()
    before = model(X, X[:, :4], tgt_is_causal=True, tgt_mask=nn.Transformer.generate_square_subsequent_mask(4))
    report = sm.replace_attention(model, "softmax")
    assert len([what for what in report.replaced.values() if what.startswith("MultiheadAttention")]) == 5
    after = model(X, X[:, :4], tgt_is_causal=True, tgt_mask=nn.Transformer.generate_square_subsequent_mask(4))
    torch.testing.assert_close(after, before, rtol=1e-5, atol=1e-5)


def test_every_option_of_a_multihead_attention_stays():
    for options in ({"bias": False, "add_bias_kv": True}, {"add_zero_attn": True, "kdim": 16, "vdim": 16}, {"batch_first": True}):
        theirs = nn.MultiheadAttention(16, 2, **options)
        model = copy.deepcopy(theirs)
        hooked: list[int] = []
        model.register_forward_hook(lambda *_, hooked=hooked: hooked.append(1))
        sm.replace_attention(model, "softmax")
        for a, b in zip(model(X, X, X), theirs(X, X, X), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)
        assert hooked


@torch.no_grad()
def test_a_caller_gets_the_attention_of_its_own_arguments():
    for mask in (None, torch.rand(5, 5) > 0.3, torch.randn(5, 5)):
        model = ByHelpers(mask)
        sm.replace_attention(model, "entmax", alpha=1.3, sink=0.5, temperature=2.0)
        options: dict[str, Any] = {"map": "entmax", "alpha": 1.3, "sink": 0.5, "temperature": 2.0, "scale": 0.5}
        torch.testing.assert_close(model(X), sm.attention(X / 4, X, X, mask, is_causal=mask is None, **options))


@pytest.mark.parametrize("build", [by_closure, ByAnotherName, ByOperation, ByOverload])
def test_a_caller_is_found_by_what_it_calls(build: Callable[[], nn.Module]):
    model = build()
    assert sm.replace_attention(model, "sparsemax").replaced == {"": "scaled_dot_product_attention, with sparsemax"}
    torch.testing.assert_close(model(X), sm.attention(X / 4, X, X, map="sparsemax"))


def test_a_block_that_is_checkpointed_has_the_same_gradients():
    gradients = []
    for again in (False, True):
        model = vit()
        sm.replace_attention(model, "entmax15")
        y = checkpoint(model, X, use_reentrant=False) if again else model(X)
        y.square().sum().backward()
        gradients.append(model[0].attn.qkv.weight.grad)
    torch.testing.assert_close(*gradients)


@torch.no_grad()
def test_no_other_caller_is_touched():
    sm.replace_attention(vit(), "sparsemax")
    other = vit()
    expected = other(X)
    inside: list[Tensor] = []
    model = vit()
    sm.replace_attention(model, "sparsemax")
    model[1].register_forward_hook(lambda *_: inside.append(other(X)))
    model(X)
    assert torch.equal(inside[0], expected)
    assert type(other[0].attn) is Attention


# What goes on ---------------------------------------------------------------------------------------------------------------------


@every_model
@torch.no_grad()
def test_copies_and_pickles_have_it_too(build: Callable[[], nn.Module]):
    model = build()
    report = sm.replace_attention(model, "sparsemax")
    expected = model(X)
    twins = (copy.deepcopy(model), pickle.loads(pickle.dumps(model)), copy.copy(model))
    report.undo()
    for twin in twins[:2]:
        assert torch.equal(twin(X), expected)
        assert not torch.equal(model(X), expected)


@every_model
def test_it_compiles_in_one_graph(build: Callable[[], nn.Module]):
    model = build()
    sm.replace_attention(model, "entmax15")
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    with torch.no_grad():
        torch.testing.assert_close(compiled(X), model(X))


def test_a_compiled_model_is_reported_once():
    model = torch.compile(ByHelpers(), backend="eager")
    report = sm.replace_attention(model, "sparsemax")
    assert str(report) == "_orig_mod: scaled_dot_product_attention, with sparsemax"
    torch.testing.assert_close(model(X), sm.attention(X / 4, X, X, map="sparsemax", is_causal=True, scale=0.5))


def test_an_optimiser_goes_on():
    model = nn.Sequential(vit(), encoder()).train()
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-2)
    sm.replace_attention(model, "entmax", alpha=1.3)
    losses = []
    for _ in range(10):
        optimiser.zero_grad()
        loss = (model(X) - X.tanh()).square().mean()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < 0.8 * losses[0]


@torch.no_grad()
def test_under_autocast_it_gives_the_dtype_of_torchs_function():
    model, caller, theirs = vit(), ByHelpers(), ByHelpers()
    sm.replace_attention(model, "entmax15")
    sm.replace_attention(caller, "softmax")
    with torch.autocast("cpu", torch.bfloat16):
        found = model(X)
        assert caller(X).dtype == theirs(X).dtype == torch.bfloat16
    assert (found - model(X)).norm() < 0.05 * model(X).norm()


def test_a_parameter_of_one_module_can_learn_afterwards():
    model = encoder()
    sm.replace_attention(model, "entmax", alpha=1.3)
    model.layers[0].self_attn.alpha = nn.Parameter(torch.tensor([1.2, 1.8]))
    model(X).square().sum().backward()
    assert model.layers[0].self_attn.alpha.grad.abs().min() > 0


# What is not ----------------------------------------------------------------------------------------------------------------------


def test_the_report_says_what_it_could_not_replace():
    scripted = torch.jit.script(nn.Linear(2, 2))
    by_hand = ByHelpers()
    by_hand.forward = by_hand.forward
    model = nn.ModuleDict(
        {
            "mine": Mine(16, 2),
            "hand": ByHand(),
            "with": WithASoftmax(),
            "function": ByTorchsFunction(),
            "scripted": scripted,
            "set": by_hand,
            "checkpoint": ByCheckpoint(),
            "ours": sm.MultiheadAttention(16, 2, map="sparsemax"),
            "linear": nn.Linear(2, 2),
        }
    )
    report = sm.replace_attention(model, "entmax15")
    assert report.replaced == {}
    assert report.kept == {
        "mine": "Mine is made of MultiheadAttention with a forward of its own",
        "hand": "it calls softmax itself, which may be attention",
        "with": "it has an nn.Softmax, which may be attention",
        "function": "it calls multi_head_attention_forward itself, which may be attention",
        "scripted": "it is compiled by TorchScript",
        "set": "its forward was set on the object, around which no other can be put",
        "checkpoint": "it checkpoints itself, and would be another in the second pass",
        "ours": "it has sparsemax already; undo that replacement first",
    }
    assert str(report).splitlines()[1] == "hand: not replaced; it calls softmax itself, which may be attention"
    assert str(sm.replace_attention(nn.Linear(2, 2), "softmax")) == "no module with attention was found"


class Held(nn.Module):
    """Calls an attention function that it was given."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


class ByName(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return TABLE["own"](x)


class EinsumAttention(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        p = (x @ x.mT).exp()
        return p @ x / p.sum(-1, keepdim=True)


def by_torch(x: Tensor) -> Tensor:
    return sdpa(x, x, x)


def by_itself(x: Tensor) -> Tensor:
    return (x @ x.mT).softmax(-1) @ x


TABLE = {"own": by_itself}


def test_functions_that_are_held_are_reached_or_reported():
    x = torch.randn(2, 3, 4)
    for function in (by_torch, functools.partial(by_torch)):
        model = Held(function)
        report = sm.replace_attention(model, "sparsemax")
        assert list(report.replaced) == [""]
        torch.testing.assert_close(model(x), sm.attention(x, x, x, map="sparsemax"))
    for model in (Held(by_itself), ByName()):
        assert "softmax itself" in sm.replace_attention(model, "sparsemax").kept[""]
    report = sm.replace_attention(nn.ModuleDict({"inner": EinsumAttention(), "other": nn.Linear(4, 4)}), "sparsemax")
    assert list(report.kept) == ["inner"]
    assert "called EinsumAttention, and its code reaches neither" in str(report)


def test_a_second_replacement_waits_for_the_first_to_be_undone():
    model = nn.Sequential(vit(), encoder())
    first = sm.replace_attention(model, "sparsemax")
    second = sm.replace_attention(model, "entmax15")
    assert not second.replaced
    assert set(second.kept.values()) == {"it has sparsemax already; undo that replacement first"}
    second.undo()
    first.undo()
    assert sm.replace_attention(model, "entmax15").replaced.keys() == first.replaced.keys()


def test_a_module_that_computes_a_softmax_after_all_says_so():
    model = Block(Attention(fused_attn=False))
    report = sm.replace_attention(model, "sparsemax")
    assert report.replaced == {"attn": "scaled_dot_product_attention, with sparsemax; an error where it computes a softmax itself"}
    said = "Attention: it computed a softmax itself, not by scaled_dot_product_attention, so there is no sparsemax in it; let it"
    with pytest.raises(RuntimeError, match=said):
        model(X)
    model.attn.fused_attn = True
    model(X)


def test_to_undo_takes_an_alpha_away_that_was_to_learn():
    model = encoder()
    before = model.state_dict().keys()
    report = sm.replace_attention(model, "entmax", alpha=1.3)
    (module,) = [one for one in model.modules() if isinstance(one, sm.MultiheadAttention)][:1]
    module.alpha = nn.Parameter(torch.full((module.num_heads,), 1.3))
    model(X).square().sum().backward()
    assert module.alpha.grad.abs().sum() > 0
    report.undo()
    assert model.state_dict().keys() == before


def test_the_softmaxes_of_modules_inside_are_not_its_own():
    for inside in (ByHelpers(), encoder(), Block(Attention())):
        for calls in (False, True):
            model = Outer(copy.deepcopy(inside), calls)
            report = sm.replace_attention(model, "softmax")
            assert "" in report.replaced
            with torch.no_grad():
                torch.testing.assert_close(model(X), Outer(inside, calls)(X), rtol=1e-5, atol=1e-5)


def test_models_of_transformers_are_told_of_their_registry():
    from transformers import ViTConfig, ViTModel

    size = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16, "image_size": 4}
    report = sm.replace_attention(ViTModel(ViTConfig(**size, patch_size=2)), "sparsemax")
    assert report.replaced == {}
    assert len(report.kept) == 1
    assert "it asks transformers' registry; softmaxima.integrations.transformers.register() adds" in str(report)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"map": "sparcemax"}, "replace_attention: unknown map 'sparcemax'; did you mean 'sparsemax'"),
        ({"map": "log_softmax"}, "attention: map must give probabilities, got 'log_softmax'"),
        ({"map": "entmax", "alpha": -0.5}, "attention: alpha must be positive and finite, got -0.5"),
        ({"map": "sparsemax", "alpha": 1.5}, "replace_attention: unknown argument 'alpha'; map 'sparsemax' takes: none"),
        ({"map": "softmax", "temprature": 0.5}, r"unknown argument 'temprature'; did you mean 'temperature'\?"),
        (
            {"map": "softmax", "temperature": torch.ones(2)},
            "temperature must be one number for all modules, got a tensor of shape",
        ),
        ({"map": "entmax", "alpha": nn.Parameter(torch.tensor(1.5))}, r"alpha must be one number .* of shape \(\); replace with"),
        ({"map": "softmax", "sink": torch.tensor(0.0)}, "sink must be one number for all modules, got a tensor"),
        ({"map": "softmax", "model": "vit"}, "replace_attention: model must be a torch.nn.Module, got str"),
    ],
)
def test_what_is_wrong_is_said_before_anything_changes(options: dict[str, Any], said: str):
    model = vit()
    with pytest.raises((TypeError, ValueError), match=said):
        sm.replace_attention(**{"model": model, **options})
    assert type(model[0].attn) is Attention

"""softmaxima in Hugging Face transformers: small random models compute what eager attention does, and learn with any map."""

from __future__ import annotations

import copy
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import (
    AttentionInterface,
    AttentionMaskInterface,
    AutoModel,
    BertConfig,
    BertModel,
    BloomConfig,
    BloomModel,
    CLIPConfig,
    CLIPModel,
    DebertaV2Config,
    DebertaV2Model,
    FalconConfig,
    Gemma2Config,
    Gemma2ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    GPTNeoConfig,
    GptOssConfig,
    GptOssForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
    ViTConfig,
    ViTModel,
)

import softmaxima as sm
from softmaxima.integrations import transformers

NAMES = transformers.register()
WORDS, LENGTH = 40, 9
SIZE: dict[str, Any] = {
    "vocab_size": WORDS,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 32,
    "initializer_range": 0.4,  # so that attention is far from uniform
}
ENDLESS: dict[str, Any] = {"bos_token_id": 1, "eos_token_id": None, "pad_token_id": 0}
GROUPED: dict[str, Any] = SIZE | ENDLESS | {"num_key_value_heads": 2}
IDS = torch.randint(2, WORDS, (3, LENGTH), generator=torch.Generator().manual_seed(0))
LEFT = (torch.arange(LENGTH) >= torch.tensor([[0], [4], [2]])).long()  # where there are words
RIGHT = LEFT.flip(1)


@dataclass(frozen=True)
class Kind:
    model: Any
    config: Callable[..., Any]
    inputs: Mapping[str, Tensor]
    padding: Tensor | None = None

    def build(self, implementation: str, **options: Any) -> Any:
        """With random weights, the same each time."""
        torch.manual_seed(0)
        return self.model._from_config(self.config(**options), attn_implementation=implementation).eval()

    def outputs(self, model: Any, padded: bool = False) -> Tensor:
        """Of the words that count."""
        mask = self.padding if padded else None
        found = model(**self.inputs, **({} if mask is None else {"attention_mask": mask}))[0]
        return found if mask is None or "decoder_input_ids" in self.inputs else found[mask.bool()]


def words(model: Any, config: Any, padding: Tensor = LEFT, **options: Any) -> Kind:
    return Kind(model, partial(config, **options), {"input_ids": IDS}, padding)


T5 = {"d_model": 32, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 4, "decoder_start_token_id": 0, "initializer_factor": 1.0}
KINDS = {
    "Llama": words(LlamaForCausalLM, LlamaConfig, **GROUPED),
    "Mistral": words(MistralForCausalLM, MistralConfig, **GROUPED, sliding_window=3),
    "Gemma2": words(Gemma2ForCausalLM, Gemma2Config, **GROUPED, sliding_window=4, head_dim=8, attn_logit_softcapping=3.0),
    "gpt-oss": words(
        GptOssForCausalLM, GptOssConfig, **GROUPED, sliding_window=4, head_dim=8, num_local_experts=2, num_experts_per_tok=1
    ),
    "GPT-2": words(GPT2LMHeadModel, GPT2Config, **SIZE, **ENDLESS, scale_attn_by_inverse_layer_idx=True),
    "BERT": words(BertModel, BertConfig, RIGHT, **SIZE),
    "T5": Kind(
        T5ForConditionalGeneration,
        partial(T5Config, vocab_size=WORDS, pad_token_id=0, eos_token_id=None, **T5),
        {"input_ids": IDS, "decoder_input_ids": IDS[:, :5]},
        RIGHT,
    ),
    "ViT": Kind(
        ViTModel,
        partial(ViTConfig, **{**SIZE, "vocab_size": None}, image_size=8, patch_size=2, num_channels=1),
        {"pixel_values": torch.randn(2, 1, 8, 8, generator=torch.Generator().manual_seed(1))},
    ),
}

every_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
decoders = pytest.mark.parametrize("kind", [KINDS[name] for name in ("Llama", "Mistral", "Gemma2", "gpt-oss", "GPT-2")])
LLAMA, GPT2, BERT = KINDS["Llama"], KINDS["GPT-2"], KINDS["BERT"]


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    """Models this small wait for each other's threads longer than they compute."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


# What it computes ----------------------------------------------------------------------------------------------------------------


@every_kind
@pytest.mark.parametrize("padded", [False, True])
@torch.no_grad()
def test_with_softmax_it_is_eager_attention(kind: Kind, padded: bool):
    expected, found = (kind.outputs(kind.build(name), padded) for name in ("eager", "softmaxima_softmax"))
    assert expected.std() > 0.05
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@every_kind
def test_its_gradients_are_those_of_eager_attention(kind: Kind):
    gradients = []
    for name in ("eager", "softmaxima_softmax"):
        model = kind.build(name)
        kind.outputs(model, padded=True).square().mean().backward()
        gradients.append({name: p.grad for name, p in model.named_parameters() if p.grad is not None})
    assert gradients[0].keys() == gradients[1].keys()
    for name, expected in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], expected, rtol=1e-4, atol=1e-5, msg=name)


@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_every_map_attends_to_the_past_and_to_no_padding(name: str):
    params = {"k": 3} if name.endswith("topk_softmax") else {"f": "softplus"} if name.endswith("proportional") else {}
    model = LLAMA.build(name, softmaxima=params)
    expected = model(IDS, attention_mask=LEFT).logits
    assert expected[LEFT.bool()].isfinite().all()
    other = IDS.clone()
    other[1, :4] = 7  # under padding
    other[0, 6:] = 7  # in the future of the first six
    found = model(other, attention_mask=LEFT).logits
    torch.testing.assert_close(found[1, 4:], expected[1, 4:], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(found[0, :6], expected[0, :6], rtol=1e-5, atol=1e-5)
    alone = model(IDS[1:2, 4:]).logits[0]
    torch.testing.assert_close(alone, expected[1, 4:], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", [LLAMA, GPT2, BERT], ids=["Llama", "GPT-2", "BERT"])
@torch.no_grad()
def test_it_returns_the_weights_that_are_asked_for(kind: Kind):
    eager, same, sparse = (kind.build(name) for name in ("eager", "softmaxima_softmax", "softmaxima_sparsemax"))
    expected, found, p = (model(**kind.inputs, output_attentions=True).attentions for model in (eager, same, sparse))
    assert len(expected) == len(found) == len(p) == 2
    for a, b, c in zip(expected, found, p, strict=True):
        torch.testing.assert_close(b, a, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(c.sum(-1), torch.ones(3, 4, LENGTH))
        assert (c == 0).sum() > (a == 0).sum()
    assert same(**kind.inputs).attentions is None


def test_before_its_recorder_the_keyword_alone_asks_for_weights(monkeypatch: pytest.MonkeyPatch):
    model = BERT.build("softmaxima_softmax")
    monkeypatch.setitem(sys.modules, "transformers.utils.output_capturing", None)
    assert len(model(IDS, output_attentions=True).attentions) == 2


@torch.no_grad()
def test_the_config_has_the_parameters_of_the_map():
    config = {"alpha": [1.1, 1.4, 1.7, 2.0], "temperature": 0.7, "sink": 0.5}
    model = BERT.build("softmaxima_entmax", softmaxima=config)
    module = model.encoder.layer[0].attention.self
    x = torch.randn(2, 5, 32)
    q, k, v = (layer(x).unflatten(-1, (4, 8)).transpose(1, 2) for layer in (module.query, module.key, module.value))
    expected = sm.attention(q, k, v, map="entmax", alpha=torch.tensor(config["alpha"]), temperature=0.7, sink=0.5)
    torch.testing.assert_close(module(x)[0], expected.transpose(1, 2).flatten(2))


@torch.no_grad()
def test_dropout_is_for_training():
    model = BERT.build("softmaxima_softmax", attention_probs_dropout_prob=0.5, hidden_dropout_prob=0.0)
    assert torch.equal(BERT.outputs(model), BERT.outputs(model))
    model.train()
    assert not torch.equal(BERT.outputs(model), BERT.outputs(model))


@pytest.mark.parametrize("map", ["softmax", "taylor_softmax"])
@torch.no_grad()
def test_a_mask_of_large_negative_numbers_hides_for_every_map(map: str):
    model = LLAMA.build(f"softmaxima_{map}")
    mask = (torch.tril(torch.ones(LENGTH, LENGTH)).bool() & LEFT.bool()[:, None])[:, None]
    expected = model(IDS, attention_mask=LEFT).logits[LEFT.bool()]
    for dtype in (torch.float32, torch.bfloat16):
        added = torch.where(mask, 0.0, torch.finfo(dtype).min).to(dtype)
        for given in (mask, added, torch.where(mask, 0.0, -torch.inf)):
            torch.testing.assert_close(model(IDS, attention_mask=given).logits[LEFT.bool()], expected)


@torch.no_grad()
def test_packed_sequences_do_not_see_each_other():
    model = LLAMA.build("softmaxima_entmax15")
    expected = torch.cat([model(IDS[:1, :4]).logits, model(IDS[:1, 4:]).logits], 1)
    row = {"input_ids": IDS[:1], "position_ids": torch.cat((torch.arange(4), torch.arange(5)))[None], "use_cache": False}
    bounds = torch.tensor([0, 4, 9], dtype=torch.int32)
    packed = {"cu_seq_lens_q": bounds, "cu_seq_lens_k": bounds, "max_length_q": 5, "max_length_k": 5}
    causal = torch.zeros(1, 1, LENGTH, LENGTH).masked_fill(~torch.ones(LENGTH, LENGTH).tril().bool(), -torch.inf)
    for said in (row, row | packed, row | packed | {"attention_mask": causal}, row | packed | {"attention_mask": causal == 0}):
        torch.testing.assert_close(model(**said).logits, expected, rtol=1e-5, atol=1e-5)
    packed["use_cache"] = True  # no mask comes with it
    torch.testing.assert_close(model(**row | packed).logits, expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(model(IDS, cu_seq_lens_q=bounds[::2], cu_seq_lens_k=bounds[::2]).logits, model(IDS).logits)
    with pytest.raises(ValueError, match="cu_seq_lens_q: sequences that are packed must stand in one row, got a batch of 3"):
        model(IDS, **packed)


@torch.no_grad()
def test_a_decoder_can_be_asked_to_see_what_comes():
    model, other = LLAMA.build("softmaxima_softmax"), IDS.clone()
    other[:, -1] = 7
    assert torch.equal(model(IDS).logits[:, 0], model(other).logits[:, 0])
    assert not torch.allclose(model(IDS, is_causal=False).logits[:, 0], model(other, is_causal=False).logits[:, 0])


# Half precision, compilers, checkpoints -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [LLAMA, GPT2, KINDS["Gemma2"]], ids=["Llama", "GPT-2", "Gemma2"])
@torch.no_grad()
def test_half_precision_and_autocast_are_near_single(kind: Kind):
    model = kind.build("softmaxima_entmax15")
    expected = kind.outputs(model, padded=True)
    with torch.autocast("cpu", torch.bfloat16):
        found = kind.outputs(model, padded=True)
    assert (found.float() - expected).norm() < 0.1 * expected.norm()
    half = copy.deepcopy(model).bfloat16()
    found = kind.outputs(half, padded=True)
    assert found.dtype == half(**kind.inputs, output_attentions=True).attentions[0].dtype == torch.bfloat16
    assert (found.float() - expected).norm() < 0.1 * expected.norm()


@torch.no_grad()
def test_it_compiles_in_one_graph():
    model = LLAMA.build("softmaxima_entmax", softmaxima={"alpha": 1.3}, num_hidden_layers=1)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(IDS, use_cache=False).logits, model(IDS).logits, rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_a_layer_compiles_by_itself():
    model = LLAMA.build("softmaxima_sparsemax", num_hidden_layers=1)
    expected = model(IDS).logits
    model.model.layers[0].self_attn.compile(backend="eager")
    torch.testing.assert_close(model(IDS).logits, expected)


def test_inference_mode_has_the_same_outputs():
    for name in ("softmaxima_softmax", "softmaxima_sparsemax"):
        model = LLAMA.build(name)
        for padded in (False, True):
            with torch.inference_mode():
                found = LLAMA.outputs(model, padded)
            torch.testing.assert_close(found, LLAMA.outputs(model, padded))


def test_checkpoints_have_the_same_gradients():
    gradients = []
    for again in (False, True):
        model = LLAMA.build("softmaxima_sparsemax").train()
        if again:
            model.activation_checkpointing_enable()
        LLAMA.outputs(model, padded=True).square().mean().backward()
        gradients.append(model.model.layers[0].self_attn.q_proj.weight.grad)
    torch.testing.assert_close(*gradients)


# Generation ----------------------------------------------------------------------------------------------------------------------


def test_what_is_set_for_a_model_is_set_for_its_parts() -> None:
    part = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    parts = {
        "text_config": {**part, "vocab_size": 20, "bos_token_id": 1, "eos_token_id": 2},
        "vision_config": {**part, "image_size": 4},
    }
    parts["vision_config"]["patch_size"] = 2

    def attentions(config: Any) -> list[Tensor]:
        torch.manual_seed(0)
        model = CLIPModel._from_config(config, attn_implementation="softmaxima_softmax").eval()
        pixels = torch.randn(1, 3, 4, 4, generator=torch.Generator().manual_seed(1))
        out = model(input_ids=torch.tensor([[1, 3, 2]]), pixel_values=pixels, output_attentions=True)
        return [out.text_model_output.attentions[0], out.vision_model_output.attentions[0]]

    plain = attentions(CLIPConfig(**parts))
    of_all = CLIPConfig(**parts, softmaxima={"temperature": 0.1})
    assert all(not torch.allclose(a, b) for a, b in zip(attentions(of_all), plain, strict=True))
    later = CLIPConfig(**parts)
    later.vision_config.softmaxima = {"temperature": 1.0}
    later.softmaxima = {"temperature": 0.1}
    found = attentions(later)
    torch.testing.assert_close(found, [attentions(of_all)[0], plain[1]])
    later.softmaxima = {"temperature": 1.0}  # parts follow, but for the one with its own
    torch.testing.assert_close(attentions(later), plain)
    again = CLIPConfig.from_dict(of_all.to_dict())
    torch.testing.assert_close(attentions(again), attentions(of_all))


@decoders
@pytest.mark.parametrize("map", ["softmax", "entmax15", "sparsemax"])
@torch.no_grad()
def test_generation_with_a_cache_is_generation_without(kind: Kind, map: str):
    model = kind.build(f"softmaxima_{map}")
    options = {"max_new_tokens": 6, "do_sample": False, "return_dict_in_generate": True, "output_logits": True}
    found, expected = (model.generate(IDS, attention_mask=LEFT, use_cache=use, **options) for use in (True, False))
    assert torch.equal(found.sequences, expected.sequences)
    torch.testing.assert_close(found.logits, expected.logits, rtol=1e-4, atol=1e-4)
    if map == "softmax":
        eager = kind.build("eager").generate(IDS, attention_mask=LEFT, **options)
        assert torch.equal(found.sequences, eager.sequences)


@decoders
@torch.no_grad()
def test_a_text_in_two_parts_is_the_text_in_one(kind: Kind):
    model = kind.build("softmaxima_sparsemax")
    first = model(IDS[:, :4], use_cache=True)
    rest = model(IDS[:, 4:], cache=first.past_key_values).logits
    torch.testing.assert_close(rest, model(IDS).logits[:, 4:], rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_static_caches_and_beams_generate_the_same():
    model = LLAMA.build("softmaxima_entmax15")
    generate = partial(model.generate, IDS, attention_mask=LEFT, max_new_tokens=5, do_sample=False)
    assert torch.equal(generate(cache_implementation="static"), generate())
    assert torch.equal(generate(num_beams=3), generate(num_beams=3, use_cache=False))
    assert torch.equal(
        model.generate(IDS, max_new_tokens=5, do_sample=False, cache_implementation="static"),
        model.generate(IDS, max_new_tokens=5, do_sample=False, use_cache=False),
    )


@torch.no_grad()
def test_an_encoder_and_a_decoder_generate_the_same_with_a_cache():
    for map in ("softmax", "sparsemax"):
        model = KINDS["T5"].build(f"softmaxima_{map}")
        found, expected = (
            model.generate(IDS, attention_mask=RIGHT, max_new_tokens=6, do_sample=False, use_cache=use) for use in (True, False)
        )
        assert torch.equal(found, expected)


# Training ------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("softmaxima_entmax", {"alpha": 1.3}),
        ("softmaxima_entmax", {"alpha": [1.1, 1.3, 1.6, 2.0], "temperature": 0.8}),
        ("softmaxima_sparsemax", {"sink": 0.2}),
    ],
)
def test_a_model_learns(name: str, config: dict[str, Any]):
    model = LLAMA.build(name, softmaxima=config, initializer_range=0.1).train()
    optimiser = torch.optim.AdamW(model.parameters(), lr=5e-3)
    labels = IDS.masked_fill(LEFT == 0, -100)
    losses = []
    for _ in range(15):
        optimiser.zero_grad()
        loss = model(IDS, attention_mask=LEFT, labels=labels).loss
        loss.backward()
        assert all(p.grad.isfinite().all() for p in model.parameters())
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]


# Configs -------------------------------------------------------------------------------------------------------------------------


@torch.no_grad()
def test_parameters_are_saved_and_loaded_with_the_config(tmp_path: Any):
    model = LLAMA.build("softmaxima_entmax", softmaxima={"alpha": 1.8})
    model.save_pretrained(tmp_path)
    assert LlamaConfig.from_pretrained(tmp_path).softmaxima == {"alpha": 1.8}
    assert LlamaForCausalLM.from_pretrained(tmp_path).config._attn_implementation == "sdpa"  # which transformers does not save
    loaded = LlamaForCausalLM.from_pretrained(tmp_path, attn_implementation="softmaxima_entmax")
    assert torch.equal(loaded(IDS).logits, model(IDS).logits)
    loaded.config.softmaxima = {"alpha": 1.2}
    assert not torch.equal(loaded(IDS).logits, model(IDS).logits)


@torch.no_grad()
def test_the_config_saves_the_implementation_where_it_is_told(tmp_path: Any):
    model = LLAMA.build("softmaxima_entmax", softmaxima={"alpha": 1.8})
    model.config.attn_implementation = "softmaxima_entmax"
    model.save_pretrained(tmp_path)
    loaded = LlamaForCausalLM.from_pretrained(tmp_path)
    assert torch.equal(loaded(IDS).logits, model(IDS).logits)
    assert LlamaForCausalLM.from_pretrained(tmp_path, attn_implementation="eager").config._attn_implementation == "eager"
    file = tmp_path / "config.json"
    file.write_text(file.read_text().replace("softmaxima_entmax", "softmaxima_not_registered"))
    with pytest.raises(ValueError, match="softmaxima_not_registered"):
        LlamaForCausalLM.from_pretrained(tmp_path)


@torch.no_grad()
def test_a_model_can_change_its_implementation():
    model = LLAMA.build("eager")
    expected = model(IDS).logits
    model.set_attn_implementation("softmaxima_sparsemax")
    assert not torch.allclose(model(IDS).logits, expected)
    model.set_attn_implementation("softmaxima_softmax")
    torch.testing.assert_close(model(IDS).logits, expected, rtol=1e-5, atol=1e-5)


def test_to_register_again_changes_nothing():
    assert transformers.register() == NAMES
    assert set(NAMES) < set(AttentionInterface())
    assert "softmaxima_log_softmax" not in NAMES


# Errors --------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "config", "said"),
    [
        (
            "softmaxima_entmax",
            {"alpa": 1.3},
            r"softmaxima_entmax has no parameter 'alpa'; did you mean 'alpha'\?; it has: temperature, sink, alpha$",
        ),
        ("softmaxima_sparsemax", {"alpha": 1.3}, "softmaxima_sparsemax has no parameter 'alpha'; it has: temperature, sink$"),
        ("softmaxima_entmax", {"alpha": -0.5}, "attention: alpha must be positive and finite, got -0.5"),
        (
            "softmaxima_entmax",
            {"alpha": [1.5, 2.0]},
            r"config.softmaxima: alpha must be a number or a list of 4, one a head, got \[1",
        ),
        (
            "softmaxima_entmax",
            {"alpha": nn.Parameter(torch.tensor(1.5))},
            "list of 4, one a head, got Parameter: a config cannot save it",
        ),
        ("softmaxima_entmax", {"alpha": ["1", 2, 3, 4]}, "config.softmaxima: alpha must be a number or a list of 4, one a head"),
        (
            "softmaxima_entmax",
            {"temperature": "hot"},
            "attention: temperature must be positive and finite, at least 2.3e-308, got the string 'hot'",
        ),
        ("softmaxima_softmax", 1.5, r'config.softmaxima must be a dictionary, such as \{"temperature": 0.5\}, got float'),
    ],
)
def test_a_wrong_config_is_refused_in_the_first_layer(name: str, config: Any, said: str):
    with pytest.raises((TypeError, ValueError), match=said):
        BERT.build(name, softmaxima=config)(IDS)


def test_a_keyword_that_is_not_known_is_refused():
    model = LLAMA.build("softmaxima_softmax")
    model(IDS, sliding_window=None, num_items_in_batch=3, indices=None)
    with pytest.raises(TypeError, match="softmaxima_softmax: LlamaAttention gives indices, which this implementation does not kn"):
        model(IDS, indices=torch.zeros(3, LENGTH, 2))


def test_a_model_with_sinks_takes_no_other():
    model = KINDS["gpt-oss"].build("softmaxima_softmax", softmaxima={"sink": 1.0})
    with pytest.raises(ValueError, match="softmaxima_softmax: GptOssAttention has sinks of its own; take sink out"):
        model(IDS)


def test_a_model_that_computes_its_own_softmax_is_refused():
    config = BloomConfig(vocab_size=WORDS, hidden_size=32, n_layer=1, n_head=4)
    model = BloomModel._from_config(config, attn_implementation="softmaxima_sparsemax")
    with pytest.raises(ValueError, match="softmaxima_sparsemax: BloomAttention does not ask transformers' registry, and"):
        model(IDS)


def test_what_the_page_says_of_models_that_never_ask():
    silent = DebertaV2Config(**SIZE)
    model = DebertaV2Model._from_config(silent, attn_implementation="softmaxima_sparsemax")
    assert not model._can_set_attn_implementation()
    assert set(sm.replace_attention(model, "sparsemax").kept.values()) == {"it calls softmax itself, which may be attention"}
    for own in (FalconConfig(**SIZE), GPTNeoConfig(num_layers=1, attention_types=[[["global"], 1]])):
        with pytest.raises(KeyError, match="softmaxima_sparsemax"):
            AutoModel.from_config(own, attn_implementation="softmaxima_sparsemax")


@torch.no_grad()
def test_the_mask_decides_and_not_what_a_module_says_of_itself():
    model = LLAMA.build("softmaxima_sparsemax")
    expected = model(IDS).logits
    for layer in model.model.layers:
        layer.self_attn.is_causal = False
    assert torch.equal(model(IDS).logits, expected)
    for layer in model.model.layers:
        del layer.self_attn.is_causal
    assert torch.equal(model(IDS).logits, expected)


@torch.no_grad()
def test_a_causal_mask_that_a_model_writes_to_is_read():
    mask = AttentionMaskInterface()["softmaxima_softmax"](batch_size=1, q_length=4, kv_length=4).clone()
    q, module = torch.randn(1, 2, 4, 8), nn.Module()
    attend = partial(AttentionInterface()["softmaxima_softmax"], module, q, q, q)
    made = AttentionMaskInterface()["softmaxima_softmax"](batch_size=1, q_length=4, kv_length=4)
    torch.testing.assert_close(attend(made)[0], attend(mask)[0])
    assert not torch.allclose(attend(made, is_causal=False)[0], attend(mask)[0])
    made[..., 0] = False
    mask[..., 0] = False
    assert torch.equal(attend(made)[0], attend(mask)[0])


def test_learnt_queries_of_one_batch_serve_all():
    module = nn.Module()
    q, k = torch.randn(1, 2, 3, 4), torch.randn(5, 2, 6, 4)
    module.is_causal = False
    found, weights = AttentionInterface()["softmaxima_softmax"](module, q, k, k, None)
    torch.testing.assert_close(
        found, torch.nn.functional.scaled_dot_product_attention(q.expand(5, -1, -1, -1), k, k).transpose(1, 2)
    )
    assert weights is None


def test_nothing_imports_transformers_before_it_is_registered():
    code = (
        "import sys; from softmaxima.integrations import transformers; import softmaxima as sm; sm.replace_attention\n"
        "assert 'transformers' not in sys.modules and 'sklearn' not in sys.modules\n"
        "sys.modules['transformers'] = None\n"
        "try: transformers.register()\n"
        "except ModuleNotFoundError as error: print(error)\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout == 'register needs transformers, which is not installed: pip install "softmaxima[transformers]"\n'


def test_an_old_transformers_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("transformers.__version__", "4.57.1")
    with pytest.raises(ImportError, match=r"register needs transformers 5 or later, got 4\.57\.1"):
        transformers.register()

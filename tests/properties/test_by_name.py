"""Functions that a room makes of every map and loss, by its name: help, signatures, and what type checkers know of them."""

from __future__ import annotations

import importlib
import inspect
import pickle
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import softmaxima as sm
from softmaxima.base.by_name import by_name
from softmaxima.base.numbers import nearest
from softmaxima.losses import REGISTRY as LOSSES
from softmaxima.maps import REGISTRY as MAPS
from softmaxima_lab.pages.types import types_of_rooms

ROOMS = ("dask", "distributed")
OWN = [
    *(name for name, map in MAPS.items() if map.blocks is not None and map.reference.__module__.startswith("softmaxima.")),
    *(name for name, loss in LOSSES.items() if loss.row_form is not None and loss.function.__module__.startswith("softmaxima.")),
]


def made(room: str, name: str) -> Any:
    return getattr(importlib.import_module(f"softmaxima.{room}"), name)


@pytest.mark.parametrize("room", ROOMS)
@pytest.mark.parametrize("name", OWN)
def test_its_help_is_its_own(room: str, name: str):
    function, whole = made(room, name), getattr(sm, name)
    assert (function.__name__, function.__module__) == (name, f"softmaxima.{room}")
    own, of_whole = inspect.signature(function).parameters, inspect.signature(whole).parameters
    assert not {"params", "options"} & {*own} - {*of_whole}
    beside = {"dim", "where"} if name in sm.losses.REGISTRY else set()  # of losses, that of whole rows alone has them
    named = {parameter for parameter in of_whole if parameter not in ("x", "input") and parameter[0] != "_"}
    assert named - beside <= {*own}
    assert all(own[each].default == of_whole[each].default for each in own if each in of_whole and each not in ("x", "input"))
    doc = inspect.getdoc(function) or ""
    assert doc.startswith(f"`sm.{name}` in parts. {(inspect.getdoc(whole) or '').splitlines()[0]}")
    for line in ("    map: ", "    loss: ", ", options:", ">>>", "shared_map(", "chunked_loss("):
        assert line not in doc
    assert "Args:\n    shard: " in doc or "Args:\n    x: " in doc or "Args:\n    input: " in doc
    assert all(each in doc for each in own if each not in ("params", "options"))


@pytest.mark.parametrize("room", ROOMS)
def test_it_is_the_same_each_time_and_pickles(room: str):
    function = made(room, "entmax")
    assert made(room, "entmax") is function
    assert pickle.loads(pickle.dumps(function)) is function


def test_a_map_without_a_function_has_the_signature_of_all():
    function = by_name("here", sm.distributed.shared_map, "mine", None)
    assert "params" in inspect.signature(function).parameters
    assert "    map: " not in (inspect.getdoc(function) or "")


@pytest.mark.parametrize("room", ROOMS)
def test_type_checkers_know_what_there_is(room: str):
    written = Path(str(importlib.import_module(f"softmaxima.{room}").__file__)).with_suffix(".pyi").read_text()
    assert written == types_of_rooms()[room], "run `softmaxima docs types`"


@pytest.mark.exhaustive
@pytest.mark.skipif(shutil.which("pyright", path=str(Path(sys.executable).parent)) is None, reason="pyright is of the lint extra")
def test_type_checkers_see_what_is_wrong(tmp_path: Path):
    path, right = (
        tmp_path / "wrong.py",
        "import torch, dask.array as da, softmaxima as sm\nx, y = torch.ones(2, 3), da.ones((2, 3))\n",
    )
    lines = [
        "p: torch.Tensor = sm.distributed.softmax(x, temperature=2.0)", "sm.dask.entmax(y, dim=0, alpha=1.3)",
        "sm.distributed.sotfmax(x)", "sm.distributed.softmax(x, tempreature=2)", 'sm.distributed.softmax("no")',
        "n: int = sm.dask.softmax(y)", "n: int = sm.distributed.cross_entropy(x, x)", "sm.distributed.topk_softmax(x, alpha=2)",
    ]  # fmt: skip
    path.write_text(right + "\n".join(lines) + "\n")
    pyright = Path(sys.executable).parent / "pyright"
    found = subprocess.run([str(pyright), "--pythonpath", sys.executable, str(path)], capture_output=True, text=True).stdout
    assert {int(line.split(":")[1]) for line in found.splitlines() if " error: " in line} == {5, 6, 7, 8, 9, 10}, found


@pytest.mark.parametrize(
    ("written", "meant"),
    [("topk", "topk_softmax"), ("top-p", "topp_softmax"), ("budget", "budget_sparsemax"), ("sofmax", "softmax")],
)
def test_the_beginning_of_a_name_is_enough_to_tell_what_was_meant(written: str, meant: str):
    with pytest.raises(ValueError, match=rf"unknown map '{written}'; did you mean '{meant}'\? Registered are: "):
        sm.find_map(written)


@pytest.mark.parametrize("written", ["", "-", "zzz", "top"])
def test_what_begins_no_name_or_several_tells_nothing(written: str):
    assert nearest(written, ["topk_softmax", "topp_softmax"]) == ""


def test_it_does_what_the_map_in_parts_does():
    x = torch.tensor([[1.0, 3.0, 2.0]])
    da = pytest.importorskip("dask.array")
    lazy = sm.dask.topk_softmax(da.from_array(x.numpy(), chunks=2), k=2)
    assert (lazy.compute() == sm.dask.chunked_map("topk_softmax", da.from_array(x.numpy(), chunks=2), k=2).compute()).all()

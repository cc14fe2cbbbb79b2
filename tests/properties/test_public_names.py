"""The public surface: every name documented with an example, modules that mirror functions, a light import."""

from __future__ import annotations

import copy
import importlib
import importlib.metadata
import importlib.resources
import importlib.util
import inspect
import pickle
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import softmaxima as sm
from conftest import normal
from softmaxima.losses import REGISTRY as LOSSES
from softmaxima.maps import REGISTRY

NAMES: list[str] = getattr(sm, "__all__")  # noqa: B009 - what the package makes of its rooms


def test_the_names_are_those_of_the_rooms():
    rooms = [importlib.import_module(f"softmaxima.{room}").__all__ for room in vars(sm)["_ROOMS"]]
    assert sorted({name for names in rooms for name in names} - {"REGISTRY"}) == NAMES


@pytest.mark.parametrize("room", vars(sm)["_ROOMS"])
def test_type_checkers_read_the_names_of_every_room(room: str):
    assert f"    from softmaxima.{room} import *\n" in Path(str(sm.__file__)).read_text()


@pytest.mark.parametrize(("old", "new"), vars(sm)["_RENAMED"].items())
def test_an_old_name_works_and_warns(old: str, new: str):
    with pytest.warns(DeprecationWarning, match=f"sm.{old} is called sm.{new} now"):
        assert getattr(sm, old) is getattr(sm, new)


@pytest.mark.parametrize("name", NAMES)
def test_every_public_name_has_a_docstring_and_an_example(name: str):
    doc = inspect.getdoc(getattr(sm, name))
    assert doc
    assert ">>> " in doc


@pytest.mark.parametrize("name", NAMES)
def test_dir_lists_every_public_name(name: str):
    assert name in dir(sm)


@pytest.mark.parametrize("absent", [set(), {"opendp", "mpyc", "torch_geometric", "dask", "sklearn"}])
def test_what_dir_lists_can_be_had(monkeypatch: pytest.MonkeyPatch, absent: set[str]):
    """help() and inspect take each name that is listed."""
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: None if name in absent else found(name, *more))
    listed = dir(sm)
    rooms = {name for name, package in vars(sm)["_APART"].items() if package in absent}
    assert len(set(listed)) == len(listed)
    assert not {*rooms, *(["Classifier"] if "sklearn" in absent else [])} & {*listed} - {*vars(sm)}
    assert all(hasattr(sm, name) for name in listed if name not in {*vars(sm)})


@pytest.mark.parametrize("room", [*vars(sm)["_ROOMS"], *vars(sm)["_APART"], "compat.entmax"])
def test_dir_of_a_room_lists_what_is_public_there(room: str):
    module = importlib.import_module(f"softmaxima.{room}")
    listed = {name for name in dir(module) if not name.startswith("__")}
    made = {*REGISTRY, *LOSSES} if room in ("dask", "distributed") else set()  # when they are asked for
    assert {*module.__all__} <= listed <= {*module.__all__, *made}
    assert all(hasattr(module, name) for name in listed)


def test_unknown_names_raise_as_in_any_module():
    with pytest.raises(AttributeError, match="has no attribute 'sofmax'"):
        _ = sm.sofmax


@pytest.mark.parametrize("name", list(REGISTRY))
def test_function_and_module_of_a_map_are_its_contract(name: str):
    if not REGISTRY[name].reference.__module__.startswith("softmaxima."):
        pytest.skip("registered by a test")
    function = getattr(sm, name)
    module = getattr(sm, next(n for n in NAMES if n.lower() == name.replace("_", "")))
    x, where = normal(3, 4), normal(3, 4, seed=1) > -1
    expected = REGISTRY[name](x, 0, temperature=2.0, where=where)
    torch.testing.assert_close(function(x, dim=0, temperature=2.0, where=where), expected)
    torch.testing.assert_close(module(dim=0, temperature=2.0)(x, where=where), expected)
    known = inspect.signature(function).parameters
    defaults = {k: p.default for k, p in known.items()}
    assert defaults["dtype"] is None
    by_name = known["dim"].kind is inspect.Parameter.KEYWORD_ONLY  # for a number without a name might be the parameter
    assert by_name == bool(REGISTRY[name].params)
    for parameter in REGISTRY[name].params:
        assert defaults[parameter.name] == parameter.default
    own = inspect.signature(module).parameters
    assert all(parameter.name in own for parameter in REGISTRY[name].params)


@pytest.mark.parametrize("name", list(REGISTRY))
def test_modules_copy_pickle_and_move(name: str):
    module = sm.MapModule(name, temperature=torch.nn.Parameter(torch.tensor(2.0, dtype=torch.float64)))
    x = normal(3, 4)
    for twin in (copy.deepcopy(module), pickle.loads(pickle.dumps(module)), module.double()):
        torch.testing.assert_close(twin(x), module(x))
    assert module.state_dict()["temperature"] == 2.0
    module(x).nan_to_num(neginf=0).square().sum().backward()
    assert module.temperature.grad is not None


@pytest.mark.parametrize("name", list(LOSSES))
def test_losses_are_public_under_their_registered_name(name: str):
    assert getattr(sm, name) is LOSSES[name].function
    assert LOSSES[name].module.function is LOSSES[name].function


def test_package_is_typed_and_knows_its_version():
    assert importlib.resources.files("softmaxima").joinpath("py.typed").is_file()
    assert importlib.metadata.version("softmaxima") == sm.__version__


def test_every_file_that_states_a_version_states_the_same():
    root = Path(__file__).parents[2]
    citation, hooks = ((root / name).read_text() for name in ("CITATION.cff", ".pre-commit-config.yaml"))
    assert f"\nversion: {sm.__version__}\n" in citation
    ruff = re.search(r"ruff==([\d.]+)", (root / "pyproject.toml").read_text())
    assert ruff is not None
    assert f"rev: v{ruff[1]}\n" in hooks


def test_importing_the_package_does_not_load_torch():
    code = (
        "import sys, softmaxima; assert not {'torch', 'numpy'} & {*sys.modules}; softmaxima.softmax; assert 'torch' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code + "; assert 'torch._dynamo' not in sys.modules"], check=True)


def test_star_import_brings_every_public_name():
    namespace: dict[str, object] = {}
    exec("from softmaxima import *", namespace)
    assert set(NAMES) <= namespace.keys()

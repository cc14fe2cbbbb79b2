"""The examples run, and what they show is true."""

from __future__ import annotations

import ast
import os
import re
import runpy
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import softmaxima as sm
from conftest import is_gone

EXAMPLES = Path(__file__).parents[2] / "examples"


def example(name: str) -> dict[str, Any]:
    """Its names, without its `main` having run."""
    return runpy.run_path(str(EXAMPLES / f"{name}.py"))


@pytest.mark.exhaustive
def test_intervals_hold_the_exact_partition_function_of_4096_states():
    intervals = example("ising_chain")["main"](12)
    assert all(lower <= exact <= upper for lower, exact, upper in intervals)
    assert all(upper - lower < 0.03 for lower, _, upper in intervals)


def test_free_fermions_are_the_eigenvalues_of_1024_states():
    chain = example("ising_chain")
    exact = float(chain["exact_log_partition"](10, 1.0, 0.8, 1.5))
    sparse = sm.matrix_logsumexp(1.5 * chain["sparse_chain"](10), method="eigh")
    assert sparse.certificate == "deterministic"
    assert sparse.value == pytest.approx(exact, abs=1e-10)


def test_the_chain_without_a_matrix_is_the_sparse_one():
    chain = example("ising_chain")
    applied = chain["IsingChain"](6)(torch.eye(64, dtype=torch.float64))
    torch.testing.assert_close(applied.detach(), torch.from_numpy(chain["sparse_chain"](6).toarray()))


def test_annealed_logsumexp_reaches_the_minimax_value_of_scipy():
    results = example("smooth_max")["main"]()
    assert set(results) == {"Chebyshev regression", "enclosing ball"}
    for ours, exact, allowed in results.values():
        assert -1e-7 <= ours - exact <= allowed  # below zero only by SciPy's own tolerance


def test_the_weights_of_the_annealed_solution_are_the_multipliers():
    names = example("smooth_max")
    functions, start, _ = names["chebyshev_regression"]()
    x, weights = names["minimise_largest"](functions, start, torch.logspace(0, -5, 16, dtype=torch.float64))
    assert int((weights > 1e-3).sum()) == 6  # as many residuals are extreme as there are coefficients, and one
    stationary = weights @ torch.func.jacrev(functions)(x)
    torch.testing.assert_close(stationary, torch.zeros(5, dtype=torch.float64), atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", ["exp", "softplus", "between limits", "annealed"])
def test_elastic_softmax_says_none_of_these_to_digits_that_it_was_not_taught(name: str):
    names = example("elastic_none")
    found = names["measured"](name, 0)
    assert found["accuracy"] > 0.95
    assert found["none"] > 0.75
    assert (found["τ"] == 0.5) if name == "annealed" else (abs(found["τ"] - 1) > 0.1)


def test_a_learnt_temperature_pairs_the_halves_of_digits():
    recall = example("two_views")["recall"]
    found, tau = recall("learnt from 0.07", 0, steps=100)
    assert found > 0.03  # 1 of 597 by chance
    assert tau != pytest.approx(0.07, rel=0.05)


def test_a_student_learns_more_from_a_teacher_over_a_temperature_than_from_labels():
    found = example("distillation")["accuracies"](0, steps=150)
    assert found[4.0] > found[None]


@pytest.mark.exhaustive
def test_a_model_on_a_mesh_of_ranks_trains_as_on_one_process():
    out = subprocess.run(
        [sys.executable, str(EXAMPLES / "tensor_parallel.py"), "--steps=40"], capture_output=True, text=True, check=True
    ).stdout
    first, last, apart = map(float, re.findall(r"([0-9.e-]+) (?:at|from)", out))
    assert last < first - 0.5
    assert apart <= 1e-12


@pytest.mark.exhaustive
def test_a_shared_layer_goes_on_from_its_checkpoint_on_fewer_ranks():
    options = ["--classes=512", "--ranks=2", "--then=1", "--steps=6"]
    out = subprocess.run(
        [sys.executable, str(EXAMPLES / "sharded_classes.py"), *options], capture_output=True, text=True, check=True
    ).stdout
    first, middle, late, last = (float(loss) for loss in re.findall(r"([0-9.]+) at (?:first|last)", out))
    assert first > middle > late > last


def test_a_catalogue_in_chunks_is_the_whole_catalogue():
    names = example("dask_catalogue")
    scores, chosen = names["catalogue"](30, 12_000)
    found, whole = names["study"](scores, chosen), scores.compute() / names["TEMPERATURE"]
    log_p = torch.from_numpy(whole).log_softmax(-1)
    assert found["log_partition"] == pytest.approx(torch.from_numpy(whole).logsumexp(-1).numpy(), rel=1e-14)
    assert found["largest"] == pytest.approx(log_p.amax(-1).exp().numpy(), rel=1e-12)
    assert (found["support"] == (sm.sparsemax(whole) > 0).sum(-1)).all()
    assert float(found["loss"]) == pytest.approx(-float(log_p[torch.arange(30), torch.from_numpy(chosen)].mean()), rel=1e-13)
    assert found["loss"] < 2.0  # nats, of log 12000 = 9.4


@pytest.mark.exhaustive
def test_a_shared_sequence_is_recalled_and_balanced_places_have_the_same_work():
    options = ["--places=512", "--ranks=3", "--steps=8"]
    out = subprocess.run(
        [sys.executable, str(EXAMPLES / "context_parallel.py"), *options], capture_output=True, text=True, check=True
    ).stdout
    contiguous, balanced = (
        [int(count.replace(",", "")) for count in line.split(", ")] for line in re.findall(r"a rank: ([\d, ]+)\n", out)
    )
    assert sum(contiguous) == sum(balanced) == 512 * 513 // 2
    assert max(contiguous) > 4 * min(contiguous)
    assert max(balanced) < 1.05 * min(balanced)
    assert re.findall(r"answered rightly ([0-9.]+) %", out) == ["100.0"] * 2
    first, last, again, same = (float(error) for error in re.findall(r"([0-9.]+) at (?:first|last)", out))
    assert first == again > 10 * last
    assert last == pytest.approx(same, rel=1e-3)


def test_sparse_attention_over_neighbours_gives_the_others_nothing():
    attend = example("graph_attention")["attend"]
    soft, sparse = attend("softmax", 0, 200), attend("sparsemax", 0, 200)
    assert soft["left out"] == 0
    assert sparse["left out"] > 0.9
    assert sparse["error"] < 0.5 * soft["error"]
    assert abs(sparse["weight of a marked one"] - 1 / 3) < 0.01


def test_no_attack_succeeds_on_a_digit_that_is_certified():
    found = example("robust_digits")["main"](100)
    plain, through = found["plain"], found["through intervals"]
    assert not plain["broken"]
    assert not through["broken"]
    assert plain["certified"] < 0.5 < through["certified"] <= through["under attack"] <= through["clean"]
    assert plain["under attack"] < through["under attack"]
    assert through["clean"] > 0.85


def test_sums_over_clients_that_keep_their_scores_are_near_the_truth():
    names = example("private_sums")
    clients = range(names["CLIENTS"])
    merged = sm.federated.merge([names["summary"](client) for client in clients])
    everything = np.concatenate([names["readings"](client) for client in clients])
    assert merged.estimate.value == pytest.approx(np.logaddexp.reduce(everything), rel=1e-14)
    assert merged.top[0] == everything.max()


@pytest.mark.exhaustive
def test_processes_find_the_same_sum_by_each_way():
    out = subprocess.run([sys.executable, str(EXAMPLES / "private_sums.py")], capture_output=True, text=True, check=True).stdout
    truth, exact, _, client, server, shares = (float(line.split()[-1]) for line in out.splitlines()[1:])
    assert exact == truth
    assert abs(shares - truth) < 1e-5
    assert abs(server - truth) < 1.0
    assert abs(client - truth) < 3.0


@pytest.mark.parametrize("name", ["softmax", "sparsemax"])
def test_a_policy_of_any_map_learns_to_balance_a_pole(name: str):
    names = example("policy_gradient")
    returns = names["train"](names["Options"](map=name, updates=12))
    assert returns[0] < 40
    assert max(returns) > 3 * returns[0]


# What all of them say ------------------------------------------------------------------------------------------------------------

NAMES = sorted(path.stem for path in EXAMPLES.glob("*.py"))
NEEDS = {
    name: ast.literal_eval(found[1])
    for name in NAMES
    if (found := re.search(r"run\(main, __doc__, needs=(.*)\)$", (EXAMPLES / f"{name}.py").read_text(), re.MULTILINE))
}


def called(name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *options: str) -> tuple[int, str, str]:
    """(exit status, stdout, stderr)."""
    monkeypatch.setattr(sys, "argv", [str(EXAMPLES / f"{name}.py"), *options])
    status = 0
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    except SystemExit as ended:
        status = ended.code
    return status, *capsys.readouterr()


@pytest.mark.parametrize("name", NAMES)
def test_help_of_an_example_says_what_it_shows_and_needs_and_each_option(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    for module in NEEDS.get(name, ()):
        monkeypatch.setitem(sys.modules, module, None)  # as if it were not installed
    status, out, err = called(name, monkeypatch, capsys, "--help")
    doc = ast.get_docstring(ast.parse((EXAMPLES / f"{name}.py").read_text()))
    assert (status, err) == (0, "")
    assert doc is not None
    assert doc.split()[:5] == out.split("\n", 1)[1].split()[:5]
    assert ("pip install '" in out) == (name in NEEDS)
    undescribed = re.findall(r"--[a-z]+ +\[default", out)
    assert not undescribed


@pytest.mark.parametrize("name", NAMES)
def test_an_option_that_an_example_does_not_have_is_refused_in_a_line(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    status, out, err = called(name, monkeypatch, capsys, "--nonsense")
    assert (status, out) == (2, "")
    assert re.fullmatch(rf"{name}: Unknown option: --nonsense.*; see python examples/{name}.py --help\n", err)


@pytest.mark.parametrize("name", sorted(NEEDS))
def test_an_example_without_what_it_needs_says_what_to_install(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    projects = {"softmaxima": "pyproject.toml", "softmaxima-lab": "lab/pyproject.toml"}
    packages = {"faiss": "faiss-cpu"}
    for module in NEEDS[name]:
        with monkeypatch.context() as without:
            without.setitem(sys.modules, module, None)
            status, out, err = called(name, without, capsys)
        assert (status, out) == (1, "")
        said = re.fullmatch(rf"{name}: this needs {module}, which is not installed: pip install '([a-z-]+)\[([a-z,]+)\]'\n", err)
        assert said
        offered = tomllib.loads((EXAMPLES.parent / projects[said[1]]).read_text())["project"]["optional-dependencies"]
        assert any(line.startswith(packages.get(module, module)) for extra in said[2].split(",") for line in offered[extra])


WRONG = [
    ("policy_gradient", "--copies=0"),
    ("policy_gradient", "--updates=-1"),
    ("policy_gradient", "--discount=2"),
    ("policy_gradient", "--map=nosuch"),
    ("policy_gradient", "--map=elastic_softmax"),
    ("policy_gradient", "--map=topk_softmax"),
    ("policy_gradient", "--map=normmax"),
    ("policy_gradient", "--rate=nan"),
    ("policy_gradient", "--entropy=5"),
    ("policy_gradient", "--epochs=2.5"),
    ("context_parallel", "--map=nosuch"),
    ("context_parallel", "--places=3"),
    ("sharded_classes", "--then=0"),
    ("tensor_parallel", "--loss=softmax"),
    ("two_views", "--ways=best"),
    ("two_views", "--seeds=1"),
    ("ising_torus", "--widths=0"),
]


@pytest.mark.parametrize(("name", "option"), WRONG)
def test_an_option_that_makes_no_sense_is_refused_in_a_line(
    name: str, option: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    status, out, err = called(name, monkeypatch, capsys, option)
    assert (status, out) == (2, "")
    assert err.startswith(f"{name}: ")
    assert err.count("\n") == 1
    assert option.partition("=")[0] in err


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGINT to send")
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("policy_gradient", ["--updates=2000"]),
        pytest.param("context_parallel", ["--places=512", "--ranks=2", "--steps=100000"], marks=pytest.mark.exhaustive),
        pytest.param("private_sums", [], marks=pytest.mark.exhaustive),
    ],
)
def test_an_interrupted_example_ends_with_a_line_and_leaves_no_process(name: str, options: list[str]):
    """Ctrl-C in a terminal: a signal for the whole group of processes."""
    command, pipe = [sys.executable, "-c", SIGNALLED, str(EXAMPLES / f"{name}.py"), *options], subprocess.PIPE
    process = subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, start_new_session=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (130, f"{name}: interrupted\n"), out
    assert any(is_gone(process.pid) or time.sleep(0.02) for _ in range(250))  # what watches over shared memory ends as the last


# The example, which says when it is at work.
SIGNALLED = """
import runpy, sys, threading
import softmaxima_lab.commands.example as shared

sys.argv = sys.argv[1:]
wait = threading.Timer(0.5, lambda: print("begun", flush=True))
wait.daemon = True
run = shared.run
shared.run = lambda *given, **options: (wait.start(), run(*given, **options))
runpy.run_path(sys.argv[0], run_name="__main__")
"""

"""Threads: one OpenMP runtime in the process, no more threads than torch is told, and children of fork that compute."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from softmaxima.kernels import native

pytestmark = [
    pytest.mark.skipif(not native.AVAILABLE, reason="there is no native library"),
    pytest.mark.skipif(not os.path.exists("/proc/self/task"), reason="the system does not list threads in /proc"),
]

PARALLEL_WORK = """
def work():
    x = torch.ones(512, 4096)
    for map in (sm.softmax, sm.sparsemax, sm.topp_softmax, sm.log_softmax):
        map(x)
        map(x[0].repeat(60))  # a long row, which threads share
    sm.logsumexp(x.requires_grad_()).sum().backward()
    return sm.softmax(x.detach())
"""


def run(program: str) -> str:
    """What the program prints in a process of its own, which is ended if it hangs."""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize(
    "imports",
    [
        "import torch; import softmaxima as sm",
        "import softmaxima as sm; sm.softmax; import torch",
        "import softmaxima as sm; sm.file_logsumexp; import torch",
    ],
)
def test_one_openmp_runtime_is_loaded(imports: str):
    loaded = run(f"""
{imports}
import re
{PARALLEL_WORK}
torch.set_num_threads(2)
work()
torch.ones(1000, 1000).exp()
print(*set(re.findall(r"/\\S*lib(?:gomp|omp|iomp5)\\b\\S*", open("/proc/self/maps").read())), sep="\\n")
""")
    assert len(loaded.splitlines()) == 1, loaded


@pytest.mark.parametrize("threads", [1, 3])
def test_without_torch_as_many_threads_work_as_openmp_is_told(threads: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OMP_NUM_THREADS", str(threads))
    program = "import sys; from softmaxima.kernels import interface; print(interface.threads(), 'torch' in sys.modules)"
    assert run(program) == f"{threads} False"
    program += "; import torch; torch.set_num_threads(2); print(interface.threads())"
    assert run(program).split() == [str(threads), "False", "2"]


@pytest.mark.parametrize("threads", [1, 3])
def test_as_many_threads_work_as_torch_is_told(threads: int):
    started = run(f"""
import os, torch, softmaxima as sm
{PARALLEL_WORK}
torch.set_num_threads(1)
work()  # whatever else starts, like the threads of autograd
before = len(os.listdir("/proc/self/task"))
torch.set_num_threads({threads})
work()
print(len(os.listdir("/proc/self/task")) - before)
""")
    assert int(started) == threads - 1


def test_a_forked_child_with_one_thread_computes():
    assert run(f"""
import os, torch, softmaxima as sm
{PARALLEL_WORK}
torch.set_num_threads(2)
expected = work()  # with threads, which the child does not inherit
child = os.fork()
if child == 0:
    torch.set_num_threads(1)
    with torch.no_grad():
        same = torch.equal(sm.softmax(torch.ones(512, 4096)), expected)
        same &= torch.equal(sm.sparsemax(torch.ones(1, 8)), torch.ones(1, 8) / 8)
    os._exit(0 if same else 1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
""") == "0"  # fmt: skip

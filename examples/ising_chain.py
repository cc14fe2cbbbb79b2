r"""The partition function of a quantum system: a chain of L spins in a transverse field, of 2^L states.

    H = −J Σ σᶻ_i σᶻ_{i+1} − h Σ σˣ_i          log Z = log tr exp(−βH)          ⟨σˣ⟩ = ∂ log Z / ∂(βh) / L

No matrix is formed: `IsingChain` applies −H to vectors, and matrix_logsumexp estimates log Z with an interval. The open chain is
free fermions (Pfeuty 1970), so that the truth is known: with ε_k the singular values of the bidiagonal matrix that has h on its
diagonal and J above it, Z = Π_k 2 cosh(βε_k).

    python examples/ising_chain.py
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import torch
from torch import Tensor

import softmaxima as sm
from softmaxima_lab.commands.example import count, run

if TYPE_CHECKING:
    import scipy.sparse


class IsingChain(torch.nn.Module):
    """−H as a linear operator on [2^L, b]. J and h learn."""

    bonds: Tensor
    flipped: Tensor

    def __init__(self, spins: int, coupling: float = 1.0, field: float = 0.8) -> None:
        super().__init__()
        self.spins = spins
        self.coupling = torch.nn.Parameter(torch.tensor(coupling, dtype=torch.float64))
        self.field = torch.nn.Parameter(torch.tensor(field, dtype=torch.float64))
        states = torch.arange(2**spins)
        up = 1.0 - 2.0 * torch.stack([(states >> i) & 1 for i in range(spins)]).double()  # [L, 2^L], +1 or −1
        self.register_buffer("bonds", (up[:-1] * up[1:]).sum(0))
        self.register_buffer("flipped", torch.stack([states ^ (1 << i) for i in range(spins)]))

    def forward(self, vectors: Tensor) -> Tensor:
        return self.coupling * self.bonds.unsqueeze(-1) * vectors + self.field * sum(vectors[flip] for flip in self.flipped)


def sparse_chain(spins: int, coupling: float = 1.0, field: float = 0.8) -> scipy.sparse.csr_array:
    """The same −H as a SciPy sparse matrix, of Kronecker products."""
    import scipy.sparse

    x, z = scipy.sparse.csr_array([[0.0, 1.0], [1.0, 0.0]]), scipy.sparse.csr_array([[1.0, 0.0], [0.0, -1.0]])

    def at(site: int, operator: scipy.sparse.csr_array, width: int) -> scipy.sparse.csr_array:
        left, right = scipy.sparse.eye_array(2**site), scipy.sparse.eye_array(2 ** (spins - site - width))
        return scipy.sparse.kron(scipy.sparse.kron(left, operator), right).tocsr()

    bonds = sum(at(i, scipy.sparse.kron(z, z), 2) for i in range(spins - 1))
    return (coupling * bonds + field * sum(at(i, x, 1) for i in range(spins))).tocsr()


def exact_log_partition(spins: int, coupling: Tensor | float, field: Tensor | float, beta: float) -> Tensor:
    """Σ_k log 2 cosh(βε_k)."""
    fermions = torch.eye(spins, dtype=torch.float64) * field
    fermions = fermions + torch.diag(torch.ones(spins - 1, dtype=torch.float64), 1) * coupling
    energies = beta * torch.linalg.svdvals(fermions)
    return torch.logaddexp(energies, -energies).sum()


def main(spins: Annotated[int, count("L; time and memory grow as 2^L.", least=2)] = 12) -> list[tuple[float, float, float]]:
    """Prints the table; returns (lower, exact, upper) of log Z for each β."""
    generator = torch.Generator().manual_seed(0)
    print(f"{spins} spins, {2**spins} states, J = 1, h = 0.8")
    print("   β   log Z exact    estimate    interval of 95 %          ⟨σˣ⟩ exact  estimate  products")
    intervals = []
    for beta in (0.1, 0.3, 1.0, 3.0):
        chain = IsingChain(spins)
        estimate = sm.matrix_logsumexp(chain, size=2**spins, temperature=1 / beta, method="lanczos", generator=generator)
        (slope,) = torch.autograd.grad(estimate.value, chain.field)
        exact = exact_log_partition(spins, chain.coupling, chain.field, beta)
        (exact_slope,) = torch.autograd.grad(exact, chain.field)
        intervals.append((float(estimate.lower), exact.item(), float(estimate.upper)))
        print(
            f"{beta:5.1f} {exact.item():12.6f} {estimate.value.item():11.6f}  [{estimate.lower:.6f}, {estimate.upper:.6f}] "
            f"{exact_slope.item() / (beta * spins):12.5f} {slope.item() / (beta * spins):9.5f} {estimate.products:9d}"
        )
    return intervals


if __name__ == "__main__":
    run(main, __doc__)

"""Counts, means and covariances of sets of vectors, which can be pooled exactly, and samples drawn from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from headway.base.lazy import Tensor, torch
from headway.base.serialise import named


@named
@dataclass(frozen=True)
class Moments:
    """Count, mean and scatter of a set of vectors, in float64."""

    n: int
    mean: Tensor  # [d]
    scatter: Tensor  # [d, d], sum of (e - mean)(e - mean)^T = (n - 1) Sigma

    @classmethod
    def of(cls, e: Tensor) -> Moments:
        """The moments of the rows of e, [n, d]; the scatter of a single row is zero."""
        e = e.double()
        centred = e - e.mean(0)
        return cls(len(e), e.mean(0), centred.T @ centred)

    @classmethod
    def pool(cls, parts: Sequence[Moments]) -> Moments:
        """The moments of all vectors together, exactly; computed without differences of large numbers."""
        n = sum(p.n for p in parts)
        mu = torch.stack([p.n * p.mean for p in parts]).sum(0) / n
        scatter = torch.stack([p.scatter + p.n * torch.outer(p.mean - mu, p.mean - mu) for p in parts]).sum(0)
        return cls(n, mu, scatter)

    def nbytes(self) -> int:
        """Bytes as sent: a count, the mean and half of the symmetric scatter, in float32."""
        d = len(self.mean)
        return 4 * (1 + d + d * (d + 1) // 2)

    @property
    def cov(self) -> Tensor:
        """Sigma, unbiased, [d, d]; zero for a single vector."""
        return self.scatter / max(self.n - 1, 1)

    def with_cov(self, cov: Tensor) -> Moments:
        """The same count and mean with another covariance."""
        return replace(self, scatter=cov * max(self.n - 1, 1))

    def sample(self, m: int, rng: torch.Generator) -> Tensor:
        """m samples of N(mean, Sigma), [m, d]; for any rank: eigenvalues that rounding makes negative become zero."""
        cov = self.cov.cpu()
        values, vectors = torch.linalg.eigh((cov + cov.T) / 2)
        noise = torch.randn(m, len(self.mean), generator=rng, dtype=torch.float64)
        draws = noise * values.clamp(min=0).sqrt() @ vectors.T
        return (self.mean.cpu() + draws).float().to(self.mean.device)


@named
@dataclass(frozen=True)
class Gram:
    """The sums for a ridge regression of one-hot labels Y on vectors Z: A = Z^T Z and B = Z^T Y."""

    A: Tensor  # [d, d]
    B: Tensor  # [d, C]

    def __add__(self, other: Gram) -> Gram:
        return Gram(self.A + other.A, self.B + other.B)

    def nbytes(self) -> int:
        """Bytes as sent: half of the symmetric A and all of B, in float32."""
        d = len(self.A)
        return 4 * (d * (d + 1) // 2 + self.B.numel())

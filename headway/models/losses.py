"""Losses as functions of logits or features and labels; means over the batch."""

from __future__ import annotations

from headway.base.lazy import F, Tensor, torch

ABSENT = {"floor1": 1.0, "eps": 1e-12, "mask": 0.0}  # the value that replaces a count of zero


def log_prior(counts: Tensor, absent: str) -> Tensor:
    """log n_{k,c}, [C]; with `mask` -inf for absent classes, which removes them from the softmax."""
    n = counts.double()
    return torch.where(n > 0, n, torch.full_like(n, ABSENT[absent])).log().float()


def balanced_softmax(z: Tensor, y: Tensor, prior: Tensor, gamma: float) -> Tensor:
    """-log( n_y^gamma exp(z_y) / sum_c n_c^gamma exp(z_c) ) = CE(z + gamma log n, y)."""
    return F.cross_entropy(z + gamma * prior if gamma else z, y)  # n^0 = 1, but 0 * -inf is NaN


def contrast(h: Tensor, near: Tensor, far: Tensor, tau: float) -> Tensor:
    """-log( exp(cos(h, near)/tau) / (exp(cos(h, near)/tau) + exp(cos(h, far)/tau)) ), [B, d] each."""
    sims = torch.stack([F.cosine_similarity(h, near), F.cosine_similarity(h, far)], dim=1)  # [B, 2]
    return F.cross_entropy(sims / tau, torch.zeros(len(h), dtype=torch.long, device=h.device))


def mmd_squared(h: Tensor, g: Tensor) -> Tensor:
    """MMD^2 of two batches [B, d] under five RBF kernels exp(-||a-b||^2 / s_i), s_i = s 2^i / 4, i = 0..4."""
    both = torch.cat([h, g])  # [2B, d]
    both = both - both.detach().mean(0)  # distances stay the same, with less rounding error as norms are smaller
    squares = both.square().sum(1)
    gaps = (squares[:, None] + squares[None] - 2 * both @ both.T).clamp(min=0)  # ||a - b||^2, [2B, 2B]
    pairs = len(both) * (len(both) - 1)
    s = gaps.detach().sum() / pairs + 1e-8  # mean pairwise squared distance, no gradient
    kernel = torch.stack([torch.exp(-gaps / (s * 2.0**i / 4)) for i in range(5)]).sum(0)
    n = len(h)
    return (kernel[:n, :n] + kernel[n:, n:] - kernel[:n, n:] - kernel[n:, :n]).mean()


def not_true_distillation(z: Tensor, teacher: Tensor, y: Tensor, tau: float) -> Tensor:
    """tau^2 KL( softmax(q_g/tau) || softmax(q/tau) ), q and q_g without the true class, [B, C-1]."""
    others = torch.ones_like(z, dtype=torch.bool).scatter_(1, y[:, None], False)
    q, q_g = (t[others].view(len(t), -1) / tau for t in (z, teacher))
    return tau**2 * F.kl_div(F.log_softmax(q, 1), F.log_softmax(q_g, 1), reduction="batchmean", log_target=True)

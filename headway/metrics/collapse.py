"""Measures of neural collapse: NC1, NC2, NC3 and the neural-collapse error of features and class means."""

from __future__ import annotations

import torch
from torch import Tensor

from headway.metrics.geometry import class_means, cosines, finite_or_none, known_mean, pairs, unit

RANK = 1e-10  # eigenvalues of Sigma_B below this share of the largest are its null space: its rank is C - 1


def simplex_cosine(classes: int) -> float:
    """The cosine between any two vertices of a simplex, -1/(C-1)."""
    return -1 / (classes - 1)


def collapse_error(P: Tensor) -> float | None:
    """MSE over pairs between cos(P_c, P_c') and -1/(C-1), of prototypes [C, d]; NaN rows are left out.

    C counts the NaN rows too: prototypes that are not centred are compared with the simplex of all classes.
    """
    return known_mean((pairs(cosines(P)) - simplex_cosine(len(P))).square())


def within_class_covariance(h: Tensor, y: Tensor, P: Tensor) -> Tensor:
    """Sigma_W: the mean over classes of the covariance within a class (1/n_c), [d, d]."""
    centred = h.double() - P[y]  # [n, d]
    n = torch.bincount(y, minlength=len(P))  # [C]
    share = 1 / (n[y] * int((n > 0).sum()))  # [n]
    return (centred * share[:, None]).T @ centred


def collapse_figures(h: Tensor, y: Tensor, rows: Tensor) -> dict[str, float | None]:
    """NC1, NC2, NC3 and the neural-collapse error of features h [n, d]; rows are weight vectors [C, d'].

    Classes without samples are left out. NC3 is None if the weights have another dimension than h.
    """
    classes = len(rows)
    P = class_means(h, y, classes)  # [C, d]
    present = P.isfinite().all(1)  # [C]
    centre = h.double().mean(0)  # h_G, [d]
    M = P[present] - centre  # [C', d] h_c - h_G
    sigma_w, sigma_b = within_class_covariance(h, y, P), M.T @ M / len(M)  # [d, d]
    between = float(sigma_b.trace())
    found: dict[str, float | None] = dict.fromkeys(
        ("nc1", "nc1_traces", "nc2_angles", "nc2_lengths", "nc3", "nc3_cosine")
    )
    if between > 0:
        inverse = torch.linalg.pinv(sigma_b, rtol=RANK, hermitian=True)
        found["nc1"] = float((sigma_w * inverse).sum()) / len(M)  # trace(Sigma_W pinv(Sigma_B)) / C, both symmetric
        found["nc1_traces"] = float(sigma_w.trace()) / between
        if len(M) > 1:  # centred means of C' classes are compared with C' vertices, without the absent classes
            found["nc2_angles"] = collapse_error(M)
        lengths = M.norm(dim=1)
        found["nc2_lengths"] = float(lengths.std(correction=0) / lengths.mean())
        W = rows[present].double()
        if W.shape == M.shape:
            found["nc3"] = float((W / W.norm() - M / M.norm()).norm())
            found["nc3_cosine"] = known_mean((unit(M) * unit(W)).sum(1))
    return {"error": collapse_error(P)} | {key: None if v is None else finite_or_none(v) for key, v in found.items()}

"""A plain loop over the same batches: no federated work, the fused optimiser, a C library that keeps freed memory."""

from __future__ import annotations

import ctypes

import shared
import torch

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # names of malloc.h


def main() -> None:
    job = shared.job()
    mallopt = ctypes.CDLL(None).mallopt
    assert any(mallopt(M_MMAP_THRESHOLD, size) for size in (2**30, 2**25))  # older versions refuse more than 32 MB
    assert mallopt(M_TRIM_THRESHOLD, 2**31 - 1)
    data, (clients, participants) = job.arrays(), job.lists()
    shards = {k: (data["x"][clients[k]], data["y"][clients[k]]) for k in {k for ks in participants for k in ks}}
    model = shared.Counted(*shared.layers(job.model))
    sgd = torch.optim.SGD(model.parameters(), lr=job.lr, **{**job.sgd(), "fused": True})
    shared.count_steps()
    reached, clock = 0.0, shared.Clock()
    for chosen in participants:
        for k in chosen:
            shared.train(model, *shards[k], job.batch, sgd)
        clock.round()
        if job.evaluate:
            reached = shared.accuracy(model, data)
    whole = clock.whole()
    shared.finish(job, clock, whole, reached if job.evaluate else shared.accuracy(model, data))


if __name__ == "__main__":
    main()

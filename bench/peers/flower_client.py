"""The client of run_flower.py, in a module of its own, so that a Ray actor keeps the data from message to message."""

from __future__ import annotations

import functools
from typing import Any

import shared
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp


@functools.cache
def kept(job: shared.Job) -> tuple[dict[str, torch.Tensor], list[list[int]]]:
    """The data and the clients' lists; the steps are counted from the first call on."""
    torch.set_num_threads(1)
    shared.count_steps()
    return job.arrays(), job.lists()[0]


def trained(job: shared.Job, message: Message) -> Message:
    data, clients = kept(job)
    mine = clients[int(message.content["config"]["client"])]
    before = dict(shared.COUNT)
    net = shared.Counted(*shared.layers(job.model))
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    sgd = torch.optim.SGD(net.parameters(), lr=job.lr, **job.sgd())
    shared.train(net, data["x"][mine], data["y"][mine], job.batch, sgd)
    done = {name: shared.COUNT[name] - before[name] for name in before}
    metrics = MetricRecord({"num-examples": len(mine), **done})
    return Message(content=RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics}), reply_to=message)


def app(job: shared.Job) -> ClientApp:
    made = ClientApp()

    @made.train()  # type: ignore[untyped-decorator]
    def train(message: Message, context: Context) -> Any:
        return trained(job, message)

    return made

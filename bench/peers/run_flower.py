"""Flower: FedAvg and its simulation on Ray, one client a core; the clients of a round are given in their messages."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

import flower_client
import shared
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from torch import nn


class Given(FedAvg):
    """Takes any nodes and tells each which client it is; adds up what the clients counted."""

    def __init__(self, participants: list[list[int]], clock: shared.Clock, counted: dict[str, int], **own: Any):
        super().__init__(**own)
        self.participants, self.clock, self.counted = participants, clock, counted

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        messages = list(super().configure_train(server_round, arrays, config, grid))
        for message, k in zip(messages, self.participants[server_round - 1], strict=True):
            message.content = RecordDict({"arrays": arrays, "config": ConfigRecord({"client": k})})
        return messages

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
        replies = list(replies)
        if failed := [r for r in replies if r.has_error()]:
            raise RuntimeError(f"{len(failed)} clients failed: {failed[0].error.reason}")
        made = super().aggregate_train(server_round, replies)
        self.clock.round()
        for reply in replies:
            self.counted["samples"] += int(reply.content["metrics"]["samples"])
            self.counted["steps"] += int(reply.content["metrics"]["steps"])
        return made


def main() -> None:
    job = shared.job()
    logging.getLogger("flwr").setLevel(logging.ERROR)
    data, (clients, participants) = job.arrays(), job.lists()
    net: nn.Module = shared.Counted(*shared.layers(job.model))
    app, reached, counted, clock = ServerApp(), [0.0], {"samples": 0, "steps": 0}, shared.Clock()

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
        if server_round < job.rounds and not (job.evaluate and server_round):
            return None
        net.load_state_dict(arrays.to_torch_state_dict())
        reached[0] = shared.accuracy(net, data)
        return MetricRecord({"accuracy": reached[0]})

    @app.main()  # type: ignore[untyped-decorator]
    def serve(grid: Grid, context: Any) -> None:
        share = (len(participants[0]) + 0.5) / len(clients)  # Flower rounds down
        strategy = Given(
            participants, clock, counted, fraction_train=min(1.0, share), fraction_evaluate=0.0,
            min_train_nodes=len(participants[0]), min_available_nodes=len(clients),
        )  # fmt: skip
        strategy.start(grid, ArrayRecord(net.state_dict()), num_rounds=job.rounds, evaluate_fn=evaluate)

    ray = {"address": "local", "num_cpus": shared.cores(), "log_to_driver": False, "_node_ip_address": "127.0.0.1"}
    run_simulation(  # on a Ray of its own, whatever else runs on the machine
        server_app=app,
        client_app=flower_client.app(job),
        num_supernodes=len(clients),
        backend_config={
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
            "init_args": ray,
        },
    )
    whole = clock.whole()
    shared.finish(job, clock, whole, reached[0], counted)


if __name__ == "__main__":
    main()

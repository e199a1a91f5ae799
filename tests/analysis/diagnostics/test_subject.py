"""What diagnostics look at: local models are trained once, whoever asks for them."""

import pytest
import torch
from diagnosed import finished


@pytest.mark.parametrize("text", ["fedavg", "fedtc", "fednh", "fedrod"])
def test_local_models_are_trained_once_and_come_back_the_same(text, tmp_path, monkeypatch) -> None:
    subject = finished(text, tmp_path)
    first = {m.client: m.net.tensors() for m in subject.local_models()}
    monkeypatch.setattr("headway.analysis.diagnostics.subject.train_client", None)  # whoever trains again fails
    for again in subject.local_models():
        kept, now = first[again.client], again.net.tensors()
        assert kept.keys() == now.keys()
        assert all(torch.equal(kept[name], now[name]) for name in kept)

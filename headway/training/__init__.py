"""Federated training: settings, the task, local training of a client, the rounds, and what they need of an engine.

It may import methods, core, models, data and base. `settings` does not import torch, as `--help` uses it.
"""

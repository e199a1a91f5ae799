"""Traits: what a piece may `require` of the rest of its recipe, and what it may `provide`. Other names are refused.

What a recipe lacks follows from its head, its shared parameters, its hooks and what its pieces provide
(core/compatibility.py).
"""

from __future__ import annotations

# trait -> why a recipe cannot be: {0} requires the trait, {1} takes it away
LACKING = {
    "trained classifier": "{0} moves the classifier and {1} freezes it",  # its weights are trained
    "trained head": "{0} needs something to train in the head and {1} freezes it",  # weights, a projection, a scale
    "server": "{0} needs the server and {1} has clients that exchange nothing",
    "shared classifier": "{0} acts on a classifier that all clients share and {1} has none",
    "global body": "{0} needs a body that all clients share and with {1} there is none",
    "plain gradient": "{0} needs the plain gradient of its loss and {1} replaces it",
}
FULFILLED = {  # by the training code, where a piece requires them
    "fresh momentum": "momentum starts at zero in every round; refused under persist_momentum",
    "features of the last epoch": "collected for local.last_epoch_means",
    "mean of personal tensors": "a calibration starts from the mean of the clients' personal tensors",
}
PROVIDED = {
    "default": "it names a choice that is made anyway",
    "isolated clients": "clients send nothing",
    "all clients train": "sampling is ignored",
    "pooled data": "one client has all data",
    "own model": "clients train a second model",
    "averaged model": "the model that predicts is not the one that training continues from",
    "same classifier": "a calibration that keeps the recipe's kind of classifier",
}
REQUIRED = LACKING.keys() | FULFILLED.keys()

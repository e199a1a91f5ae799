"""Networks: bodies by name, a user's own networks, heads, losses, and the net that joins body and head.

It may import headway.base only. Importing it does not import torch: a body's module is imported at its first use.
"""

from headway.models.bodies import body, seeded
from headway.models.catalogue import MODELS, Model, register_model

__all__ = ["MODELS", "Model", "body", "register_model", "seeded"]

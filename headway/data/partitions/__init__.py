"""Which client holds which samples: what can be asked for (spec), drawn (draws) and saved (partition), local splits.

It may import headway.base alone. A new partition goes into draws.py and spec.py; a user's own is registered
(spec.register_partition).
"""

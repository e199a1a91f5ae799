"""Which client holds which samples: what can be asked for (spec), drawn (draws) and saved (partition), local splits.

It may import headway.base alone. A new partition needs a function in draws.py, its settings in spec.py and its branch
in `_deal` of partition.py; a user's own is registered (spec.register_partition).
"""

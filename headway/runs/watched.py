"""The names that `--watch` takes. In a file of their own: the help page shows them without importing torch."""

WATCHED = ("norms", "classifiers", "collapse", "consistency", "drift", "temperature", "steps")  # measured in monitor.py

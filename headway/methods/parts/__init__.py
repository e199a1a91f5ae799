"""What several methods share, and the heads that a single method brings.

Heads need torch when they are imported, so methods import them when a model is built.
May import core, models and base.
"""

"""What is computed from finished runs: diagnostics, the report page, the papers' tables and figures, exported models,
method cards, plots, and what a recipe sends.

It may import runs and every folder below. Only cli and api import it, and `report` of Run and Comparison.
"""

"""Diagnostics of finished runs (`headway diagnose`), a file each, listed in catalogue.py. They change no run.

They may import analysis.plotting, runs and every folder below. Formulas that `--watch` needs too stand in metrics.
"""

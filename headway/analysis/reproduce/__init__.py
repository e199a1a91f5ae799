"""The papers' tables and figures made again (`headway reproduce`): settings, our runs, both numbers side by side.

It may import analysis.published, analysis.diagnostics, analysis.plotting, runs and every folder below.
"""

"""The report (`headway report`): runs in, one HTML page without outside files out.

It may import analysis.diagnostics, analysis.plotting, runs and every folder below.
"""

"""Metrics of models: accuracy, class means and angles, neural collapse, agreement of clients.

It may import training, methods, core, models, data and base. Nothing here draws, prints or writes a file.
"""

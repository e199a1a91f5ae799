"""Plots: the style all figures share, fonts, and the plot of a partition.

It may import data and base; matplotlib is imported when a figure is drawn.
"""

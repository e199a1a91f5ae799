"""Helpers that every other folder may use: errors, the machine, trees of tensors, files, signals, JSON.

It imports no other folder of headway, and no module here imports torch before it is used (lazy.py).
"""

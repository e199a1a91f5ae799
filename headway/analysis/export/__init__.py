"""A run's model as a file for other tools (`headway export`): TorchScript, ONNX, weights; each checked on samples.

It may import runs and every folder below.
"""

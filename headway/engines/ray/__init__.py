"""The Ray engine: it trains clients, or makes whole runs of a comparison, on the workers of a cluster.

It may import what engines may. Ray is an optional dependency; it is imported only when the engine is used.
"""

"""`headway bench`: time and memory of rounds compared with a plain training loop, and start-up time, in new processes.

It may import runs and every folder below. Only cli imports it.
"""

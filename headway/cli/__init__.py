"""The command line: `app` knows the commands by name, each has a file of its own that is imported when it runs.

Beside them stand what commands share: `options` and `values` (declaring options, reading them), `help`, `completion`,
`output`, `results` and `progress`. This is the top layer: it may import every other, and no other imports it.
"""

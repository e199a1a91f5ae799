"""The version of headway, where every layer can read it; pyproject.toml has the same."""

__version__ = "0.1.0"

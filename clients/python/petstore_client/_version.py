"""The version of this package; pyproject.toml reads it from here."""

__version__ = "2.1.0"

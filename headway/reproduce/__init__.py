"""The papers' tables and figures again: their settings, our runs, both side by side."""

"""The words beside the figure of neural collapse."""

from __future__ import annotations

from headway.analysis.diagnostics.collapse import about


def test_the_text_says_which_classes_each_simplex_counts() -> None:
    text = about(classes=3, here=2)
    assert "C' counting the classes in the test set" in text
    assert "with C = 3, all classes of the task" in text
    assert text.endswith("The test samples hold 2 of the 3 classes.")
    assert "test samples hold" not in about(classes=3, here=3)

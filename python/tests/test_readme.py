from __future__ import annotations

import unittest
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[1]


class Readme(unittest.TestCase):
    def test_prints_the_example_as_it_is(self) -> None:
        example = (FOLDER / "example.py").read_text(encoding="utf-8")
        readme = (FOLDER / "README.md").read_text(encoding="utf-8")
        self.assertIn(f"```python\n{example}```\n", readme)
        self.assertLessEqual(len(example.splitlines()), 10)

    def test_prints_the_example_of_the_store_as_it_is(self) -> None:
        example = (FOLDER / "example_store.py").read_text(encoding="utf-8")
        self.assertIn(f"```python\n{example}```\n", (FOLDER / "README.md").read_text("utf-8"))


if __name__ == "__main__":
    unittest.main()

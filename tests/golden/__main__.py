"""Write the files that are missing."""

from __future__ import annotations

from tests.golden import files

for path, text in files().items():
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        print(path.name)

"""Reports: a results folder in, one HTML page and its figures out. Never loads a model.

- `write_report(folder)`: `folder/report.html` and `folder/figures/*.png`
- `write_index(root)`: `root/index.html` over every `root/*/*/manifest.json`
"""

from probe.report.index import write_index
from probe.report.page import write_report

__all__ = ["write_index", "write_report"]

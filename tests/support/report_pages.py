"""Read a report page, and text that must be escaped on it."""

from html.parser import HTMLParser
from pathlib import Path

EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(2)> & \"quotes\" '{{ 7 * 7 }}' \u2028"


class Page(HTMLParser):
    """Tags, text outside of scripts, and attributes."""

    def __init__(self, path: Path):
        super().__init__()
        self.tags: list[tuple[str, dict]] = []
        self.text = ""
        self._inside = ""
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self._inside = tag

    def handle_data(self, data):
        if self._inside not in ("script", "style"):
            self.text += data

    def count(self, tag: str, **attributes) -> int:
        return sum(t == tag and attributes.items() <= a.items() for t, a in self.tags)

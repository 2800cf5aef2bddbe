"""For mkdocs: files of the repository that are no pages become plain names of files."""

from __future__ import annotations

import posixpath
import re
from typing import Any

_LINK = re.compile(r"\[([^\]]+)\]\(([^)\s#]+)(#[^)\s]*)?\)")
_NO_PAGE = (".ipynb", ".py", ".json", ".sh", ".yaml")


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """The text of a page, in which a link to what the site does not hold is `text (file)`."""
    here = posixpath.dirname(posixpath.join("docs", page.file.src_uri))

    def replaced(link: re.Match[str]) -> str:
        text, target, _ = link.groups()
        if "://" in target or target.startswith("mailto:"):
            return link.group()
        file = posixpath.normpath(posixpath.join(here, target))
        if file.startswith("docs/") and not file.endswith(_NO_PAGE):
            return link.group()
        return text if text.strip("`") == file else f"{text} (`{file}`)"

    return _LINK.sub(replaced, markdown)

"""What is printed through rich: text and nothing else, see `jaxrl.printable`.

Text of models, files and servers is never read as markup, and its control characters are visible.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from jaxrl.printable import printable


class PlainConsole(Console):
    """A console that interprets no markup and prints no control character but its own."""

    def __init__(self, **options: Any) -> None:
        """Options are those of rich."""
        super().__init__(markup=False, emoji=False, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        """The text before it is laid out, as its characters need more room once they are shown."""
        return super().render_str(printable(text, lines=True), **options)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Whatever is printed comes by here; what has been made printable already stays."""
        for segment in super().render(renderable, options):
            if segment.control or segment.text.isprintable():
                yield segment
            else:
                yield segment._replace(text=printable(segment.text, lines=True))


def as_text(value: object, *, lines: bool = False, **style: Any) -> Text:
    """A cell or a line of a console, see `printable`; the style is that of `rich.text.Text`."""
    return Text(printable(value, lines=lines), **style)

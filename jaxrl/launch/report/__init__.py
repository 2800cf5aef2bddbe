"""`jaxrl report RUN [RUN ...] [--out FILE] [--png] [--serve]`: runs as one HTML page."""

from __future__ import annotations

import argparse
import base64
import hashlib
import html
from collections.abc import Sequence
from datetime import datetime
from importlib import metadata, resources
from pathlib import Path
from typing import Any

from jaxrl.launch.report import collect, live
from jaxrl.launch.streams import say
from jaxrl.printable import printable
from jaxrl.record import storage

_SCRIPTS = ("dom.js", "charts.js", "rollouts.js", "page.js")


def main(argv: list[str]) -> int:
    """Write the report and say where it is; 2 for a directory that holds no run, or odd entries."""
    parser = argparse.ArgumentParser(prog="jaxrl report", description="Show and compare runs.")
    where = storage.locate
    parser.add_argument("runs", nargs="+", type=where, metavar="RUN", help="a run directory")
    parser.add_argument("--out", type=where, help="the file to write; default: RUN/report.html")
    parser.add_argument(
        "--png", action="store_true", help="pictures of the curves as well, in a folder beside it"
    )
    parser.add_argument(
        "--serve", action="store_true", help="show the report in a browser during the runs"
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to serve on (%(default)s)")
    parser.add_argument("--port", type=int, default=8780, help="port, 0 for any (%(default)s)")
    flags = parser.parse_args(argv)
    if flags.serve:
        return _serve(flags.runs, flags.host, flags.port)
    out = flags.out or flags.runs[0] / "report.html"
    try:
        if flags.out is None and (odd := storage.odd_entry(flags.runs[0], links=True)):
            raise ValueError(
                f"{flags.runs[0]} holds what no run writes there: {odd}; read the run with care, "
                "and name the file of the report with --out"
            )
        paths = write(flags.runs, out, png=flags.png)
    except (FileNotFoundError, ValueError) as error:
        say(f"jaxrl: {error}", error=True)
        return 2
    for path in paths:
        print(path)
    return 0


def _serve(runs: Sequence[Path], host: str, port: int) -> int:
    try:
        collect.gather(runs)  # a directory that holds no run is refused now
        server = live.server(
            runs, lambda version: page(collect.gather(runs), version=version), host, port
        )
    except (OSError, ValueError) as error:
        say(f"jaxrl: {error}", error=True)
        return 2
    print(f"http://{host}:{server.server_address[1]}/ shows the report; Ctrl-C ends it", flush=True)
    with server:
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            return 0


def write(runs: Sequence[Path], out: Path, png: bool = False) -> list[Path]:
    """Write a report of runs.

    The file loads nothing: data, style and script are in it, and its content security policy, which
    names the script by its hash, lets nothing else run. Completions are shown as text only.

    Args:
      runs: run directories, finished or not.
      out: the HTML file.
      png: also draw each chart to `STEM-png/NAME.png` beside it, for papers.

    Returns:
      The files written.

    Raises:
      FileNotFoundError: a directory that holds no run.
      ValueError: no directory.
    """
    data = collect.gather(runs)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(page(data), encoding="utf-8")
    if not png:
        return [out]
    from jaxrl.launch.report import (
        figures,  # matplotlib takes its time, so only where it is asked for
    )

    return [out, *figures.write(data, out.with_name(f"{out.stem}-png"))]


def page(data: collect.Json, *, version: str = "") -> str:
    """The report as HTML; with a version, one that asks its server for a newer one."""
    style = _part("page.css")
    names = (*_SCRIPTS, "live.js") if version else _SCRIPTS
    script = "\n".join(_part(name).replace('"use strict";\n', "", 1) for name in names)
    script = f'"use strict";\n(() => {{\n{script}\n}})();'
    policy = f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'"
    parts = {
        "policy": policy + ("; connect-src 'self'" if version else ""),
        "title": html.escape(printable("Run report: " + ", ".join(data["groups"]))),
        "style": style,
        "data": embed(data | {"version": version}),
        "script": script,
        "version": metadata.version("jaxrl"),
        "whole": "" if version else "This file is whole in itself: it loads nothing.",
        "date": f"{datetime.now():%Y-%m-%d %H:%M}",
    }
    before, *rest = _part("page.html").split("{{")
    for piece in rest:
        name, _, after = piece.partition("}}")
        before += parts[name] + after
    return before


def embed(value: Any) -> str:
    """JSON that cannot end the script element that holds it, whatever text is in it."""
    # Lone surrogates, which UTF-8 cannot hold, become question marks.
    return collect.embed_text(value).encode("utf-8", "replace").decode()


def _part(name: str) -> str:
    return (resources.files(__package__) / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()

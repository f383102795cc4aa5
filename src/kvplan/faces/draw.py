"""Which pictures a verb's answer is drawn as."""

from __future__ import annotations

from typing import Any

from kvplan.faces import picture
from kvplan.verbs.answer import Answer


def charts_of(verb: str, answer: Answer) -> list[Any]:
    """The verb's charts, as Altair objects for a file, a notebook or a page."""
    rows = answer.series()
    if verb == "size":
        return [picture.cache_growth(rows["growth"], f"{answer['model']['id']}: cache of one sequence")]
    if verb == "timeline":
        return [picture.cache_growth(rows["steps"], "cache held after each step")]
    if verb == "fit":
        return [picture.memory_split(rows["memory"])]
    roof = rows["roofline"]
    return [
        picture.memory_split(rows["memory"]),
        picture.cache_growth(rows["growth"], "cache of one sequence"),
        picture.decode_over_batch(rows["decode"]),
        picture.roofline(roof["points"], roof["peak"], roof["rate"]),
    ]


def draw(name: str, verb: str, answer: Answer) -> None:
    """Draw an answer to FILE.svg, .png or .html."""
    path = picture.check_plot(name)
    picture.save(picture.page(charts_of(verb, answer)), path)

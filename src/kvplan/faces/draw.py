"""Which pictures a verb's answer is drawn as."""

from __future__ import annotations

from typing import Any

from kvplan.errors import BadInput
from kvplan.faces import front_picture, levers_picture, measure_picture, picture, run_picture
from kvplan.faces.latency_report import amount_text, load_text
from kvplan.verbs.answer import Answer


def charts_of(verb: str, answer: Answer) -> list[Any]:
    """The verb's charts, as Altair objects for a file, a notebook or a page."""
    rows = answer.series()
    if verb == "size":
        if not rows["growth"]:
            raise BadInput(f"--plot: {answer['model']['id']} keeps no cache, so there is nothing to draw")
        of = f"{answer['model']['id']}, {answer['kv']['dtype']} cache"
        return [picture.cache_growth(rows["growth"], of)]
    if verb == "timeline":
        return [picture.cache_held(rows["steps"], rows["of"])]
    if verb == "fit":
        return [picture.memory_split(rows["memory"], answer["memory"]["accelerator_bytes"], rows["of"])]
    if verb == "simulate":
        if not rows["timeline"]["seconds"]:
            raise BadInput("--plot: nothing ran, so there is nothing to draw")
        return run_picture.over_time(rows["timeline"], rows["of"])
    if verb == "measure":
        return [measure_picture.steps(answer)]
    if verb == "recommend":
        return _front(answer, rows)
    if verb == "levers":
        return _levers(answer, rows)
    if verb == "latency":
        return _over_batch(answer, rows)
    of, load, roof = rows["of"], answer["load"], rows["roofline"]
    lengths = f"{load['prompt_tokens']:,} prompt + {load['output_tokens']:,} output tokens a sequence"
    served = f"{of}; {lengths}, {amount_text(load)}"
    growth = [picture.cache_growth(rows["growth"], of)] if rows["growth"] else []
    return [
        picture.memory_split(rows["memory"], answer["fit"]["memory"]["accelerator_bytes"], of),
        *growth,
        picture.decode_over_batch(rows["decode"], f"{of}; {lengths}"),
        picture.roofline(roof["points"], roof["peak"], roof["rate"], served),
    ]


def _front(answer: Answer, rows: dict[str, Any]) -> list[Any]:
    if not rows["front"]:
        raise BadInput("--plot: no simulated deployment has a price, so there is no front; give --price")
    return [front_picture.cost_and_time(rows["front"], f"{rows['of']}; {answer['load']['source']}")]


def _levers(answer: Answer, rows: dict[str, Any]) -> list[Any]:
    if not levers_picture.points(answer["levers"]):
        raise BadInput("--plot: no lever changes anything that has a figure, so there is nothing to draw")
    return [levers_picture.gains(answer["levers"], f"{rows['of']}; {load_text(answer['load'])}")]


def _over_batch(answer: Answer, rows: dict[str, Any]) -> list[Any]:
    load, batches = answer["load"], answer["batches"]
    if not rows["curve"]:
        raise BadInput("--plot: not one sequence of that length fits, so there is no curve over batch")
    lengths = f"{load['prompt_tokens']:,} prompt + {load['output_tokens']:,} output tokens"
    marks = {
        "capacity": batches["capacity_batch"],
        "compute": batches["compute_bound_batch"],
        "weights": batches["weights_compute_bound_batch"],
    }
    return picture.served_over_batch(rows["curve"], marks, f"{rows['of']}; {lengths}")


def draw(name: str, verb: str, answer: Answer) -> None:
    """Draw an answer to FILE.svg, .png or .html."""
    path = picture.check_plot(name)
    picture.save(picture.page(charts_of(verb, answer)), path)

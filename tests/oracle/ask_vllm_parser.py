"""What vLLM's own parser of `vllm serve` makes of command lines, one JSON list of words a line.

Run by the Python in which vLLM is installed. Each line is answered by one: the arguments that are not at
their default, or {"refused": why}.
"""

import contextlib
import importlib
import io
import json
import sys

_PLACES = ("vllm.entrypoints.launchers.cli_args", "vllm.entrypoints.openai.cli_args")
_PARSERS = ("vllm.utils.argparse_utils", "vllm.utils")


def _found(places: tuple[str, ...], name: str) -> object:
    for place in places:
        with contextlib.suppress(ImportError, AttributeError):
            return getattr(importlib.import_module(place), name)
    raise SystemExit(f"no {name} in {places}")


def main() -> None:
    """Answer every line of standard input."""
    made = _found(_PARSERS, "FlexibleArgumentParser")()
    parser = _found(_PLACES, "make_arg_parser")(made)
    defaults = vars(parser.parse_args([]))
    for line in sys.stdin:
        said = io.StringIO()
        try:
            with contextlib.redirect_stderr(said):
                found = vars(parser.parse_args(json.loads(line)))
        except SystemExit:
            print("ANSWER", json.dumps({"refused": said.getvalue()[-500:]}), flush=True)  # noqa: T201
            continue
        changed = {name: str(value) for name, value in found.items() if value != defaults.get(name)}
        print("ANSWER", json.dumps(changed), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()

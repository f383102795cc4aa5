"""Data passes one way: a layer may import only itself and the layers before it."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[1] / "src" / "kvplan"
ORDER = [
    ("errors",),
    ("figure", "units"),
    ("facts",),
    ("model",),
    ("cost",),
    ("engines",),
    ("serve",),
    ("advise", "observe", "drills", "measured"),
    ("verbs",),
    ("faces",),
]
RANK = {name: rank for rank, names in enumerate(ORDER) for name in names}


def imported(tree: ast.AST) -> list[tuple[int, str]]:
    """Every kvplan module a file imports, functions included, with its line."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "kvplan":
            parts = (node.module or "").split(".")
            names = [parts[1]] if len(parts) > 1 else [alias.name for alias in node.names]
            found += [(node.lineno, name) for name in names]
        elif isinstance(node, ast.Import):
            found += [
                (node.lineno, alias.name.split(".")[1] if "." in alias.name else "kvplan")
                for alias in node.names
                if alias.name.split(".")[0] == "kvplan"
            ]
    return found


def wrong_imports(path: Path, text: str) -> list[str]:
    """Imports of that file which point to a layer above its own, or sideways to a sibling layer."""
    here = path.relative_to(ROOT).with_suffix("").parts[0]
    if here in ("__init__", "__main__"):
        return []
    wrong = []
    for line, there in imported(ast.parse(text)):
        if there == "kvplan" or there not in RANK:
            allowed = here == "faces"
        else:
            allowed = there == here or RANK[there] < RANK[here]
        if not allowed:
            wrong.append(f"{path.relative_to(ROOT)}:{line} {here} → {there}")
    return wrong


def test_imports_point_to_earlier_layers_only() -> None:
    wrong = [w for path in sorted(ROOT.rglob("*.py")) for w in wrong_imports(path, path.read_text("utf-8"))]
    assert wrong == []


def test_an_import_of_a_later_layer_is_caught() -> None:
    planted = "def f():\n    from kvplan.faces import text\n"
    assert wrong_imports(ROOT / "cost" / "cache.py", planted) == ["cost/cache.py:2 cost → faces"]


def test_every_folder_of_the_package_has_its_place_in_the_order() -> None:
    found = ROOT.rglob("__init__.py")
    folders = {path.relative_to(ROOT).parts[0] for path in found if path.parent != ROOT}
    assert folders <= set(RANK)


def test_no_module_is_longer_than_four_hundred_lines() -> None:
    long = [p.name for p in ROOT.rglob("*.py") if len(p.read_text("utf-8").splitlines()) > 400]
    assert long == []

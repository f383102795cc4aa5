"""Which KV connectors turn vLLM's hybrid manager off: any before 0.22, later those that cannot do with it.

vLLM config/vllm.py and distributed/kv_transfer/kv_connector/, read in 0.9.2 to 0.32.0.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvplan.engines.engine import Setup
from kvplan.engines.vllm_version import row_for, since, table_of


def turns_hybrid_off(setup: Setup) -> str | None:
    """Why the connector of --kv-transfer-config turns the hybrid manager off, or None."""
    given = setup.flags.get("kv_transfer_config")
    if not isinstance(given, Mapping) or not given.get("kv_connector"):
        return None
    names = _names(given)
    rule = table_of("connectors")
    if not since(setup.version, rule["by_class_from"]):
        return f"vLLM {setup.version}: {names[0]} is a KV connector, and any turns it off; {rule['source']}"
    row = row_for(rule["able"], setup.version) or {"names": []}
    unable = [name for name in names if name not in row["names"]]
    return f"KV connector {unable[0]} does not support it; {rule['source']}" if unable else None


def overrules(version: str) -> bool:
    """Whether a connector wins over --no-disable-hybrid-kv-cache-manager."""
    return not since(version, table_of("connectors")["flag_wins_from"])


def connector_notes(setup: Setup) -> list[str]:
    """What to say of a connector whose class is not vLLM's own."""
    given = setup.flags.get("kv_transfer_config")
    if not isinstance(given, Mapping) or not since(setup.version, table_of("connectors")["by_class_from"]):
        return []
    outside = [name for name in _names(given) if name in table_of("connectors")["outside"]]
    return [
        f"{name}: its class comes with another package; taken as one that turns the hybrid manager off"
        for name in outside
    ]


def _names(given: Mapping[str, Any]) -> list[str]:
    """The connectors that count: a MultiConnector's own ones."""
    name = str(given["kv_connector"]) if given.get("kv_connector") else ""
    extra = given.get("kv_connector_extra_config")
    inner = extra.get("connectors") if isinstance(extra, Mapping) else None
    if name != "MultiConnector" or not isinstance(inner, list):
        return [name] if name else []
    return [str(c.get("kv_connector")) for c in inner if isinstance(c, Mapping)] or [name]

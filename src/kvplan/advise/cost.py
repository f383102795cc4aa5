"""What a deployment costs: dollars and energy, by the hour, by the token and by the request.

A rented accelerator is paid by the hour whether it works or not, so that what a token costs falls as more
are made an hour. Every function takes plain numbers, figures or arrays; throughput must be above zero, for
what makes nothing has no price a token.
"""

from __future__ import annotations

from kvplan.figure import Number, formula

SECONDS_PER_HOUR = 3600
JOULES_PER_KWH = 3_600_000
MILLION = 1_000_000


@formula("$/h")
def usd_per_hour(accelerators: Number, usd_per_accelerator_hour: Number) -> Number:
    """What all accelerators cost an hour, busy or idle."""
    return accelerators * usd_per_accelerator_hour


@formula("$/Mtoken")
def usd_per_million_output_tokens(usd_per_hour: Number, output_tokens_per_second: Number) -> Number:
    """The hour's cost by the output tokens it brings; prompts are in it, for their work is paid too."""
    return usd_per_hour * MILLION / (SECONDS_PER_HOUR * output_tokens_per_second)


@formula("$/kreq")
def usd_per_thousand_requests(usd_per_hour: Number, requests_per_second: Number) -> Number:
    """The hour's cost by the requests it answers."""
    return usd_per_hour * 1000 / (SECONDS_PER_HOUR * requests_per_second)


@formula("W")
def most_watts(accelerators: Number, watts_per_accelerator: Number) -> Number:
    """At most: board power is what accelerators may draw. Hosts, network and cooling are not in it."""
    return accelerators * watts_per_accelerator


@formula("J/token")
def most_joules_per_output_token(most_watts: Number, output_tokens_per_second: Number) -> Number:
    """Energy of one output token at full board power: an upper bound, decode draws less."""
    return most_watts / output_tokens_per_second


@formula("kWh/Mtoken")
def most_kwh_per_million_output_tokens(most_joules_per_output_token: Number) -> Number:
    """The same energy as a bill counts it; an upper bound as well."""
    return most_joules_per_output_token * MILLION / JOULES_PER_KWH

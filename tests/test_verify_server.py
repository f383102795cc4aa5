"""`verify --url`: stored pages of real engines agree exactly; servers that do harm are one line, exit 2."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

import fake_server as fake
import kvplan
from kvplan.errors import BadInput, KvplanError, Unreachable
from kvplan.faces.cli import main
from kvplan.model.gguf_model import model_of
from kvplan.model.tensors import TensorList
from kvplan.observe.read import observe_log
from served_pages import PAGES, RUNS, llama_cpp, vllm

PASSWORD, TOKEN = "hunter2-horse", "tok-abcdefgh12345678"
STORED = sorted(path.stem for path in (PAGES / "vllm").glob("*.metrics"))
CONTEXTS: dict[str, dict[str, Any]] = {
    "gemma270m_ctx10000_par3": {"ctx_size": 10000, "parallel": 3},
    "gemma270m_ctx4096": {"ctx_size": 4096},
    "gemma270m_ctx4096_q4": {"ctx_size": 4096, "cache_type_k": "q4_0"},
    "gemma270m_ctx4096_q8": {"ctx_size": 4096, "cache_type_k": "q8_0"},
    "gemma270m_ctx4096_swafull": {"ctx_size": 4096, "swa_full": True},
    "gemma270m_ctx4096_ub128": {"ctx_size": 4096, "ubatch_size": 128},
    "gemma270m_ctx5000": {"ctx_size": 5000},
    "gemma270m_ctx8192_par4": {"ctx_size": 8192, "parallel": 4},
    "gemma270m_ctx8192_par4_unified": {"ctx_size": 8192, "parallel": 4, "kv_unified": True},
    "tiny_deepseek_v3_par2": {"ctx_size": 4096, "parallel": 2},
    "tiny_jamba_par2": {"ctx_size": 4096, "parallel": 2},
    "tiny_llama_par2": {"ctx_size": 4096, "parallel": 2},
}


def config(name: str) -> str:
    return str(RUNS / "vllm" / f"{name}.config.json")


def given(name: str) -> dict[str, Any]:
    """What the run was started with and its page does not say."""
    found: dict[str, Any] = json.loads((PAGES / "asked.json").read_text("utf-8")).get(name, {})
    return found


def figures(answer: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    return {row["name"]: (row["predicted"], row["reported"]) for row in answer["checks"]}


@pytest.mark.parametrize("name", STORED)
def test_a_stored_page_of_vllm_agrees_exactly(name: str) -> None:
    with vllm(name) as server:
        answer = kvplan.verify(config(name), url=server.url, gpu="cpu", **given(name))
    assert answer["agrees"], answer["explanations"]
    found = figures(answer)
    for figure in ("num_blocks", "kv_tokens", "block_tokens"):
        ours, theirs = found[figure]
        assert ours == theirs
    assert found["max_concurrency"][0] == pytest.approx(found["max_concurrency"][1], abs=1e-6)
    assert all((row["tolerance"] or 0) <= 1e-8 for row in answer["checks"])


@pytest.mark.parametrize("name", STORED)
def test_so_it_does_without_the_bytes_of_its_cache(name: str) -> None:
    """On a GPU the bytes are stated only where they were given: blocks alone must do."""
    with vllm(name) as server:
        page = str(server.answers["/metrics"])
        for stated in ("268435456", "100000000", "1073741824"):
            page = page.replace(f'kv_cache_memory_bytes="{stated}"', 'kv_cache_memory_bytes="None"')
        server.answers["/metrics"] = page
        answer = kvplan.verify(config(name), url=server.url, gpu="cpu", **given(name))
    assert answer["agrees"], answer["explanations"]


@pytest.mark.parametrize("name", CONTEXTS)
def test_a_stored_page_of_llama_server_agrees_exactly(name: str) -> None:
    _, o = observe_log(str(RUNS / "llama_cpp" / f"{name}.log"))
    model = model_of(TensorList((), (o.model or "",), dict(o.metadata)))
    with llama_cpp(name) as server:
        answer = kvplan.verify(model, url=server.url, **CONTEXTS[name])
    assert answer["agrees"], answer["checks"]
    assert {"n_ctx_seq", "max_running_requests"} <= set(figures(answer))


def test_a_wrong_setting_is_found() -> None:
    name = "vmx_gemma3_26_nohybrid"
    with vllm(name) as server:
        answer = kvplan.verify(config(name), url=server.url, gpu="cpu", max_num_batched_tokens=4096)
    assert not answer["agrees"]
    assert ("--disable-hybrid-kv-cache-manager", True) in [(c["flag"], c["value"]) for c in answer["changes"]]
    with vllm("vmx_llama_b128") as server:
        answer = kvplan.verify(
            config("vmx_llama_b128"), url=server.url, gpu="cpu", gpu_memory_utilization=0.5
        )
    assert [row["name"] for row in answer["checks"] if not row["agrees"]] == ["gpu_memory_utilization"]


SGLANG = {
    "model_path": "meta-llama/Llama-3.1-8B-Instruct",
    "tp_size": 1,
    "mem_fraction_static": 0.85,
    "page_size": 1,
    "version": "0.5.23",
    "api_key": TOKEN,
    "internal_states": [
        {"memory_usage": {"weight": 14.99, "kvcache": 52.5, "token_capacity": 430080, "graph": 0.4}}
    ],
}


def test_sglang_says_what_it_was_started_with() -> None:
    metrics = (
        'sglang:max_total_num_tokens{model_name="m",tp_rank="0"} 430080\n'
        'sglang:num_running_reqs{model_name="m",tp_rank="0"} 2\n'
    )
    with fake.serving(metrics=metrics, get_server_info=fake.json_page(SGLANG)) as server:
        answer = kvplan.verify(url=server.url, gpu="h100")
    assert answer["observed"]["version"] == "0.5.23"
    assert answer["observed"]["settings"]["mem_fraction_static"] == 0.85
    found = figures(answer)
    assert found["kv_bytes"][0] == (430080 + 1) * 131072  # and a page of padding
    assert TOKEN not in json.dumps(answer)


def test_tensorrt_llm_without_prometheus_says_blocks_in_its_statistics() -> None:
    stats = [{"iter": 1, "kvCacheStats": {"maxNumBlocks": 1000, "tokensPerBlock": 32}}]
    with fake.serving(metrics=fake.json_page(stats)) as server:
        server.answers["/v1/models"] = fake.json_page({"data": [{"id": "meta-llama/Llama-3.1-8B-Instruct"}]})
        answer = kvplan.verify(url=server.url, gpu="h100")
    assert answer["observed"]["engine"] == "tensorrt-llm"
    assert figures(answer)["kv_tokens"] == (32000, 32000)


def page_of(requests: int, ttft: float = 0.05, tpot: float = 0.009) -> str:
    """vLLM on a GPU: Llama-3.1-8B with 30,720 blocks, and requests of 512 + 128 tokens, 8 at once."""
    labels = 'engine="0",model_name="m"'
    lines = [
        f"vllm:num_requests_running{{{labels}}} 8\nvllm:num_requests_waiting{{{labels}}} 1\n"
        f"vllm:kv_cache_usage_perc{{{labels}}} 0.25\n"
        f'vllm:request_success_total{{{labels},finished_reason="stop"}} {requests}\n'
        f"vllm:generation_tokens_total{{{labels}}} {128 * requests}\n"
        f"vllm:num_preemptions_total{{{labels}}} 3\n"
        f"vllm:iteration_tokens_total_count{{{labels}}} {16 * requests}\n"
        'vllm:cache_config_info{block_size="16",num_gpu_blocks="30720",cache_dtype="auto",engine="0",'
        'gpu_memory_utilization="0.9",enable_prefix_caching="True",kv_cache_size_tokens="491520",'
        'kv_cache_max_concurrency="3.75",kv_cache_memory_bytes="None"} 1\n'
    ]
    for name, value, bounds in (
        ("request_prompt_tokens", 512, (200, 500, 1000)),
        ("request_generation_tokens", 128, (100, 200)),
        ("time_to_first_token_seconds", ttft, (0.04, 0.06, 0.1)),
        ("request_time_per_output_token_seconds", tpot, (0.01, 0.025)),
        ("e2e_request_latency_seconds", ttft + 127 * tpot, (1.0, 2.5)),
    ):
        for bound in (*bounds, "+Inf"):
            count = requests if bound == "+Inf" or value <= float(bound) else 0
            lines.append(f'vllm:{name}_bucket{{{labels},le="{bound}"}} {count}\n')
        lines.append(f"vllm:{name}_sum{{{labels}}} {value * requests}\n")
    return "".join(lines)


def served(page: str) -> Any:
    models = {"data": [{"id": "m", "root": "meta-llama/Llama-3.1-8B-Instruct", "max_model_len": 131072}]}
    server = fake.serving(metrics=page, version=fake.json_page({"version": "0.32.0"}))

    class Serving:
        def __enter__(self) -> fake.FakeServer:
            found = server.__enter__()
            found.answers["/v1/models"] = fake.json_page(models)
            return found

        def __exit__(self, *what: object) -> None:
            server.__exit__(None, None, None)

    return Serving()


def test_times_are_compared_with_those_of_the_load_that_was_counted() -> None:
    with served(page_of(1000)) as server:
        answer = kvplan.verify(url=server.url, gpu="h100", max_num_seqs=256)
    traffic = answer["observed"]["traffic"]
    assert traffic["predicted_for"] == {
        "prompt_tokens": 512, "output_tokens": 128, "concurrency": 8, "shared_prefix_tokens": 0,
    }  # fmt: skip
    same = kvplan.latency(
        "llama-3.1-8b-instruct", gpu="h100", engine_version="0.32.0", prompt_tokens=512, output_tokens=128,
        concurrency=8, max_num_seqs=256, gpu_memory_utilization=0.9,
    )["serving"]  # fmt: skip
    found = figures(answer)
    for name in ("ttft_seconds", "tpot_seconds", "e2e_seconds"):
        assert found[name][0] == pytest.approx(same[name], rel=1e-9)
    assert found["tpot_seconds"][1] == 0.009
    assert any("3 preemptions" in note for note in answer["notes"])


def test_with_watch_only_requests_between_count() -> None:
    pages = iter([page_of(1000), page_of(1100, tpot=0.009)])
    last = [""]

    def metrics(handler: fake.Handler) -> None:
        last[0] = next(pages, last[0])
        handler.send(200, last[0].encode())

    with served("") as server:
        server.answers["/metrics"] = metrics
        answer = kvplan.verify(url=server.url, gpu="h100", watch=0.2)
    traffic = answer["observed"]["traffic"]
    assert traffic["requests"] == 100
    assert 0.2 <= traffic["seconds"] < 10
    assert traffic["requests_per_second"] == pytest.approx(100 / traffic["seconds"])


HARMFUL: dict[str, Any] = {
    "slow": fake.drips, "silent": fake.silent, "endless": fake.endless, "large": fake.ten_gigabytes,
    "bomb": fake.gzip_bomb(2**28), "loop": fake.redirect("/metrics"), "page": fake.html,
    "error": fake.status(500), "starting": fake.status(503), "hangs up": fake.hangs_up,
    "breaks off": fake.breaks_off, "refuses": fake.status(401), "bytes": b"\xff\xfe\x00" * 1000,
    "empty": b"", "others": b"go_goroutines 5\n", "wrong type": fake.json_page({"a": 1}),
}  # fmt: skip


@pytest.mark.parametrize("name", HARMFUL)
def test_a_server_that_does_harm_is_one_line_and_exit_status_2(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from kvplan.observe import http

    monkeypatch.setattr(http.Limits.__init__, "__defaults__", (0.5, 2.0, 1 << 20, 3))
    with fake.serving(any=HARMFUL[name]) as server:
        url = server.url.replace("http://", f"http://me:{PASSWORD}@") + f"/?token={TOKEN}"
        begun = time.monotonic()
        with pytest.raises(SystemExit) as ended:
            main(["verify", "--url", url, "--timeout", "500ms", "--header", f"X-Key: {TOKEN}"])
        assert time.monotonic() - begun < 10
    said = capsys.readouterr()
    assert ended.value.code == 2
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert said.err.startswith("kvplan: error: --url: ")
    assert PASSWORD not in said.err
    assert TOKEN not in said.err


def test_credentials_that_a_server_repeats_reach_neither_output_nor_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def models(handler: fake.Handler) -> None:
        said = f"{handler.path} {handler.headers['authorization']} {PASSWORD}"
        entry = {"id": said, "root": config("vmx_llama_b128"), "max_model_len": 2048}
        handler.send(200, json.dumps({"data": [entry]}).encode(), "application/json")

    with vllm("vmx_llama_b128") as server:
        server.answers["/v1/models"] = models
        server.answers["/metrics"] = str(server.answers["/metrics"]).replace("models/llama", f"x-{TOKEN}-y")
        server.answers["/version"] = fake.json_page({"version": f"0.32.0+{PASSWORD}"})
        url = server.url.replace("http://", f"http://me:{PASSWORD}@") + f"/?token={TOKEN}"
        for more in ([], ["--json"], ["--markdown"], ["--save", str(tmp_path / "a.json")]):
            with pytest.raises(SystemExit):
                main(
                    [
                        "verify",
                        "--url",
                        url,
                        "--gpu",
                        "cpu",
                        "--header",
                        f"Authorization: Bearer {TOKEN}",
                        *more,
                    ]
                )
            said = capsys.readouterr()
            for secret in (PASSWORD, TOKEN):
                assert secret not in said.out
                assert secret not in said.err
    kept = (tmp_path / "a.json").read_text("utf-8")
    assert PASSWORD not in kept
    assert TOKEN not in kept


def test_no_other_page_than_the_engines_own_is_asked_and_nothing_is_sent() -> None:
    with vllm("vmx_llama_b128") as server:
        kvplan.verify(config("vmx_llama_b128"), url=f"{server.url}/metrics", gpu="cpu")
        asked = [(method, path) for method, path, _, _ in server.asked]
    assert asked == [("GET", "/metrics"), ("GET", "/v1/models"), ("GET", "/version")]


def test_a_model_that_is_not_known_is_asked_for() -> None:
    with vllm("vmx_llama_b128") as server, pytest.raises(BadInput, match="MODEL: missing; the server runs"):
        kvplan.verify(url=server.url, gpu="cpu")


def test_several_models_want_a_choice() -> None:
    page = 'vllm:num_requests_running{model_name="a"} 1\nvllm:num_requests_running{model_name="b"} 2\n'
    with fake.serving(metrics=page) as server:
        with pytest.raises(Unreachable, match=r"2 models .*--served"):
            kvplan.verify("llama-3.1-8b", url=server.url, gpu="h100")
        answer = kvplan.verify("llama-3.1-8b", url=server.url, gpu="h100", served="b")
    assert answer["observed"]["traffic"]["running"] == 2


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"timeout": "soon"}, "--timeout"),
        ({"timeout": -1}, "--timeout"),
        ({"watch": "3 weeks"}, "--watch"),
        ({"header": "nonsense"}, "--header"),
        ({"probe": True, "probe_concurrency": "1,x"}, "--probe-concurrency"),
        ({"probe": True, "probe_requests": 10**9}, "--probe-requests"),
        ({"probe": True, "probe_rate": -1.0}, "--probe-rate"),
        ({"probe_requests": 5}, "--probe-requests"),
        ({"since": "1h"}, "--since"),
        ({"log": "x.log"}, "--log and --url"),
    ],
)
def test_wrong_words_are_refused_before_anything_is_asked(wrong: dict[str, Any], why: str) -> None:
    with fake.serving() as server:
        with pytest.raises(KvplanError, match=why):
            kvplan.verify("llama-3.1-8b", url=server.url, **wrong)
        assert server.asked == []

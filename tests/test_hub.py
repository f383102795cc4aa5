"""Models of the Hugging Face Hub, read from a stand-in server on this machine."""

import json
import os
import subprocess
import sys

import huggingface_hub
import pytest
from huggingface_hub import constants

import kvplan
from hub_server import COMMIT, Giant, Hub, hub, ignore_range, redirect, refuse, stall
from kvplan.errors import BadConfig, BadInput, KvplanError, UnknownName, Unreachable
from kvplan.model import hub_client
from kvplan.model.hub import fetch_model, is_repo_id

LLAMA = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "vocab_size": 9,
}


def header(entries: dict) -> bytes:
    raw = json.dumps(entries).encode()
    return len(raw).to_bytes(8, "little") + raw


def shard(names: list[str], each: int) -> Giant:
    head = header(
        {
            n: {"dtype": "BF16", "shape": [each // 2], "data_offsets": [i * each, (i + 1) * each]}
            for i, n in enumerate(names)
        }
    )
    return Giant(head, len(head) + each * len(names))


def sharded(server: Hub, shards: int, per_shard: int, each: int) -> None:
    weight_map = {}
    for s in range(shards):
        file = f"model-{s + 1:05d}-of-{shards:05d}.safetensors"
        names = [f"model.layers.{s}.mlp.experts.{i}.up_proj.weight" for i in range(per_shard)]
        server.files[file] = shard(names, each)
        weight_map |= dict.fromkeys(names, file)
    server.files["model.safetensors.index.json"] = json.dumps(
        {"metadata": {}, "weight_map": weight_map}
    ).encode()


@pytest.fixture
def server(monkeypatch, tmp_path):
    with hub() as running:
        running.files["config.json"] = json.dumps(LLAMA).encode()
        monkeypatch.setattr(constants, "ENDPOINT", running.url)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
            monkeypatch.delenv(name, raising=False)
        huggingface_hub.close_session()
        yield running
        huggingface_hub.close_session()


def test_config_sidecar_and_the_headers_of_every_shard_are_read(server):
    sharded(server, shards=3, per_shard=4, each=1000)
    server.files["hf_quant_config.json"] = b'{"quantization": {"quant_algo": "FP8"}}'
    found = fetch_model("owner/name")
    assert found.config == LLAMA
    assert found.sidecar == {"quantization": {"quant_algo": "FP8"}}
    assert found.weights is not None
    assert found.weights.bytes == 12_000
    assert found.weights.bytes_by_part() == {"expert": 12_000}
    assert found.revision == COMMIT


def test_one_revision_is_read_throughout(server):
    sharded(server, shards=2, per_shard=1, each=10)
    fetch_model("owner/name@refs-pr")
    paths = [path for path, _ in server.asked]
    assert paths[0] == "/owner/name/resolve/refs-pr/config.json"
    assert all(f"/resolve/{COMMIT}/" in path for path in paths[1:])


def test_a_model_of_100_gb_moves_less_than_5_mb(server):
    sharded(server, shards=30, per_shard=300, each=12_000_000)
    found = fetch_model("owner/name")
    assert found.weights is not None
    assert found.weights.bytes == 108 * 10**9
    assert server.sent < 5_000_000
    assert found.moved <= server.sent


def test_a_single_file_needs_no_index(server):
    server.files["model.safetensors"] = shard(["lm_head.weight"], 10**10)
    found = fetch_model("owner/name")
    assert found.weights is not None
    assert found.weights.bytes == 10**10
    assert server.sent < 50_000


def test_a_repository_without_safetensors_has_a_config_and_no_weights(server):
    assert fetch_model("owner/name").weights is None


def test_the_config_alone_asks_for_no_weights(server):
    sharded(server, shards=2, per_shard=1, each=10)
    assert fetch_model("owner/name", weights=False).weights is None
    assert not any("safetensors" in path for path, _ in server.asked)


def test_a_server_that_ignores_range_is_refused_without_its_body(server):
    server.answers["model.safetensors"] = ignore_range(2**30)
    with pytest.raises(Unreachable, match="ignores Range") as error:
        fetch_model("owner/name")
    assert "\n" not in str(error.value)
    assert server.sent < 32 * 2**20  # what fits into the sockets' buffers


def test_a_header_may_lie_behind_a_redirect(server):
    server.files["elsewhere"] = shard(["lm_head.weight"], 1000)
    server.answers["model.safetensors"] = redirect(f"{server.url}/owner/name/resolve/main/elsewhere")
    found = fetch_model("owner/name")
    assert found.weights is not None
    assert found.weights.bytes == 1000


def test_a_token_goes_to_the_hub_and_not_to_where_it_redirects(server, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_" + "secret")
    with hub() as elsewhere:
        elsewhere.files["file"] = shard(["lm_head.weight"], 1000)
        server.answers["model.safetensors"] = redirect(f"{elsewhere.url}/o/n/resolve/main/file")
        fetch_model("owner/name")
        assert server.asked[0][1]["authorization"].endswith("secret")
        assert all("authorization" not in headers for _, headers in elsewhere.asked)


REFUSALS = {
    "gated": (
        refuse(401, X_Error_Code="GatedRepo"),
        BadInput,
        "accept its terms at .*/owner/name and set HF_TOKEN",
    ),
    "forbidden": (refuse(403), BadInput, "accept its terms"),
    "private": (refuse(401), UnknownName, "set HF_TOKEN if it is private"),
    "no such repository": (refuse(404, X_Error_Code="RepoNotFound"), UnknownName, "check the name"),
    "no such revision": (refuse(404, X_Error_Code="RevisionNotFound"), UnknownName, "no revision"),
    "no such file": (refuse(404, X_Error_Code="EntryNotFound"), BadInput, r"no config\.json"),
    "asked too often": (refuse(429, Retry_After="30"), Unreachable, "try again in 30 s"),
    "broken": (refuse(503), Unreachable, "answers 503"),
    "a loop": (redirect("/owner/name/resolve/main/config.json"), Unreachable, "redirects more than 8 times"),
    "silence": (stall(3), Unreachable, "timed out|not reachable"),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_every_refusal_is_one_line_that_says_what_to_do(server, monkeypatch, case):
    answer, kind, text = REFUSALS[case]
    monkeypatch.setattr(constants, "HF_HUB_DOWNLOAD_TIMEOUT", 1)
    server.answers["*"] = answer
    with pytest.raises(kind, match=text) as error:
        fetch_model("owner/name")
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 400


def test_nothing_is_asked_for_but_the_model_s_files(server, tmp_path):
    code = "from kvplan.model.hub import fetch_model; fetch_model('owner/name')"
    run(code, HF_ENDPOINT=server.url, HF_HOME=str(tmp_path))
    files = ("config.json", "hf_quant_config.json", "model.safetensors.index.json", "model.safetensors")
    paths = [path for path, _ in server.asked]
    assert paths == [f"/owner/name/resolve/{'main' if i == 0 else COMMIT}/{f}" for i, f in enumerate(files)]


def test_a_request_says_who_asks(server):
    fetch_model("owner/name")
    assert all(headers["user-agent"].startswith("kvplan; hf_hub/") for _, headers in server.asked)
    assert not any("authorization" in headers for _, headers in server.asked)


def test_the_token_of_a_login_is_sent(server, tmp_path):
    (tmp_path / "token").write_text("hf_" + "login\n", "utf-8")
    fetch_model("owner/name")
    assert {headers["authorization"] for _, headers in server.asked} == {"Bearer hf_" + "login"}


def test_the_body_of_a_redirect_is_not_read(server):
    server.answers["config.json"] = redirect("/owner/name/resolve/main/elsewhere", body=2**30)
    server.files["elsewhere"] = json.dumps(LLAMA).encode()
    assert fetch_model("owner/name").config == LLAMA
    assert server.sent < 32 * 2**20  # what fits into the sockets' buffers


def test_a_token_that_is_refused_is_said_to_be(server, monkeypatch, tmp_path):
    server.answers["*"] = refuse(401)
    monkeypatch.setenv("HF_TOKEN", "hf_" + "stale")
    with pytest.raises(BadInput, match=r"refuses the token in HF_TOKEN .*\(401\); set a valid one") as error:
        fetch_model("owner/name")
    assert "stale" not in str(error.value)
    monkeypatch.delenv("HF_TOKEN")
    (tmp_path / "token").write_text("hf_" + "stale", "utf-8")
    with pytest.raises(BadInput, match=r"refuses the token in .*token.*; run hf auth login"):
        fetch_model("owner/name")


@pytest.mark.parametrize(("text", "says"), [("hf_\xe9", r"'\\xe9'"), ("hf_a b", "' '"), ("a\nb", r"'\\n'")])
def test_a_token_that_no_request_can_carry_is_named(server, monkeypatch, text, says):
    monkeypatch.setenv("HF_TOKEN", text)
    with pytest.raises(BadInput, match=rf"the token in HF_TOKEN holds {says}.*; set a valid one"):
        fetch_model("owner/name")
    assert server.asked == []


def test_a_token_file_that_is_no_text_is_named(server, tmp_path):
    (tmp_path / "token").write_bytes(b"\xff\xfe")
    with pytest.raises(BadInput, match=r"cannot be read .*; run hf auth login"):
        fetch_model("owner/name")


def test_no_network_is_one_line(server, monkeypatch):
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(Unreachable, match=r"127\.0\.0\.1:9 is not reachable"):
        fetch_model("owner/name")


def cache(files: dict[str, bytes]) -> None:
    """What huggingface_hub leaves behind for a model it has downloaded."""
    folder = constants.HF_HUB_CACHE + "/models--owner--name"
    os.makedirs(f"{folder}/refs")  # noqa: PTH103
    os.makedirs(f"{folder}/snapshots/{COMMIT}")  # noqa: PTH103
    for name, content in {"refs/main": COMMIT.encode()}.items() | {
        f"snapshots/{COMMIT}/{name}": content for name, content in files.items()
    }.items():
        with open(f"{folder}/{name}", "wb") as file:  # noqa: PTH123
            file.write(content)


def whole(names: list[str], each: int) -> bytes:
    giant = shard(names, each)
    return giant[0 : len(giant)]


def test_offline_the_cache_answers_and_nothing_is_asked(server, monkeypatch):
    cache({"config.json": json.dumps(LLAMA).encode(), "model.safetensors": whole(["lm_head.weight"], 100)})
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    found = fetch_model("owner/name")
    assert found.config == LLAMA
    assert found.weights is not None
    assert found.weights.bytes == 100
    assert server.asked == []


def test_offline_without_a_cached_config_is_one_line(server, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(Unreachable, match=r"HF_HUB_OFFLINE is set and config\.json"):
        fetch_model("owner/name")
    assert server.asked == []


def test_without_a_network_the_cache_answers(server, monkeypatch):
    cache({"config.json": json.dumps(LLAMA).encode()})
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    assert fetch_model("owner/name").config == LLAMA


@pytest.mark.parametrize(("code", "reason"), [(429, "is asked too often (429)"), (500, "answers 500")])
def test_a_cache_that_stands_in_for_the_hub_is_noted(server, code, reason):
    cache({"config.json": json.dumps(LLAMA).encode()})
    server.answers["*"] = refuse(code)
    (note,) = fetch_model("owner/name").notes
    assert "owner/name is read from huggingface_hub's cache" in note
    assert reason in note
    assert kvplan.size("owner/name")["notes"][-1] == note


def test_a_cache_that_was_asked_for_is_not_noted(server, monkeypatch):
    cache({"config.json": json.dumps(LLAMA).encode()})
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert fetch_model("owner/name").notes == ()


def test_offline_weights_that_are_only_partly_cached_are_not_summed(server, monkeypatch):
    sharded(server, shards=2, per_shard=1, each=10)
    index = "model.safetensors.index.json"
    cache({"config.json": json.dumps(LLAMA).encode(), index: bytes(server.files[index])})
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert fetch_model("owner/name").weights is None


def test_weights_in_the_cache_are_not_asked_for(server):
    cache({"model.safetensors": whole(["lm_head.weight"], 100)})
    assert fetch_model("owner/name").weights is not None
    assert not any(path.endswith("/model.safetensors") for path, _ in server.asked)


@pytest.mark.parametrize("content", [b"[" * 200_000, b"{", b"[]", b"\xff\xfe", b"null"])
def test_a_config_that_is_none_is_refused(server, content):
    server.files["config.json"] = content
    with pytest.raises(BadConfig, match=r"config\.json of owner/name"):
        fetch_model("owner/name")


def test_a_file_without_an_end_is_cut_off(server, monkeypatch):
    monkeypatch.setattr(hub_client, "MAX_SMALL_BYTES", 2**20)
    server.files["config.json"] = Giant(b"{", 2**26)
    with pytest.raises(BadInput, match="more than 1 MiB"):
        fetch_model("owner/name")


def test_a_shard_that_is_missing_is_named(server):
    sharded(server, shards=2, per_shard=1, each=10)
    del server.files["model-00002-of-00002.safetensors"]
    with pytest.raises(BadInput, match=r"model-00002-of-00002\.safetensors, which the repository lacks"):
        fetch_model("owner/name")


@pytest.mark.parametrize("text", ["a/b", "meta-llama/Llama-3.1-8B", "a/b@main", "a/b@refs/pr/1"])
def test_an_owner_and_a_name_are_a_repository_id(text):
    assert is_repo_id(text)


@pytest.mark.parametrize(
    "text",
    ["", "a", "a/b/c", "../b", "a/..", "/a/b", "a/b.git", "a/b@", "a/b@../x", "a b/c", "a/" + "b" * 99],
)
def test_anything_else_is_no_repository_id(text):
    assert not is_repo_id(text)
    with pytest.raises(BadInput, match="owner/name"):
        fetch_model(text)


def test_a_missing_extra_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    monkeypatch.setitem(sys.modules, "huggingface_hub.constants", None)
    with pytest.raises(KvplanError, match=r"pip install kvplan\[hub\]"):
        fetch_model("owner/name")


def run(code: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_hf_endpoint_and_hf_home_are_respected(server, tmp_path):
    code = "from kvplan.model.hub import fetch_model; print(fetch_model('o/n').config['model_type'])"
    assert run(code, HF_ENDPOINT=server.url, HF_HOME=str(tmp_path)) == "llama"


def test_importing_kvplan_loads_no_http_client():
    heavy = ("httpx", "httpx2", "huggingface_hub", "numpy", "gguf")
    code = "import sys, kvplan, kvplan.model.hub, kvplan.model.gguf_config"
    assert run(f"{code}; print([m for m in {heavy} if m in sys.modules])") == "[]"

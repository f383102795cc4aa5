"""Compose files and Kubernetes manifests read back as they were meant, and hold the predicted lines."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

import kvplan
from kvplan.engines.command import version_of
from kvplan.errors import BadInput
from kvplan.faces.cli import main
from kvplan.facts import launching, store

GRID: list[tuple[str, dict[str, Any]]] = [
    ("llama-3.1-8b", {"gpu": "h100"}),
    ("meta-llama/Llama-3.1-70B-Instruct", {"gpu": "h100", "tp": 4}),
    ("deepseek-v3", {"gpu": "h200", "tp": 8, "engine": "sglang"}),
    ("deepseek-v3", {"gpu": "h200", "tp": 8, "engine": "tensorrt-llm", "kv_cache_dtype": "fp8"}),
    ("llama-3.1-8b", {"gpu": "h100", "engine": "tensorrt-llm", "dp": 2, "tokens_per_block": 64}),
    ("gemma-3-27b", {"gpu": "rtx4090", "engine": "llama.cpp", "ctx_size": 8192, "quantization": "q4_k_m"}),
    ("qwen3-30b-a3b", {"gpu": "mi300x", "tp": 2, "dp": 2, "enable_expert_parallel": True}),
    ("llama-3.1-8b", {"gpu": "mi300x", "engine": "sglang", "dp": 4}),
    ("llama-3.1-8b", {"gpu": "h100", "VLLM_PP_LAYER_PARTITION": "20,12", "pp": 2}),
]


def documents(model: Any, form: str, **words: Any) -> tuple[str, list[dict[str, Any]]]:
    """The text of a launch, and what a parser reads from it."""
    text = kvplan.plan(model, launch_as=form, **words)["launch_text"]
    return text, list(yaml.safe_load_all(text))


def kinds(found: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Kubernetes documents by kind."""
    return {document["kind"]: document for document in found}


def container(found: list[dict[str, Any]]) -> dict[str, Any]:
    """The engine's container."""
    spec: dict[str, Any] = kinds(found)["Deployment"]["spec"]["template"]["spec"]["containers"][0]
    return spec


@pytest.mark.parametrize("form", ["compose", "kubernetes", "command"])
@pytest.mark.parametrize(
    ("model", "words"), GRID, ids=lambda v: v if isinstance(v, str) else "-".join(map(str, v.values()))
)
def test_comments_hold_the_lines_that_fit_predicts(model: str, words: dict[str, Any], form: str) -> None:
    answer = kvplan.plan(model, launch_as=form, **words)
    fit = kvplan.fit(model, **words)
    comments = [line for line in answer["launch_text"].splitlines() if line.startswith("#")]
    assert answer["expected"]
    for line in answer["expected"]:
        assert f"#   {line}" in comments
    tokens = fit["capacity"]["kv_tokens"]
    assert re.search(rf"(?<!\d)({tokens}|{tokens:,})(?!\d)", "\n".join(comments))


@pytest.mark.parametrize(
    ("model", "words"), GRID, ids=lambda v: v if isinstance(v, str) else "-".join(map(str, v.values()))
)
def test_a_manifest_holds_the_command_that_plan_prints(model: str, words: dict[str, Any]) -> None:
    answer = kvplan.plan(model, **words)
    engine = words.get("engine", "vllm")
    run = container(documents(model, "kubernetes", **words)[1])
    needs = launching.printed_by(engine, answer["fit"]["engine"]["version"]).get("needs", [])
    added = [*launching.container(engine)["host_option"], *needs]
    assert run["args"][len(run["args"]) - len(added) :] == added
    inside = " ".join(run["args"][: len(run["args"]) - len(added)])
    said = answer["launch"].replace(" --data-parallel-size 4", "").replace(" --dp-size 4", "")
    for name in answer["launch_files"]:
        inside = inside.replace(f"/etc/kvplan/{name}", name)
    assert said.endswith(inside.replace("/models/", ""))
    for entry in run["env"]:
        if "value" in entry:
            assert f"{entry['name']}={entry['value']}" in answer["launch"]


def test_a_kubernetes_manifest_of_four_ranks() -> None:
    text, found = documents("meta-llama/Llama-3.1-70B-Instruct", "kubernetes", gpu="h100", tp=4)
    by = kinds(found)
    assert set(by) == {"PersistentVolumeClaim", "Deployment", "Service"}
    name = by["Deployment"]["metadata"]["name"]
    assert re.fullmatch(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?", name)
    labels = by["Deployment"]["spec"]["template"]["metadata"]["labels"]
    assert by["Deployment"]["spec"]["selector"]["matchLabels"] == labels == by["Service"]["spec"]["selector"]
    run = container(found)
    assert run["image"] == "vllm/vllm-openai:v0.33.0"
    assert run["resources"]["limits"] == {"nvidia.com/gpu": 4}
    assert by["Service"]["spec"]["ports"][0]["targetPort"] == run["ports"][0]["name"]
    volumes = {v["name"]: v for v in by["Deployment"]["spec"]["template"]["spec"]["volumes"]}
    assert volumes["shm"]["emptyDir"]["medium"] == "Memory"
    assert {m["name"]: m["mountPath"] for m in run["volumeMounts"]} == {
        "models": "/root/.cache/huggingface",
        "shm": "/dev/shm",  # noqa: S108
    }
    claim = by["PersistentVolumeClaim"]
    assert volumes["models"]["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
    weights = 70_553_706_496 * 2
    assert int(claim["spec"]["resources"]["requests"]["storage"].removesuffix("Gi")) * 2**30 > weights
    probe = run["startupProbe"]
    assert probe["httpGet"] == run["readinessProbe"]["httpGet"] == {"path": "/health", "port": "http"}
    assert probe["failureThreshold"] * probe["periodSeconds"] >= 900 + weights / 100e6
    token = next(entry for entry in run["env"] if entry["name"] == "HF_TOKEN")
    assert token["valueFrom"]["secretKeyRef"] == {"name": "hf-token", "key": "token", "optional": True}
    assert "hf_" not in text


def test_one_rank_needs_no_shared_memory() -> None:
    found = documents("llama-3.1-8b", "kubernetes", gpu="h100")[1]
    assert [m["name"] for m in container(found)["volumeMounts"]] == ["models"]
    service = documents("llama-3.1-8b", "compose", gpu="h100")[1][0]["services"]["vllm-meta-llama-3-1-8b"]
    assert "shm_size" not in service


def test_replicas_that_share_nothing_are_replicas_and_print_the_same() -> None:
    found = documents("llama-3.1-8b", "kubernetes", gpu="h100", tp=2, dp=3)[1]
    assert kinds(found)["Deployment"]["spec"]["replicas"] == 3
    run = container(found)
    assert "--data-parallel-size" not in run["args"]
    assert run["resources"]["limits"] == {"nvidia.com/gpu": 2}
    assert kinds(found)["PersistentVolumeClaim"]["spec"]["accessModes"] == ["ReadWriteMany"]
    three, one = (kvplan.plan("llama-3.1-8b", gpu="h100", tp=2, dp=dp) for dp in (3, 1))
    assert three["expected"] == one["expected"]


def test_replicas_that_share_experts_are_one_server() -> None:
    words = {"gpu": "h100", "tp": 2, "dp": 2, "enable_expert_parallel": True}
    found = documents("qwen3-30b-a3b", "kubernetes", **words)[1]
    assert kinds(found)["Deployment"]["spec"]["replicas"] == 1
    run = container(found)
    assert run["resources"]["limits"] == {"nvidia.com/gpu": 4}
    assert run["args"][run["args"].index("--data-parallel-size") + 1] == "2"


def test_compose_gives_each_replica_its_own_devices_and_port() -> None:
    found = documents("llama-3.1-8b", "compose", gpu="h100", engine="tensorrt-llm", tp=2, dp=2)[1][0]
    services = list(found["services"].values())
    assert [s["ports"] for s in services] == [["8000:8000"], ["8001:8000"]]
    devices = [s["deploy"]["resources"]["reservations"]["devices"][0]["device_ids"] for s in services]
    assert devices == [["0", "1"], ["2", "3"]]
    assert all(s["shm_size"] == "16gb" for s in services)


def test_compose_leaves_replicas_to_an_engine_that_deals_to_them() -> None:
    found = documents("llama-3.1-8b", "compose", gpu="h100", tp=2, dp=2)[1][0]
    (service,) = found["services"].values()
    assert service["deploy"]["resources"]["reservations"]["devices"] == [
        {"driver": "nvidia", "count": 4, "capabilities": ["gpu"]}
    ]
    assert service["command"][service["command"].index("--data-parallel-size") + 1] == "2"
    assert service["environment"] == {"HF_TOKEN": "${HF_TOKEN:-}"}
    assert service["healthcheck"]["test"][-1] == "http://localhost:8000/health"
    assert found["volumes"] == {"huggingface": {}}


def test_tensorrt_llms_file_is_mounted_where_the_command_looks_for_it() -> None:
    words = {"gpu": "h200", "tp": 8, "engine": "tensorrt-llm", "kv_cache_dtype": "fp8"}
    text = kvplan.plan("deepseek-v3", **words)["launch_files"]["trtllm.yaml"]
    found = documents("deepseek-v3", "kubernetes", **words)[1]
    assert kinds(found)["ConfigMap"]["data"] == {"trtllm.yaml": text}
    run = container(found)
    path = run["args"][run["args"].index("--extra_llm_api_options") + 1]
    folder = next(m["mountPath"] for m in run["volumeMounts"] if m["name"] == "config")
    assert path == f"{folder}/trtllm.yaml"
    composed = documents("deepseek-v3", "compose", **words)[1][0]
    (service,) = composed["services"].values()
    (mounted,) = service["configs"]
    assert mounted["target"] == path
    assert composed["configs"][mounted["source"]]["content"] == text
    alone, read = documents("deepseek-v3", "yaml", **words)
    assert read == [yaml.safe_load(text)]
    assert alone.endswith(text)


def test_amd_devices_are_asked_for_as_amds() -> None:
    found = documents("llama-3.1-8b", "kubernetes", gpu="mi300x", tp=2)[1]
    run = container(found)
    assert run["image"] == "vllm/vllm-openai-rocm:v0.33.0"
    assert run["resources"]["limits"] == {"amd.com/gpu": 2}
    (service,) = documents("llama-3.1-8b", "compose", gpu="mi300x", tp=2)[1][0]["services"].values()
    assert service["devices"] == ["/dev/kfd", "/dev/dri"]
    assert service["environment"]["HIP_VISIBLE_DEVICES"] == "0,1"
    image = documents("llama-3.1-8b", "kubernetes", gpu="mi355x", engine="sglang")[1]
    assert container(image)["image"] == "lmsysorg/sglang:v0.5.23-rocm720-mi35x"


def test_every_image_states_the_version_that_it_is_of() -> None:
    for engine in ("vllm", "sglang", "tensorrt-llm", "llama.cpp"):
        for version in store.toml("engines/versions.toml")[engine]["versions"]:
            for platform, arch in (("cuda", "sm90"), ("rocm", "gfx942")):
                image = launching.image_of(engine, platform, version, arch)
                if image is not None:
                    assert version_of(image, engine)[0] == version, image
    assert launching.image_of("vllm", "rocm", "0.13.0", "gfx942") is None
    assert launching.image_of("sglang", "rocm", "0.5.23", "gfx90a") is None
    assert launching.image_of("tensorrt-llm", "rocm", "1.3.0", "gfx942") is None
    for engine in ("vllm", "sglang", "tensorrt-llm", "llama.cpp"):
        table = launching.container(engine)
        rows = [row for part in ("cuda", "rocm", "xpu") for row in table.get(part, [])]
        assert table["source"]
        assert all(row["source"] for row in rows)


@pytest.mark.parametrize("name", ["plain", "with blank", "it's", 'a "b"', "$HOME$$x", "a: b", "#c", "ünï"])
def test_local_weights_are_mounted_whatever_their_path(
    name: str, tmp_path: Path, llama8b: dict[str, Any]
) -> None:
    folder = tmp_path / name
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(llama8b), "utf-8")
    found = documents(folder, "kubernetes", gpu="h100")[1]
    run = container(found)
    assert run["args"][0] == "/model"
    (volume,) = kinds(found)["Deployment"]["spec"]["template"]["spec"]["volumes"]
    assert volume["hostPath"]["path"] == str(folder)
    assert "PersistentVolumeClaim" not in kinds(found)
    assert all(entry["name"] != "HF_TOKEN" for entry in run["env"])
    (service,) = documents(folder, "compose", gpu="h100")[1][0]["services"].values()
    (mount,) = service["volumes"]
    assert mount["source"].replace("$$", "$") == str(folder)
    assert "environment" not in service


def test_a_dollar_sign_stands_for_itself_in_a_manifest(tmp_path: Path) -> None:
    words: dict[str, Any] = {"gpu": "h100", "hf_overrides": {"note": "$HOME $(X)"}}
    run = container(documents("llama-3.1-8b", "kubernetes", **words)[1])
    assert '{"note": "$$HOME $$(X)"}' in run["args"]
    (service,) = documents("llama-3.1-8b", "compose", **words)[1][0]["services"].values()
    assert '{"note": "$$HOME $$(X)"}' in service["command"]


def test_a_name_cannot_break_out_of_its_comment(tmp_path: Path, llama8b: dict[str, Any]) -> None:
    folder = tmp_path / "a\nkind: Evil"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(llama8b), "utf-8")
    found = documents(folder, "kubernetes", gpu="h100")[1]
    assert {document["kind"] for document in found} == {"Deployment", "Service"}


@pytest.mark.parametrize("form", ["compose", "kubernetes"])
@pytest.mark.parametrize(
    ("model", "words", "why"),
    [
        ("deepseek-v3", {"gpu": "h100", "tp": 16}, r"16 ranks .* which has 8.*LeaderWorkerSet"),
        ("deepseek-v3", {"gpu": "gb200", "tp": 8}, r"8 ranks .* which has 4"),
        ("llama-3.1-405b", {"gpu": "rtx4090"}, r"nothing is started: does not fit: .* are missing"),
        ("rwkv-4-7b-pile", {"gpu": "h100"}, r"nothing is started: "),
        ("llama-3.1-8b", {"gpu": "h100", "engine": "transformers"}, "not started by a command of its own"),
        ("llama-3.1-8b", {"gpu": "mi300x", "engine_version": "0.9"}, r"no image of vllm 0\.9\.2 for MI300X"),
        ("llama-3.1-8b", {"gpu": "mi300x", "engine": "tensorrt-llm"}, "no image of tensorrt-llm"),
    ],
)  # fmt: skip
def test_what_cannot_be_written_is_refused_in_one_line(
    model: str, words: dict[str, Any], why: str, form: str
) -> None:
    with pytest.raises(BadInput, match=why) as refused:
        kvplan.plan(model, launch_as=form, **words)
    assert "\n" not in str(refused.value)


def test_compose_starts_no_more_than_one_machine() -> None:
    with pytest.raises(BadInput, match="compose starts one machine, which has 8, and 16 are wanted"):
        kvplan.plan("llama-3.1-70b", gpu="h100", tp=4, dp=4, launch_as="compose")
    assert documents("llama-3.1-70b", "kubernetes", gpu="h100", tp=4, dp=4)


def test_an_engine_without_a_file_of_its_own_has_none() -> None:
    with pytest.raises(BadInput, match="vllm has no file of its own settings here"):
        kvplan.plan("llama-3.1-8b", gpu="h100", launch_as="yaml")


@pytest.mark.parametrize(
    ("said", "meant"), [("k8s", "kubernetes"), ("KUBE", "kubernetes"), ("comp", "compose"), ("sh", "command")]
)
def test_forms_have_short_names(said: str, meant: str) -> None:
    short, long = (
        kvplan.plan("llama-3.1-8b", gpu="h100", launch_as=form)["launch_text"] for form in (said, meant)
    )
    assert short == long


@pytest.mark.parametrize("said", ["", "helm", "co", None, 3])
def test_an_unknown_form_names_the_known_ones(said: Any) -> None:
    if said is None:
        assert "launch_text" not in kvplan.plan("llama-3.1-8b", gpu="h100")
        return
    with pytest.raises(BadInput, match="give one of command, compose, kubernetes, yaml"):
        kvplan.plan("llama-3.1-8b", gpu="h100", launch_as=said)


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    """The command line: status, what it prints and what it says of errors."""
    with pytest.raises(SystemExit) as ended:
        main(["plan", "llama-3.1-8b", "--gpu", "h100", *words])
    out, err = capsys.readouterr()
    return int(ended.value.code or 0), out, err


@pytest.mark.parametrize(
    ("name", "starts"),
    [("compose.yaml", "services:"), ("docker-compose.yml", "services:"), ("my-Compose-2.YML", "services:"),
     ("k8s.yaml", "apiVersion:"), ("llm.yml", "apiVersion:"), ("start.sh", "vllm serve"),
     ("start", "vllm serve")],
)  # fmt: skip
def test_the_files_name_says_its_form(
    name: str, starts: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / name
    status, out, _ = run(capsys, "--launch", str(file))
    assert status == 0
    assert "launch" in out  # the report is printed all the same
    lines = [line for line in file.read_text("utf-8").splitlines() if not line.startswith("#")]
    assert lines[0].startswith(starts)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_the_form_alone_is_all_that_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = run(capsys, "--launch-as", "compose")
    assert (status, err) == (0, "")
    assert list(yaml.safe_load(out)) == ["services", "volumes"]
    document = json.loads(run(capsys, "--launch-as", "compose", "--json")[1])
    assert document["launch_text"] == out
    assert document["launch"] == "vllm serve meta-llama/Meta-Llama-3.1-8B"


def test_the_form_that_is_given_wins_over_the_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "plan.json"
    assert run(capsys, "--launch", str(file), "--launch-as", "compose")[0] == 0
    assert list(yaml.safe_load(file.read_text("utf-8"))) == ["services", "volumes"]


def test_a_file_that_cannot_be_written_is_one_line_and_leaves_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "folder.yaml").mkdir()
    cases = [
        (["--launch", str(tmp_path / "folder.yaml")], "is a folder"),
        (["--launch", str(tmp_path / "none" / "k8s.yaml")], "is not there; make it first"),
        (["--launch", str(tmp_path / "plan.json")], "does not say its form"),
        (["--launch", str(tmp_path / "x.yaml"), "--launch-as", "helm"], "is not a form"),
        (["--launch", str(tmp_path / "x.yaml"), "--tp", "16"], "more than one machine"),
        (["--launch", str(tmp_path / ("x" * 300 + ".yaml"))], "cannot write"),
        (["--launch", str(tmp_path / "a\0.yaml")], "--launch"),
    ]
    for words, why in cases:
        status, out, err = run(capsys, *words)
        assert (status, out) == (2, ""), words
        assert why in err
        assert len(err.strip().splitlines()) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["folder.yaml"]


def test_a_script_runs_the_engine_with_the_words_as_they_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A stand-in for the engine prints its arguments and the file that the script wrote for it."""
    file, program = tmp_path / "start.sh", tmp_path / "trtllm-serve"
    program.write_text(
        f"#!{sys.executable}\nimport sys\nprint(sys.argv[1:], open('trtllm.yaml').read())\n", "utf-8"
    )
    program.chmod(0o755)
    words = ["--engine", "tensorrt-llm", "--kv-cache-dtype", "fp8", "--launch", str(file)]
    assert run(capsys, *words)[0] == 0
    done = subprocess.run(
        [str(file)],
        cwd=tmp_path,
        env={"PATH": f"{tmp_path}:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith(
        "['meta-llama/Meta-Llama-3.1-8B', '--extra_llm_api_options', 'trtllm.yaml']"
    )
    assert "dtype: fp8" in done.stdout

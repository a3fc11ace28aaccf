"""What is made of a script and a directory."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from elasticjob_client.manifest import Run, config_map, elastic_job, keys, name_of, read, skipped
from elasticjob_client.names import check_name


def test_a_script_becomes_a_job_that_mounts_it() -> None:
    files = {"train.py": b"print()", "lib/model.py": b"x", "logo.png": b"\xff\x00"}
    run = Run(
        name="mnist",
        image="my-image",
        script="train.py",
        arguments=["--lr", "0.1"],
        replicas=4,
        minimum=2,
        gpus=8,
        memory="16Gi",
        nproc_per_node="8",
        environment={"A": "b=c"},
        volumes={"/data": "claim"},
        max_restarts=3,
    )
    made = elastic_job(run, files).to_dict()
    assert made["metadata"] == {"name": "mnist"}
    spec = made["spec"]
    assert (spec["replicas"], spec["minReplicas"], spec["nprocPerNode"]) == (4, 2, 8)
    assert spec["failurePolicy"] == {"application": {"maxRestarts": 3}}
    (container,) = spec["template"]["spec"]["containers"]
    assert container["command"] == ["torchrun", "/code/train.py", "--lr", "0.1"]
    assert container["resources"] == {"requests": {"memory": "16Gi"}, "limits": {"nvidia.com/gpu": 8}}
    assert container["env"] == [{"name": "A", "value": "b=c"}]
    code, data, _ = spec["template"]["spec"]["volumes"]
    assert {"key": "lib__model.py", "path": "lib/model.py"} in code["configMap"]["items"]
    assert data["persistentVolumeClaim"] == {"claimName": "claim"}
    body = config_map("mnist", files)
    assert code["configMap"]["name"] == body["metadata"]["name"]
    assert body["data"] == {"train.py": "print()", "lib__model.py": "x"}
    assert base64.b64decode(body["binaryData"]["logo.png"]) == b"\xff\x00"


def test_a_script_in_the_image_needs_no_code() -> None:
    (container,) = elastic_job(Run(name="a", image="i", script="/app/train.py"), {}).to_dict()["spec"][
        "template"
    ]["spec"]["containers"]
    mounts = [{"name": "shm", "mountPath": "/dev/shm"}]
    command = ["torchrun", "/app/train.py"]
    assert container == {"name": "train", "image": "i", "command": command, "volumeMounts": mounts}


@pytest.mark.parametrize(
    ("claims", "mounted"),
    [
        ({}, {"/dev/shm": {"emptyDir": {"medium": "Memory"}}}),
        ({"/dev/shm": "mine"}, {"/dev/shm": {"persistentVolumeClaim": {"claimName": "mine"}}}),
        ({"/dev/shm/": "mine"}, {"/dev/shm/": {"persistentVolumeClaim": {"claimName": "mine"}}}),
    ],
)
def test_shared_memory_is_larger_than_the_default(claims: dict[str, str], mounted: dict[str, object]) -> None:
    run = Run(name="a", image="i", script="/app/train.py", volumes=claims)
    pod = elastic_job(run, {}).to_dict()["spec"]["template"]["spec"]
    sources = {volume["name"]: {k: v for k, v in volume.items() if k != "name"} for volume in pod["volumes"]}
    (container,) = pod["containers"]
    assert {m["mountPath"]: sources[m["name"]] for m in container["volumeMounts"]} == mounted


def test_two_paths_never_have_one_key() -> None:
    found = keys({"a/b.py": b"", "a__b.py": b"", "ein wort.txt": b""})
    assert len(set(found.values())) == 3
    assert found["a/b.py"] == "a__b.py"


def test_a_directory_is_packed_without_what_tools_leave(tmp_path: Path) -> None:
    for name in ("train.py", "lib/model.py", ".git/config", "lib/__pycache__/model.pyc", ".env"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    assert set(read(tmp_path / "train.py", tmp_path)) == {"train.py", "lib/model.py"}
    assert set(read(tmp_path / "train.py", None)) == {"train.py"}


def test_what_cannot_be_packed_says_what_to_do(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    with pytest.raises(ValueError, match="there is no file"):
        read(script, None)
    script.write_text("x")
    (tmp_path / "lib").mkdir()
    with pytest.raises(ValueError, match="is not in the directory"):
        read(script, tmp_path / "lib")
    (tmp_path / "weights.bin").write_bytes(b"\xff" * 900_000)
    with pytest.raises(
        ValueError, match=r"the code has 1,200,001 bytes, .* weights.bin \(900,000 bytes\), .*image"
    ):
        read(script, tmp_path)


@pytest.mark.parametrize(
    ("script", "name"),
    [
        ("train.py", "train-ab12"),
        ("x/My_Train.v2.py", "my-train-v2-ab12"),
        ("1.py", "job-1-ab12"),
        ("a" * 60, "a" * 40 + "-ab12"),
    ],
)
def test_names_of_jobs_are_made_of_scripts(script: str, name: str) -> None:
    assert name_of(script, "ab12") == name
    check_name("a new job", name)


@pytest.mark.parametrize("name", ["", "Train", "-a", "a-", "a" * 46, "a.b"])
def test_a_name_that_a_job_cannot_have(name: str) -> None:
    with pytest.raises(ValueError, match="cannot be the name of a new job"):
        check_name("a new job", name)


def test_links_do_not_lead_out_of_the_directory(tmp_path: Path) -> None:
    code = tmp_path / "d"
    (code / "lib").mkdir(parents=True)
    (code / "train.py").write_text("x")
    (code / "lib" / "a.py").write_text("a")
    (tmp_path / "secret").write_text("s")
    (code / "same.py").symlink_to("lib/a.py")
    (code / "again").symlink_to("lib")
    (code / "broken").symlink_to("nowhere")
    (code / ".git").symlink_to(tmp_path)
    assert read(code / "train.py", code) == {"train.py": b"x", "lib/a.py": b"a", "same.py": b"a"}
    assert skipped(code) == [
        f"{code}/again: a link to a directory",
        f"{code}/broken: a link to nothing, or no regular file",
    ]
    for link, target in (("pw", tmp_path / "secret"), ("up", tmp_path)):
        (code / link).symlink_to(target)
        with pytest.raises(ValueError, match=f"links lead out of the directory .*/{link} -> {target}"):
            read(code / "train.py", code)
        (code / link).unlink()

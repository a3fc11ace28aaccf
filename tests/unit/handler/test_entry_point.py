"""How torch comes to the handler, and settings that are refused at once."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from elasticjob.agent.settings import SettingsError, read_settings
from elasticjob.agent.torch_version import release


def test_importing_the_entry_point_imports_nothing() -> None:
    heavy = "('torch', 'urllib3', 'kubernetes')"
    code = f"import sys; import elasticjob.entry; print([m for m in {heavy} if m in sys.modules])"
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
        == "[]\n"
    )


@pytest.mark.skipif(release(str(torch.__version__)) < (2, 5), reason="torch 2.4 knows no entry points")
def test_torch_finds_the_backend_by_its_name() -> None:
    from torch.distributed.elastic.rendezvous import RendezvousParameters
    from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler

    with pytest.raises(ValueError, match="--rdzv-endpoint is 'a:1', expected"):
        get_rendezvous_handler(RendezvousParameters("k8s", "a:1", "run", 1, 2))


def test_unknown_settings_are_named() -> None:
    with pytest.raises(SettingsError, match="unknown key join_timout"):
        read_settings("ns/job", {"join_timout": "3", "timeout": 900}, None)
    with pytest.raises(SettingsError, match="join_timeout is 'soon', expected a number of seconds"):
        read_settings("ns/job", {"join_timeout": "soon"}, None)
    assert read_settings("job", {}, None).namespace == ""


@pytest.mark.parametrize("name", ["Mnist", "m" * 46, "m" * 70, "my_job", "-job", "job-", "jöb"])
def test_a_name_that_no_job_can_have_is_refused_at_once(name: str) -> None:
    """Not after some seconds of 403, which is all that the API server says of it."""
    with pytest.raises(SettingsError, match="is not a valid ElasticJob name"):
        read_settings(f"ns/{name}", {}, None)
    with pytest.raises(SettingsError, match="is not a valid namespace name"):
        read_settings("My_Namespace/job", {}, None)
    assert read_settings(f"ns/{'m' * 45}", {}, None).job == "m" * 45

"""Ray accepts the cluster file of `finqa launch --print ray`."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

pytest.importorskip("ray", reason="Ray is not there: run `make test-ray`")

RECORDED = Path(__file__).parents[1] / "fixtures" / "recipes" / "ray"


def test_the_cluster_file_is_one_of_ray_up() -> None:
    from ray.autoscaler._private.util import prepare_config, validate_config

    prepared = prepare_config(yaml.safe_load(RECORDED.read_text()))
    validate_config(prepared)
    (node,) = prepared["available_node_types"].values()
    assert node["min_workers"] == node["max_workers"] == 1
    with pytest.raises(Exception, match="cluster"):
        validate_config({**prepared, "cluster": "no such key"})

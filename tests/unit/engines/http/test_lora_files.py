"""What is read of adapter folders: for all bytes, a finding or an EngineError."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from fixtures.lora_files import COLUMNS, LAYER, ROWS, make_base, make_lora
from hypothesis import given, settings
from hypothesis import strategies as st

from finqa_cli.errors import EngineError
from finqa_plugins.engines._http.adapter_files import check_adapter, model_shapes, vocabulary, write_adapter


def test_shapes_and_vocabulary_of_a_model_folder(tmp_path: Path) -> None:
    base = make_base(tmp_path / "base", vocabulary=77)
    assert model_shapes(str(base)) == {f"{LAYER}.weight": (ROWS, COLUMNS)} and vocabulary(str(base)) == 77
    assert model_shapes("acme/analyst") == {} and vocabulary("acme/analyst") is None
    (base / "model.safetensors").write_bytes(b"torn")
    (base / "config.json").write_text("[]")
    assert model_shapes(str(base)) == {} and vocabulary(str(base)) is None


def test_an_untrained_adapter_changes_nothing(tmp_path: Path) -> None:
    shapes = model_shapes(str(make_base(tmp_path / "base")))
    assert check_adapter(make_lora(tmp_path / "a", seed=1), shapes, max_rank=4)
    assert not check_adapter(make_lora(tmp_path / "b", seed=1, zero=True), shapes, max_rank=4)
    assert check_adapter(make_lora(tmp_path / "c", seed=1, columns=99), {}, max_rank=4)  # the base is not known here
    other = {"transformer.h.0.attn.weight": (1, 1)}  # named otherwise: the server knows better
    assert check_adapter(make_lora(tmp_path / "d", seed=1), other, max_rank=4)


def test_a_sample_fits_the_model_that_it_was_made_for(tmp_path: Path) -> None:
    base = make_base(tmp_path / "base")
    assert write_adapter(tmp_path, str(base), rank=3)
    assert check_adapter(tmp_path, model_shapes(str(base)), max_rank=3)
    with pytest.raises(EngineError, match="rank 3"):
        check_adapter(tmp_path, {}, max_rank=2)
    empty = tmp_path / "empty"
    empty.mkdir()
    assert not write_adapter(empty, "acme/analyst", rank=3) and not list(empty.iterdir())


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_damage_is_told_and_never_crashes(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as made:
        folder = make_lora(Path(made) / "a", seed=1)
        path = folder / data.draw(st.sampled_from(["adapter_model.safetensors", "adapter_config.json"]))
        whole = path.read_bytes()
        place = data.draw(st.integers(0, len(whole) - 1))
        insert = data.draw(st.binary(max_size=6))
        path.write_bytes(whole[:place] + insert + (whole[place + 1 :] if data.draw(st.booleans()) else b""))
        try:
            assert check_adapter(folder, {f"{LAYER}.weight": (ROWS, COLUMNS)}, max_rank=8) in (True, False)
        except EngineError as error:
            assert str(folder) in error.message

"""The fil backend on forests that XGBoost, LightGBM and scikit-learn have trained, against their own answers."""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import treelite
from treelite.model_builder import Metadata, ModelBuilder, PostProcessorFunc, TreeAnnotation

from shoal.errors import InternalError, InvalidArgumentError, ShoalError, UnavailableError, UnsupportedError
from shoal.model_config.autocomplete import IOTensor, ModelIO
from shoal.model_config.signature import Signature
from shoal.workers import backends
from shoal.workers.backends.backend import Device
from shoal.workers.backends.fil import MIN_PARALLEL_VISITS, FilBackend
from shoal.workers.backends.fil_options import FILENAMES
from shoal.workers.loop import Loop
from shoal.workers.tensors import Array
from tests.workers.worker_harness import Batcher, model, model_config, tensor_config

FORESTS = Path(__file__).parents[2] / "data" / "forests"
ANSWERS = np.load(FORESTS / "answers.npz", allow_pickle=False)
CPU = Device("KIND_CPU", 0, (0,))
CLASSIFIERS = ("xgboost_json", "xgboost_ubj", "treelite_checkpoint")


def known(model_type: str) -> tuple[Array, Array]:
    """Inputs, and for each row the scores of the framework that trained the forest."""
    inputs, scores = ANSWERS[f"{model_type}_inputs"], ANSWERS[f"{model_type}_scores"]
    return inputs, scores.reshape(len(inputs), -1)


def config_of(model_type: str, num_features: int, dim: int, **parameters: str) -> dict[str, Any]:
    parameters = {"is_classifier": str(model_type in CLASSIFIERS).lower(), **parameters, "model_type": model_type}
    return model_config(
        [tensor_config("input__0", "TYPE_FP32", [num_features])],
        [tensor_config("output__0", "TYPE_FP32", [dim])],
        backend="fil",
        max_batch_size=64,
        parameters=parameters,
    )


def loaded(config: dict[str, Any], file: Path | None = None, device: Device = CPU) -> FilBackend:
    model_type = config["parameters"]["model_type"]["string_value"]
    backend = FilBackend()
    backend.load(model(config, str(file or FORESTS / FILENAMES[model_type])), device)
    return backend


def refusal(config: dict[str, Any], file: Path | None = None) -> ShoalError:
    with pytest.raises(ShoalError) as caught:
        loaded(config, file)
    return caught.value


def answers(model_type: str, dim: int, **parameters: str) -> Array:
    inputs, _ = known(model_type)
    inputs.flags.writeable = False
    output = loaded(config_of(model_type, inputs.shape[1], dim, **parameters)).run({"input__0": inputs})["output__0"]
    assert output.dtype == np.float32
    return output


# -- answers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model_type", ["xgboost", "lightgbm"])
def test_a_number_is_the_frameworks_own(model_type: str) -> None:
    _, scores = known(model_type)
    output = answers(model_type, 1)
    assert output.shape == (40,)  # not (40, 1): as Triton has it
    np.testing.assert_allclose(output, scores[:, 0], rtol=1e-5)


@pytest.mark.parametrize(("model_type", "classes"), [("xgboost_ubj", 3), ("treelite_checkpoint", 2)])
def test_a_score_for_each_class(model_type: str, classes: int) -> None:
    _, scores = known(model_type)
    output = answers(model_type, classes, predict_proba="true")
    assert output.shape == (40, classes)
    np.testing.assert_allclose(output, scores, atol=1e-5)


@pytest.mark.parametrize("model_type", ["xgboost_ubj", "treelite_checkpoint"])
def test_the_class_of_the_highest_score(model_type: str) -> None:
    _, scores = known(model_type)
    assert np.array_equal(answers(model_type, 1), scores.argmax(axis=1))


def test_two_classes_have_one_score_or_two() -> None:
    inputs, scores = known("xgboost_json")
    assert np.isnan(inputs).any(), "missing values are part of it"
    np.testing.assert_allclose(answers("xgboost_json", 1, predict_proba="true"), scores[:, 0], atol=1e-5)
    both = answers("xgboost_json", 2, predict_proba="true")
    np.testing.assert_allclose(both, np.column_stack([1 - scores, scores]), atol=1e-5)


@pytest.mark.parametrize("threshold", ["0.5", "0.9"])
def test_two_classes_are_parted_by_the_threshold(threshold: str) -> None:
    _, scores = known("xgboost_json")
    output = answers("xgboost_json", 1, threshold=threshold)
    assert np.array_equal(output, scores[:, 0] > float(threshold))
    assert set(output) == {0, 1}


def test_a_classifier_that_is_said_to_be_none_gives_its_scores() -> None:
    _, scores = known("xgboost_ubj")
    np.testing.assert_allclose(answers("xgboost_ubj", 3, is_classifier="false"), scores, atol=1e-5)


def test_several_targets(tmp_path: Path) -> None:
    """A stump that says (1, 2) up to 0.5, (3, 4) beyond: no more than treelite's builder needs."""
    builder: Any = ModelBuilder(
        threshold_type="float32",
        leaf_output_type="float32",
        metadata=Metadata(
            num_feature=1,
            task_type="kRegressor",
            average_tree_output=False,
            num_target=2,
            num_class=[1, 1],
            leaf_vector_shape=(2, 1),
        ),
        tree_annotation=TreeAnnotation(num_tree=1, target_id=[-1], class_id=[0]),
        postprocessor=PostProcessorFunc(name="identity"),
        base_scores=[0.0, 0.0],
    )
    builder.start_tree()
    builder.start_node(0)
    builder.numerical_test(
        feature_id=0, threshold=0.5, default_left=True, opname="<=", left_child_key=1, right_child_key=2
    )
    builder.end_node()
    for key, values in enumerate([[1.0, 2.0], [3.0, 4.0]], 1):
        builder.start_node(key)
        builder.leaf(values)
        builder.end_node()
    builder.end_tree()
    file = tmp_path / "checkpoint.tl"
    builder.commit().serialize(file)

    backend = loaded(config_of("treelite_checkpoint", 1, 2, is_classifier="false"), file)
    rows = np.array([[0], [1], [np.nan]], np.float32)
    assert backend.run({"input__0": rows})["output__0"].tolist() == [[1, 2], [3, 4], [1, 2]]
    assert str(refusal(config_of("treelite_checkpoint", 1, 1), file)) == (
        "model 'm': a classifier of 2 targets is not supported, one answer per row is"
    )


def test_requests_of_one_batch_get_their_rows(batcher: Batcher) -> None:
    inputs, scores = known("xgboost")
    config = config_of("xgboost", 10, 1)
    loop = Loop(loaded(config), Signature.from_config(config), "m_0_0", batcher.memory())
    batcher.send(*(batcher.request([("input__0", "FP32", rows)]) for rows in np.split(inputs[:6], [1, 3])))
    loop.step()
    outputs = [done.outputs["output__0"] for done in batcher.done()]
    assert [output.shape for output in outputs] == [(1,), (2,), (3,)]
    np.testing.assert_allclose(np.concatenate(outputs), scores[:6, 0], rtol=1e-5)


def test_threads_are_used_where_there_is_enough_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    backend = loaded(config_of("xgboost", 10, 1), device=Device("KIND_CPU", 0, (0, 1, 2)))

    def predict(forest: Any, rows: Array, *, nthread: int) -> Array:
        asked.append(nthread)
        return np.zeros((len(rows), 1, 1), np.float32)

    monkeypatch.setattr(treelite.gtil, "predict", predict)
    for rows in (1, MIN_PARALLEL_VISITS // 10 - 1, MIN_PARALLEL_VISITS // 10):  # the forest has ten trees
        backend.run({"input__0": np.zeros((rows, 10), np.float32)})
    assert asked == [1, 1, 3]


def test_a_failure_has_treelites_words(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = loaded(config_of("xgboost", 10, 1))

    def fail(*args: Any, **kwargs: Any) -> None:
        raise treelite.TreeliteError("[07:46:43] /src/x.cc:79: Check failed: nthread <= 1\nStack trace")

    monkeypatch.setattr(treelite.gtil, "predict", fail)
    with pytest.raises(InternalError) as caught:
        backend.run({"input__0": np.zeros((1, 10), np.float32)})
    assert str(caught.value) == "model 'm': Check failed: nthread <= 1"


# -- files ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parameters", "columns"),
    [({}, 1), ({"predict_proba": "true"}, 3), ({"is_classifier": "false"}, 3)],
)
def test_it_describes_the_file(parameters: dict[str, str], columns: int) -> None:
    described = model(config_of("xgboost_ubj", 13, 1, **parameters), str(FORESTS / "xgboost.ubj"))
    assert FilBackend().describe(described, CPU) == ModelIO(
        (IOTensor("input__0", "TYPE_FP32", (-1, 13)),), (IOTensor("output__0", "TYPE_FP32", (-1, columns)),)
    )


def test_the_file_is_read_once_and_is_that_of_its_type_or_the_one_named(tmp_path: Path) -> None:
    config = config_of("xgboost_ubj", 13, 1)
    file = tmp_path / "forest.json"  # the suffix means nothing
    shutil.copy(FORESTS / "xgboost.ubj", file)
    backend, served = FilBackend(), model(config, str(file))
    backend.describe(served, CPU)
    file.unlink()
    backend.load(served, CPU)
    backend.unload()

    by_type = type(served)("m", 1, "m_0_0", str(FORESTS), "", config, {})
    FilBackend().load(by_type, CPU)
    missing = refusal(config, tmp_path / "gone.ubj")
    assert isinstance(missing, UnavailableError)
    assert str(missing) == (
        f"unable to find '{tmp_path}/gone.ubj' for model instance 'm_0_0', whose parameter 'model_type' is "
        "'xgboost_ubj'"
    )


@pytest.mark.parametrize("model_type", FILENAMES)
@pytest.mark.parametrize("content", [b"", b"not a forest at all\n"], ids=["empty", "text"])
def test_a_corrupt_file(model_type: str, content: bytes, tmp_path: Path) -> None:
    file = tmp_path / FILENAMES[model_type]
    file.write_bytes(content)
    error = refusal(config_of(model_type, 10, 1), file)
    assert isinstance(error, InvalidArgumentError)
    start = f"model 'm': '{file}' cannot be read as {model_type}: "
    assert str(error).startswith(start)
    assert "/src/" not in str(error), "where in treelite it was found helps nobody"
    assert len(str(error)) > len(start)


@pytest.mark.filterwarnings("ignore:.*unknown key")  # treelite's, of a field that may be there
def test_a_field_that_treelite_does_not_know(tmp_path: Path) -> None:
    forest = json.loads((FORESTS / "xgboost.json").read_text())
    forest["learner"]["gradient_booster"]["invented"] = 1
    file = tmp_path / "xgboost.json"
    file.write_text(json.dumps(forest))
    assert "cannot be read as xgboost_json" in str(refusal(config_of("xgboost_json", 30, 1), file))
    loaded(config_of("xgboost_json", 30, 1, xgboost_allow_unknown_field="true"), file)


@pytest.mark.parametrize("mark", [b"tree_sizes=", b"Tree=0", b"Tree=5", b"shrinkage=0.1\n\n\nend of trees"])
def test_a_file_of_lightgbm_that_was_cut_off(mark: bytes, tmp_path: Path) -> None:
    """treelite reads what there is of it and says nothing."""
    file, whole = tmp_path / "model.txt", (FORESTS / "model.txt").read_bytes()
    file.write_bytes(whole[: whole.index(mark)])
    assert str(refusal(config_of("lightgbm", 10, 1), file)) == (
        f"model 'm': '{file}' has fewer trees than it should, it was cut off"
    )


def test_a_file_of_lightgbm_needs_its_trees_only(tmp_path: Path) -> None:
    """What follows them are the parameters of the training."""
    file, whole = tmp_path / "model.txt", (FORESTS / "model.txt").read_bytes()
    file.write_bytes(whole[: whole.index(b"end of trees")])
    inputs, scores = known("lightgbm")
    output = loaded(config_of("lightgbm", 10, 1), file).run({"input__0": inputs})["output__0"]
    np.testing.assert_allclose(output, scores[:, 0], rtol=1e-5)


@pytest.mark.parametrize(
    ("num_features", "dim", "sentence"),
    [
        (
            12,
            1,
            "model 'm', tensor 'input__0': the model expects 2 dimensions (shape [-1,13]) but the model configuration "
            "specifies 2 dimensions (an initial batch dimension because max_batch_size > 0 followed by the explicit "
            "tensor shape, making complete shape [-1,12])",
        ),
        (
            13,
            3,
            "model 'm', tensor 'output__0': the model expects 2 dimensions (shape [-1,1]) but the model configuration "
            "specifies 2 dimensions (an initial batch dimension because max_batch_size > 0 followed by the explicit "
            "tensor shape, making complete shape [-1,3])",
        ),
    ],
)
def test_a_shape_that_is_not_the_forests(num_features: int, dim: int, sentence: str) -> None:
    assert str(refusal(config_of("xgboost_ubj", num_features, dim))) == sentence


def test_tensors_of_other_names_and_types() -> None:
    config = config_of("xgboost", 10, 1)
    config["input"] = [tensor_config("features", "TYPE_FP32", [10])]
    assert str(refusal(config)) == "unexpected inference input 'features', allowed inputs are: input__0"
    config["input"] = [tensor_config("input__0", "TYPE_FP64", [10])]
    assert str(refusal(config)) == (
        "unable to load model 'm', configuration expects datatype TYPE_FP64 for input 'input__0', model provides "
        "TYPE_FP32"
    )


def test_shapley_values_are_refused() -> None:
    config = config_of("xgboost", 10, 1)
    config["output"].append(tensor_config("treeshap_output", "TYPE_FP32", [11]))
    error = refusal(config)
    assert isinstance(error, UnsupportedError)
    assert str(error) == (
        "model 'm': output 'treeshap_output' is not supported, treelite computes no Shapley values; remove the output"
    )


def test_a_missing_package_is_named_with_what_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "shoal.workers.backends.fil")
    monkeypatch.setitem(sys.modules, "treelite", None)
    with pytest.raises(UnsupportedError) as caught:
        backends.create("fil")
    assert str(caught.value) == (
        "backend 'fil' cannot be imported: import of treelite halted; None in sys.modules. "
        "Install it with: pip install 'shoal[fil]'"
    )

"""Makes the forests in tests/data/forests/, each with the framework whose file format it has, from scikit-learn's data.

All files are committed, with inputs and the frameworks' own answers in answers.npz. The script needs an environment of
its own, and runs twice: XGBoost 3 no longer writes its old binary format. treelite is the oldest that Shoal takes,
since every version warns of a checkpoint by a later one.

    pip install treelite==4.4.1 scikit-learn lightgbm xgboost-cpu && python -m scripts.make_forests
    pip install 'xgboost-cpu<3' && python -m scripts.make_forests
"""

from pathlib import Path

import lightgbm
import numpy as np
import numpy.typing as npt
import treelite
import xgboost
from sklearn.datasets import load_breast_cancer, load_diabetes, load_wine
from sklearn.ensemble import RandomForestClassifier

FORESTS = Path(__file__).parents[1] / "tests" / "data" / "forests"
ANSWERS = FORESTS / "answers.npz"
NUM_ROWS = 40  # rows of inputs that are kept

Array = npt.NDArray[np.float32]


def main() -> None:
    """Make the forests that the installed XGBoost can make."""
    answers = dict(np.load(ANSWERS, allow_pickle=False)) if ANSWERS.exists() else {}
    if int(xgboost.__version__.partition(".")[0]) < 3:
        made = {"xgboost": diabetes_by_xgboost()}
    else:
        made = {
            "xgboost_json": breast_cancer_by_xgboost(),
            "xgboost_ubj": wine_by_xgboost(),
            "lightgbm": diabetes_by_lightgbm(),
            "treelite_checkpoint": breast_cancer_by_scikit_learn(),
        }
    for model_type, (inputs, scores) in made.items():
        answers[f"{model_type}_inputs"], answers[f"{model_type}_scores"] = inputs, scores.astype(np.float32)
    np.savez_compressed(ANSWERS, allow_pickle=False, **dict(sorted(answers.items())))


def breast_cancer_by_xgboost() -> tuple[Array, Array]:
    """A forest of XGBoost for two classes; a tenth of the values is missing."""
    features, labels = rows_of(load_breast_cancer())
    features[np.random.default_rng(0).random(features.shape) < 0.1] = np.nan
    return by_xgboost("xgboost.json", features, labels, {"objective": "binary:logistic"})


def wine_by_xgboost() -> tuple[Array, Array]:
    """A forest of XGBoost for three classes."""
    return by_xgboost("xgboost.ubj", *rows_of(load_wine()), {"objective": "multi:softprob", "num_class": 3})


def diabetes_by_xgboost() -> tuple[Array, Array]:
    """A regression forest of XGBoost, in its old binary format."""
    made = by_xgboost("xgboost.deprecated", *rows_of(load_diabetes()), {"objective": "reg:squarederror"})
    (FORESTS / "xgboost.deprecated").rename(FORESTS / "xgboost.model")
    return made


def by_xgboost(filename: str, features: Array, labels: Array, parameters: dict[str, object]) -> tuple[Array, Array]:
    """Train ten rounds of trees and write the file; returns the first rows and their scores."""
    booster = xgboost.train({"max_depth": 3, "nthread": 1, **parameters}, xgboost.DMatrix(features, labels), 10)
    booster.save_model(FORESTS / filename)
    return features[:NUM_ROWS], booster.predict(xgboost.DMatrix(features[:NUM_ROWS]))


def diabetes_by_lightgbm() -> tuple[Array, Array]:
    """A regression forest of LightGBM, with one categorical feature, the sex, and missing values."""
    features, labels = rows_of(load_diabetes())
    features[:, 1] = features[:, 1] > 0
    features[np.random.default_rng(1).random(features.shape) < 0.1] = np.nan
    data = lightgbm.Dataset(features, labels, categorical_feature=[1])
    parameters = {"objective": "regression", "num_leaves": 8, "num_threads": 1, "deterministic": True, "verbose": -1}
    booster = lightgbm.train(parameters, data, 20)
    booster.save_model(FORESTS / "model.txt")
    return features[:NUM_ROWS], np.asarray(booster.predict(features[:NUM_ROWS]))


def breast_cancer_by_scikit_learn() -> tuple[Array, Array]:
    """A random forest for two classes with a score each, as votes are counted."""
    features, labels = rows_of(load_breast_cancer())
    forest = RandomForestClassifier(10, max_depth=3, random_state=0).fit(features, labels)
    treelite.sklearn.import_model(forest).serialize(FORESTS / "checkpoint.tl")
    return features[:NUM_ROWS], forest.predict_proba(features[:NUM_ROWS])


def rows_of(dataset: dict[str, npt.NDArray[np.float64]]) -> tuple[Array, Array]:
    """Features and labels, shuffled, so that the first rows have every class."""
    order = np.random.default_rng(0).permutation(len(dataset["target"]))
    return dataset["data"][order].astype(np.float32), dataset["target"][order].astype(np.float32)


if __name__ == "__main__":
    main()

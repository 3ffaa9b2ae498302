"""Models for tables at their default settings, each given categories in the way that its documentation recommends.

A maker takes the columns of categories and returns an unfitted estimator with the interface of scikit-learn, for a
DataFrame whose columns of categories have the dtype ``category``. One thread each, so that process times are
comparable. A model whose library is not installed is left out with a message.
"""

import importlib.metadata
import importlib.util
from collections.abc import Callable

OURS = "fireset"
# Model: the distribution it belongs to.
LIBRARIES = {
    OURS: "fireset",
    "CatBoost": "catboost",
    "RealMLP": "pytabkit",
    "xRFM": "xrfm",
    "XGBoost": "xgboost",
    "LightGBM": "lightgbm",
    "ExtraTrees": "scikit-learn",
    "RandomForest": "scikit-learn",
    "HistGradientBoosting": "scikit-learn",
    "MLP": "scikit-learn",
    "SVM": "scikit-learn",
}
MODELS = tuple(LIBRARIES)
PEERS = MODELS[1:]


def version(model: str) -> str | None:
    """Version of the library of a model, or None if it is not installed."""
    try:
        return importlib.metadata.version(LIBRARIES[model])
    except importlib.metadata.PackageNotFoundError:
        return None


def _encoded(model, categories: list[str], *, scale: bool):
    """One-hot categories, and standardized numbers if ``scale``, before a model of scikit-learn."""
    from sklearn.compose import make_column_transformer
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    hot = OneHotEncoder(handle_unknown="ignore", sparse_output=False)
    return make_pipeline(
        make_column_transformer((hot, categories), remainder=StandardScaler() if scale else "passthrough"), model
    )


def _fireset(classes: bool, categories: list[str]):  # noqa: ARG001
    from fireset import ShiftedReLUClassifier, ShiftedReLURegressor

    return (ShiftedReLUClassifier if classes else ShiftedReLURegressor)(random_state=0)


def _catboost(classes: bool, categories: list[str]):
    from catboost import CatBoostClassifier, CatBoostRegressor

    kind = CatBoostClassifier if classes else CatBoostRegressor
    return kind(cat_features=categories, random_seed=0, thread_count=1, verbose=False, allow_writing_files=False)


def _realmlp(classes: bool, categories: list[str]):  # noqa: ARG001
    from pytabkit import RealMLP_TD_Classifier, RealMLP_TD_Regressor

    return (RealMLP_TD_Classifier if classes else RealMLP_TD_Regressor)(random_state=0, device="cpu", n_threads=1)


def _xrfm(classes: bool, categories: list[str]):  # noqa: ARG001
    # The interface of pytabkit does what the documentation of xRFM recommends: standardized numbers, one-hot
    # categories, a fifth of the rows for early stopping.
    from pytabkit import XRFM_D_Classifier, XRFM_D_Regressor

    return (XRFM_D_Classifier if classes else XRFM_D_Regressor)(random_state=0, device="cpu", n_threads=1)


def _xgboost(classes: bool, categories: list[str]):  # noqa: ARG001
    from xgboost import XGBClassifier, XGBRegressor

    return (XGBClassifier if classes else XGBRegressor)(enable_categorical=True, n_jobs=1, random_state=0)


def _lightgbm(classes: bool, categories: list[str]):  # noqa: ARG001
    from lightgbm import LGBMClassifier, LGBMRegressor

    return (LGBMClassifier if classes else LGBMRegressor)(n_jobs=1, random_state=0, verbosity=-1)


def _extra_trees(classes: bool, categories: list[str]):
    from sklearn.ensemble import ExtraTreesClassifier, ExtraTreesRegressor

    return _encoded((ExtraTreesClassifier if classes else ExtraTreesRegressor)(random_state=0), categories, scale=False)


def _random_forest(classes: bool, categories: list[str]):
    from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor

    forest = RandomForestClassifier if classes else RandomForestRegressor
    return _encoded(forest(random_state=0), categories, scale=False)


def _hist_gradient_boosting(classes: bool, categories: list[str]):  # noqa: ARG001
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

    kind = HistGradientBoostingClassifier if classes else HistGradientBoostingRegressor
    return kind(categorical_features="from_dtype", random_state=0)


def _mlp(classes: bool, categories: list[str]):
    from sklearn.neural_network import MLPClassifier, MLPRegressor

    return _encoded((MLPClassifier if classes else MLPRegressor)(random_state=0), categories, scale=True)


def _svm(classes: bool, categories: list[str]):
    from sklearn.svm import SVC, SVR

    return _encoded(SVC() if classes else SVR(), categories, scale=True)


MAKERS: dict[str, Callable] = {
    OURS: _fireset,
    "CatBoost": _catboost,
    "RealMLP": _realmlp,
    "xRFM": _xrfm,
    "XGBoost": _xgboost,
    "LightGBM": _lightgbm,
    "ExtraTrees": _extra_trees,
    "RandomForest": _random_forest,
    "HistGradientBoosting": _hist_gradient_boosting,
    "MLP": _mlp,
    "SVM": _svm,
}

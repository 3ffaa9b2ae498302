"""fireset's estimators among scikit-learn's tools: a pipeline, cross-validation, a search over settings, importances.

Run it::

    python examples/sklearn_model.py [--width 2000]
"""

import argparse

from sklearn.datasets import load_breast_cancer, load_diabetes
from sklearn.feature_selection import SelectKBest
from sklearn.inspection import permutation_importance
from sklearn.model_selection import GridSearchCV, cross_val_score, train_test_split
from sklearn.pipeline import make_pipeline

from fireset import ShiftedReLUClassifier, ShiftedReLURegressor


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--width", type=int, default=2_000)
    asked = parser.parse_args()

    # A classifier in a pipeline, by cross-validation. Rows are scaled by the estimator itself.
    X, y = load_breast_cancer(return_X_y=True)
    model = make_pipeline(SelectKBest(k=15), ShiftedReLUClassifier(width=asked.width, random_state=0))
    scores = cross_val_score(model, X, y, cv=3)
    print(f"breast cancer: accuracy {scores.mean():.3f} on average over {len(scores)} folds")

    # A regressor, with a search over one setting, and the columns that matter on rows held out.
    data = load_diabetes(as_frame=True)
    X_train, X_test, y_train, y_test = train_test_split(data.data, data.target, random_state=0)
    search = GridSearchCV(ShiftedReLURegressor(width=asked.width, random_state=0), {"threshold": ["auto", 1.0]}, cv=3)
    search.fit(X_train, y_train)
    print(f"diabetes: {search.best_params_}, R² {search.score(X_test, y_test):.3f} on rows held out")
    importances = permutation_importance(search.best_estimator_, X_test, y_test, n_repeats=3, random_state=0)
    best = importances.importances_mean.argsort()[::-1][:3]
    print("matter most:", ", ".join(data.feature_names[column] for column in best))


if __name__ == "__main__":
    main()

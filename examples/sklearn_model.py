"""fireset estimators with scikit-learn tools: pipeline, cross-validation, grid search, permutation importance.


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
    arguments = parser.parse_args()

    # Cross-validation of a classifier in a pipeline. The estimator scales the rows.
    X, y = load_breast_cancer(return_X_y=True)
    model = make_pipeline(SelectKBest(k=15), ShiftedReLUClassifier(width=arguments.width, random_state=0))
    scores = cross_val_score(model, X, y, cv=3)
    print(f"breast cancer: accuracy {scores.mean():.3f} on average over {len(scores)} folds")

    # Grid search of a regressor, and permutation importance on held-out rows.
    data = load_diabetes(as_frame=True)
    X_train, X_test, y_train, y_test = train_test_split(data.data, data.target, random_state=0)
    search = GridSearchCV(
        ShiftedReLURegressor(width=arguments.width, random_state=0), {"threshold": ["auto", 1.0]}, cv=3
    )
    search.fit(X_train, y_train)
    print(f"diabetes: {search.best_params_}, R² {search.score(X_test, y_test):.3f} on held-out rows")
    importances = permutation_importance(search.best_estimator_, X_test, y_test, n_repeats=3, random_state=0)
    best = importances.importances_mean.argsort()[::-1][:3]
    print("most important columns:", ", ".join(data.feature_names[column] for column in best))


if __name__ == "__main__":
    main()

"""`python -m estimator_pipeline` is `estimator-pipeline`."""

from __future__ import annotations

from estimator_pipeline.cli.main import main

if __name__ == "__main__":
    main()

"""Classes of programs: subclasses of Estimator, and what they inherit."""

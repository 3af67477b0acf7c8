"""Records of model calls, drift detection, training data and replays."""

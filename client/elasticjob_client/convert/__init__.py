"""Converts a PyTorchJob or TrainJob of Kubeflow to an ElasticJob: pure, from manifests to manifests."""

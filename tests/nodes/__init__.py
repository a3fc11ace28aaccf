"""The product on two nodes with kubelets, from images that are built and pulled: `make test-nodes`."""

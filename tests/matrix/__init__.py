"""The same end-to-end tests with every torch that is supported in the pods."""

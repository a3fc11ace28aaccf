"""What all tests share."""

pytest_plugins = ["devcluster.pytest_plugin", "tests.operator_fixtures", "tests.handler_image"]

"""What all tests share."""

from hypothesis import settings

pytest_plugins = [
    "devcluster.pytest_plugin",
    "tests.operator_fixtures",
    "tests.handler_image",
    "tests.operator_image",
]

# Without it an example fails that takes 200 ms: nothing is judged by how fast a busy machine is.
settings.register_profile("no clock", deadline=None)
settings.load_profile("no clock")

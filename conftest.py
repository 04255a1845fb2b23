"""The profiles of hypothesis, and the seed of a run, which repeats it.

A failing example is shown as it was found, since to shrink it may take minutes;
`--hypothesis-profile=shrink` does so. With `long`, a test runs until it is stopped:
`pytest -k differential --hypothesis-profile=long`.
"""

import gc
import random

import pytest
from hypothesis import HealthCheck, Phase, settings

# The first example compiles kernels, and some make models.
common = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
whole = [Phase.explicit, Phase.reuse, Phase.generate]
settings.register_profile("normal", max_examples=12, phases=whole, **common)
settings.register_profile("shrink", max_examples=30, **common)
settings.register_profile("long", max_examples=10**9, **common)
settings.load_profile("normal")


# The objects of some large packages stay. To search them for garbage again and again takes long.
gc.disable()


def pytest_collection_finish():
    gc.freeze()
    gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config):
    if config.getoption("--hypothesis-seed") is None:
        config.option.hypothesis_seed = str(random.SystemRandom().randrange(1 << 32))


def pytest_sessionstart(session):
    seed = session.config.getoption("--hypothesis-seed")
    session.config.get_terminal_writer().line(f"To repeat this run: --hypothesis-seed={seed}")

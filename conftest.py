"""The profile of hypothesis for `pytest -k differential --hypothesis-profile=long`."""

from hypothesis import HealthCheck, settings

settings.register_profile(
    "long", max_examples=10**9, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)

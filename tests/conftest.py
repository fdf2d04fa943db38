"""What holds for all tests: properties are drawn the same way in every run, and never judged by a clock."""

from hypothesis import HealthCheck, settings

settings.register_profile("suite", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("suite")

"""Builders of small inputs, for tests of this project and of policies that users add."""

"""Weights of selectors, searched on a vectorised approximation of the fleet and confirmed in the exact simulator."""

"""What a run is made of: which configurations are served, compared and reported."""

"""What is moved before it is asked for."""

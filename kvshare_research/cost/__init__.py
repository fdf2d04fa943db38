"""What each way of serving a request would take, and how the numbers behind it are measured."""

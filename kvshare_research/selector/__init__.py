"""Which way of serving a request is taken, given what each would take."""

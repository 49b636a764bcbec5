"""The store: the cost of durable acknowledgements, compared with a broker without them."""

"""The store: what an acknowledgement that means "on disk" costs, beside a broker whose does not."""

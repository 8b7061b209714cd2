"""Cache events of workers, followed over ZMQ without a gap."""

"""What the product promises about faults, shown by faults."""

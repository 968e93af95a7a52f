"""What tests share: cases, servers, faults, processes."""

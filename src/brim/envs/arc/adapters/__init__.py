"""ARC environments with the interfaces of others: Gymnasium, gymnax and dm_env."""

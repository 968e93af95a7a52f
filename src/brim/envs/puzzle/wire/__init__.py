"""The puzzle server: its protocol, sessions, and a server of our own."""

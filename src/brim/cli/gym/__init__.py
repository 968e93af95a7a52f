"""The commands of `brim gym`: play on a puzzle server and keep the samples, list the games, start a server."""

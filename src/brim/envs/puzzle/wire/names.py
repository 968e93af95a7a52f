"""Names of the transports. No connection is made here, so that options and commands can list them at no cost."""

from typing import Literal

TransportName = Literal["auto", "tcp", "telnet", "websocket"]
TRANSPORTS: tuple[TransportName, ...] = ("auto", "tcp", "telnet", "websocket")
ServerTransport = Literal["tcp", "telnet", "websocket"]
SERVER_TRANSPORTS: tuple[ServerTransport, ...] = ("tcp", "telnet", "websocket")

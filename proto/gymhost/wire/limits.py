"""The limits of the contract, shared by every part that speaks it."""

PROTOCOL_MINOR = 1

# A frame holds at most this many bytes; on a gRPC stream a larger payload travels alone, on a bulk stream, since it
# would stall the small ones behind it. Whoever makes frames of commands or replies stops at this many, so that the
# first of them need not wait for the last.
FRAME_BYTES = 256 * 1024
FRAME_ITEMS = 512

# The largest payload, in bytes, that a server takes or gives by default (`gymhost serve --max-payload`).
MAX_PAYLOAD = 64 * 1024 * 1024

# The most that a front queues for one stream before it cuts the stream off.
MAX_QUEUED = 64 * 1024 * 1024

# What a message may weigh beyond its payload: the envelope, and a frame's worth of small commands.
ENVELOPE = 64 * 1024

# How deep values and spaces may be nested. Every level costs two levels of protobuf messages, whose parsers stop at
# 100; the rest is for the messages around it.
MAX_DEPTH = 40

LEASE_SECONDS = 120.0
HEARTBEAT_SECONDS = 15.0

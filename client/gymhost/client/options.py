"""The gRPC channel options of the client's side."""

from gymhost.wire import limits


def channel_options(max_payload: int = limits.MAX_PAYLOAD) -> list[tuple[str, int]]:
    """The options of a channel to a server.

    Args:
        max_payload: The largest payload that is taken, in bytes.
    """
    message = max_payload + limits.ENVELOPE
    return [
        ("grpc.max_receive_message_length", message),
        ("grpc.max_send_message_length", message),
        # Each channel has a TCP connection of its own: a large message on one never stalls small ones on the other.
        ("grpc.use_local_subchannel_pool", 1),
        # A server that is gone without a word is noticed; while the stream is quiet its heartbeats do the same.
        ("grpc.keepalive_time_ms", 30_000),
        ("grpc.keepalive_timeout_ms", 20_000),
        ("grpc.keepalive_permit_without_calls", 1),
        # The connection's own supervisor decides how long to try.
        ("grpc.enable_retries", 0),
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.min_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 1000),
    ]

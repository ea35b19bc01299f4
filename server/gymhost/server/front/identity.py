"""Who is calling: bearer tokens and the identities they stand for."""

import hashlib
import hmac
from collections.abc import Mapping, Sequence

from gymhost.wire.errors import Unauthenticated

# Everybody, on a server without tokens.
ANYBODY = "anybody"


class Identities:
    """Checks tokens. Only their hashes are kept.

    Args:
        tokens: Each token with the name of its identity; none lets everybody in as one identity.
    """

    def __init__(self, tokens: Mapping[str, str]) -> None:
        self._hashes = [(_hash(token), name) for token, name in tokens.items()]

    def of(self, metadata: Sequence[tuple[str, str | bytes]] | None) -> str:
        """The identity of a call with this metadata.

        Raises:
            Unauthenticated: It has no token, or not a valid one.
        """
        if not self._hashes:
            return ANYBODY
        header = next((value for key, value in metadata or () if key == "authorization"), None)
        if header is None:
            raise Unauthenticated("this server wants a token: connect(..., token=...) or GYMHOST_TOKEN")
        text = header.decode(errors="replace") if isinstance(header, bytes) else header
        scheme, _, token = text.partition(" ")
        given = _hash(token)
        found = None
        for known, name in self._hashes:
            if hmac.compare_digest(known, given):
                found = name
        if scheme.lower() != "bearer" or found is None:
            raise Unauthenticated("the token is not valid on this server")
        return found


def _hash(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()

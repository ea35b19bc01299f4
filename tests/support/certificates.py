"""Certificates for tests, of authorities of their own."""

import datetime
from pathlib import Path

import trustme

from gymhost.client import Tls


class Authority:
    """An authority, and the files of what it has signed.

    Args:
        folder: Where the files are.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._authority = trustme.CA()
        self.ca = str(folder / "ca.pem")
        self._authority.cert_pem.write_to_path(self.ca)

    def server(self, *names: str, name: str = "server", expires: datetime.datetime | None = None) -> dict[str, str]:
        """Signs a server's certificate, of this host unless other names are given; returns the settings for it."""
        cert, key = self._sign(name, *(names or ("localhost", "127.0.0.1")), not_after=expires)
        return {"tls_cert": cert, "tls_key": key}

    def client(self, common_name: str | None, *names: str, ca: str | None = None) -> Tls:
        """Signs a client's certificate; returns how the client speaks TLS with servers of an authority, this one's."""
        own = names or ("client.example",)
        cert, key = self._sign(common_name or own[0], *own, common_name=common_name)
        return Tls(ca=ca or self.ca, cert=cert, key=key)

    @property
    def trusted(self) -> Tls:
        """How a client without a certificate of its own speaks TLS with servers of this authority."""
        return Tls(ca=self.ca)

    def _sign(
        self, name: str, *names: str, common_name: str | None = None, not_after: datetime.datetime | None = None
    ) -> tuple[str, str]:
        signed = self._authority.issue_cert(*names, common_name=common_name, not_after=not_after)
        cert, key = self._folder / f"{name}.pem", self._folder / f"{name}.key"
        key.touch(mode=0o600)
        signed.private_key_pem.write_to_path(str(key))
        cert.write_bytes(b"".join(pem.bytes() for pem in signed.cert_chain_pems))
        return str(cert), str(key)

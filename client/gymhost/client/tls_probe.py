"""Why no connection comes about where one side speaks TLS: gRPC says little of it, so a handshake is tried here."""

import socket
import ssl

from gymhost.client.tls import Tls
from gymhost.wire import errors

__all__ = ["find_problem"]

# Seconds for each step of the handshake.
LIMIT = 3.0
# Seconds in which a server that does not like a client's certificate says so: in TLS 1.3 only after the handshake.
REFUSAL = 1.0

# OpenSSL's numbers of what may be wrong with a certificate.
_NOT_YET_VALID, _EXPIRED, _WRONG_NAME, _WRONG_IP = 9, 10, 62, 64


def find_problem(address: str, tls: Tls | None) -> errors.Error | None:
    """Looks for what is wrong with TLS between this process and a server; takes a few seconds at most.

    Args:
        address: `HOST:PORT`; others never have a problem.
        tls: How the client speaks TLS; None if it does not.

    Returns:
        An error that says what to set; None where nothing is wrong with TLS, or nobody listens.
    """
    host, _, port = address.rpartition(":")
    if address.startswith("unix:") or not port.isdigit():
        return None
    host = host.strip("[]")
    try:
        with socket.create_connection((host, int(port)), LIMIT) as plain:
            return _plain_problem(plain, address) if tls is None else _tls_problem(plain, address, host, tls)
    except OSError:
        return None


def _plain_problem(plain: socket.socket, address: str) -> errors.Error | None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        context.wrap_socket(plain).close()
    except OSError:
        return None
    return errors.ServerUnavailable(
        f"the server at {address} speaks TLS: connect(..., tls=Tls(ca=...)) with the file of its authority, or "
        "GYMHOST_TLS_CA"
    )


def _tls_problem(plain: socket.socket, address: str, host: str, tls: Tls) -> errors.Error | None:
    try:
        context = ssl.create_default_context(cafile=tls.ca)
        if tls.cert is not None:
            context.load_cert_chain(tls.cert, tls.key, password=lambda: "")
    except OSError as error:
        which = tls.ca if tls.cert is None else f"{tls.cert}, {tls.key} or {tls.ca}"
        return errors.InvalidArgument(f"{which} can't be used: {_reason(error)} (tls, GYMHOST_TLS_CA, _CERT, _KEY)")
    context.set_alpn_protocols(["h2"])
    try:
        secure = context.wrap_socket(plain, server_hostname=tls.name or host)
    except ssl.SSLCertVerificationError as error:
        return _of_certificate(error, address, host, tls)
    except TimeoutError:
        return None
    except ssl.SSLError as error:
        reason = _reason(error)
        if "ALERT" in reason:
            return _of_client(reason, address, tls)
        return errors.ServerUnavailable(
            f"the server at {address} does not speak TLS ({reason}): leave tls and GYMHOST_TLS_CA out, or start it "
            "with gymhost serve --tls-cert and --tls-key"
        )
    with secure:
        secure.settimeout(REFUSAL)
        try:
            # gRPC's servers speak first; what they do not like they hang up on.
            return None if secure.recv(1) else _of_client("it hung up", address, tls)
        except TimeoutError:
            return None
        except OSError as error:
            return _of_client(_reason(error), address, tls)


def _of_client(reason: str, address: str, tls: Tls) -> errors.Error:
    own = "does not take the client's certificate" if tls.cert else "wants a certificate of its clients"
    return errors.Unauthenticated(
        f"the server at {address} {own} ({reason}): Tls(cert=..., key=...) or GYMHOST_TLS_CERT and GYMHOST_TLS_KEY, "
        "signed by an authority of gymhost serve --tls-client-ca"
    )


def _of_certificate(error: ssl.SSLCertVerificationError, address: str, host: str, tls: Tls) -> errors.Error:
    code, words = error.verify_code, error.verify_message
    if code in (_EXPIRED, _NOT_YET_VALID):
        when = "has expired" if code == _EXPIRED else "is not valid yet"
        return errors.ServerUnavailable(f"the certificate of {address} {when}: renew it, or set this machine's clock")
    if code in (_WRONG_NAME, _WRONG_IP):
        return errors.ServerUnavailable(
            f"the certificate of {address} is not for {tls.name or host!r}: connect by a name that it is for, or say "
            "which one that is with Tls(name=...)"
        )
    return errors.ServerUnavailable(
        f"the certificate of {address} is of no authority in {tls.ca or 'the public ones'} ({words}): Tls(ca=...) or "
        "GYMHOST_TLS_CA names the file of the right one"
    )


def _reason(error: Exception) -> str:
    return getattr(error, "reason", None) or str(error)

"""Who is calling, and what that caller may do: bearer tokens, certificates, roles."""

import hmac
from collections.abc import Mapping
from typing import Any, NamedTuple

from gymhost.server.settings import DoorSettings
from gymhost.server.tokens import Owner, Role, hash_of, parse_owner
from gymhost.v1 import environments_pb2 as pb
from gymhost.v1 import operations_pb2 as operations
from gymhost.wire.errors import PermissionDenied, Unauthenticated

# Everybody, on a server without tokens.
ANYBODY = "anybody"

# The role that each RPC wants at least, of whichever service.
RPC_ROLES = {
    "ListEnvironments": Role.READ_ONLY,
    "GetEnvironment": Role.READ_ONLY,
    "ListTasks": Role.READ_ONLY,
    "GetSession": Role.READ_ONLY,
    "ListSessions": Role.READ_ONLY,
    # What its commands want is said below.
    "Interact": Role.READ_ONLY,
    "CreateSession": Role.USER,
    "CloseSession": Role.USER,
    "Reset": Role.USER,
    "Step": Role.USER,
    "CallTool": Role.USER,
    "Render": Role.USER,
    "Evaluate": Role.USER,
    "Fork": Role.USER,
    # What belongs to others takes an admin besides.
    "GetJob": Role.READ_ONLY,
    "ListJobs": Role.READ_ONLY,
    "ListRollouts": Role.READ_ONLY,
    "ListGenerators": Role.READ_ONLY,
    "GetStatus": Role.READ_ONLY,
    "SubmitJob": Role.USER,
    "ExtendJob": Role.USER,
    "CancelRollouts": Role.USER,
    "PauseJob": Role.USER,
    "ResumeJob": Role.USER,
    "StreamResults": Role.USER,
    "FetchResults": Role.USER,
    "AcknowledgeResults": Role.USER,
    "AddGenerator": Role.ADMIN,
    "DrainGenerator": Role.ADMIN,
    "RemoveGenerator": Role.ADMIN,
    "AnnouncePolicy": Role.ADMIN,
    "GetMetrics": Role.READ_ONLY,
    "GetOverview": Role.READ_ONLY,
    "GetHistory": Role.READ_ONLY,
    "ListLiveSessions": Role.READ_ONLY,
    "ListFailures": Role.READ_ONLY,
    "FollowSession": Role.READ_ONLY,
    "EndSession": Role.USER,
    "DrainServer": Role.ADMIN,
}
# Those of OperationsService: for them whoever reaches a server that wants neither tokens nor certificates is an admin.
OPERATIONS = {method.name for method in operations.DESCRIPTOR.services_by_name["OperationsService"].methods}
# Of the commands on a stream all but these want the role `user`. Those that go on to a worker are not even looked at:
# to have a lane, a stream must have created a session or attached one.
READ_ONLY_COMMANDS = (pb.COMMAND_KIND_HELLO, pb.COMMAND_KIND_HEARTBEAT)


class SideDoor(NamedTuple):
    """A way in for a process of the server's own, whatever others must show: a Unix socket, and a token.

    Attributes:
        address: `unix:PATH`, in a folder that is its user's alone.
        token_hash: The hash of the token.
        name: The identity of whoever shows it.
    """

    address: str
    token_hash: str
    name: str


class Caller(NamedTuple):
    """Who makes a call.

    Attributes:
        identity: The name that sessions and jobs belong to.
        role: What it may do.
        credential: The hash of its token; empty without one.
    """

    identity: str
    role: Role = Role.USER
    credential: str = ""

    def check(self, wanted: Role, what: str) -> None:
        """Sees to it that the caller may do something.

        Raises:
            PermissionDenied: It may not.
        """
        if self.role < wanted:
            raise PermissionDenied(
                f"{what} is for the role {wanted.label!r}, and {self.identity!r} has {self.role.label!r} (gymhost "
                "token --role)"
            )

    def check_command(self, kind: int) -> None:
        """Sees to it that the caller may give a command of this kind on its stream.

        Raises:
            PermissionDenied: It may not.
        """
        if self.role < Role.USER and kind not in READ_ONLY_COMMANDS:
            known = kind in pb.CommandKind.values()
            name = pb.CommandKind.Name(kind).removeprefix("COMMAND_KIND_") if known else kind  # pyright: ignore[reportArgumentType]
            self.check(Role.USER, f"a command of kind {name}")


class Identities:
    """Decides who is let in. Of tokens only hashes are known.

    A server that asks for certificates and knows no tokens takes the certificate's common name for the identity, or
    where that is empty its first alternative name. One that knows tokens wants one whatever the certificate is.

    Args:
        settings: The server's settings.
        owners: Whom the tokens of the token file stand for.
        untold: The role of those who show no token, on a server that wants none.
        side: A way in for a process of the server's own.
    """

    def __init__(
        self,
        settings: DoorSettings,
        owners: Mapping[str, Owner],
        untold: Role = Role.USER,
        side: SideDoor | None = None,
    ) -> None:
        self._of_settings = {hashed: parse_owner(owner) for hashed, owner in settings.tokens.items()}
        self.wants_token = bool(settings.tokens or settings.token_file)
        self._wants_certificate = bool(settings.tls_client_ca)
        self._untold = untold
        self._side = side
        self._owners: dict[str, Owner] = {}
        # Names that lost the last token with which they might have sessions while the server ran.
        self.revoked: set[str] = set()
        self.replace(owners)

    def replace(self, owners: Mapping[str, Owner]) -> None:
        """Takes what the token file has now."""
        before = self._users()
        self._owners = {**owners, **self._of_settings}
        self.revoked = (self.revoked | before) - self._users()

    def admit(self, context: Any, rpc: str) -> Caller:
        """Lets the caller of an RPC in.

        Args:
            context: gRPC's context of the call.
            rpc: The RPC's name.

        Raises:
            Unauthenticated: It has no token or certificate, or not a valid one.
            PermissionDenied: Its role is not enough for the RPC.
        """
        caller = self._of(context)
        if rpc in OPERATIONS and not self.wants_token and not self._wants_certificate:
            caller = caller._replace(role=Role.ADMIN)
        caller.check(RPC_ROLES[rpc], rpc)
        return caller

    def is_valid(self, caller: Caller) -> bool:
        """Whether somebody who was let in still would be, as the same and with the same role."""
        return not caller.credential or self._owners.get(caller.credential) == (caller.identity, caller.role)

    def _users(self) -> set[str]:
        return {owner.name for owner in self._owners.values() if owner.role >= Role.USER}

    def _of(self, context: Any) -> Caller:
        if self._side is not None and hmac.compare_digest(self._side.token_hash, _given(context)[1]):
            return Caller(self._side.name)
        if not self.wants_token:
            name = _name_of(context.auth_context()) if self._wants_certificate else ANYBODY
            return Caller(name, self._untold)
        scheme, given = _given(context)
        if not given:
            raise Unauthenticated("this server wants a token: connect(..., token=...) or GYMHOST_TOKEN")
        found = None
        # All of them, however early one is found: how long it takes tells nothing.
        for known, owner in self._owners.items():
            if hmac.compare_digest(known, given):
                found = owner
        if scheme.lower() != "bearer" or found is None:
            raise Unauthenticated("the token is not valid on this server, or was revoked")
        return Caller(*found, given)


def _given(context: Any) -> tuple[str, str]:
    """What a caller shows: the scheme, and the hash of the token; both are empty where it shows nothing."""
    header = next((value for key, value in context.invocation_metadata() or () if key == "authorization"), None)
    if header is None:
        return "", ""
    text = header.decode(errors="replace") if isinstance(header, bytes) else header
    scheme, _, token = text.partition(" ")
    return scheme, hash_of(token)


def _name_of(auth: Mapping[str, Any]) -> str:
    """The identity that a certificate which gRPC has verified is for."""
    for key in ("x509_common_name", "x509_subject_alternative_name"):
        for value in auth.get(key) or ():
            if name := bytes(value).decode(errors="replace"):
                return name
    raise Unauthenticated("the client's certificate has neither a common name nor an alternative one")

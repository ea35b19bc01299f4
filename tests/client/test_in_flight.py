"""What a connection still has to send when its server is another one than before."""

from gymhost.client.connection import Connection
from gymhost.client.pending import Pending
from gymhost.v1 import environments_pb2 as pb

CLOSE, CANCEL, CREATE = pb.COMMAND_KIND_CLOSE, pb.COMMAND_KIND_CANCEL, pb.COMMAND_KIND_CREATE


class Told(Pending):
    """A command that tells when it was answered."""

    answered = False

    def wake(self) -> None:
        self.answered = True


def test_what_names_sessions_of_a_server_that_is_gone_is_not_sent_to_the_next() -> None:
    in_flight = Connection("127.0.0.1:1", None).in_flight

    def tell(kind: int, lane: int) -> Told:
        pending = Told(None, lane, kind, b"")
        pending.sequence = next(in_flight.numbers)
        in_flight.outbox.append(pending)
        return pending

    def kinds(commands: "list[pb.Command]") -> list[int]:
        return [command.kind for command in commands]

    sent = [tell(CREATE, 0), tell(CLOSE, 1), tell(CANCEL, 2)]
    assert kinds(list(in_flight.next_frame().commands)) == [CREATE, CLOSE, CANCEL]
    waiting = [tell(CLOSE, 3), tell(CREATE, 0), tell(CANCEL, 4)]
    in_flight.forget_numbers()
    assert kinds(in_flight.resume()) == [CREATE]
    assert kinds(list(in_flight.next_frame().commands)) == [CREATE]
    # Who waits for a close has what was asked for: there is no such session any more.
    assert [(told.answered, told.code) for told in (sent[1], waiting[0], waiting[2])] == [(True, 0)] * 3
    assert not sent[0].answered
    assert not waiting[1].answered
    assert not in_flight.still_leaving

"""Connections of peers: a new one takes the place of the oldest that waits, and none that is at work is closed."""

from __future__ import annotations

from finqa_plugins.environments.openenv_finqa.server.peers import Peers
from finqa_plugins.environments.openenv_finqa.server.server_limits import MAX_BODIES_BYTES, ServerLimits


class Half:
    """A connection that waits for a request."""

    def __init__(self) -> None:
        self.closed = False

    def give_way(self) -> None:
        self.closed = True


def opened(peers: Peers, peer: str) -> Half:
    half = Half()
    assert peers.enter(peer)
    peers.wait(peer, half)
    return half


def test_the_oldest_waiting_connection_gives_way() -> None:
    peers = Peers(ServerLimits(connections_per_peer=3))
    first, second, third = (opened(peers, "a") for _ in range(3))
    peers.stop_waiting("a", first)  # its request has come
    assert peers.enter("a")
    assert (first.closed, second.closed, third.closed) == (False, True, False)
    assert peers.enter("a")
    assert third.closed
    assert not peers.enter("a"), "three are at work"
    assert peers.enter("b"), "another peer has its own"
    peers.leave("a")
    assert peers.enter("a")


def test_waiting_again_makes_a_connection_the_youngest() -> None:
    peers = Peers(ServerLimits(connections_per_peer=2))
    first, second = opened(peers, "a"), opened(peers, "a")
    peers.stop_waiting("a", first)
    peers.wait("a", first)
    peers.stop_waiting("a", Half())  # one that never waited
    assert peers.enter("a")
    assert (first.closed, second.closed) == (False, True)


def test_bytes_of_a_peer_have_a_limit_and_nothing_is_kept_of_peers_that_are_gone() -> None:
    peers = Peers(ServerLimits())
    assert peers.hold("a", MAX_BODIES_BYTES)
    assert not peers.hold("a", 1)
    assert peers.hold("b", 1) and peers.hold("c", 0)
    peers.release("a", MAX_BODIES_BYTES)
    assert peers.hold("a", 1)
    opened(peers, "a")
    for peer in "ab":
        peers.release(peer, 1)
    peers.release("c", 0)
    peers.leave("a")
    peers.stop_waiting("a", next(iter(peers._waiting["a"])))
    assert not (peers._held or peers._open or peers._waiting)

"""The address Paceline listens on, and the sentences when it can't."""

import os
import socket

import pytest

from apps.config.local.listener import Address, AddressUnusable, address_of, address_read, listen, reachable
from apps.config.local.problems import PortTaken


class TestAddress:
    @pytest.mark.parametrize(
        ("text", "address"),
        [
            ("127.0.0.1:8000", Address("127.0.0.1", 8000)),
            (":9000", Address("127.0.0.1", 9000)),
            ("[::1]:8000", Address("::1", 8000)),
            ("node-1:80", Address("node-1", 80)),
        ],
    )
    def test_reads_host_and_port(self, text: str, address: Address) -> None:
        assert address_read(text) == address

    @pytest.mark.parametrize("text", ["8000x", "localhost", "localhost:", "localhost:99999", "localhost:-1", "a:²"])
    def test_refuses_what_is_no_address(self, text: str) -> None:
        with pytest.raises(AddressUnusable, match=f"PACELINE_BIND={text} is no address. Write it as HOST:PORT"):
            address_read(text)

    def test_every_address_is_opened_by_the_machines_name(self) -> None:
        assert reachable(Address("0.0.0.0", 8000)).host in {socket.gethostname(), "127.0.0.1"}
        assert reachable(Address("127.0.0.1", 8000)) == Address("127.0.0.1", 8000)


class TestListen:
    def test_port_0_takes_a_free_port(self) -> None:
        with listen(Address("127.0.0.1", 0)) as listener:
            assert address_of(listener).port > 0

    def test_a_connection_waits_while_nobody_accepts(self) -> None:
        with (
            listen(Address("127.0.0.1", 0)) as listener,
            socket.create_connection(("127.0.0.1", address_of(listener).port), timeout=5) as caller,
        ):
            caller.sendall(b"hello")
            accepted, _ = listener.accept()

            with accepted:
                assert accepted.recv(5) == b"hello"

    def test_a_taken_port_names_its_owner_and_the_way_out(self) -> None:
        with listen(Address("127.0.0.1", 0)) as first:
            port = address_of(first).port

            with pytest.raises(PortTaken) as caught:
                listen(Address("127.0.0.1", port))

        assert f"Port {port} on 127.0.0.1 is taken by " in caught.value.message
        assert f"(pid {os.getpid()})" in caught.value.message
        assert f"PACELINE_BIND=127.0.0.1:{port + 1} make run" in caught.value.message

    def test_an_address_of_another_machine_is_refused_in_a_sentence(self) -> None:
        with pytest.raises(AddressUnusable, match=r"PACELINE_BIND=192.0.2.1:8000: Cannot assign"):
            listen(Address("192.0.2.1", 8000))

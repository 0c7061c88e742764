"""A page served on this machine only, and made again when its content has changed."""

from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from fedopt.console import show
from fedopt.drawing.page import Page
from fedopt.errors import UserError, first_line

HOST = "127.0.0.1"


def serve(page: Callable[[], Page], stamp: Callable[[], str], port: int) -> None:
    """Serve a page at a local address until Ctrl-C. The browser refreshes it when it changes.

    Args:
        page: Makes the page.
        stamp: Returns a text that changes whenever the page would.
        port: The port; 0: any free one.

    Raises:
        UserError: The port is in use.
    """

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            # Another site's name may lead here
            if self.path not in ("/", "/stamp") or self.headers["Host"] not in hosts:
                self.send_error(404)
                return
            with suppress(ConnectionError):  # whoever asked is gone
                try:
                    text = stamp()
                    text = page().html(text) if self.path == "/" else text
                except (UserError, OSError) as error:  # such as a folder that was removed
                    self.send_error(503, first_line(error).encode("ascii", "backslashreplace").decode())
                    return
                self.send_response(200)
                self.send_header("Content-Type", "text/html; charset=utf-8")
                self.end_headers()
                self.wfile.write(text.encode(errors="backslashreplace"))

        def log_message(self, *_: object) -> None:
            """Log nothing: the page sends a request every other second."""

    try:
        server = ThreadingHTTPServer((HOST, port), Handler)  # a browser may hold a connection that it does not use
    except OSError as error:
        raise UserError(f"--port {port}: {error.strerror}; use --port 0 for a free one") from None
    hosts = {f"{host}:{server.server_port}" for host in (HOST, "localhost")}
    show(f"live: http://{HOST}:{server.server_port}/ until Ctrl-C")
    with server:
        server.serve_forever()

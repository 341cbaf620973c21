"""A server that a gateway calls to decide (docs/howto/extensions.md).

    pip install grpcio grpcio-tools
    python3 -m grpc_tools.protoc -I extension/v1 --python_out=. --grpc_python_out=. extension.proto
    python3 server.py 127.0.0.1:9000
"""

import sys
from concurrent import futures

import grpc

import extension_pb2 as ext
import extension_pb2_grpc

PLANS = {"ann": "pro", "bob": "free"}  # would be a database


def header(event, name):
    return next((h.value for h in event.headers if h.name.lower() == name), "")


def refuse(status, reason):
    return ext.Verdict(refuse=ext.Refusal(status=status, reason=reason))


class Extension(extension_pb2_grpc.ExtensionServicer):
    def Decide(self, event, context):
        """Answers one event. An empty verdict allows it."""
        account = header(event, "x-account")
        if event.kind == ext.KIND_REQUEST:  # of a route
            if account not in PLANS:
                return refuse(402, "no plan for this account")
            return ext.Verdict(
                set_headers=[ext.Header(name="X-Plan", value=PLANS[account])],
                remove_headers=["X-Account"],
                ttl_ms=10_000,  # the same request is not asked about again for 10 seconds
            )
        if event.kind == ext.KIND_CONNECT and account:  # a client opens a stream
            return ext.Verdict(identity=ext.Identity(user=account, subscribe=["account." + account]))
        if event.kind == ext.KIND_PUBLISH:
            if len(event.data) > 1000:
                return refuse(413, "at most 1000 bytes")
            return ext.Verdict(data=event.data.replace(b"darn", b"****"))
        if event.kind == ext.KIND_DISCONNECT:
            print(event.user, "has left", flush=True)
        return ext.Verdict()


def main():
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=16))
    extension_pb2_grpc.add_ExtensionServicer_to_server(Extension(), server)
    if not server.add_insecure_port(sys.argv[1]):
        sys.exit("cannot listen on " + sys.argv[1])
    server.start()
    print("deciding on", sys.argv[1], flush=True)
    server.wait_for_termination()


if __name__ == "__main__":
    main()

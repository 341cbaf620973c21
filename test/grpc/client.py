"""The interop client of grpcio, the C core's binding: python3 client.py SITE ADDRESS CASE [CA]

SITE is a folder with the packages of requirements.txt, CA a certificate to trust; without
one the connection is in cleartext. The cases are those of gRPC's interoperability test
descriptions; the messages are described here, since no package has them generated.
CASE may also be status: then one unary call is made, and its code and details printed.
"""

import sys

sys.path.insert(0, sys.argv[1])

import grpc  # noqa: E402
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory  # noqa: E402

SERVICE = "/grpc.testing.TestService/"
REQUESTS = [31415, 9, 2653, 58979]
RESPONSES = [27182, 8, 1828, 45904]


def messages():
    """Returns the classes of the interop messages, by name."""
    field = descriptor_pb2.FieldDescriptorProto
    kinds = {"int32": field.TYPE_INT32, "bytes": field.TYPE_BYTES, "string": field.TYPE_STRING}
    file = descriptor_pb2.FileDescriptorProto(name="interop.proto", package="grpc.testing", syntax="proto3")
    for name, fields in {
        "Empty": [],
        "Payload": [("type", 1, "int32"), ("body", 2, "bytes")],
        "EchoStatus": [("code", 1, "int32"), ("message", 2, "string")],
        "SimpleRequest": [("response_size", 2, "int32"), ("payload", 3, "Payload"), ("response_status", 7, "EchoStatus")],
        "SimpleResponse": [("payload", 1, "Payload")],
        "StreamingInputCallRequest": [("payload", 1, "Payload")],
        "StreamingInputCallResponse": [("aggregated_payload_size", 1, "int32")],
        "ResponseParameters": [("size", 1, "int32"), ("interval_us", 2, "int32")],
        "StreamingOutputCallRequest": [("response_parameters", 2, "*ResponseParameters"), ("payload", 3, "Payload"), ("response_status", 7, "EchoStatus")],
        "StreamingOutputCallResponse": [("payload", 1, "Payload")],
    }.items():
        message = file.message_type.add(name=name)
        for title, number, kind in fields:
            f = message.field.add(name=title, number=number, label=field.LABEL_REPEATED if kind[0] == "*" else field.LABEL_OPTIONAL)
            if kind in kinds:
                f.type = kinds[kind]
            else:
                f.type, f.type_name = field.TYPE_MESSAGE, ".grpc.testing." + kind.lstrip("*")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {m.name: message_factory.GetMessageClass(pool.FindMessageTypeByName("grpc.testing." + m.name)) for m in file.message_type}


M = messages()


class Stub:
    def __init__(self, channel):
        def call(kind, method, request, response, service=SERVICE):
            return getattr(channel, kind)(service + method, request_serializer=M[request].SerializeToString, response_deserializer=M[response].FromString)

        self.empty = call("unary_unary", "EmptyCall", "Empty", "Empty")
        self.unary = call("unary_unary", "UnaryCall", "SimpleRequest", "SimpleResponse")
        self.input = call("stream_unary", "StreamingInputCall", "StreamingInputCallRequest", "StreamingInputCallResponse")
        self.output = call("unary_stream", "StreamingOutputCall", "StreamingOutputCallRequest", "StreamingOutputCallResponse")
        self.duplex = call("stream_stream", "FullDuplexCall", "StreamingOutputCallRequest", "StreamingOutputCallResponse")
        self.missing_method = call("unary_unary", "UnimplementedCall", "Empty", "Empty")
        self.missing_service = call("unary_unary", "UnimplementedCall", "Empty", "Empty", "/grpc.testing.UnimplementedService/")


def payload(size):
    return M["Payload"](body=b"\0" * size)


def output(size=None, body=0, **more):
    wanted = [] if size is None else [M["ResponseParameters"](size=size)]
    return M["StreamingOutputCallRequest"](response_parameters=wanted, payload=payload(body), **more)


def same(got, want, what):
    if got != want:
        raise AssertionError(f"{what}: got {got!r}, want {want!r}")


def refused(call, code, details=None):
    """Runs call, which has to fail with code."""
    try:
        call()
    except grpc.RpcError as e:
        same(e.code(), code, "code")
        if details is not None:
            same(e.details(), details, "details")
        return
    raise AssertionError(f"succeeded, want {code}")


class Turns:
    """An iterator of requests that a test feeds one at a time."""

    def __init__(self):
        import queue

        self.queue = queue.Queue()

    def __iter__(self):
        return iter(self.queue.get, None)

    def send(self, request):
        self.queue.put(request)

    def close(self):
        self.queue.put(None)


def empty_unary(s):
    same(s.empty(M["Empty"](), timeout=20), M["Empty"](), "answer")


def large_unary(s):
    answer = s.unary(M["SimpleRequest"](response_size=314159, payload=payload(271828)), timeout=20)
    same(len(answer.payload.body), 314159, "size")


def client_streaming(s):
    requests = (M["StreamingInputCallRequest"](payload=payload(n)) for n in [27182, 8, 1828, 45904])
    same(s.input(requests, timeout=20).aggregated_payload_size, 74922, "sum")


def server_streaming(s):
    request = M["StreamingOutputCallRequest"](response_parameters=[M["ResponseParameters"](size=n) for n in REQUESTS])
    same([len(r.payload.body) for r in s.output(request, timeout=20)], REQUESTS, "sizes")


def ping_pong(s):
    turns = Turns()
    answers = s.duplex(iter(turns), timeout=20)
    for want, size in zip(REQUESTS, RESPONSES):
        turns.send(output(want, size))
        same(len(next(answers).payload.body), want, "size")
    turns.close()
    same(list(answers), [], "rest")


def empty_stream(s):
    same(list(s.duplex(iter(()), timeout=20)), [], "answers")


def custom_metadata(s):
    sent = (("x-grpc-test-echo-initial", "test_initial_metadata_value"), ("x-grpc-test-echo-trailing-bin", b"\x0a\x0b\x0a\x0b\x0a\x0b"))

    def check(call):
        same(dict(call.initial_metadata()).get(sent[0][0]), sent[0][1], "initial metadata")
        same(dict(call.trailing_metadata()).get(sent[1][0]), sent[1][1], "trailing metadata")

    answer, call = s.unary.with_call(M["SimpleRequest"](response_size=1, payload=payload(1)), metadata=sent, timeout=20)
    same(len(answer.payload.body), 1, "size")
    check(call)
    call = s.duplex(iter([output(1, 1)]), metadata=sent, timeout=20)
    same(len(list(call)), 1, "answers")
    check(call)


def status(s, message):
    want = M["EchoStatus"](code=2, message=message)
    refused(lambda: s.unary(M["SimpleRequest"](response_status=want), timeout=20), grpc.StatusCode.UNKNOWN, message)
    refused(lambda: list(s.duplex(iter([output(response_status=want)]), timeout=20)), grpc.StatusCode.UNKNOWN, message)


def status_code_and_message(s):
    status(s, "test status message")


def special_status_message(s):
    status(s, "\t\ntest with whitespace\r\nand Unicode BMP ☺ and non-BMP 😈\t\n")


def unimplemented_method(s):
    refused(lambda: s.missing_method(M["Empty"](), timeout=20), grpc.StatusCode.UNIMPLEMENTED)


def unimplemented_service(s):
    refused(lambda: s.missing_service(M["Empty"](), timeout=20), grpc.StatusCode.UNIMPLEMENTED)


def cancel_after_begin(s):
    call = s.input.future(iter(Turns()), timeout=20)
    call.cancel()
    same(call.code(), grpc.StatusCode.CANCELLED, "code")


def cancel_after_first_response(s):
    turns = Turns()
    answers = s.duplex(iter(turns), timeout=20)
    turns.send(output(REQUESTS[0], RESPONSES[0]))
    same(len(next(answers).payload.body), REQUESTS[0], "size")
    answers.cancel()
    refused(lambda: next(answers), grpc.StatusCode.CANCELLED)


def timeout_on_sleeping_server(s):
    turns = Turns()
    turns.send(output(body=27182))
    refused(lambda: list(s.duplex(iter(turns), timeout=0.001)), grpc.StatusCode.DEADLINE_EXCEEDED)


def main():
    _, _, address, case = sys.argv[:4]
    if len(sys.argv) > 4:
        with open(sys.argv[4], "rb") as f:
            channel = grpc.secure_channel(address, grpc.ssl_channel_credentials(f.read()))
    else:
        channel = grpc.insecure_channel(address)
    with channel:
        stub = Stub(channel)
        if case != "status":
            globals()[case](stub)
            return
        try:
            stub.unary(M["SimpleRequest"](response_size=1), timeout=20)
            print("OK")
        except grpc.RpcError as e:
            print(e.code().name, e.details())


main()

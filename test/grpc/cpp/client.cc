// The interop client of gRPC's C++: client ADDRESS CASE [CA]
//
// CA is a file with the certificate to trust; without one the connection is in cleartext.
// The cases are those of gRPC's interoperability test descriptions.

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "interop.grpc.pb.h"

namespace {

using namespace grpc::testing;
using grpc::ClientContext;
using grpc::Status;
using grpc::StatusCode;

const std::vector<int> kRequests = {31415, 9, 2653, 58979};
const std::vector<int> kResponses = {27182, 8, 1828, 45904};

template <typename T, typename U>
void same(const T& got, const U& want, const char* what) {
  if (got == want) return;
  std::cerr << what << ": got " << got << ", want " << want << std::endl;
  std::exit(1);
}

void ended(const Status& s, StatusCode want) {
  if (s.error_code() == want) return;
  std::cerr << "code: got " << s.error_code() << " (" << s.error_message() << "), want " << want << std::endl;
  std::exit(1);
}

void ended(const Status& s, StatusCode want, const std::string& message) {
  ended(s, want);
  same(s.error_message(), message, "message");
}

// A Call is the context of a call that ends after 20 s.
struct Call : ClientContext {
  explicit Call(std::chrono::milliseconds timeout = std::chrono::seconds(20)) {
    set_deadline(std::chrono::system_clock::now() + timeout);
  }
};

Payload payload(size_t size) {
  Payload p;
  p.set_body(std::string(size, '\0'));
  return p;
}

StreamingOutputCallRequest output(int size, size_t body) {
  StreamingOutputCallRequest r;
  r.add_response_parameters()->set_size(size);
  *r.mutable_payload() = payload(body);
  return r;
}

void emptyUnary(TestService::Stub& s) {
  Call c;
  Empty answer;
  ended(s.EmptyCall(&c, Empty(), &answer), StatusCode::OK);
  same(answer.ByteSizeLong(), 0u, "answer's size");
}

void largeUnary(TestService::Stub& s) {
  Call c;
  SimpleRequest r;
  r.set_response_size(314159);
  *r.mutable_payload() = payload(271828);
  SimpleResponse answer;
  ended(s.UnaryCall(&c, r, &answer), StatusCode::OK);
  same(answer.payload().body().size(), 314159u, "size");
}

void clientStreaming(TestService::Stub& s) {
  Call c;
  StreamingInputCallResponse answer;
  auto w = s.StreamingInputCall(&c, &answer);
  for (int n : kResponses) {
    StreamingInputCallRequest r;
    *r.mutable_payload() = payload(n);
    w->Write(r);
  }
  w->WritesDone();
  ended(w->Finish(), StatusCode::OK);
  same(answer.aggregated_payload_size(), 74922, "sum");
}

void serverStreaming(TestService::Stub& s) {
  Call c;
  StreamingOutputCallRequest r;
  for (int n : kRequests) r.add_response_parameters()->set_size(n);
  auto answers = s.StreamingOutputCall(&c, r);
  StreamingOutputCallResponse answer;
  size_t i = 0;
  for (; answers->Read(&answer); i++) {
    same(i < kRequests.size(), true, "an answer is expected");
    same(answer.payload().body().size(), size_t(kRequests[i]), "size");
  }
  same(i, kRequests.size(), "answers");
  ended(answers->Finish(), StatusCode::OK);
}

void pingPong(TestService::Stub& s) {
  Call c;
  auto stream = s.FullDuplexCall(&c);
  StreamingOutputCallResponse answer;
  for (size_t i = 0; i < kRequests.size(); i++) {
    same(stream->Write(output(kRequests[i], kResponses[i])), true, "written");
    same(stream->Read(&answer), true, "answered");
    same(answer.payload().body().size(), size_t(kRequests[i]), "size");
  }
  stream->WritesDone();
  same(stream->Read(&answer), false, "another answer");
  ended(stream->Finish(), StatusCode::OK);
}

void emptyStream(TestService::Stub& s) {
  Call c;
  auto stream = s.FullDuplexCall(&c);
  stream->WritesDone();
  StreamingOutputCallResponse answer;
  same(stream->Read(&answer), false, "an answer");
  ended(stream->Finish(), StatusCode::OK);
}

const char kInitial[] = "x-grpc-test-echo-initial", kInitialValue[] = "test_initial_metadata_value";
const char kTrailing[] = "x-grpc-test-echo-trailing-bin", kTrailingValue[] = "\x0a\x0b\x0a\x0b\x0a\x0b";

void addMetadata(ClientContext& c) {
  c.AddMetadata(kInitial, kInitialValue);
  c.AddMetadata(kTrailing, kTrailingValue);
}

void checkMetadata(const ClientContext& c) {
  auto check = [](const std::multimap<grpc::string_ref, grpc::string_ref>& got, const char* name, const char* want) {
    auto at = got.find(name);
    same(at == got.end() ? std::string("none") : std::string(at->second.data(), at->second.size()), want, name);
  };
  check(c.GetServerInitialMetadata(), kInitial, kInitialValue);
  check(c.GetServerTrailingMetadata(), kTrailing, kTrailingValue);
}

void customMetadata(TestService::Stub& s) {
  Call unary;
  addMetadata(unary);
  SimpleRequest r;
  r.set_response_size(1);
  *r.mutable_payload() = payload(1);
  SimpleResponse one;
  ended(s.UnaryCall(&unary, r, &one), StatusCode::OK);
  same(one.payload().body().size(), 1u, "size");
  checkMetadata(unary);
  Call duplex;
  addMetadata(duplex);
  auto stream = s.FullDuplexCall(&duplex);
  stream->Write(output(1, 1));
  stream->WritesDone();
  StreamingOutputCallResponse answer;
  same(stream->Read(&answer), true, "an answer");
  same(stream->Read(&answer), false, "another answer");
  ended(stream->Finish(), StatusCode::OK);
  checkMetadata(duplex);
}

void echoedStatus(TestService::Stub& s, const std::string& message) {
  EchoStatus want;
  want.set_code(StatusCode::UNKNOWN);
  want.set_message(message);
  Call unary;
  SimpleRequest r;
  *r.mutable_response_status() = want;
  SimpleResponse one;
  ended(s.UnaryCall(&unary, r, &one), StatusCode::UNKNOWN, message);
  Call duplex;
  auto stream = s.FullDuplexCall(&duplex);
  StreamingOutputCallRequest each;
  *each.mutable_response_status() = want;
  stream->Write(each);
  stream->WritesDone();
  StreamingOutputCallResponse answer;
  same(stream->Read(&answer), false, "an answer");
  ended(stream->Finish(), StatusCode::UNKNOWN, message);
}

void statusCodeAndMessage(TestService::Stub& s) { echoedStatus(s, "test status message"); }

void specialStatusMessage(TestService::Stub& s) {
  echoedStatus(s, "\t\ntest with whitespace\r\nand Unicode BMP \u263a and non-BMP \U0001f608\t\n");
}

void unimplementedMethod(TestService::Stub& s) {
  Call c;
  Empty answer;
  ended(s.UnimplementedCall(&c, Empty(), &answer), StatusCode::UNIMPLEMENTED);
}

void cancelAfterBegin(TestService::Stub& s) {
  Call c;
  StreamingInputCallResponse answer;
  auto w = s.StreamingInputCall(&c, &answer);
  c.TryCancel();
  ended(w->Finish(), StatusCode::CANCELLED);
}

void cancelAfterFirstResponse(TestService::Stub& s) {
  Call c;
  auto stream = s.FullDuplexCall(&c);
  same(stream->Write(output(kRequests[0], kResponses[0])), true, "written");
  StreamingOutputCallResponse answer;
  same(stream->Read(&answer), true, "answered");
  same(answer.payload().body().size(), size_t(kRequests[0]), "size");
  c.TryCancel();
  same(stream->Read(&answer), false, "another answer");
  ended(stream->Finish(), StatusCode::CANCELLED);
}

void timeoutOnSleepingServer(TestService::Stub& s) {
  Call c{std::chrono::milliseconds(1)};
  auto stream = s.FullDuplexCall(&c);
  StreamingOutputCallRequest r;
  *r.mutable_payload() = payload(27182);
  stream->Write(r);  // the deadline may have passed
  StreamingOutputCallResponse answer;
  while (stream->Read(&answer)) {
  }
  ended(stream->Finish(), StatusCode::DEADLINE_EXCEEDED);
}

std::shared_ptr<grpc::ChannelCredentials> credentials(const char* ca) {
  if (ca == nullptr) return grpc::InsecureChannelCredentials();
  std::ostringstream text;
  text << std::ifstream(ca).rdbuf();
  grpc::SslCredentialsOptions o;
  o.pem_root_certs = text.str();
  return grpc::SslCredentials(o);
}

}  // namespace

int main(int argc, char** argv) {
  const std::map<std::string, void (*)(TestService::Stub&)> cases = {
      {"empty_unary", emptyUnary},
      {"large_unary", largeUnary},
      {"client_streaming", clientStreaming},
      {"server_streaming", serverStreaming},
      {"ping_pong", pingPong},
      {"empty_stream", emptyStream},
      {"custom_metadata", customMetadata},
      {"status_code_and_message", statusCodeAndMessage},
      {"special_status_message", specialStatusMessage},
      {"unimplemented_method", unimplementedMethod},
      {"cancel_after_begin", cancelAfterBegin},
      {"cancel_after_first_response", cancelAfterFirstResponse},
      {"timeout_on_sleeping_server", timeoutOnSleepingServer},
  };
  if (argc < 3) {
    std::cerr << "usage: client ADDRESS CASE [CA]" << std::endl;
    return 2;
  }
  auto channel = grpc::CreateChannel(argv[1], credentials(argc > 3 ? argv[3] : nullptr));
  const std::string name = argv[2];
  if (name == "unimplemented_service") {
    Call c;
    Empty answer;
    ended(UnimplementedService::NewStub(channel)->UnimplementedCall(&c, Empty(), &answer), StatusCode::UNIMPLEMENTED);
    return 0;
  }
  auto found = cases.find(name);
  if (found == cases.end()) {
    std::cerr << "there is no case " << name << std::endl;
    return 2;
  }
  found->second(*TestService::NewStub(channel));
  return 0;
}

// A push server on uWebSockets (https://github.com/uNetworking/uWebSockets), to measure
// that engine: topics by path, publish over HTTP, echo. With a checkout in $UWS:
//
//   make -C $UWS/uSockets
//   g++ -std=c++20 -O2 -I$UWS/src -I$UWS/uSockets/src -o uwebsockets bench/peers/uwebsockets.cpp $UWS/uSockets/*.o -lz
#include "App.h"
#include <cstdlib>
#include <iostream>
#include <memory>
#include <string>

struct Subscriber {
  std::string topic; // empty: an echo client
};

int main(int argc, char **argv) {
  if (argc != 2) {
    std::cerr << "usage: uwebsockets PORT\n";
    return 2;
  }
  int port = std::atoi(argv[1]);
  uWS::App app;
  app.ws<Subscriber>("/*", {
                               .compression = uWS::DISABLED,
                               .maxPayloadLength = 64 * 1024,
                               .idleTimeout = 120,
                               .upgrade =
                                   [](auto *res, auto *req, auto *context) {
                                     std::string path(req->getUrl());
                                     res->template upgrade<Subscriber>({path == "/echo" ? "" : path.substr(path.rfind('/') + 1)}, req->getHeader("sec-websocket-key"),
                                                                       req->getHeader("sec-websocket-protocol"), req->getHeader("sec-websocket-extensions"), context);
                                   },
                               .open =
                                   [](auto *ws) {
                                     if (!ws->getUserData()->topic.empty()) ws->subscribe(ws->getUserData()->topic);
                                   },
                               .message =
                                   [](auto *ws, std::string_view message, uWS::OpCode op) {
                                     if (ws->getUserData()->topic.empty()) ws->send(message, op);
                                   },
                           });
  app.post("/pub/:topic", [&app](auto *res, auto *req) {
    auto topic = std::string(req->getParameter(0));
    auto body = std::make_shared<std::string>();
    res->onAborted([] {});
    res->onData([&app, res, topic, body](std::string_view part, bool last) {
      body->append(part);
      if (!last) return;
      app.publish(topic, *body, uWS::OpCode::TEXT, false);
      res->end("{}");
    });
  });
  app.listen("127.0.0.1", port, LIBUS_LISTEN_EXCLUSIVE_PORT, [port](auto *socket) {
    if (socket) return;
    std::cerr << "uwebsockets: cannot listen on 127.0.0.1:" << port << "\n";
    std::exit(1);
  });
  app.run();
}

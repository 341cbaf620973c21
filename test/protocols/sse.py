"""Opens the event stream that its argument names with the clients of PyPI that read one, and
prints what each gets, as npm/sse.mjs does. Those that do not come back by themselves are
opened again with the id that they had last. It ends when its standard input does."""

import importlib.util
import json
import os
import sys
import threading
import time

import httpx
import httpx_sse
import requests
import sseclient  # sseclient-py

lock = threading.Lock()
out, sys.stdout = sys.stdout, sys.stderr  # where sseclient writes empty lines


def say(name, event, data=None):
    with lock:
        out.write(json.dumps({"from": name, "event": event, "data": data}) + "\n")
        out.flush()


class Names:
    """What an event is called in each library."""

    def __init__(self, name):
        self.name, self.last = name, ""

    def headers(self):
        return {"Accept": "text/event-stream", **({"Last-Event-ID": self.last} if self.last else {})}

    def got(self, event):
        if event.id:
            self.last = event.id
        if event.event in ("", "message", None) and event.data:
            say(self.name, "message", {"id": event.id, "data": event.data})


def again(f):
    while True:
        try:
            f()
        except (httpx.HTTPError, requests.RequestException):
            pass
        time.sleep(0.2)


def by_httpx(url):
    n = Names("httpx-sse")

    def once():
        with httpx.Client(timeout=None) as client:
            with httpx_sse.connect_sse(client, "GET", url, headers=n.headers()) as source:
                say(n.name, "open")
                for event in source.iter_sse():
                    n.got(event)

    again(once)


def by_sseclient_py(url):
    n = Names("sseclient-py")

    def once():
        with requests.get(url, stream=True, headers=n.headers()) as response:
            say(n.name, "open")
            for event in sseclient.SSEClient(response).events():
                n.got(event)

    again(once)


def by_sseclient(url):
    # It has the same module name as sseclient-py, which is a package.
    path = os.path.join(os.path.dirname(os.path.dirname(sseclient.__file__)), "sseclient.py")
    spec = importlib.util.spec_from_file_location("sseclient_btubbs", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    n = Names("sseclient")

    def once():  # it comes back by itself from an end, but not when it is refused
        client = module.SSEClient(url, last_id=n.last or None, retry=200)
        say(n.name, "open")
        for event in client:
            n.got(event)

    again(once)


for f in (by_httpx, by_sseclient_py, by_sseclient):
    threading.Thread(target=f, args=(sys.argv[1],), daemon=True).start()
sys.stdin.read()
os._exit(0)

"""Holds clients of centrifuge-python and does with them what its standard input says, in the
words of npm/agent.mjs: new, call, get; $emit is not needed, since all events are printed.
It ends when its standard input does."""

import asyncio
import dataclasses
import json
import sys

import centrifuge


def plain(v):
    if dataclasses.is_dataclass(v):
        return {f.name: plain(getattr(v, f.name)) for f in dataclasses.fields(v)}
    if isinstance(v, dict):
        return {str(k): plain(x) for k, x in v.items()}
    if isinstance(v, (list, tuple)):
        return [plain(x) for x in v]
    if isinstance(v, bytes):
        return plain(json.loads(v))
    if isinstance(v, str) and len(v) > 4096:
        return f"{v[:32]}...{len(v)}"
    if v is None or isinstance(v, (str, int, float, bool)):
        return v
    return str(v)


def say(line):
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def events(base, name):
    """An event handler that prints whatever comes."""

    def method(event):
        async def on(self, ctx):
            say({"from": name, "event": event, "data": plain(ctx)})

        return on

    names = [n for n in dir(base) if n.startswith("on_")]
    return type("Events", (base,), {n: method(n[3:]) for n in names})()


things = {}
binary = set()  # names of those whose payloads are bytes


async def run(c):
    args = c.get("args") or []
    if "new" in c:
        url, options = args
        token = options.pop("token", None)
        if token:
            async def get_token():
                return token

            options["get_token"] = get_token
        if options.get("use_protobuf"):
            binary.add(c["as"])
        things[c["as"]] = centrifuge.Client(url, proxy=None, events=events(centrifuge.ClientEventHandler, c["as"]), **options)
        return None
    on = things[c["on"]]
    if "get" in c:
        return getattr(on, c["get"])
    if c["call"] == "new_subscription":
        channel, options = args
        if c["on"] in binary:
            binary.add(c["as"])
        things[c["as"]] = on.new_subscription(channel, events=events(centrifuge.SubscriptionEventHandler, c["as"]), **options)
        return None
    if c["on"] in binary:
        args = [json.dumps(a).encode() if isinstance(a, dict) else a for a in args]
    result = getattr(on, c["call"])(*args, **c.get("options", {}))
    return await result if asyncio.iscoroutine(result) else result


async def answer(c):
    try:
        say({"id": c["id"], "result": plain(await run(c))})
    except Exception as e:  # whatever the SDK raises is what the test wants to see
        say({"id": c["id"], "error": {"code": getattr(e, "code", 0), "message": f"{type(e).__name__}: {e}"}})


async def main():
    reader = asyncio.StreamReader(limit=1 << 20)
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    tasks = set()
    while line := await reader.readline():
        task = loop.create_task(answer(json.loads(line)))
        tasks.add(task)
        task.add_done_callback(tasks.discard)


asyncio.run(main())

"""Does with httpx what every client of http2_test.go does and prints one line of JSON:
python3 http2.py '{"url","ca","key","size","alphabet","site"}'"""

import asyncio
import hashlib
import json
import sys

task = json.loads(sys.argv[1])
sys.path.insert(0, task["site"])

import httpx  # noqa: E402


def pattern(size):
    return (task["alphabet"] * (size // len(task["alphabet"]) + 1))[:size].encode()


async def pieces(body):
    for i in range(0, len(body), 50000):
        yield body[i : i + 50000]


async def main():
    url, report = task["url"], {}
    if task["ca"]:
        import ssl

        kind = {"verify": ssl.create_default_context(cafile=task["ca"]), "http2": True}
    else:
        kind = {"http1": False, "http2": True}
    async with httpx.AsyncClient(timeout=30, trust_env=False, **kind) as client:
        data = []
        async with client.stream("GET", url + "/sse?channel=httpx") as stream:
            lines = stream.aiter_lines()
            async for line in lines:
                if line.startswith("id: "):
                    break
            for i in range(3):
                body = {"channel": "httpx", "data": {"n": i}}
                answer = await client.post(url + "/api/publish", json=body, headers={"X-API-Key": task["key"]})
                answer.raise_for_status()
            async for line in lines:
                if line.startswith("data: "):
                    data.append(line[len("data: ") :])
                if len(data) == 3:
                    break
        report["events"] = data
        report["version"] = stream.http_version.removeprefix("HTTP/")
        body = pattern(task["size"])
        uploaded = (await client.post(url + "/backend/upload", content=pieces(body))).json()
        report["uploaded"] = f"{uploaded['bytes']} {uploaded['sum']}"
        downloaded = (await client.get(url + f"/backend/download?n={task['size']}")).content
        report["downloaded"] = f"{len(downloaded)} {hashlib.sha256(downloaded).hexdigest()}"
        head = await client.head(url + "/backend/download?n=100")
        report["head"] = f"{head.status_code} {head.headers['content-length']}"
        report["echoes"] = [r.text for r in await asyncio.gather(*(client.get(url + f"/backend/echo?n={i}") for i in range(50)))]
        report["refused"] = str((await client.get(url + "/nowhere")).status_code)
        try:
            limited = await asyncio.wait_for(client.post(url + "/limited", content=body[:200000]), 10)
            report["limited"] = str(limited.status_code)
        except (httpx.HTTPError, asyncio.TimeoutError) as e:
            report["limited"] = repr(e)
        report["afterwards"] = str((await client.get(url + "/backend/echo?n=1")).status_code)
    print(json.dumps(report))


asyncio.run(main())

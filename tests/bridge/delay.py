"""A TCP proxy that holds every byte back for some milliseconds in each direction: a site far away.

usage: delay.py LISTEN_HOST:PORT TO_HOST:PORT MILLISECONDS
"""

import asyncio
import sys


async def copy(reader, writer, delay_s):
    loop = asyncio.get_running_loop()
    queue = asyncio.Queue(maxsize=1024)

    async def send():
        while True:
            due, data = await queue.get()
            await asyncio.sleep(max(0, due - loop.time()))
            if not data:
                break
            writer.write(data)
            await writer.drain()
        writer.close()

    sender = asyncio.create_task(send())
    try:
        while data := await reader.read(1 << 16):
            await queue.put((loop.time() + delay_s, data))
    except ConnectionError:
        pass
    await queue.put((0, b""))
    await asyncio.gather(sender, return_exceptions=True)


async def main(listen, to, milliseconds):
    host, port = to.rsplit(":", 1)

    async def serve(reader, writer):
        try:
            far_reader, far_writer = await asyncio.open_connection(host, int(port))
        except OSError:
            writer.close()
            return
        delay_s = float(milliseconds) / 1e3
        await asyncio.gather(copy(reader, far_writer, delay_s), copy(far_reader, writer, delay_s), return_exceptions=True)

    own_host, own_port = listen.rsplit(":", 1)
    server = await asyncio.start_server(serve, own_host, int(own_port))
    await server.serve_forever()


asyncio.run(main(*sys.argv[1:]))

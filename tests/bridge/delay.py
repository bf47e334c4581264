"""A TCP proxy that delays every byte by some milliseconds in each direction: a distant site.

usage: delay.py LISTEN_HOST:PORT TO_HOST:PORT MILLISECONDS
"""

import asyncio
import sys


async def copy(reader, writer, delay_s):
    """Reads ahead while earlier bytes wait for their time."""
    loop, queue = asyncio.get_running_loop(), asyncio.Queue(maxsize=1024)

    async def send():
        while (item := await queue.get())[1]:
            await asyncio.sleep(max(0, item[0] - loop.time()))
            writer.write(item[1])
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
    async def serve(reader, writer):
        try:
            far_reader, far_writer = await asyncio.open_connection(*to.rsplit(":", 1))
        except OSError:
            writer.close()
            return
        delay_s = float(milliseconds) / 1e3
        await asyncio.gather(copy(reader, far_writer, delay_s), copy(far_reader, writer, delay_s), return_exceptions=True)

    await (await asyncio.start_server(serve, *listen.rsplit(":", 1))).serve_forever()


asyncio.run(main(*sys.argv[1:]))

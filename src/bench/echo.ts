import type { UnixSocketListener } from "bun";

/** As long as the frame that acquires one block. */
const MESSAGE_BYTES = 64;

/** Sends back whatever comes: the least that two processes can do over a socket. */
export function listenEcho(path: string): UnixSocketListener<undefined> {
  return Bun.listen({
    unix: path,
    socket: {
      data(socket, chunk) {
        socket.write(chunk);
      },
    },
  });
}

/** Nanoseconds of each of `count` round trips, after so many that are not counted. */
export async function echoRtts(path: string, count: number, warmUp: number): Promise<number[]> {
  let answered: () => void = () => undefined;
  let missing = 0;
  const socket = await Bun.connect({
    unix: path,
    socket: {
      data(_socket, chunk) {
        missing -= chunk.length;
        if (missing <= 0) answered();
      },
    },
  });
  const message = new Uint8Array(MESSAGE_BYTES);
  const ns: number[] = [];
  for (let i = 0; i < warmUp + count; i++) {
    missing = MESSAGE_BYTES;
    const start = Bun.nanoseconds();
    const answer = new Promise<void>((resolve) => {
      answered = resolve;
    });
    socket.write(message);
    await answer;
    ns.push(Bun.nanoseconds() - start);
  }
  socket.end();
  return ns.slice(warmUp);
}

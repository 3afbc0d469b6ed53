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

/** One end of an echo. */
export interface Echo extends Disposable {
  /** Nanoseconds of one round trip. */
  roundTrip(): Promise<number>;
}

export async function openEcho(path: string): Promise<Echo> {
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
  return {
    async roundTrip() {
      missing = MESSAGE_BYTES;
      const start = Bun.nanoseconds();
      const answer = new Promise<void>((resolve) => {
        answered = resolve;
      });
      socket.write(message);
      await answer;
      return Bun.nanoseconds() - start;
    },
    [Symbol.dispose]: () => void socket.end(),
  };
}

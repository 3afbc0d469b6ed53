import { loopTurns } from "../core/index.ts";

interface Opening {
  pause(): void;
  resume(): void;
  terminate(): void;
}

/**
 * Connections that were accepted and wait for a slice of the event loop, which all new ones share,
 * to be opened in: a client that connects again and again delays new connections alone.
 */
export class Openings<S extends Opening> {
  readonly #waiting = new Set<S>();
  readonly #source = loopTurns.source();

  /** Calls `open` in a slice unless the connection is gone by then. */
  came(socket: S, open: () => void): void {
    this.#waiting.add(socket);
    const opened = this.#source.call(() => {
      if (!this.#waiting.delete(socket)) return;
      socket.resume();
      open();
    });
    if (opened === null) socket.terminate();
    // Nothing is read of a connection that is not open yet.
    else if (this.#waiting.has(socket)) socket.pause();
  }

  gone(socket: S): void {
    this.#waiting.delete(socket);
  }
}

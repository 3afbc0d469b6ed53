import {
  type ConnectionOptions,
  type NatsConnection,
  NatsConnectionImpl,
  setTransportFactory,
} from "@nats-io/transport-node";
import { NodeTransport, nodeResolveHost } from "@nats-io/transport-node/lib/node_transport.js";
import { loopTurns } from "../../core/index.ts";

/** Bytes that the client parses at once: at 40 bytes a message about half a millisecond. */
const PIECE_BYTES = 4 * 1024;
/** The socket is not read while so much waits for its turn. */
const UNREAD_BYTES_MAX = 256 * 1024;

/**
 * The library's transport, except that what the socket brought is parsed in slices of a source:
 * the library parses all of a read, up to thousands of messages, in one turn.
 */
class SlicedTransport extends NodeTransport {
  readonly #source = loopTurns.source();
  #unreadBytes = 0;

  override setupHandlers(): void {
    super.setupHandlers();
    this.socket.on("data", (chunk: Uint8Array) => {
      this.#unreadBytes += chunk.length;
      if (this.#unreadBytes >= UNREAD_BYTES_MAX) this.socket.pause();
    });
  }

  override async *iterate(): AsyncIterableIterator<Uint8Array> {
    for await (const chunk of super.iterate()) {
      if (!this.#source.begin()) await this.#source.turn();
      for (let at = 0; at < chunk.length && !this.done; at += PIECE_BYTES) {
        yield chunk.subarray(at, at + PIECE_BYTES);
        if (!this.#source.goOn()) await this.#source.turn();
      }
      this.#unreadBytes = Math.max(0, this.#unreadBytes - chunk.length);
      // The socket is gone behind the connection's end, whatever the types say.
      if (this.#unreadBytes < UNREAD_BYTES_MAX && !this.done) this.socket?.resume();
    }
  }
}

/** As the library's `connect`, over a transport that shares the event loop. */
export function connectSliced(options: ConnectionOptions): Promise<NatsConnection> {
  setTransportFactory({ factory: () => new SlicedTransport(), dnsResolveFn: nodeResolveHost });
  return NatsConnectionImpl.connect(options);
}

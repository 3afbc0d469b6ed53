import type { ConnectionOptions, TLSSocket } from "node:tls";
import type { Credentials, Endpoint } from "../../../src/peers/index.ts";
import { type ControlMessage, STREAM_CODEC } from "../../../src/peers/transports/stream/index.ts";
import { connectRaw, RawLine, RawListener } from "./raw-line.ts";

const SPOKEN = {
  protocol: "hearth-stream/1",
  encode: STREAM_CODEC.encode,
  decode: STREAM_CODEC.decode,
};

/** One end of a stream control channel that sends arbitrary messages. */
export class RawStream extends RawLine<ControlMessage> {
  constructor(socket: TLSSocket) {
    super(socket, SPOKEN);
  }

  /** A client with a valid certificate. */
  static async dial(
    to: Endpoint,
    credentials: Credentials,
    more: ConnectionOptions = {},
  ): Promise<RawStream> {
    return new RawStream(await connectRaw(to, credentials, SPOKEN.protocol, more));
  }
}

/** A server with a valid certificate that sends arbitrary messages. */
export const RawServer = {
  listen(
    credentials: Credentials,
    onLink: (connection: RawStream) => unknown,
  ): Promise<RawListener> {
    const take = (socket: TLSSocket) => onLink(new RawStream(socket));
    return RawListener.listen(credentials, SPOKEN.protocol, take);
  },
};

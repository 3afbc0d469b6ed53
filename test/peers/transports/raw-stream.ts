import type { ConnectionOptions, TLSSocket } from "node:tls";
import type { Credentials, Endpoint } from "../../../src/peers/index.ts";
import {
  type ControlMessage,
  decodeControl,
  encodeControl,
} from "../../../src/peers/transports/stream/index.ts";
import { connectRaw, RawLine, RawListener } from "./raw-line.ts";

const SPOKEN = { protocol: "hearth-stream/1", encode: encodeControl, decode: decodeControl };

/** One end of a stream link's TLS connection that says whatever a test wants. */
export class RawStream extends RawLine<ControlMessage> {
  constructor(socket: TLSSocket) {
    super(socket, SPOKEN);
  }

  /** An asker whose certificate is good. */
  static async dial(
    to: Endpoint,
    credentials: Credentials,
    more: ConnectionOptions = {},
  ): Promise<RawStream> {
    return new RawStream(await connectRaw(to, credentials, SPOKEN.protocol, more));
  }
}

/** A holder with a good certificate that says whatever a test wants. */
export const RawHolder = {
  listen(
    credentials: Credentials,
    onLink: (connection: RawStream) => unknown,
  ): Promise<RawListener> {
    const take = (socket: TLSSocket) => onLink(new RawStream(socket));
    return RawListener.listen(credentials, SPOKEN.protocol, take);
  },
};
